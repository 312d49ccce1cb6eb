"""Claims are known by their ids: unique, well formed, the same whatever was run, and there wherever one is named."""

import re

from fedbac_paper.artefacts import ARTEFACTS
from fedbac_paper.claims import Claim
from fedbac_paper.results import Results
from tests.reproduce import invented


def claims_of(results: Results) -> list[Claim]:
    return ARTEFACTS[results.artefact].claims(results)


CLAIMS = {name: claims_of(Results(artefact=name)) for name in ARTEFACTS}
BY_ID = {claim.id: claim for claims in CLAIMS.values() for claim in claims}


def test_ids_are_unique_in_the_whole_study() -> None:
    assert len(BY_ID) == sum(len(claims) for claims in CLAIMS.values())


def test_ids_are_in_kebab_case_and_begin_with_the_artefact() -> None:
    for name, claims in CLAIMS.items():
        for claim in claims:
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", claim.id), claim.id
            assert claim.id.startswith(f"{name}-"), claim.id


def test_what_was_run_changes_verdicts_only() -> None:
    for name, claims in CLAIMS.items():
        said = [(claim.id, claim.text) for claim in claims]
        assert [(claim.id, claim.text) for claim in claims_of(invented.results(name))] == said


def test_a_text_names_its_subject_and_nothing_is_left_to_fill_in() -> None:
    for claim in BY_ID.values():
        assert "{}" not in claim.text
        assert claim.subject in claim.text or claim.id == "figure-dynamics-clusters-ifca-paper", claim.id
