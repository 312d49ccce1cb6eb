"""Everybody works under the same charter, and nobody learns from it what others hold."""

import json
import re
import struct
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbac.deploy.protocol.charter import Holding, read_charter
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.messages import sent
from fedbac.deploy.protocol.wire import WireError
from fedbac.deploy.roles.enrolment import Enrolled, stored
from fedbac.runs.play import finish
from tests.covering import first
from tests.deploy.in_memory import Answer, MemoryFederation
from tests.deploy.small import FIRST, Small, begun, small
from tests.support import without

PRIMES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087, 1091, 1093, 1097, 1103)
"""Numbers of examples that nothing else in a message has."""


def telltale(run: Small) -> Small:
    """Return a run in which every site holds a number of examples like no other's, of each split."""
    counts = iter(PRIMES)
    sites: dict[str, Any] = {}
    for name, arrays in run.sites.items():
        sites[name] = {}
        for split in sorted({array.partition("_")[2] for array in arrays}):
            count = next(counts)
            for letter in "xy":
                array = arrays[f"{letter}_{split}"]
                sites[name][f"{letter}_{split}"] = np.resize(array, (count, *array.shape[1:]))
    return replace(run, sites=sites)


def overheard(federation: MemoryFederation) -> dict[str, list[bytes]]:
    """Return what every site is sent from now on, by its name."""
    heard: dict[str, list[bytes]] = {}

    def listening(name: str, answer: Answer) -> Answer:
        def listen(payload: bytes, gone: threading.Event) -> bytes:
            heard.setdefault(name, []).append(payload)
            return answer(payload, gone)

        return listen

    for links in (federation.cloud, *(federation.children(edge) for edge in federation.edges)):
        links.answers = {name: listening(name, answer) for name, answer in links.answers.items()}
    return heard


def traces(numbers: list[int], hashes: list[str], payload: bytes) -> list[object]:
    """Return which numbers and hashes a message shows: as text, or as bytes of a whole or a floating-point number."""
    shown: list[object] = []
    for number in numbers:
        text = re.search(rb"(?<![0-9a-f.])%d(?![0-9a-f.])" % number, payload)
        if text or struct.pack("<q", number) in payload or struct.pack("<d", number) in payload:
            shown.append(number)
    return shown + [one for one in hashes if one.encode() in payload or bytes.fromhex(one) in payload]


@pytest.mark.parametrize("method", first(2, ["fed-bac", "fedavg", "ditto", "oort", "phe-fl-kd"]))
def test_no_site_is_sent_a_count_or_hash_of_another_site_s_data(tmp_path: Path, method: str) -> None:
    """But an edge those of its clients; nor sums, from which who holds the rest knows one's own."""
    federation = telltale(small(method, rounds=1)).federation(tmp_path)
    heard = overheard(federation)
    enrolled = federation.enrol()
    federation.run(enrolled=enrolled)
    holdings = enrolled.charter.holdings
    assert heard.keys() == federation.sites.keys() - {"cloud"}
    for name, payloads in heard.items():
        own = {other for other in holdings if other == name or other.startswith(f"{name}-")}
        secret = [held for other, held in holdings.items() if other not in own]
        numbers = [count for held in secret for count in (held.train, held.validation, held.test) if count]
        numbers += [sum(held.train for held in holdings.values())]
        numbers += [number * 8 * 8 for number in numbers]
        hashes = [held.fingerprint for held in secret]
        assert len(numbers) > 6
        for payload in payloads:
            assert traces(numbers, hashes, payload) == [], name
        mine = [holdings[other] for other in own]
        assert traces([mine[0].train or mine[0].test], [mine[0].fingerprint], b"".join(payloads)), "or nothing is found"


def test_all_sites_know_the_charter_by_one_hash_that_holds_everybody_s_numbers(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, rounds=1)
    federation.run(enrolled=enrolled)
    ids = {edge.handler.charter.id for edge in federation.edges.values()}
    ids |= {holder.charter.id for holder in federation.shops.values()}
    assert ids == {enrolled.charter.id}
    for name, held in enrolled.charter.holdings.items():
        for change in ({"train": held.train + 1}, {"fingerprint": "0" * 64}, {"salt": "0" * 32}):
            other = held.model_copy(update=change).commitment
            commitments = {**enrolled.charter.commitments, name: other}
            assert replace(enrolled.charter, commitments=commitments).id != enrolled.charter.id


def forged(enrolled: Enrolled, **changes: Any) -> Any:
    """Return the charter with another number of examples of a client, and a commitment that fits."""
    held = enrolled.charter.holdings[FIRST].model_copy(update=changes)
    commitments = {**enrolled.charter.commitments, FIRST: held.commitment}
    return replace(enrolled.charter, holdings={**enrolled.charter.holdings, FIRST: held}, commitments=commitments)


