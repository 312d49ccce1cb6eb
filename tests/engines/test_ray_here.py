"""Ray on this machine alone: an actor that is killed is made again, and nobody else can reach it."""

import logging
import os
import signal
import socket
import warnings
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedbac.config.experiment import Runtime
from fedbac.data import toy
from fedbac.engines.actors import deal
from fedbac.errors import ConfigError, EngineError
from fedbac.federation import assemble
from fedbac.rounds.cloud import rounds
from fedbac.rounds.start import start
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import finish, play
from tests.engines.test_ray import timeless
from tests.processes import LINUX, descendants
from tests.store import worker
from tests.support import NO_GPU

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

HERE = Runtime(engine="ray", device="cpu")


@pytest.fixture(scope="module")
def here() -> Iterator[Any]:
    """Ray as a run without an address starts it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fedbac.engines.ray import join

        assert join(HERE)
        import ray

        yield ray
        ray.shutdown()


def test_an_actor_with_much_data_is_made_again(here: Any) -> None:
    """What an actor is made of does not fit into a message, so that Ray drops it unless somebody holds it."""
    from fedbac.engines.ray import RayEdges

    inputs = Inputs(dataset=toy(size=28, train=6000))
    settings = ["task.num_edges=2", "task.training.epochs=1", "task.network={kind: mlp, hidden: [64]}"]
    experiment = configure("hierfavg", worker.TASK, rounds=3, settings=settings, inputs=inputs)
    alone = finish(play(experiment, inputs=inputs, runtime=Runtime(workers=1, device="cpu")))
    federation = assemble(experiment, dataset=inputs.dataset)
    edges = RayEdges(experiment, federation, HERE)
    steps = rounds(experiment, federation.sites, edges, start(experiment, federation.build, federation.sites))
    records = [next(steps)[0]]
    before = edges.places()
    os.kill(before[0].pid, signal.SIGKILL)
    records += [record for record, _ in steps]
    after = edges.places()
    edges.close()
    assert timeless(records) == timeless(alone.records)
    assert [old.pid == new.pid for old, new in zip(before, after, strict=True)] == [False, True]


def test_edges_that_share_actors_have_the_simulators_numbers(here: Any) -> None:
    from fedbac.engines.ray import RayEdges

    inputs, two = Inputs(dataset=toy(size=8)), HERE.model_copy(update={"actors": 2})
    experiment = configure("fed-bac", worker.SHORT, rounds=3, settings=worker.SETTINGS, inputs=inputs)
    alone = finish(play(experiment, inputs=inputs, runtime=Runtime(workers=1, device="cpu")))
    federation = assemble(experiment, dataset=inputs.dataset)
    edges = RayEdges(experiment, federation, two)
    steps = rounds(experiment, federation.sites, edges, start(experiment, federation.build, federation.sites))
    records = [record for record, _ in steps]
    places = edges.places()
    edges.close()
    assert timeless(records) == timeless(alone.records)
    assert len({place.pid for place in places}) == 2
    mine = deal([site.size for site in federation.sites], 2)
    assert edges.dealt == mine


@NO_GPU
def test_two_actors_share_a_gpu_and_have_the_simulators_numbers(here: Any) -> None:
    """Up to rounding, as chunks have fewer clients."""
    inputs = Inputs(dataset=toy(size=16))
    settings = ["task.network=lenet5", "task.training.learning_rate=0.05"]
    experiment = configure("fed-bac", worker.SHORT, rounds=3, settings=settings, inputs=inputs)
    alone, apart = (
        finish(play(experiment, inputs=inputs, runtime=runtime))
        for runtime in (Runtime(device="cuda"), HERE.model_copy(update={"device": "cuda", "actors": 2}))
    )
    assert alone.computed_by(1)["trainer"] == apart.computed_by(1)["trainer"] == "cuda-fused"
    for mine, expected in zip(apart.records, alone.records, strict=True):
        assert mine["selected"] == expected["selected"]
        assert mine["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_where_all_clients_meet_at_one_site_it_has_the_data_of_all_edges(here: Any) -> None:
    inputs = Inputs(dataset=toy(size=8))
    experiment = configure("fedavg", worker.SHORT, rounds=2, inputs=inputs)
    alone, apart = (
        finish(play(experiment, inputs=inputs, runtime=runtime)).records
        for runtime in (Runtime(workers=1, device="cpu"), HERE)
    )
    assert timeless(apart) == timeless(alone)


NOISE, SUMS = "method.privacy.noise_multiplier=1", "method.aggregation={kind: mean, secret: true, threshold: 2}"
TRUST: dict[str, tuple[str, ...]] = {
    "privacy of clients, at the edge": ("hierfavg", NOISE),
    "privacy of clients, in shares, in secret sums": ("hierfavg", NOISE, "method.privacy.where=clients", SUMS),
    "privacy of examples": ("hierfavg", NOISE, "method.privacy.guarantee=example"),
    "secret sums of losses too": ("fed-bac", SUMS, "method.clustering.period=2", "method.selection.fraction=1.0"),
    "liars": (
        "hierfavg",
        "method.aggregation={kind: trimmed_mean, before: one_voice}",
        "task.world.liars={attack: alie, clients: 0.5, jitter: 1}",
    ),
}


@pytest.mark.parametrize("case", TRUST)
def test_trust_has_the_bits_of_the_simulator(here: Any, case: str) -> None:
    method, *settings = TRUST[case]
    inputs = Inputs(dataset=toy(size=8))
    experiment = configure(method, worker.SHORT, rounds=3, settings=["task.num_edges=2", *settings], inputs=inputs)
    alone, apart = (
        finish(play(experiment, inputs=inputs, runtime=runtime)) for runtime in (Runtime(workers=1, device="cpu"), HERE)
    )
    assert timeless(apart.records) == timeless(alone.records)
    for part, params in alone.models.parts.items():
        for name, value in params.items():
            assert torch.equal(apart.models.parts[part][name], value), (part, name)


def test_edges_that_cannot_start_are_closed_and_say_why_in_our_words(
    here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the simulator says it: in one line, without the path of calls in an actor."""
    stopped: list[Any] = []
    monkeypatch.setattr("fedbac.engines.ray.join", lambda _: True)  # as if Ray were started for this run
    monkeypatch.setattr(here, "shutdown", lambda: stopped.append("Ray"))
    monkeypatch.setattr(here, "kill", stopped.append)
    inputs = Inputs(dataset=toy(size=8), network=lambda: nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(64, 10)))
    experiment = configure("hierfavg", worker.SHORT, settings=["task.num_edges=2"], inputs=inputs)
    for engine in ("simulator", "ray"):
        runtime = Runtime(engine=engine, trainer="native", device="cpu")
        with pytest.raises(ConfigError, match=r"^runtime.trainer: the native kernel cannot be used: ") as raised:
            next(play(experiment, inputs=inputs, runtime=runtime))
        assert "\n" not in str(raised.value)
    *actors, last = stopped
    assert (len(actors), last) == (2, "Ray")
    monkeypatch.undo()
    for actor in actors:
        here.kill(actor)


