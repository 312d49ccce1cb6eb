"""Colours of figures and of the page, where they are variables with a lighter shade for dark mode."""

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
    ("region", "train"): ("#1d6b5c", "#2f9c87"),
    ("region", "evaluate"): ("#7fbcae", "#86cbbb"),
    ("region", "control"): ("#cfe6e0", "#d6efe8"),
    ("country", "train"): ("#8f3f5f", "#c2668a"),
    ("country", "evaluate"): ("#cf94ad", "#dda6bd"),
    ("country", "control"): ("#ecd5de", "#f3dee7"),
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
        dash = DASHES[index // len(SERIES) % len(DASHES)]
        return cls(index, SERIES[index % len(SERIES)][0], MARKERS[index % len(MARKERS)], dash)

    @property
    def css(self) -> str:
        """The page's variable for the colour."""
        return f"var({_VARIABLES[self.colour][0]})"


_VARIABLES = {
    INK: ("--ink", "#e8ebf0"),
    MUTED: ("--muted", "#9ba6b4"),
    GRID: ("--grid", "#2c343f"),
    SURFACE: ("--surface", "#171c23"),
    **{light: (f"--s{i}", dark) for i, (light, dark) in enumerate(SERIES)},
    **{light: (f"--{tier}-{purpose}", dark) for (tier, purpose), (light, dark) in TRAFFIC.items()},
}
"""Light colour → (variable, dark colour)."""


def variables() -> str:
    """Return the page's colours as CSS, for light and dark."""
    light = "".join(f"{name}:{colour};" for colour, (name, _) in _VARIABLES.items())
    dark = "".join(f"{name}:{colour};" for name, colour in _VARIABLES.values())
    clusters = "".join(f"--c{i}:{colour};" for i, colour in enumerate(CLUSTERS))
    return (
        f":root{{color-scheme:light dark;{light}{clusters}"
        "--page:#f5f6f8;--wash:#eef4fa;--warn:#8a3b00;--warn-wash:#fff1e5;--heat:#0b4f7d;--cold:#e9eff5;}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}"
        "--page:#0e1217;--wash:#1b2733;--warn:#ffb27a;--warn-wash:#33210f;--heat:#7cc4ff;--cold:#1d2530;}}\n"
    )