def test_a_client_takes_no_charter_that_says_something_else_of_its_data(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path)
    holder = federation.shops[FIRST]
    for changes in ({"train": 1}, {"test": 7}, {"fingerprint": "0" * 64}):
        charter = forged(enrolled, **changes)
        with pytest.raises(SiteError) as caught:
            holder.answer(sent("begin", charter=charter.text, known=charter.known_to(FIRST)))
        assert Failure.OTHER_DATA.value in str(caught.value)
        with pytest.raises(WireError, match="it holds no charter"):  # nor one whose commitment is of other numbers
            holder.answer(sent("begin", charter=charter.text, known=enrolled.charter.known_to(FIRST)))
    with pytest.raises(SiteError):
        holder.answer(sent("begin", charter=enrolled.charter.text, known={}))
    assert holder.charter is None


def test_an_edge_takes_no_charter_that_keeps_a_client_s_numbers_from_it(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path)
    known = enrolled.charter.known_to("edge-0")
    assert set(known) == {"edge-0", FIRST, "edge-0-client-1"}
    for missing in known:
        some = {name: held for name, held in known.items() if name != missing}
        with pytest.raises(WireError, match=f"does not tell what {missing} hold"):
            federation.edges["edge-0"].answer(
                sent("begin", charter=enrolled.charter.text, known=some), threading.Event()
            )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plain: plain["commitments"].clear(),
        lambda plain: plain["clients"][0].reverse() or plain["clients"][0].append(9),
        lambda plain: plain["clients"][0].append(plain["clients"][1].pop()),
        lambda plain: plain["commitments"].update({"edge-9": "0" * 64}),
        lambda plain: plain["commitments"].update({FIRST: "short"}),
        lambda plain: plain["commitments"].update({FIRST: 7}),
        lambda plain: plain["pixels"].pop(),
        lambda plain: plain["pixels"][0].append(0.5),
        lambda plain: plain.update(pixels=[[float("nan")], [1.0]]),
        lambda plain: plain.update(pixels=[[0.5], [0.0]]),
        lambda plain: plain.update(largest_token="5"),
        lambda plain: plain.update(largest_token=True),
    ],
)
def test_a_charter_that_cannot_be_is_refused(tmp_path: Path, spoil: Any) -> None:
    _, enrolled = begun(tmp_path)
    plain = json.loads(enrolled.charter.text)
    assert read_charter(json.dumps(plain), {}).id == enrolled.charter.id
    spoil(plain)
    with pytest.raises(WireError, match="it holds no charter"):
        read_charter(json.dumps(plain), {})


def test_salts_differ_so_that_equal_data_have_different_commitments() -> None:
    one, two = (Holding(train=1, validation=0, test=0, fingerprint="0" * 64) for _ in range(2))
    assert one.commitment != two.commitment


def test_a_run_that_began_before_there_were_commitments_goes_on(tmp_path: Path) -> None:
    whole = small("fed-bac", rounds=3).federation(tmp_path / "whole").run()
    federation, enrolled = begun(tmp_path, rounds=3)
    playing = federation.play(tmp_path / "run", enrolled)
    next(playing)
    playing.close()
    charter = enrolled.charter
    plain = json.loads(charter.text)
    del plain["commitments"], plain["pixels"]
    splits = ("x_train", "x_validation")
    images = [arrays[split] for arrays in federation.data.values() for split in splits if split in arrays]
    pixels = np.concatenate([each.reshape(-1).astype(np.int64) for each in images])
    plain |= {
        "size_N": charter.held("train"),
        "validation_N": charter.held("validation"),
        "test_N": charter.held("test"),
        "test_M": [charter.edge_tests(0), charter.edge_tests(1)],
        "fingerprints": {name: held.fingerprint for name, held in charter.holdings.items()},
        "sums": [[int(pixels.sum()), int((pixels**2).sum()), len(pixels)]],
    }
    (tmp_path / "charter.json").write_text(json.dumps({"charter": json.dumps(plain), "classes": enrolled.classes_ME}))
    found = stored(tmp_path)
    assert found is not None
    assert found.fingerprint == enrolled.fingerprint
    assert np.array_equal(found.normalization, enrolled.normalization)
    found.save(tmp_path)
    again = stored(tmp_path)
    assert again is not None
    assert again.charter.id == found.charter.id
    assert without(finish(federation.play(tmp_path / "run", again)).records) == without(whole.records)