def listening(pids: set[int]) -> dict[str, set[int]]:
    """Return the addresses on which processes listen, as Linux knows them."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                raw = bytes.fromhex(words[1].partition(":")[0])
                address = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))  # words of the machine's order
                family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
                sockets[f"socket:[{words[9]}]"] = socket.inet_ntop(family, address)
    found: dict[str, set[int]] = {}
    for pid in pids:
        for file in Path("/proc", str(pid), "fd").iterdir():
            try:
                target = os.readlink(file)
            except OSError:  # closed meanwhile
                continue
            if target in sockets:
                found.setdefault(sockets[target], set()).add(pid)
    return found


@LINUX
def test_ray_listens_on_the_loopback_address_alone(here: Any) -> None:
    assert here.get(here.remote(lambda: 1).remote()), "a worker is there"
    found = listening({os.getpid()} | descendants(os.getpid()))
    assert len(set().union(*found.values())) > 3, "the head, the node, a worker and this process"
    for address in found:
        ip = ip_address(address)
        if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        assert ip.is_loopback, f"{found[address]} listen on {address}"


def test_where_ray_listens_to_all_it_is_said(
    here: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A Ray that knows another way to choose its address, say."""
    from fedbac.engines.ray import join

    for node, warned in (("127.0.0.1", False), ("192.0.2.2", True)):
        monkeypatch.setattr(here, "is_initialized", lambda: False)
        monkeypatch.setattr(here, "init", lambda **_: None)
        monkeypatch.setattr(here.util, "get_node_ip_address", lambda node=node: node)
        with caplog.at_level(logging.WARNING, "fedbac"):
            join(HERE)
        assert ("listens on all networks" in caplog.text) == warned


def test_a_ray_that_does_not_start_is_told_in_a_sentence(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbac.engines.ray import join

    def busy(**_: Any) -> None:
        raise RuntimeError("Timed out waiting for file gcs_server_port")

    monkeypatch.setattr(here, "is_initialized", lambda: False)
    monkeypatch.setattr(here, "init", busy)
    with pytest.raises(
        EngineError, match=r"^runtime.engine: Ray did not start on this machine: Timed out .* less busy"
    ):
        join(HERE)
    with pytest.raises(EngineError, match=r"^runtime.address: no Ray cluster at 'there:1'"):
        join(HERE.model_copy(update={"address": "there:1"}))
