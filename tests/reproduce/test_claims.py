"""The claims, on planted results with a known answer: that hold, fail, are open, or never get there."""

from collections.abc import Callable

import pytest

from fedbac_paper.artefacts import ARTEFACTS, SINGLETONS, SIX, Cell
from fedbac_paper.claims import bound, byte_ratios, claims, round_ratios
from fedbac_paper.own_claims import HELD_OUT, RIVALS, matches_the_best
from fedbac_paper.paper import READINGS, look_up, printed_as, rounds_to
from fedbac_paper.results import Bytes, Finding, Results, Target
from tests.reproduce import planted

NOISE = (-0.002, 0.0, 0.002)


def words(results: Results) -> dict[str, str]:
    return {claim.text: claim.verdict.word for claim in claims(results)}


def evidence(results: Results, part: str) -> str:
    (detail,) = [claim.verdict.detail for claim in claims(results) if part in claim.text]
    return detail


def hand_made(artefact: str, cells: dict[tuple[str, str], float], seeds: int = 3) -> Results:
    """Results of cells that need not be in the artefact, each at an accuracy of its own."""
    findings = [
        planted.finding(Cell(task, variant, variant), seed, level + (0.01 * seed) + noise)
        for i, ((task, variant), level) in enumerate(cells.items())
        for seed in range(seeds)
        for noise in [NOISE[(seed + i) % 3] / 10]
    ]
    return Results(artefact=artefact, findings=tuple(findings))


def changed(results: Results, change: Callable[[Finding], dict[str, object]]) -> Results:
    return results.model_copy(
        update={"findings": tuple(found.model_copy(update=change(found)) for found in results.findings)}
    )


def as_printed(cell: Cell, seed: int) -> float:
    """The paper's own accuracies, with a little noise of the seed."""
    return float(look_up("accuracy", cell.task, printed_as(cell.variant))) / 100 + NOISE[seed % 3] / 20


def test_the_papers_own_numbers_satisfy_what_they_satisfy() -> None:
    """Fed the paper's Table II, every sentence about it holds but that the lead over IFCA grows (C.36)."""
    for name in ("table-2", "capacity"):
        found = words(planted.results(name, as_printed))
        wrong = {text for text, word in found.items() if word != "holds"}
        assert wrong == {text for text in found if "over IFCA increases with heterogeneity" in text}
    for reading in READINGS:
        part = f"the advantage of {reading} over IFCA increases"
        assert "own Table II: +8.4 → +7.8 on CIFAR-10" in evidence(planted.results("table-2", as_printed), part)


def test_the_opposite_of_the_papers_order_is_recognized() -> None:
    found = words(planted.results("table-2", lambda cell, seed: 1 - as_printed(cell, seed)))
    in_all = {text: word for text, word in found.items() if "in all six settings" in text}
    assert set(in_all.values()) == {"does not hold"}


def test_one_setting_against_the_claim_breaks_it() -> None:
    def but_one(cell: Cell, seed: int) -> float:
        low = (cell.task, cell.variant) == ("svhn", "paper-text")
        return 0.3 + 0.01 * seed if low else as_printed(cell, seed)

    found = words(planted.results("table-2", but_one))
    assert found["paper-text is above IFCA in all six settings"] == "does not hold"
    assert found["paper-figures is above IFCA in all six settings"] == "holds"


def test_fairness_as_printed() -> None:
    """Fed the paper's Table IV, every sentence holds but "improving cross-server fairness" in all six (C.36)."""

    def printed(found: Finding) -> dict[str, object]:
        own = look_up("fairness", found.task, printed_as(found.variant))
        noise = NOISE[found.seed] / 100
        return {"edge_min": own["min"] / 100 + noise, "edge_std": own["sigma"] / 100 + noise}

    results = changed(planted.results("table-fairness", as_printed), printed)
    wrong = {text: word for text, word in words(results).items() if word != "holds"}
    assert set(wrong.values()) == {"does not hold"}
    assert len(wrong) == len(READINGS)
    assert all("improving cross-server fairness" in text for text in wrong)
    assert "2.78 against HierFAVG's 2.10 on CIFAR-10, α = 0.5" in evidence(results, "fairness”: fed-bac")


