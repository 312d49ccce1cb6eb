"""Links that are slow, held up or cut: a round goes on without whom they hide, and who comes back takes part."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedbac.data import toy
from fedbac.deploy.settings import DeploySettings
from fedbac.federation import assemble
from fedbac.runs.configure import Inputs, configure
from fedbac.runs.play import conduct
from tests.deploy.in_memory import CPU, MemoryFederation, cut
from tests.deploy.links import CHILDREN, FIRST, HEARTBEAT, QUICK, Edge, Identities, child, edge, eventually
from tests.deploy.proxy import Proxy, proxy
from tests.unit.tiny import tiny_task

DEADLINE = 3.0
MIB = 2**20


@dataclass
class Federation:
    """Rounds of a federation, the first client of whose first edge is behind a bad link."""

    link: Proxy
    edge: Edge
    records: Iterator[dict[str, Any]]

    def trained(self) -> set[int]:
        """Play a round; return the clients that trained in it."""
        record = next(self.records)
        assert record["absent"] == []
        return {client for clients in record["selected"] for client in clients} - set(record["failed"])


@contextmanager
def federation(identities: Identities, folder: Path, heartbeat: float = HEARTBEAT) -> Iterator[Federation]:
    """Yield a federation with real links between the first edge and its clients; everything else is in memory."""
    dataset = toy()
    task = tiny_task(clients_per_edge=len(CHILDREN), rounds=20)
    experiment = configure("hierfavg", task, inputs=Inputs(dataset=dataset))
    sites = cut(dataset, assemble(experiment, dataset=dataset).shards)
    made = MemoryFederation(experiment, folder, sites, DeploySettings(deadline=DEADLINE, min_edges=1, min_clients=1))
    with ExitStack() as stack:
        parent = stack.enter_context(edge(identities, heartbeat=heartbeat))
        link = stack.enter_context(proxy(parent.children.port))
        for name in CHILDREN:
            address = link.address if name == FIRST else parent.address
            answer = made.children("edge-0").answers[name]
            stack.enter_context(child(identities.of(name), address, name, answer, heartbeat=heartbeat))
        parent.wait_for(*CHILDREN)
        made.edges["edge-0"].children = parent.children
        enrolled = made.enrol()
        records = conduct(experiment, enrolled, made.connect(enrolled), CPU)
        yield Federation(link, parent, records)


EVERYBODY = set(range(2 * len(CHILDREN)))


@pytest.mark.full
def test_a_client_that_passes_its_deadline_has_failed_and_the_round_goes_on(
    identities: Identities, tmp_path: Path
) -> None:
    with federation(identities, tmp_path, heartbeat=DEADLINE) as rounds:
        assert rounds.trained() == EVERYBODY
        rounds.link.hold()
        assert rounds.trained() == EVERYBODY - {0}
        rounds.link.release()
        rounds.edge.wait_for(FIRST)
        assert 0 in rounds.trained() | rounds.trained()


def test_a_client_whose_link_was_cut_dials_again_and_takes_part(identities: Identities, tmp_path: Path) -> None:
    with federation(identities, tmp_path) as rounds:
        assert rounds.trained() == EVERYBODY
        rounds.link.cut()
        eventually(lambda: FIRST not in rounds.edge.children.present())
        assert rounds.trained() == EVERYBODY - {0}
        rounds.link.mend()
        rounds.edge.wait_for(FIRST)
        assert 0 in rounds.trained() | rounds.trained()


def test_a_message_that_takes_longer_than_silence_is_believed_arrives(identities: Identities) -> None:
    """Every piece of it is a sign of life."""
    message, rate = bytes(MIB), 0.8 * MIB
    with (
        edge(identities, heartbeat=QUICK) as parent,
        proxy(parent.children.port, rate) as link,
        child(identities.of(FIRST), link.address, FIRST, heartbeat=QUICK),
    ):
        parent.wait_for(FIRST)
        answers, reasons = parent.children.call({FIRST: message}, 60.0)
        assert reasons == {}
        assert answers == {FIRST: message}
        assert len(parent.greeted) == 1
