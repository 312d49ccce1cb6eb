"""A browser, and a tab of it that notes what goes wrong."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; make browser installs it")


@dataclass
class Tab:
    """A page, and what went wrong or was asked for while it was open."""

    page: Page
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, address: str) -> Page:
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        return self.page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(20_000)
    yield Tab(page)
    page.close()