def test_scaling_compares_with_the_smaller_scale() -> None:
    cells = {
        (task, variant): look_up("accuracy", task, printed_as(variant)) / 100
        for task in ("cifar10-500", "cifar10")
        for variant in ("hierfavg", "ifca", *READINGS)
    }
    found = words(hand_made("table-scaling", cells))
    assert set(found.values()) == {"holds"}
    cells |= {("cifar10-500", "fed-bac"): 0.60, ("cifar10-500", "hierfavg"): 0.61}
    found = words(hand_made("table-scaling", cells))
    assert found["fed-bac “retains its lead on distributed accuracy”"] == "does not hold"
    assert found["the margin of fed-bac over IFCA “compresses” against that at N = 100"] == "does not hold"


# ------------------------------------------------------------------------------------------------------- on the way


def reaching(found: Finding) -> dict[str, object]:
    """The rounds of the paper's curves, and bytes in proportion: 1.6 times as many for Fed-BAC."""
    cost = 8 if found.variant in READINGS else 5
    targets = {}
    for target in found.targets:
        at = rounds_to(found.task, printed_as(found.variant), float(target))
        sent = None if at is None else Bytes(client_train=round(at) * cost, train=1, everything=1)
        targets[target] = Target(round=None if at is None else round(at), bytes=sent)
    whole = Bytes(client_train=found.rounds * cost, train=1, everything=1)
    return {"targets": targets, "bytes": whole}


def test_rounds_as_in_the_papers_curves() -> None:
    """Its own curves contradict one of its sentences, that of 1.5 to 4.8 times."""
    results = changed(planted.results("figure-convergence", as_printed), reaching)
    found = words(results)
    for reading in READINGS:
        ranged = f"{reading} converges “1.5–4.8× faster depending on dataset and accuracy target” than HierFAVG"
        assert found.pop(ranged) == "does not hold"
        assert "9.15 (CIFAR-10, α = 0.1, 40%)" in evidence(results, ranged)
        found.pop(
            f"{reading} “overtakes IFCA after approximately 60 rounds” there"
        )  # of curves, which are straight here
    assert set(found.values()) == {"holds"}


def test_a_target_that_a_reading_never_reaches_is_not_dropped() -> None:
    def stuck(found: Finding) -> dict[str, object]:
        update = reaching(found)
        if (found.task, found.variant) == ("cifar10", "paper-text"):
            update["targets"] = {key: Target(round=None, bytes=None) for key in found.targets}
        return update

    found = words(changed(planted.results("figure-convergence", as_printed), stuck))
    assert found["paper-text reaches every target in fewer rounds than HierFAVG"] == "does not hold"
    assert found["paper-text reaches 50% on CIFAR-10, α = 0.5 4.8× faster than HierFAVG"] == "does not hold"
    assert found["fed-bac reaches every target in fewer rounds than HierFAVG"] == "holds"
    few = changed(planted.results("figure-convergence", as_printed, seeds=2), stuck)
    assert words(few)["paper-text reaches every target in fewer rounds than HierFAVG"] == "too few seeds"


def test_a_target_that_nobody_reaches_is_not_dropped() -> None:
    """The paper's Fed-BAC reaches 70 % on CIFAR-10."""

    def low(found: Finding) -> dict[str, object]:
        targets = {key: one for key, one in found.targets.items() if key != "0.7"}
        return {"targets": targets | {"0.7": Target(round=None, bytes=None)}} if found.task == "cifar10" else {}

    results = changed(changed(planted.results("figure-convergence", as_printed), reaching), low)
    assert words(results)["fed-bac reaches every target in fewer rounds than HierFAVG"] == "does not hold"
    told = "CIFAR-10, α = 0.5, 70%: does not hold (never reached, in the paper in round 71)"
    assert told in evidence(results, "fed-bac reaches every target")


@pytest.mark.parametrize("name", ["figure-convergence", "communication"])
def test_a_pass_with_other_targets_has_no_verdict_on_these(name: str) -> None:
    other = changed(planted.results(name), lambda _: {"targets": {"0.99": Target(round=None, bytes=None)}})
    found = words(other)
    assert {word for text, word in found.items() if "HierFAVG" in text and "faster" in text} <= {"not run"}
    assert found


