"""The report's figures: they show the records, repeat, and change nothing else."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation

from fedbac.presets.methods import METHODS
from fedbac.report.canvas import apart
from fedbac.report.figures import figures, save_figures
from fedbac.report.groups import groups
from fedbac.runs.store import StoredRun
from tests.made_up_runs import TOP, fake, with_task


@pytest.fixture(scope="module")
def three() -> list[StoredRun]:
    return [fake(name) for name in TOP]


def thick_lines(figure: Figure) -> list[tuple[str, Any]]:
    return [(to_hex(line.get_color()), line.get_ydata()) for line in figure.axes[0].lines if line.get_linewidth() > 2]


def test_seeds_are_drawn_thin_with_a_bold_mean() -> None:
    runs = [
        fake("hierfavg", seed=0),
        fake("hierfavg", seed=1),
        with_task(fake("hierfavg", seed=2, rounds=8), rounds=12),
    ]
    figure = figures(runs)["accuracy"]
    ((_, mean_T),) = thick_lines(figure)
    expected_T = np.mean([[100 * record["accuracy"] for record in run.records[:8]] for run in runs], axis=0)
    np.testing.assert_allclose(mean_T, expected_T)
    thin = [np.asarray(line.get_ydata()) for line in figure.axes[0].lines if line.get_linewidth() < 1]
    assert [line.size for line in thin] == [12, 12, 8]


def test_figures_show_the_records(three: list[StoredRun]) -> None:
    drawn = figures(three)
    assert list(drawn) == ["accuracy", "clusters", "edges", "bytes", "assignment"]
    lines = dict(thick_lines(drawn["accuracy"]))
    expected_T = [100 * record["accuracy"] for record in three[2].records]
    np.testing.assert_allclose(lines[groups(three)[2].look.colour], expected_T)
    assert [list(line[1])[-1] for line in thick_lines(drawn["clusters"])] == [5, 5, 0]
    assert len(drawn["assignment"].axes) == 2  # hierfavg has one cluster
    words = {text.get_text() for axes in drawn["accuracy"].axes for text in axes.texts}
    assert words == {f"{run.name} {100 * run.records[-1]['accuracy']:.1f} %" for run in three}


def test_one_cluster_has_no_assignment() -> None:
    assert "assignment" not in figures([fake("hierfavg")])


def test_nothing_global_is_changed(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    save_figures([fake("hierfavg", rounds=2)], tmp_path, formats=("svg",))
    assert dict(matplotlib.rcParams) == before


def test_edges_are_ranked_within_a_seed() -> None:
    """Seeds 0 and 1 have the same accuracies at edges of other numbers: the mean of numbers would be flat."""
    runs = [
        fake("hierfavg", seed=0, edges=3, accuracy_per_edge=[0.2, 0.4, 0.9]),
        fake("hierfavg", seed=1, edges=3, accuracy_per_edge=[0.9, 0.4, 0.2]),
    ]
    (axes,) = figures(runs)["edges"].axes
    lines = [line for line in axes.lines if line.get_transform() == axes.transData]
    assert len(lines) == 3
    for line in lines:
        np.testing.assert_allclose(np.asarray(line.get_ydata()), [20, 40, 90])
    assert "hierfavg 20.0 to 90.0 %" in [text.get_text() for text in axes.texts]


def test_nothing_but_data_is_drawn_where_a_short_run_has_ended() -> None:
    """A line to the label across the panel would look like data."""
    runs = [fake("fed-bac", rounds=12), with_task(fake("ifca-edges", rounds=8), rounds=12)]
    (axes,) = figures(runs)["accuracy"].axes
    assert not [text for text in axes.texts if isinstance(text, Annotation)]
    for artist in axes.get_children():
        if isinstance(artist, Line2D) and artist.get_transform() == axes.transAxes:
            assert min(np.asarray(artist.get_xdata())) > 1
    drawn = [line for line in axes.lines if to_hex(line.get_color()) == groups(runs)[1].look.colour]
    assert max(float(np.max(np.asarray(line.get_xdata()))) for line in drawn) == 8


def test_a_method_has_one_colour_whatever_it_is_compared_with() -> None:
    def colours(*names: str) -> dict[str, str]:
        return {group.label: group.look.colour for group in groups([fake(name, rounds=1) for name in names])}

    for name in ("fedfork", "ditto", "oort"):
        alone = colours(name)[name]
        assert colours("hierfavg", "fed-bac", name)[name] == alone
        assert colours(name, "ifca-edges")[name] == alone
    many = colours(*METHODS)
    assert len({look.look.index for look in groups([fake(name, rounds=1) for name in METHODS])}) == len(many)


def test_saved_figures_repeat(three: list[StoredRun], tmp_path: Path) -> None:
    paths = save_figures(three[2:], tmp_path / "a")
    assert {path.name for path in paths} >= {"accuracy.svg", "accuracy.png", "edges.svg", "bytes.png"}
    for path in save_figures(three[2:], tmp_path / "b", formats=("svg",)):
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.2))
def test_labels_never_overlap(wanted: list[float], gap: float) -> None:
    places = apart(np.sort(wanted), gap)
    assert (np.diff(places) >= gap - 1e-9).all()
    assert places[-1] <= max(1.0, gap * (len(wanted) - 1)) + 1e-9
