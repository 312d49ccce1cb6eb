"""What a federation and each of its sites are told: ``federation.yaml``, and ``site.yaml`` in every kit.

This module imports no torch, so that a process that only waits stays small.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedbac.config.text import read_yaml
from fedbac.errors import ConfigError, DeployError, quoted, unknown

CLOUD = "cloud"
SITE_DAYS = 90
"""How long a site's certificate is good, unless a person says otherwise."""
MOST_SITES = 10_000
"""Of one federation: each is a process with a key and a certificate."""
MOST_PORT = 65_535
MOST_SECONDS = 7 * 24 * 3600.0

Role = Literal["cloud", "edge", "client"]
C = TypeVar("C", bound="Configuration")


def quorum(minimum: int | None, count: int) -> int:
    """Return how many of so many must be there: what is set, or all if some have left; else a majority."""
    return min(count // 2 + 1 if minimum is None else minimum, count)


def edge_name(edge: int) -> str:
    """Return the name of an edge by its number, from 0."""
    return f"edge-{edge}"


def client_name(edge: int, client: int) -> str:
    """Return the name of a client by the number of its edge and its own within the edge, both from 0."""
    return f"edge-{edge}-client-{client}"


def _federation_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}", name):  # a certificate has room for 64 characters
        raise ValueError(
            f"{quoted(name)} is no name for a federation; use at most 50 letters, digits and . _ -, "
            "and begin with a letter or a digit"
        )
    return name


def check_address(text: str, lowest: int) -> str:
    """Return host:port as it is, or raise a ValueError that says how to write it."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", text)
    if found is None or not lowest <= int(found[2]) <= MOST_PORT:
        raise ValueError(
            f"{quoted(text)} is no address; write it as host:port with a port from {lowest} to {MOST_PORT}, "
            "for example fl.example.org:8443 or [::1]:8443"
        )
    return text


FederationName = Annotated[str, AfterValidator(_federation_name)]
Address = Annotated[str, AfterValidator(lambda text: check_address(text, lowest=1))]
"""host:port to dial."""
Listen = Annotated[str, AfterValidator(lambda text: check_address(text, lowest=0))]
"""host:port to listen at; port 0 takes any that is free."""
Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS)]
Number = Annotated[int, Field(ge=0, lt=MOST_SITES)]
Count = Annotated[int, Field(ge=1, le=MOST_SITES)]


class Configuration(BaseModel):
    """A frozen model of a file's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong with the fields together."""
        yield from ()


class DeploySettings(Configuration):
    """How long sites wait for each other, and who must be there: ``deploy`` of federation.yaml and site.yaml."""

    min_clients: Count | None = None
    """Clients that must be connected, and of the selected ones finish, for their edge to take part in a round. Null: a
    majority."""
    min_edges: Count | None = None
    """Edges that must answer for a round to count. Null: a majority."""
    start_after: Seconds | None = None
    """Seconds after which a run begins with min_edges edges of min_clients clients each. Null: it begins when everybody
    is there."""
    deadline: Seconds = 300.0
    """Seconds that a client has to answer one request."""
    min_deadline: Seconds = 30.0
    """Seconds that clients have at least, once it is known how long they take: then four times that."""
    heartbeat: Seconds = 5.0
    """Seconds between signs of life; a peer that misses three counts as lost."""
    max_message_mib: Annotated[float, Field(gt=0, le=65_536)] = 512.0
    """Largest message that a site accepts, in MiB; of answers, what their networks take and 8 MiB."""
    max_repeats: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """How often a round is repeated whose training breaks down."""
    outlier_factor: Annotated[float, Field(ge=0, le=1e9)] = 10.0
    """An update this many times as large as usual is left out, and its sender benched; 0 accepts any."""
    transport: Literal["grpc", "nvflare"] = "grpc"
    """What carries messages: gRPC with mutual TLS, or NVFlare."""

    @property
    def max_bytes(self) -> int:
        """The largest message in bytes."""
        return int(self.max_message_mib * 2**20)


class ExternalAuthority(Configuration):
    """An organization's own certificate authority, which some sites are proven by instead of the federation's."""

    certificates: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}\.pem$")]
    """Name of a .pem file beside this one, with the authority's certificate: its root, or to trust less of it, the
    intermediate one that signs sites."""
    sites: Annotated[dict[str, Annotated[str, Field(min_length=1, max_length=253)]], Field(min_length=1)]
    """By site, the name in its certificate: a DNS name of its SAN, or its CN if it has no SAN."""