def test_overtaking() -> None:
    """IFCA climbs fast and stops, Fed-BAC climbs on: they cross where the planted curves do."""

    def crossing(found: Finding) -> dict[str, object]:
        assert found.curve is not None
        kept = tuple(range(1, found.rounds + 1))
        if found.variant == "ifca":
            height = tuple(0.7 for _ in kept)
        else:
            height = tuple(0.7 + 0.001 * (at - 60 + found.seed) for at in kept)
        curve = {"round": kept, "accuracy": height, "moves": kept, "active_clusters": kept}
        return {"curve": found.curve.model_copy(update=curve)}

    results = changed(planted.results("figure-convergence"), crossing)
    assert words(results)["fed-bac “overtakes IFCA after approximately 60 rounds” there"] == "holds"
    assert evidence(results, "fed-bac “overtakes").startswith("60.0 ± 0.58")
    ahead = planted.results("figure-convergence")
    assert evidence(ahead, "fed-bac “overtakes").startswith("1.00"), "above from the first round on"
    behind = planted.results("figure-convergence", lambda cell, seed: 1 - planted.steady(cell, seed))
    assert evidence(behind, "fed-bac “overtakes").startswith("101"), "never, in 100 rounds"


def test_bytes_as_in_the_papers_curves() -> None:
    results = changed(planted.results("communication", as_printed), reaching)
    found = words(results)
    for reading in READINGS:
        assert (
            found[f"{reading} costs 1.6 times HierFAVG's bytes per round (training between clients and edges)"]
            == "holds"
        )
        (at_40,) = [text for text in found if text.startswith(f"{reading} reaches 40%")]
        assert "inferred" in at_40
        assert found[at_40] == "holds"
        pays = f"{reading}: “convergence speedups more than compensate for the doubled model payload”"
        assert "0.71 (Fashion-MNIST, α = 0.5, 70%)" in evidence(results, pays)
        assert found[f"{pays} (training between clients and edges)"] == "does not hold"


def test_ratios_to_a_target() -> None:
    """At 60 % and 80 % after 100 of 200 rounds; who never gets there counts as one round too late."""
    found = planted.results("figure-convergence", lambda cell, _: 0.6 if cell.method == "hierfavg" else 0.8)
    ratios = {target: round_ratios(found, "cifar10", target, "hierfavg", "fed-bac") for target in ("0.5", "0.7")}
    assert ratios["0.5"] == dict.fromkeys(range(3), 84 / 63)
    assert ratios["0.7"] == dict.fromkeys(range(3), 201 / 88)
    assert round_ratios(found, "svhn", "0.85", "hierfavg", "fed-bac") == {}, "nobody gets there"
    assert bound(found, "cifar10", "0.5", "hierfavg", "fed-bac") == ""
    assert bound(found, "cifar10", "0.7", "hierfavg", "fed-bac") == ">"
    assert bound(found, "cifar10", "0.7", "fed-bac", "hierfavg") == "<"


def test_who_never_gets_there_never_saves_bytes() -> None:
    found = planted.results("communication", lambda cell, _: 0.6 if cell.method == "hierfavg" else 0.8)
    count: Callable[[Bytes], int] = lambda sent: sent.client_train  # noqa: E731

    def ratio(results: Results, other: str, variant: str) -> float:
        return byte_ratios(results, "cifar10", "0.7", other, variant, count)[0]

    assert ratio(found, "hierfavg", "fed-bac") == pytest.approx(200 / 88), "the whole run of HierFAVG"
    assert ratio(found, "fed-bac", "hierfavg") == pytest.approx(88 / 200)

    def cheap(one: Finding) -> dict[str, object]:
        return {"bytes": Bytes(client_train=1, train=1, everything=1)} if one.variant == "hierfavg" else {}

    assert ratio(changed(found, cheap), "hierfavg", "fed-bac") == 1, "cheap, but it never gets there"
    assert byte_ratios(found, "svhn", "0.85", "hierfavg", "fed-bac", count) == {}


