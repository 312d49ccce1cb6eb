"""Colours, and the page's style sheet. Figures are drawn in the light colours; the page swaps them for variables."""

from dataclasses import dataclass

INK, MUTED, GRID, SURFACE = "#1c2430", "#5d6877", "#e2e6eb", "#fffffe"
ON_COLOUR = "#10151c"
"""Text on a coloured cell, the same in both modes."""

# Okabe and Ito's colours, which colour-blind readers can tell apart, and a lighter one of each for dark pages.
SERIES = (
    ("#0072b2", "#459fe0"),
    ("#d55e00", "#ff8b4d"),
    ("#009e73", "#2fc59b"),
    ("#cc79a7", "#e6a3c8"),
    ("#e69f00", "#f3bd4d"),
    ("#56b4e9", "#a5dbfa"),
    ("#4f5661", "#c3c9d2"),
    ("#8c5a2b", "#c99c70"),
)
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "h")
DASHES = ("-", "--", ":", "-.")

TRAFFIC = {
    ("client", "train"): ("#5b4b9a", "#8676d0"),
    ("client", "evaluate"): ("#a79fd3", "#b9b0e8"),
    ("client", "control"): ("#d7d3ec", "#dedaf5"),
    ("cloud", "train"): ("#8a6410", "#b98a24"),
    ("cloud", "evaluate"): ("#d9b24a", "#e3bf5f"),
    ("cloud", "control"): ("#efdfae", "#f3e6bd"),
}
# Paul Tol's light scheme, made for coloured cells with dark text.
CLUSTERS = ("#77aadd", "#ee8866", "#44bb99", "#eedd88", "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00", "#d0d0d4")


@dataclass(frozen=True)
class Look:
    """How one group of runs is drawn, everywhere."""

    index: int
    colour: str
    marker: str
    dash: str

    @classmethod
    def at(cls, index: int) -> "Look":
        """Return the look with this number."""
        return cls(
            index=index,
            colour=SERIES[index % len(SERIES)][0],
            marker=MARKERS[index % len(MARKERS)],
            dash=DASHES[index // len(SERIES) % len(DASHES)],
        )

    @property
    def css(self) -> str:
        """The page's variable for the colour."""
        return f"var({_VARIABLES[self.colour][0]})"


def _variables() -> dict[str, tuple[str, str]]:
    """Return light colour → (variable, dark colour)."""
    table = {
        INK: ("--ink", "#e8ebf0"),
        MUTED: ("--muted", "#9ba6b4"),
        GRID: ("--grid", "#2c343f"),
        SURFACE: ("--surface", "#171c23"),
    }
    table |= {light: (f"--s{i}", dark) for i, (light, dark) in enumerate(SERIES)}
    return table | {light: (f"--{tier}-{purpose}", dark) for (tier, purpose), (light, dark) in TRAFFIC.items()}


_VARIABLES = _variables()
SWAPS = {light: f"var({name})" for light, (name, _) in _VARIABLES.items()}
"""Colour in a figure → what stands for it in the page."""


def style_sheet() -> str:
    """Return the page's CSS, with its variables for light and dark."""
    light = "".join(f"{name}:{colour};" for colour, (name, _) in _VARIABLES.items())
    dark = "".join(f"{name}:{colour};" for name, colour in _VARIABLES.values())
    return (
        f":root{{color-scheme:light dark;{light}--page:#f5f6f8;--wash:#eef4fa;--warn:#8a3b00;--warn-wash:#fff1e5;}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}"
        f"--page:#0e1217;--wash:#1b2733;--warn:#ffb27a;--warn-wash:#33210f;}}}}\n" + _RULES
    )


_RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
 font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1120px;margin:0 auto;padding:2.5rem 1.25rem 4rem}
header{margin-bottom:1.75rem}
h1{font-size:1rem;font-weight:600;color:var(--muted);margin:0 0 .5rem;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.75rem 0 .75rem}
h3{font-size:1rem;margin:0 0 .15rem}
p{margin:.4rem 0;max-width:75ch}
.lead{font-size:1.55rem;line-height:1.35;font-weight:600;letter-spacing:-.01em;text-wrap:balance;max-width:52ch;
 overflow-wrap:anywhere}
.note{color:var(--muted);font-size:.92rem;max-width:none}
.warn{color:var(--warn);background:var(--warn-wash);border-left:4px solid;border-radius:4px;padding:.5rem .8rem;
 font-weight:600;max-width:none}
.card,figure{background:var(--surface);border:1px solid var(--grid);border-radius:10px;margin:0 0 1.25rem;
 padding:1.1rem 1.25rem}
.scroll{overflow-x:auto}
.scroll:focus-visible{outline:2px solid var(--s0)}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.42rem .55rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
thead th{color:var(--muted);font-weight:600;font-size:.8rem;vertical-align:bottom;white-space:normal;line-height:1.25}
th:first-child,td:first-child{text-align:left;padding-left:.35rem}
tbody th{font-weight:500}
.ledger th:nth-child(-n+3),.ledger td:nth-child(-n+3){text-align:left}
tbody tr:last-child>*{border-bottom:0}
tr.best>*{background:var(--wash)}tr.best>:nth-child(-n+2){font-weight:700}
tr.total>*{font-weight:700;border-top:2px solid var(--grid)}
tr.tier>*{border-top:2px solid var(--grid)}
tbody tr.tier:first-child>*{border-top:0}
.swatch{display:inline-block;width:.75em;height:.75em;border-radius:2px;margin-right:.5em}
figcaption{margin-bottom:.6rem}
figcaption p{color:var(--muted);font-size:.92rem;margin:0;max-width:none}
figure svg{display:block;width:100%;min-width:620px;height:auto}
figure svg *{stroke-linejoin:round;stroke-linecap:butt}
figure svg text{font-family:inherit!important;font-variant-numeric:tabular-nums}
.runs{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr));gap:1.25rem;margin:1rem 0}
.runs .card{margin:0}
dl{display:grid;grid-template-columns:auto 1fr;gap:.2rem 1rem;margin:.5rem 0 0;font-size:.92rem}
dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
dl+.warn{margin:.75rem 0 0;font-size:.92rem}
details{border-top:1px solid var(--grid);padding:.55rem 0}
details:first-child{border-top:0}
summary{cursor:pointer;font-weight:500;overflow-wrap:anywhere}
pre{overflow-x:auto;font:.82rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
footer{color:var(--muted);font-size:.85rem;margin-top:2.5rem}
@media print{body{background:none}figure,.card{break-inside:avoid}}
"""
