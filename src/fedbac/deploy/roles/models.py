"""The models of a run at its sites: the cloud hands them out, and every site keeps its own, whole, in one file."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedbac.core.parts import Parts, Scope, measured_parts
from fedbac.core.settings import IntArray
from fedbac.deploy.protocol.charter import Charter, read_charter
from fedbac.deploy.protocol.failures import SiteError
from fedbac.deploy.protocol.messages import check_rows, received, sent
from fedbac.deploy.protocol.wire import Message, WireError, decode
from fedbac.errors import DeployError
from fedbac.files import make_folder, opened, write_whole
from fedbac.rounds.messages import Site
from fedbac.rounds.record import by_clients
from fedbac.rounds.rows import compact
from fedbac.runs.models import Models

FILE = "model"
DIGEST = 32
"""Bytes of the hash that a kept model ends with."""
ELSEWHERE: frozenset[Scope] = frozenset({"edge", "client"})
"""Owners whose parts the cloud does not have."""


@dataclass(frozen=True, eq=False)
class SiteModels:
    """The models of some clients of an edge after a round: of every part that predicts, the rows that they use."""

    charter: Charter
    clients: tuple[int, ...]
    round: int
    bank: Parts
    """Stacked. Parts that their owners have not added yet are missing."""
    row_N: dict[str, IntArray]
    """Per part, the row of each client."""

    @property
    def _used(self) -> tuple[str, ...]:
        return measured_parts(self.charter.experiment.method.personalization)

    def message(self, charter: str) -> bytes:
        """Return it as it travels with the charter's hash, or as it is kept with its text."""
        return sent("model", charter=charter, round=self.round, bank=self.bank, row_N=self.row_N)

    def of(self, client: int) -> "SiteModels":
        """Return what one client is sent."""
        place = self.clients.index(client)
        bank, row_N = compact(self.bank, {part: rows[place : place + 1] for part, rows in self.row_N.items()})
        return replace(self, clients=(client,), bank=bank, row_N=row_N)

    def with_own(self, scope: Scope, owner: int, kept: Parts) -> "SiteModels":
        """Return it with the parts that one owner has, as far as they predict."""
        own = self.charter.own(scope, owner, kept, self.bank)
        own = {part: params for part, params in own.items() if part in self._used}
        rows = {part: np.zeros(len(self.clients), dtype=np.int64) for part in own}
        return replace(self, bank=self.bank | own, row_N=self.row_N | rows)

    def keep(self, state: Path) -> None:
        """Write it into the folder of a site's state, in the place of the one before."""
        content = self.message(self.charter.text)
        write_whole(make_folder(state) / FILE, content + hashlib.sha256(content).digest(), mode=0o600)

    def models(self, edge: int) -> Models:
        """Return the models of these clients, who are at an edge."""
        charter, method = self.charter, self.charter.experiment.method
        sizes, held = (np.array(charter.held(split))[list(self.clients)] for split in ("train", "validation"))
        return Models(
            scheme=method.personalization,
            network=charter.network,
            parts=self.bank,
            rows=[self.row_N],
            sites=(Site(edge, self.clients, sizes, held, charter.num_classes),),
            own=by_clients(method),
            normalization=charter.normalization,
            example=charter.example,
            round=self.round,
            elsewhere=frozenset(charter.scopes[part] for part in self._used if part not in self.bank),
        )


def read_models(message: Message, charter: Charter, clients: Sequence[int], *others: Scope) -> SiteModels:
    """Return the models of these clients that a message holds, without the parts of ``others``."""
    like = charter.without(charter.template, *others)
    rows = {part: np.zeros(1, dtype=np.int64) for part in like}
    found = received(message, bank=like, row_N=rows)
    if found["row_N"]:  # else all parts belong to others
        check_rows(found["row_N"], found["bank"])
    lengths = {len(row_N) for row_N in found["row_N"].values()}
    if not lengths <= {len(clients)} or set(found["row_N"]) != set(found["bank"]):
        raise WireError(f"model: it must have a row of every part for each of {len(clients)} clients")
    return SiteModels(charter, tuple(clients), found["round"], found["bank"], found["row_N"])


def models_of_edge(models: Models, charter: Charter, edge: int) -> SiteModels:
    """Return what the cloud hands to an edge, of the models that it has: all but the parts of others."""
    m, site = next((m, site) for m, site in enumerate(models.sites) if edge in site.edges)
    places = np.flatnonzero(site.edge_N == edge)
    shared = charter.without(models.parts, *ELSEWHERE)
    bank, row_N = compact(models.parts, {part: models.rows[m][part][places] for part in shared})
    return SiteModels(charter, charter.clients[edge], models.round, bank, row_N)


def kept_models(state: Path, edge: int, client: int | None) -> tuple[Charter, Models]:
    """Return the models that an edge, or a client, keeps, and the terms of their run."""
    path = state / FILE
    try:
        with opened(path) as file:
            content = file.read()
    except FileNotFoundError as error:
        raise DeployError(
            f"{path}: no model has arrived here yet; the cloud hands models out every few minutes and when a run ends. "
            "If the site was started with --state, give fedbac model that folder with --from"
        ) from error
    except OSError as error:
        raise DeployError(f"{path}: it cannot be read ({error.strerror}); mend that") from error
    content, digest = content[:-DIGEST], content[-DIGEST:]
    try:
        if hashlib.sha256(content).digest() != digest:
            raise WireError("its hash is another")
        message = decode(content, ("model",))
        charter = read_charter(str(message.head.get("charter")), {})
        clients = charter.clients[edge] if client is None else (client,)
        return charter, read_models(message, charter, clients).models(edge)
    except (WireError, SiteError, IndexError) as error:
        raise DeployError(
            f"{path}: it is damaged ({error}); start the cloud again, which hands models out to all who are there"
        ) from error