# ---------------------------------------------------------------------------------------------------------- dynamics


def with_moves(results: Results, first: int, second: int) -> Results:
    def moving(found: Finding) -> dict[str, object]:
        assert found.curve is not None
        rounds = (1, found.rounds // 2, found.rounds)
        curve = {"round": rounds, "moves": (0, first, first + second)}
        return {"moves": first + second, "curve": found.curve.model_copy(update=curve)}

    return changed(results, moving)


def test_halves_are_compared_per_decision() -> None:
    """With period 20, 150 rounds are three decisions and four: as many moves in both is calming down."""
    results = with_moves(planted.results("figure-dynamics"), 12, 12)
    part = "paper-text “reassigns actively in early rounds and stabilizes”"
    assert "SVHN: holds (+1.00 ± 0.00 moves per decision)" in evidence(results, part)
    assert "CIFAR-10: not clear" in evidence(results, part)
    assert set(_calm(with_moves(results, 30, 2)).values()) == {"holds"}
    assert set(_calm(with_moves(results, 2, 30)).values()) == {"does not hold"}
    uneven = changed(results, lambda found: {"curve": None})
    assert set(_calm(uneven).values()) == {"not run"}


def _calm(results: Results) -> dict[str, str]:
    return {text: word for text, word in words(results).items() if "stabilizes”: more" in text}


def test_clusters_as_the_text_says_them() -> None:
    results = planted.results("figure-dynamics")  # 8 clusters everywhere
    found = words(results)
    text = "fed-bac “discovers 7–8 active clusters” on Fashion-MNIST and “stabilizes at ≈ 8” on the others"
    assert found[text] == "holds"
    assert found["IFCA has “static 3” clusters on Fashion-MNIST"] == "does not hold"
    assert "5 → 4.7 clusters; 3 is its number of moves (C.32)" in evidence(results, "static 3")
    assert found["paper-text: the number of reassignments is that of the figures"] == "does not hold"


# ------------------------------------------------------------------------------------------------------ our questions


def test_a_policy_is_held_against_the_best_rival_of_each_setting() -> None:
    cells = {(task, rival): 0.7 for task in SIX for rival in RIVALS}
    cells |= {(SIX[0], SINGLETONS): 0.8, (SIX[1], "ifca"): 0.85}

    def judged(plus: dict[str, float], left_out: str = "") -> str:
        all_cells = cells | {(task, "fedbac-plus"): level for task, level in plus.items()}
        kept = {key: level for key, level in all_cells.items() if key[1] != left_out}
        return next(iter(words(hand_made("beyond", kept)).values()))

    matched = dict.fromkeys(SIX, 0.7) | {SIX[0]: 0.8, SIX[1]: 0.85}
    assert judged(matched) == "holds"
    assert judged(matched | {SIX[1]: 0.8}) == "does not hold", "as good as the best of another setting"
    assert judged(matched | {SIX[1]: 0.8}, left_out="paper-text") == "not run", "the best of some is not the best"
    some = cells | {(SIX[0], "fedbac-plus"): 0.8}
    detail = claims(hand_made("beyond", some))[0].verdict.detail
    assert "best rival additive, frozen singletons: holds" in detail


def test_seeds_that_nothing_was_chosen_by_are_judged_by_themselves() -> None:
    """What is lost there alone is seen, whatever the other seeds say."""
    cells = {(task, name): 0.6 for task in SIX for name in ("fedbac-plus", *RIVALS)}
    held_out = matches_the_best(held_out=True)
    few = words(hand_made("beyond", cells, seeds=HELD_OUT + 2))
    assert (few[matches_the_best()], few[held_out]) == ("holds", "too few seeds")
    whole = hand_made("beyond", cells, seeds=HELD_OUT + 3)
    assert words(whole)[held_out] == "holds"
    lost = changed(
        whole, lambda f: {"accuracy": f.accuracy - 0.02 * (f.variant == "fedbac-plus" and f.seed >= HELD_OUT)}
    )
    assert words(lost)[held_out] == "does not hold"
    kept = changed(
        whole, lambda f: {"accuracy": f.accuracy - 0.02 * (f.variant == "fedbac-plus" and f.seed < HELD_OUT)}
    )
    assert words(kept)[held_out] == "holds"
    assert words(hand_made("beyond", cells))[held_out] == "not run"


def test_planted_groups_and_few_moves() -> None:
    levels = {"fedbac-plus": 0.73, "known groups": 0.73, "singletons": 0.69, "fed-cam": 0.66, "ifca": 0.66}
    cells = {("planted", name): level for name, level in (levels | dict.fromkeys(READINGS, 0.64)).items()}
    results = hand_made("planted", cells)
    calm = words(with_moves(results, 17, 0))
    others = {text: word for text, word in calm.items() if text.startswith("fedbac-plus, ")}
    assert set(others.values()) == {"not run"}
    assert {word for text, word in calm.items() if text not in others} == {"holds"}
    assert words(with_moves(results, 17, 1))["fedbac-plus settles to few moves"] == "not clear"
    for seeds, word in ((3, "not clear"), (8, "holds")):  # one late move in one of so many seeds
        many = hand_made("planted", cells, seeds=seeds)
        pairs = zip(with_moves(many, 16, 1).findings, with_moves(many, 16, 0).findings, strict=True)
        mixed = many.model_copy(update={"findings": tuple(late if late.seed == 0 else calm for late, calm in pairs)})
        assert words(mixed)["fedbac-plus settles to few moves"] == word
    assert words(with_moves(results, 17, 2))["fedbac-plus settles to few moves"] == "does not hold"
    assert words(with_moves(results, 30, 0))["fedbac-plus settles to few moves"] == "does not hold"
    worse = words(hand_made("planted", cells | {("planted", "fedbac-plus"): 0.68}))
    assert worse["fedbac-plus is above singletons, where edges share distributions"] == "does not hold"
    assert worse["fedbac-plus is not worse than with the groups known"] == "does not hold"


def test_noisy_clients() -> None:
    levels = {"fedbac-plus": 0.75, "credit_thompson": 0.74, "thompson": 0.72, "random": 0.68}
    cells = {("noisy", name): level for name, level in levels.items()}
    assert set(words(hand_made("noisy", cells)).values()) == {"holds"}
    assert set(words(hand_made("noisy", cells, seeds=2)).values()) == {"too few seeds"}
    cells["noisy", "thompson"] = 0.745
    found = words(hand_made("noisy", cells))
    assert found.pop("with noisy clients, p = 0.3, credit is above the paper's Thompson sampling") == "does not hold"
    assert [*found.values()] == ["holds"] * 3


def test_which_part_does_the_work() -> None:
    isolated = "LinUCB, not additive, twice the weights"
    cells = {
        (task, name): level for task in SIX for name, level in (("fed-bac", 0.7), (SINGLETONS, 0.75), (isolated, 0.6))
    }
    found = words(hand_made("ablation", cells))
    assert found["the cluster bandit of fed-bac is better than frozen singletons"] == "does not hold"
    assert found["without a cluster bandit nothing is lost: singletons are not worse than fed-bac"] == "holds"
    assert found["the additive part helps the bandits at equal capacity"] == "holds"
    assert found["the cluster bandit of paper-text is better than frozen singletons"] == "not run"


def test_selection_follows_the_planted_numbers() -> None:
    found = words(
        planted.results("table-selection", lambda cell, seed: 0.8 - 0.1 * ("random" in cell.variant) + seed / 100)
    )
    assert set(found.values()) == {"holds"}, "the planted σ falls with accuracy"
    assert "+2.76 with spreads of 2.44 and 1.03 on CIFAR-10" in evidence(
        planted.results("table-selection"), "fed-bac: Thompson sampling is more accurate"
    )


@pytest.mark.parametrize("name", [name for name in ARTEFACTS if name != "calibration"])
def test_without_enough_seeds_nothing_is_claimed(name: str) -> None:
    for seeds, allowed in ((0, {"not run"}), (2, {"too few seeds", "not run"})):
        judged = claims(planted.results(name, seeds=seeds))
        assert judged
        assert {claim.verdict.word for claim in judged} <= allowed