class MemberChanges(Configuration):
    """Who came later, left or moved: ``members`` of federation.yaml, as ``add``, ``leave`` and ``move`` write it."""

    added: tuple[str, ...] = ()
    """Clients that came after the federation was made, in that order; those of new edges too."""
    left: tuple[str, ...] = ()
    """Clients and edges that left. Their places stay empty, so that others keep their names and numbers."""
    moved: dict[str, str] = {}
    """By the new place of a client that moved to another edge, its old one, which is also in left."""

    def numbers(self, counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of each edge's clients: edge by edge, then of those that were added."""
        names = [[client_name(m, n) for n in range(count)] for m, count in enumerate(counts)]
        ordered = [name for clients in names for name in clients if name not in self.added] + list(self.added)
        number = {name: place for place, name in enumerate(ordered)}
        return tuple(tuple(number[name] for name in clients) for clients in names)

    def gone(self, site: str) -> bool:
        """Whether a site has left, itself or with its edge."""
        return any(site == name or site.startswith(f"{name}-") for name in self.left)


class SiteConfig(Configuration):
    """What one site knows of the federation: ``site.yaml`` of its kit."""

    federation: FederationName
    """The federation's name."""
    name: str
    """The site's: cloud, edge-M or edge-M-client-N, as its certificate has it."""
    role: Role
    """What the site does."""
    number: Number
    """Of an edge: its own. Of a client: its own over all edges, counted edge by edge, then in the order in which
    clients were added. Of the cloud: 0."""
    edge: Number | None = None
    """Number of a client's edge; of an edge, its own; null at the cloud."""
    listen: Listen | None = None
    """Where the cloud and the edges listen, as host:port."""
    parent: str | None = None
    """Name of the site it dials; null at the cloud."""
    parent_address: Address | None = None
    """Where it dials, as host:port; null at the cloud."""
    children: tuple[str, ...] = ()
    """Names of the sites it takes; none at a client."""
    deploy: DeploySettings = DeploySettings()
    """How long it waits, and for whom."""
    members: MemberChanges = MemberChanges()
    """Who came later, left or moved; only the cloud has it."""
    external_ca: tuple[ExternalAuthority, ...] = ()
    """Which of the site itself, its parent and its children other authorities prove."""

    def _problems(self) -> Iterator[str]:
        if (self.edge is None) != (self.role == "cloud"):
            yield "edge: leave it out at the cloud" if self.role == "cloud" else "edge: give the number of the edge"
        if self.role != "client" and self.number != (self.edge or 0):
            yield f"number: {self.number} is not the number of this {self.role}; give {self.edge or 0}"
        edge = edge_name(self.edge or 0)
        clients = rf"{edge}-client-(0|[1-9]\d*)"
        name, parent, child = {
            "cloud": (CLOUD, None, r"edge-(0|[1-9]\d*)"),
            "edge": (edge, CLOUD, clients),
            "client": (clients, edge, None),
        }[self.role]
        if not re.fullmatch(name, self.name):
            yield f"name: {quoted(self.name)} is no name of this {self.role}; use those of fedbac federation show"
        if self.parent != parent:
            yield f"parent: {quoted(self.parent)} is not the parent of {self.name}; give {parent or 'null'}"
        if (self.parent_address is None) != (parent is None):
            yield f"parent_address: give the host:port of {parent}" if parent else "parent_address: leave it out"
        if (self.listen is None) != (self.role == "client"):
            yield "listen: leave it out at a client" if self.listen else "listen: give a host:port, as 0.0.0.0:8443"
        for given in self.children:
            if child is None or not re.fullmatch(child, given):
                yield f"children: {quoted(given)} is no child of {self.name}; leave it out"
        if len(set(self.children)) != len(self.children):
            yield "children: a name is given twice; leave one out"


class CloudPlace(Configuration):
    """Where the cloud is."""

    address: Address
    """Where edges dial, as host:port."""
    listen: Listen
    """Where it listens, as host:port."""


class EdgePlace(CloudPlace):
    """Where an edge is, and how many clients it has."""

    clients: Count
    """Clients of the edge."""


class FederationConfig(Configuration):
    """All sites of a federation, and what they compute: ``federation.yaml``. Kits are made from it."""

    name: FederationName
    """In certificates and in every site.yaml."""
    cloud: CloudPlace
    """Where the cloud is."""
    edges: Annotated[tuple[EdgePlace, ...], Field(min_length=1)]
    """Every edge, by its number."""
    deploy: DeploySettings = DeploySettings()
    """Given to every site."""
    members: MemberChanges = MemberChanges()
    """Who came later, left or moved."""
    external_ca: tuple[ExternalAuthority, ...] = ()
    """Organizations whose own authorities prove some of the sites."""
    experiment: dict[str, Any]
    """The experiment, as fedbac show writes it; only the cloud's kit has it."""

    def _problems(self) -> Iterator[str]:
        counts, task, members = [edge.clients for edge in self.edges], self.experiment.get("task"), self.members
        fewest, sites = min(counts), 1 + len(counts) + sum(counts)
        if (self.deploy.min_clients or 0) > fewest:
            only = f"an edge has only {fewest} clients and would wait for ever"
            yield f"deploy.min_clients: {only}; give at most {fewest}"
        if (self.deploy.min_edges or 0) > len(counts):
            yield f"deploy.min_edges: there are only {len(counts)} edges; give at most as many"
        if sites > MOST_SITES:
            yield f"edges: they make {sites:,} sites; there may be {MOST_SITES:,}"
        told = task.get("clients_per_edge") if isinstance(task, dict) else None
        told = [told] * len(counts) if isinstance(told, int) else told
        if not isinstance(task, dict) or task.get("num_edges") != len(counts) or told != counts:
            wanted = f"give num_edges {len(counts)} and clients_per_edge {counts}"
            yield f"experiment.task: {wanted}, as the edges have them"
        proven = [(site, name.lower()) for one in self.external_ca for site, name in one.sites.items()]
        for given, what in ((dict(proven), "site"), ({name: site for site, name in proven}, "name")):
            if len(given) < len(proven):
                yield f"external_ca: a {what} is given twice; leave one out"
        known, moved = self.places(), members.moved
        clients = {name: site for name, site in known.items() if site.role == "client"}
        for field, names, places in (
            ("external_ca", list(dict(proven)), known), ("members.added", members.added, clients),
            ("members.left", members.left, known), ("members.moved", list(moved), clients),
            ("members.moved", list(moved.values()), clients),
        ):  # fmt: skip
            for site in names:
                if site not in places:
                    yield f"{field}: {unknown('site', site, places)}"
            if len(set(names)) < len(names):
                yield f"{field}: a site is given twice; leave one out"
        for new, old in moved.items():
            if new not in members.added or old not in members.left or clients[new].number <= clients[old].number:
                yield f"members.moved: {new} must be in members.added, and {old} in members.left and added before it"
        if all(map(members.gone, clients)):
            yield "members.left: every client has left; make another federation instead"

    def sites(self) -> dict[str, SiteConfig]:
        """Return what every site is told, by its name: the cloud, then each edge followed by its clients."""
        found = {name: site for name, site in self.places().items() if not self.members.gone(name)}
        return {name: site.model_copy(update={"external_ca": self._proving(site)}) for name, site in found.items()}

    def _proving(self, site: SiteConfig) -> tuple[ExternalAuthority, ...]:
        """Return the authorities that prove a site, its parent and its children."""
        others = {site.name, site.parent, *site.children}
        kept = (({s: n for s, n in one.sites.items() if s in others}, one) for one in self.external_ca)
        return tuple(one.model_copy(update={"sites": sites}) for sites, one in kept if sites)

    def places(self) -> dict[str, SiteConfig]:
        """Return all places, also of those who left; but nobody's children are those."""
        numbers = self.members.numbers([edge.clients for edge in self.edges])

        found: dict[str, SiteConfig] = {}

        def place(name: str, role: Role, number: int, names: Iterable[str] = (), **rest: Any) -> None:
            children = tuple(child for child in names if not self.members.gone(child))
            found[name] = SiteConfig(
                federation=self.name, name=name, role=role, number=number, children=children, deploy=self.deploy, **rest
            )

        edges = map(edge_name, range(len(self.edges)))
        place(CLOUD, "cloud", 0, edges, listen=self.cloud.listen, members=self.members)
        for m, edge in enumerate(self.edges):
            name, clients = edge_name(m), [client_name(m, n) for n in range(edge.clients)]
            above = {"edge": m, "parent": CLOUD, "parent_address": self.cloud.address}
            place(name, "edge", m, clients, listen=edge.listen, **above)
            for client, number in zip(clients, numbers[m], strict=True):
                place(client, "client", number, edge=m, parent=name, parent_address=edge.address)
        return found


GROUPS: dict[Any, type[Configuration]] = {
    "deploy": DeploySettings,
    "members": MemberChanges,
    "cloud": CloudPlace,
    "edges": EdgePlace,
    "external_ca": ExternalAuthority,
}
"""Fields that hold settings of their own."""


def read_settings(cls: type[C], path: Path) -> C:
    """Return the settings in a file, or raise a DeployError that names file, field and what is allowed."""
    try:
        tree = read_yaml(path)
    except ConfigError as error:
        raise DeployError(str(error)) from error
    return parse_settings(cls, tree, f"{path}: ")


def parse_settings(cls: type[C], tree: Any, source: str = "") -> C:
    """Return the settings in plain data; messages begin with ``source``."""
    try:
        return cls.model_validate(tree)
    except ValidationError as error:
        raise DeployError(source + _explained(cls, error.errors()[0])) from error


def _explained(cls: type[Configuration], detail: Any) -> str:
    """Say which field is wrong, and what is allowed; one mistake at a time."""
    where = ".".join(map(str, detail["loc"]))
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        group = GROUPS.get(detail["loc"][0], cls) if len(detail["loc"]) > 1 else cls
        return f"{where}: {unknown('field', detail['loc'][-1], group.model_fields)}"
    if detail["type"] in {"value_error", "missing"}:
        return f"{where}: {message}" if where else message
    return f"{where}: {quoted(detail['input'])} is not allowed: {message[0].lower()}{message[1:]}"
