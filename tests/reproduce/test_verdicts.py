"""The rules of the verdicts, and the claims they are applied to, on numbers with a known answer."""

import pytest

from fedbac.reproduce.artefacts import ARTEFACTS, Cell
from fedbac.reproduce.claims import claims, round_ratios
from fedbac.reproduce.verdicts import Verdict, above, between, every, faster, near, positive
from tests.reproduce import planted

HOLDS, NOT, OPEN, FEW, NEVER = (
    Verdict(word) for word in ("holds", "does not hold", "not clear", "too few seeds", "not run")
)


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([0.02, 0.03, 0.025], "holds"),
        ([-0.02, -0.03, -0.025], "does not hold"),
        ([0.001, 0.05, 0.0001], "not clear"),  # every seed, but not beyond twice the standard error
        ([0.05, 0.05, 0.05, 0.05, 0.05, 0.05, -0.001], "not clear"),  # beyond it, but not in every seed
        ([0.0, 0.0, 0.0], "not clear"),
        ([0.5, 0.5], "too few seeds"),
        ([], "not run"),
    ],
)
def test_a_comparison_needs_every_seed_and_twice_the_standard_error(differences: list[float], word: str) -> None:
    assert positive(differences).word == word


def test_only_seeds_that_both_have_are_compared() -> None:
    assert above({0: 0.9, 1: 0.9, 2: 0.91, 3: 0.1}, {0: 0.8, 1: 0.8, 2: 0.8, 4: 1.0}).word == "holds"
    assert above({0: 0.9}, {1: 0.8}).word == "not run"


def test_printed_numbers_and_ranges() -> None:
    assert near([440, 450, 460], 447).word == "holds"
    assert near([880, 886, 890], 447).word == "does not hold"
    assert near([100, 400, 900], 447).word == "holds", "within two standard errors"
    assert between([1.6, 1.7, 1.65], 1.5, 1.9).word == "holds"
    assert between([2.9, 3.0, 3.1], 1.5, 1.9).word == "does not hold"
    assert near([447, 447], 447).word == "too few seeds"


def test_ratios_are_judged_as_logarithms() -> None:
    assert faster([2.0, 2.5, 2.2]).word == "holds"
    assert faster([0.5, 0.4, 0.45]).word == "does not hold"
    assert faster([4.0, 4.0, 4.0]).detail == "4.00 times"


def test_a_claim_about_several_settings() -> None:
    assert every({"a": HOLDS, "b": HOLDS}).word == "holds"
    assert every({"a": HOLDS, "b": OPEN}).word == "not clear"
    assert every({"a": HOLDS, "b": NEVER}).word == "not clear", "a setting that was not run leaves the claim open"
    assert every({"a": HOLDS, "b": FEW}).word == "too few seeds"
    assert every({"a": NOT, "b": FEW, "c": NEVER}).word == "does not hold"
    assert every({"a": NEVER}).word == "not run"
    many = {str(i): HOLDS for i in range(9)} | {"x": OPEN}
    assert every(many).detail == "holds in 9 of 10; x: not clear"


def words(name: str, accuracy: planted.Accuracy = planted.steady) -> dict[str, str]:
    return {claim.text: claim.verdict.word for claim in claims(planted.results(name, accuracy))}


def test_the_papers_order_is_recognized_and_its_opposite_too() -> None:
    assert set(words("table-2").values()) == {"holds"}

    def upside_down(cell: Cell, seed: int) -> float:
        return 1 - planted.steady(cell, seed)

    assert set(words("table-2", upside_down).values()) == {"does not hold"}


def test_one_setting_against_the_claim_breaks_it() -> None:
    def but_one(cell: Cell, seed: int) -> float:
        low = (cell.task, cell.variant) == ("svhn", "paper-text")
        return 0.3 + 0.01 * seed if low else planted.steady(cell, seed)

    found = words("table-2", but_one)
    assert found["paper-text is above IFCA in all six settings"] == "does not hold"
    assert found["paper-figures is above IFCA in all six settings"] == "holds"


def test_claims_of_the_other_artefacts_follow_the_planted_numbers() -> None:
    assert words("capacity")["width makes up for less than half of the gap to fed-bac"] == "holds"
    assert words("table-scaling")["paper-figures is above hierfavg at round 20"] == "holds"
    fair = words("table-fairness")
    assert fair["fed-bac has a smaller σ over edges than ifca in all six settings"] == "holds"
    moves = words("figure-dynamics")
    assert moves["paper-text: the number of reassignments is the paper's"] == "does not hold"
    assert moves["paper-text: the number of active clusters at the end is the paper's"] == "holds"
    assert moves["paper-text: there are more reassignments in the first half than in the second"] == "holds"
    sent = words("communication")
    goal = "fed-bac reaches 50% on CIFAR-10, α = 0.5 with"
    counted = "(training between clients and edges)"
    assert sent[f"{goal} fewer bytes than HierFAVG {counted}"] == "holds"
    assert sent[f"{goal} 3 times fewer bytes than HierFAVG {counted}"] == "does not hold"
    assert words("ablation")["the bandit's assignment is better than frozen singletons"] == "not clear"
    assert words("table-selection")["fed-bac: Thompson sampling is more accurate than random clients"] == "not clear"


def test_ratios_of_rounds_to_a_target() -> None:
    """At 60 % and 80 % after 100 of 200 rounds; who never gets there counts as one round too late."""
    found = planted.results("figure-convergence", lambda cell, _: 0.6 if cell.method == "hierfavg" else 0.8)
    ratios = {target: round_ratios(found, "cifar10", target, "hierfavg", "fed-bac") for target in ("0.5", "0.7")}
    assert ratios["0.5"] == dict.fromkeys(range(3), 84 / 63)
    assert ratios["0.7"] == dict.fromkeys(range(3), 201 / 88)
    assert round_ratios(found, "svhn", "0.85", "hierfavg", "fed-bac") == {}, "nobody gets there"


@pytest.mark.parametrize("name", [name for name in ARTEFACTS if name != "calibration"])
def test_without_enough_seeds_nothing_is_claimed(name: str) -> None:
    for seeds, allowed in ((0, {"not run"}), (2, {"too few seeds", "not clear"})):
        judged = claims(planted.results(name, seeds=seeds))
        assert judged
        assert {claim.verdict.word for claim in judged} <= allowed
