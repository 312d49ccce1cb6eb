"""Take the screenshots of the documentation from the runs of a comparison: python tools/make_screenshots.py FOLDER.

Beside the pictures it writes by which files they were made; a test says when these have changed since.
"""

import argparse
import hashlib
import io
import json
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from fedbac.cli.reporting import run_folders
from fedbac.report import write_report
from fedbac.report.beside import page_beside

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
MADE_BY = IMAGES / "screenshots.json"
REPORT = ROOT / "src" / "fedbac" / "report"
MOST_BYTES = 150_000
MARGIN = 16
"""Pixels around what a picture shows."""


def main() -> None:
    """Take all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no Chromium here; make browser installs it")
    runs = [place.read() for place in run_folders([folder])]
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        report = write_report(runs, Path(scratch) / "report.html").as_uri()
        page = opened(browser, report, 1120)
        save(page, "report-methods.png", "#figures > h2", "#figure-fairness")
        page.locator("#round").fill("12")
        save(page, "report-run.png", "#choice", "#figure-mix")
        page = opened(browser, report, 400, dark=True)
        save(page, "report-small.png", "#figures > h2", "#figure-accuracy")
        with page_beside(folder) as address:
            page = opened(browser, address, 1120)
            save(page, "watch.png", "#live", "#figure-accuracy")
            page.close()
        browser.close()
    MADE_BY.write_text(json.dumps(made_by(), indent=1) + "\n", encoding="utf-8")


def made_by() -> dict[str, str]:
    """Return the files that decide how the page looks, each with its hash."""
    files = [*sorted((REPORT / "static").iterdir()), REPORT / "page.py", REPORT / "sections.py", REPORT / "theme.py"]
    return {str(file.relative_to(REPORT)): hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files}


def changed() -> list[str]:
    """Return the files that are others than when the screenshots were taken."""
    then, now = json.loads(MADE_BY.read_text(encoding="utf-8")), made_by()
    return sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))


def opened(browser: Browser, address: str, width: int, dark: bool = False) -> Page:
    """Return a page with its figures drawn."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    page.goto(address)
    page.locator("#figure-accuracy svg path").first.wait_for()
    return page


def save(page: Page, name: str, first: str, last: str) -> None:
    """Write a picture of the page from one element to another."""
    top, bottom = (page.locator(selector).bounding_box() for selector in (first, last))
    assert top is not None
    assert bottom is not None
    width, scrolled = page.evaluate("[innerWidth, scrollY]")
    start, end = top["y"] + scrolled - MARGIN, bottom["y"] + bottom["height"] + scrolled + MARGIN
    path = IMAGES / name
    shot = page.screenshot(full_page=True, clip={"x": 0, "y": start, "width": width, "height": end - start})
    picture = Image.open(io.BytesIO(shot)).convert("RGB")
    picture.quantize(256, kmeans=3, dither=Image.Dither.NONE).save(path, optimize=True)  # a third of the size
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"{path}: larger than {MOST_BYTES:,} bytes; show less")


if __name__ == "__main__":
    main()
