"""All pages in short: their list, and the main table."""

from pathlib import Path

from fedbac_paper.artefacts import ARTEFACTS
from fedbac_paper.overview import index, main_table
from fedbac_paper.pages import progress, tally
from fedbac_paper.results import write_results
from tests.reproduce import invented


def test_the_index_and_the_short_table(tmp_path: Path) -> None:
    write_results(invented.results("table-2"), tmp_path)
    text = index(tmp_path, "reproduce")
    assert "[`table-2`](reproduce/table-2.md)" in text
    assert tally(ARTEFACTS["table-2"].claims(invented.results("table-2"))) in text
    assert text.count("not run yet") == len(ARTEFACTS) - 1
    assert progress(invented.results("table-2")) == "90 runs"
    fewer = invented.without(invented.results("table-2"), "svhn", "ifca-paper", 0)
    assert progress(fewer) == "89 of 90 runs"
    more = invented.results("table-2", seeds=4)
    assert progress(invented.without(more, "svhn", "ifca-paper", 0)) == "90 runs and 29 of further seeds"
    assert progress(invented.results("calibration", seeds=1)) == "77 runs"
    short = main_table(invented.results("table-2"))
    assert "(88.9)" in short, "the paper's 88.85, a half rounded up"
    assert "| hierfavg | 62.0 ± 2.0 (57.5) |" in short
    assert "seeds" not in short
    assert "singletons" not in short
    longer = main_table(invented.results("table-2"), invented.results("beyond")).splitlines()
    assert longer[-2].startswith("| additive, frozen singletons | 82.0 ± 2.0 | 87.0 ± 2.0 |"), "none of the paper's"
    assert longer[-1].startswith("| fedbac-plus | ")
    six = main_table(invented.results("table-2"), invented.results("beyond", seeds=6)).splitlines()
    assert six == longer, "rows over other seeds could not be compared"
    few = main_table(invented.results("table-2", seeds=2))
    assert "† (57.5) |" in few
    assert few.endswith("fewer than 3 seeds so far")
