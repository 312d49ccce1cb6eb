"""Sites that fall silent, are started again, or come back with other data."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.handshake import hello
from fedbac.deploy.protocol.messages import sent
from fedbac.deploy.protocol.wire import encode
from fedbac.deploy.roles.calls import Caller
from fedbac.deploy.roles.enrolment import stored
from fedbac.errors import DeployError
from fedbac.runs.play import finish
from tests.deploy.in_memory import MemoryChildren
from tests.deploy.small import FIRST, begun, played
from tests.support import without


def test_who_falls_silent_is_logged_once_and_once_more_when_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every client is asked to measure its own model, so a lost one gives no answer in every round."""
    caplog.set_level("INFO", logger="fedbac")
    federation, enrolled = begun(tmp_path, "ditto", rounds=8)
    playing = federation.play(enrolled=enrolled)
    next(playing)
    told = [message for message in caplog.messages if "part of run" in message]
    assert {message.partition(" ")[0] for message in told} == {"part"}  # whoever writes the line names the site
    lost = {"edge-1-client-0": federation.children("edge-1"), "edge-0": federation.cloud}
    for name, links in lost.items():
        links.lost = {name}
        for _ in range(3):
            next(playing)
        assert caplog.text.count(f"no answer from {name} (") == 1
        links.lost = set()
    next(playing)
    for name in lost:
        assert caplog.text.count(f"no answer from {name} (") == caplog.text.count(f"{name} answers again") == 1


def test_a_client_that_was_started_again_gets_the_charter_again(tmp_path: Path) -> None:
    federation, enrolled = begun(tmp_path, rounds=3)
    whole = played(*begun(tmp_path / "whole", rounds=3))
    playing = federation.play(enrolled=enrolled)
    next(playing)
    for name, holder in federation.shops.items():
        if federation.sites[name].role == "client":
            holder.charter = None
    federation.edges["edge-1"].handler = None
    records = finish(playing).records
    assert without(records) == without(whole)


def test_a_client_whose_data_have_changed_is_left_out_until_they_are_put_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation, enrolled = begun(tmp_path, "hierfavg", rounds=4)
    playing = federation.play(enrolled=enrolled)
    next(playing)
    path = tmp_path / "data" / FIRST / "data.npz"
    before = dict(np.load(path))
    arrays = before | {"y_train": before["y_train"].copy()}
    arrays["y_train"][0] ^= 1
    np.savez(path, **arrays)
    again_ = federation._shop(FIRST)
    federation.children("edge-0").answers[FIRST] = lambda payload, gone: again_.answer(payload)
    federation.edges["edge-0"].handshake(FIRST, hello(FIRST))
    record = next(playing)
    assert (record["selected"], record["failed"]) == ([[1], [2, 3, 4]], [])
    next(playing)
    assert caplog.text.count("its data are not those with which the run began; put them back and start it again") == 1
    assert list(federation.edges["edge-0"].unfit) == [FIRST]
    np.savez(path, **before)
    mended = federation._shop(FIRST)
    federation.children("edge-0").answers[FIRST] = lambda payload, gone: mended.answer(payload)
    federation.edges["edge-0"].handshake(FIRST, hello(FIRST))
    assert next(playing)["selected"] == [[0, 1], [2, 3, 4]]
    assert federation.edges["edge-0"].unfit == {}


def test_an_edge_with_other_test_data_has_no_accuracy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation, enrolled = begun(tmp_path, rounds=2)
    playing = federation.play(enrolled=enrolled)
    next(playing)
    path = tmp_path / "data" / "edge-0" / "data.npz"
    arrays = dict(np.load(path))
    np.savez(path, **{name: array[1:] for name, array in arrays.items()})
    links, before = federation.children("edge-0"), federation.cloud.answers
    federation.cloud.answers = {**before, "edge-0": federation._edge("edge-0")}
    federation.edges["edge-0"].children = links
    record = next(playing)
    assert (record["absent"], record["accuracy_per_edge"][0]) == ([0], None)
    assert "its data are not those with which the run began" in caplog.text


def test_a_stored_charter_of_images_without_a_shape_cannot_be_read(tmp_path: Path) -> None:
    _, enrolled = begun(tmp_path, rounds=1)
    replace(enrolled, charter=replace(enrolled.charter, shape=(), pixels=((), ()))).save(tmp_path)
    with pytest.raises(DeployError, match=r"charter\.json: it cannot be read .*start anew with --overwrite"):
        stored(tmp_path)


class Charter:
    """All of a charter that a question needs."""

    text = "{}"

    def known_to(self, site: str) -> dict[str, object]:
        return {}


def caller(answer: Any) -> Caller:
    """Return the questions to a single client."""
    return Caller(MemoryChildren({FIRST: answer}), Charter())  # type: ignore[arg-type]


def unfit(payload: bytes, gone: threading.Event) -> bytes:
    raise SiteError(Failure.OTHER_DATA)


def test_a_client_may_rejoin_while_it_is_looked_up() -> None:
    """Another thread takes it off the list between the look at the list and the reading of its entry."""
    questions = caller(unfit)
    assert Failure.OTHER_DATA.value in questions.inform([FIRST], 1.0)[FIRST]

    class Interleaved(dict[str, str]):
        looks = 0

        def __contains__(self, name: object) -> bool:
            found, self.looks = super().__contains__(name), self.looks + 1
            if self.looks == 2:
                other = threading.Thread(target=questions.rejoined, args=(name,))
                other.start()
                other.join(0.1)  # it may have to wait for its turn
            return found

    questions._unfit = Interleaved(questions._unfit)
    assert Failure.OTHER_DATA.value in questions.inform([FIRST], 1.0)[FIRST]


@pytest.mark.parametrize("said", ["ready", "unfit"])
def test_what_a_client_said_before_it_rejoined_does_not_count(said: str) -> None:
    """It was started again before all others had answered: it knows no charter now, and may have other data."""
    handed = []

    def first(payload: bytes, gone: threading.Event) -> bytes:
        questions.rejoined(FIRST)
        questions.children.answers[FIRST] = second  # type: ignore[attr-defined]
        return unfit(payload, gone) if said == "unfit" else encode(said, {}, {})

    def second(payload: bytes, gone: threading.Event) -> bytes:
        handed.append(payload)
        return encode("ready", {}, {})

    questions = caller(first)
    assert (FIRST in questions.inform([FIRST], 1.0)) == (said == "unfit")
    assert questions.unfit == {}
    for _ in range(3):
        assert questions.inform([FIRST], 1.0) == {}
    assert handed == [sent("begin", charter=Charter.text, known={})], "it is handed the charter again, and once"
