"""What every site must know to take part in a run: the experiment, what the data look like, and who is who."""

import hashlib
import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any, get_args

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedbac import losses, models
from fedbac.config.experiment import Experiment
from fedbac.config.explain import parse
from fedbac.core import trees
from fedbac.core.codecs import Chain, Codec
from fedbac.core.links import PASSES, Tier
from fedbac.core.parts import Parts, Scope, extension
from fedbac.core.queries import Split
from fedbac.core.settings import IntArray
from fedbac.core.state import flatten
from fedbac.data import fixed_normalization
from fedbac.data.datasets import MOST_CLASSES, MOST_TOKENS
from fedbac.deploy.local_data import NUMBERS
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.wire import ROOM, WireError
from fedbac.deploy.settings import client_name, edge_name
from fedbac.errors import ConfigError, quoted
from fedbac.federation import Normalization
from fedbac.packages import PackageError
from fedbac.rounds.messages import Site, Wanted
from fedbac.rounds.start import owners_of

MOST_NUMBERS = 2**28
"""Numbers of one example."""
MOST_EXAMPLES = 10**8
"""Of one site, which holds them in memory."""
MOST_PIXELS = 2**46
"""Of one channel: the sum of their squares is a whole number of 63 bits."""
Whole = Field(ge=0, le=MOST_EXAMPLES)
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Held(BaseModel):
    """How many examples a site holds, and their hash: a site whose data have changed takes no part."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    train: int = Whole
    validation: int = Whole
    test: int = Whole
    fingerprint: Hash


class Facts(Held):
    """What a client, or an edge with test data, says of its data: numbers, never an example."""

    shape: list[int] = Field(max_length=8)
    dtype: str
    classes: list[int] = Field(max_length=MOST_CLASSES)
    """Examples of each class, for training and validation; of an edge, for testing. Other labels count as one class."""
    sums: list[list[int]] | None = Field(max_length=MOST_CLASSES)
    """Per channel of images the sum, the sum of squares and the number of pixels, of training and validation data."""
    largest_token: int | None = Field(ge=0, le=MOST_TOKENS)
    label_shape: list[int] = Field(default=[], max_length=1)
    """Of one label: none of a class, else how many numbers or tokens it has."""


class Holding(Held):
    """What a run knows of one site's data. The cloud, the site and its edge have it; all others its commitment."""

    salt: str = Field(pattern=r"^[0-9a-f]{32}$", default_factory=lambda: secrets.token_hex(16))
    """Random, so that nobody finds the numbers by trying."""

    @property
    def commitment(self) -> str:
        """The hash that binds the cloud to these numbers, for those who may not know them."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, config=ConfigDict(allow_inf_nan=False))
class Charter:
    """The terms of a run, the same for everybody. Sites know it by its hash, and work under no other.

    Of each site's data the terms hold a commitment. A site is handed what is behind its own, an edge also behind those
    of its clients, and checks it.
    """

    run: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    """Which run: what owners keep of one is of no use to another. It becomes the name of a folder."""
    experiment: Experiment
    shape: tuple[int, ...]
    dtype: str
    num_classes: int
    largest_token: Annotated[int, Field(strict=True, ge=0, le=MOST_TOKENS)] | None
    pixels: tuple[tuple[float, ...], ...] | None
    """Per channel, mean and deviation of all training images; of sums, a site would learn how many others hold."""
    clients: tuple[tuple[int, ...], ...]
    """Per edge, the numbers of its clients."""
    commitments: Mapping[str, Hash]
    """Of every client that takes part, and of every edge that holds test data itself, by name."""
    holdings: Mapping[str, Holding]
    """Those that are known here; no part of the terms."""
    label_shape: tuple[int, ...] = ()
    """Of one label: none of a class, else how many numbers or tokens it has."""
    epoch: int = 1
    """Counts the charters of the run: members came or left, or there are other rounds or data."""
    after: int = 0
    """The last round under the charter before."""
    before: str = ""
    """The hash of that."""

    @cached_property
    def text(self) -> str:
        """The terms as they travel."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "holdings"}
        if self.epoch == 1:
            plain = {name: value for name, value in plain.items() if name not in ("epoch", "after", "before")}
        return json.dumps(plain | {"experiment": self.experiment.model_dump(mode="json")}, sort_keys=True)

    def known_to(self, site: str) -> dict[str, Any]:
        """Return the holdings that a site is handed, as they travel: its own and those of its clients."""
        mine = (name for name in self.holdings if name == site or name.startswith(f"{site}-"))
        return {name: self.holdings[name].model_dump() for name in mine}

    def held(self, split: Split) -> list[int]:
        """Return how many examples of a split each client holds; 0 where that is not known here."""
        return [getattr(self.holdings[name], split) if name in self.holdings else 0 for name in self.names]

    def edge_tests(self, edge: int) -> int:
        """Return how many test examples an edge itself holds; 0 where its clients do, or it is not known here."""
        return self.holdings[edge_name(edge)].test if edge_name(edge) in self.holdings else 0

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of clients, by their numbers."""
        name_of = {c: client_name(m, n) for m, clients in enumerate(self.clients) for n, c in enumerate(clients)}
        return tuple(name_of[number] for number in range(len(name_of)))

    @property
    def title(self) -> str:
        """What a site takes part in."""
        return f"run {self.run}, epoch {self.epoch} (charter {self.id})"

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The edges of which a client takes part; the places of others are empty, or not taken yet."""
        return tuple(m for m, own in enumerate(self.clients) if any(self.names[c] in self.commitments for c in own))

    def at(self, edge: int) -> dict[str, str]:
        """Return the commitments of an edge and its clients, by name."""
        name = edge_name(edge)
        return {one: said for one, said in self.commitments.items() if one == name or one.startswith(f"{name}-")}

    @cached_property
    def id(self) -> str:
        """Its hash."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]

    @cached_property
    def scopes(self) -> dict[str, Scope]:
        """Who owns which part, which decides what is sent and what stays."""
        return {part: spec.scope for part, spec in self.experiment.method.personalization.parts.items()}

    def without(self, parts: Parts, *kept: Scope) -> Parts:
        """Return the parts, but for those whose owners are of these kinds."""
        return {part: params for part, params in parts.items() if self.scopes[part] not in kept}

    def only(self, parts: Parts, *kept: Scope) -> Parts:
        """Return the parts whose owners are of these kinds."""
        return {part: params for part, params in parts.items() if self.scopes[part] in kept}

    def keeps(self, scope: Scope) -> bool:
        """Whether owners of a kind keep something from round to round."""
        remembers = self.experiment.task.training.momentum_state == "persist" or self.codec("client_up") is not None
        return scope in self.scopes.values() or (scope == "client" and remembers)

    @property
    def above(self) -> Tier:
        """The link between an edge and what is above it."""
        return self.experiment.link_names[1]

    def codec(self, link: str) -> Codec | None:
        """Return how a link packs changes."""
        return self.experiment.method.links.chains.get(link, Chain()).codec

    @cached_property
    def normalization(self) -> Normalization:
        """Per-channel mean and deviation of all training images, whoever holds them."""
        if self.pixels is None:
            return None
        if self.experiment.method.privacy is not None:
            return fixed_normalization(len(self.pixels[0]))
        mean_C, deviation_C = (np.array(each_C, dtype=np.float32) for each_C in self.pixels)
        return mean_C, deviation_C

    @cached_property
    def build(self) -> models.Build:
        """Makes the networks of the run."""
        task, recipe, seed = self.experiment.task, self.experiment.network, self.experiment.seed
        steps = self.label_shape if task.loss.labels == "tokens" else ()
        losses.check(task.loss, task.loss.labels, self.label_shape, self.num_classes)
        extend = extension(self.experiment.method.personalization)
        return models.builder(
            recipe, None, self.shape, self.num_classes, seed, self.largest_token, task.frozen, steps, extend
        )

    def check_here(self) -> None:
        """Refuse networks and a loss that cannot be built here."""
        with runnable():
            _ = self.build

    @property
    def network(self) -> nn.Module:
        """A network of the architecture, as a template."""
        return self.build(0)

    @property
    def example(self) -> Tensor:
        """An example of the right shape."""
        return torch.from_numpy(self.blank())

    def blank(self) -> Any:
        """Return an example that says nothing."""
        return np.zeros((1, *self.shape), dtype=self.dtype)

    def blank_labels(self) -> Any:
        """Return the label of an example that says nothing."""
        numbers = self.experiment.task.loss.labels == "numbers"
        return np.zeros((1, *self.label_shape), dtype=np.float32 if numbers else np.int64)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Where clients meet."""
        found, size_N, held_N = [], np.array(self.held("train")), np.array(self.held("validation"))
        for index, edges in enumerate(self.experiment.method.topology.sites(len(self.clients))):
            here = [client for edge in edges for client in self.clients[edge]]
            edge_N = np.repeat(edges, [len(self.clients[edge]) for edge in edges])
            numbers = (tuple(here), size_N[here], held_N[here], self.num_classes, edge_N)
            found.append(Site(index, *numbers, above=self.experiment.above(index)))
        return tuple(found)

    @cached_property
    def first(self) -> Parts:
        """All parts as they are before the first round, a row for each owner."""
        owners = owners_of(self.experiment, self.sites)
        return self.experiment.method.personalization.init(self.build, owners)

    @cached_property
    def template(self) -> Parts:
        """One row of every part, for its shape."""
        one: dict[Scope, int] = dict.fromkeys(get_args(Scope), 1)
        return self.experiment.method.personalization.init(self.build, one)

    def longest_answer(self, request: str) -> int:
        """Return the bytes that an answer to a kind of request may have: networks, where there are some, and the rest.

        The rest grows with clients and clusters: what selection remembers, and numbers of every model and client.
        """
        most = max(len(site.clients) for site in self.sites)
        clusters = max((trees.count(params) for params in self.only(self.first, "cluster").values()), default=0)
        memory = flatten(self.experiment.method.selection.init(most)).values()
        rest = ROOM + 4 * sum(value.nbytes for value in memory) + 64 * most * (clusters + 1)
        update = rest + self._bytes("client_up", *PASSES["client"])
        if request == "train":  # with the update of every client, where clustering asks for them
            up = f"{self.above}_up"
            of_clusters = (min(clusters, most) + most) * self._bytes(up, "cluster")
            return rest + self._bytes(up, *PASSES[self.above] - {"cluster"}) + of_clusters
        return {"fit": update, "secret_fit": update, "relay": rest + max(map(len, self.clients)) * update}.get(
            request, rest
        )

    def _bytes(self, link: str, *scopes: Scope) -> int:
        """Return what a row of each part of some owners takes on a link, packed or as it is."""
        total, codec = 0, self.codec(link)
        for params in self.only(self.template, *scopes).values():
            for value in params.values():
                pieces = {} if codec is None else codec.layout(value[0].numel())
                total += max(value.nbytes, sum(dtype.itemsize * count for dtype, count in pieces.values()))
        return total

    def groups(self, wanted: Wanted, site: Site) -> IntArray:
        """Return how many examples there are in each group of a site on which models are measured."""
        held_N = np.array(self.held(wanted.split))
        if wanted.by in ("each", "client"):
            return held_N[list(site.clients)]
        own = self.edge_tests if wanted.split == "test" else lambda edge: 0
        each_M = [own(edge) + held_N[list(self.clients[edge])].sum() for edge in site.edges]
        return np.array(each_M if wanted.by == "edge" else [sum(each_M)])

    def epochs(self, phases: tuple[int, ...] | None) -> int:
        """Return how many epochs clients train in some phases; in all, when not given."""
        return sum(
            self.experiment.task.training.epochs if phase.epochs is None else phase.epochs
            for number, phase in enumerate(self.experiment.method.personalization.phases())
            if phases is None or number in phases
        )

    def unknown(self, count: int) -> Parts:
        """Return what stands in for the parts of so many clients where nobody but themselves has them."""
        return {
            part: {name: value.expand(count, *value.shape[1:]) for name, value in self.template[part].items()}
            for part, scope in self.scopes.items()
            if scope == "client"
        }

    def own(self, scope: Scope, owner: int, kept: Parts, received: Parts) -> Parts:
        """Return the parts of one owner, a row each: as it has kept them, else as everybody's that they follow, else
        as they were at first."""
        found: Parts = {}
        for part, spec in self.experiment.method.personalization.parts.items():
            if spec.scope != scope:
                continue
            if part in kept:
                found[part] = kept[part]
            elif spec.follows is not None and spec.follows in received:
                found[part] = {name: value[:1] for name, value in received[spec.follows].items()}
            else:
                found[part] = {name: value[owner : owner + 1] for name, value in self.first[part].items()}
        return found


def outputs(
    experiment: Experiment, classes: int, label_shape: Sequence[int], shape: Sequence[int], largest_token: int | None
) -> int:
    """Return how many numbers a network predicts: those of a label, or as many classes or tokens as there are.

    A network of the user's decides itself: it may know some that nobody happens to hold.
    """
    if experiment.task.loss.labels == "numbers":
        return label_shape[0] if label_shape else 1
    own = experiment.network
    return own.outputs(tuple(shape), largest_token, classes) if isinstance(own, models.OwnNetwork) else classes


@contextmanager
def runnable() -> Iterator[None]:
    """Turn what keeps an experiment from running here into what a site may tell of it."""
    try:
        yield
    except PackageError as error:
        hashes = [int(one[:12], 16) for one in error.hashes]
        raise SiteError(Failure.OTHER_PACKAGE if hashes else Failure.NOT_ALLOWED, *hashes, detail=str(error)) from error
    except ConfigError as error:
        raise SiteError(Failure.CANNOT_RUN, detail=str(error)) from error


def read_experiment(plain: Any) -> Experiment:
    """Return the experiment that a site is asked to take part in, if all that it imports is here, and allowed."""
    with runnable():
        experiment = parse(Experiment, plain)
        for named in experiment.packages.values():
            named.load()
    return experiment


def read_charter(text: str, known: Mapping[str, Any]) -> Charter:
    """Return the charter that a parent hands over, and what it tells of those whose data the site may know."""
    try:
        plain = json.loads(text)
        with runnable():
            experiment = parse(Experiment, plain.pop("experiment"))
        charter = Charter(**plain, experiment=experiment, holdings=known)
        if not _possible(charter):
            raise ValueError
        return charter
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise WireError("begin: it holds no charter") from error


def _possible(charter: Charter) -> bool:
    """Whether a federation of this kind can be."""
    members = [client for clients in charter.clients for client in clients]
    edges = {edge_name(m) for m in range(len(charter.clients))}
    clients = {client_name(m, n) for m, own in enumerate(charter.clients) for n in range(len(own))}
    return (
        charter.dtype in NUMBERS
        and are_sides(charter.shape)
        and 0 < charter.num_classes <= (MOST_TOKENS if charter.label_shape else MOST_CLASSES)
        and (charter.label_shape == () or are_sides(charter.label_shape))
        and (charter.pixels is None or _are_pixels(charter.pixels, charter.shape[0]))
        and sorted(members) == list(range(len(members)))
        and tuple(map(len, charter.clients)) == charter.experiment.task.clients()
        and charter.commitments.keys() <= clients | edges
        and len(charter.members) > 0
        and all(charter.commitments.get(name) == held.commitment for name, held in charter.holdings.items())
    )


def _are_pixels(pixels: tuple[tuple[float, ...], ...], channels: int) -> bool:
    """Whether these can be means and deviations of pixels divided by 255; a ValueError if they are not two."""
    mean_C, deviation_C = pixels
    good = all(0 <= mean <= 1 for mean in mean_C) and all(0 < deviation <= 1 for deviation in deviation_C)
    return good and len(mean_C) == len(deviation_C) == channels


def are_sides(shape: Sequence[int]) -> bool:
    """Whether an example can have this shape; a single number is none."""
    return len(shape) > 0 and all(side > 0 for side in shape) and math.prod(shape) <= MOST_NUMBERS


def are_sums(rows: Sequence[Sequence[int]]) -> bool:
    """Whether these can be sums, sums of squares and numbers of the pixels of images, whose values go up to 255."""
    return all(
        len(row) == 3 and 0 < row[2] <= MOST_PIXELS and 0 <= row[0] <= row[1] <= 255 * row[0]
        and row[0] <= 255 * row[2]
        for row in rows
    )  # fmt: skip


def read_facts(said: Any) -> Facts:
    """Return what a site says of its data."""
    try:
        facts = Facts.model_validate(said)
    except ValidationError as error:
        raise WireError(f"facts: {quoted(said)} does not describe data") from error
    good = facts.dtype in NUMBERS and are_sides(facts.shape) and (facts.sums is None or are_sums(facts.sums))
    good = good and (not facts.label_shape or are_sides(facts.label_shape))
    good = good and (facts.largest_token is None or facts.dtype == "int64")
    if not good or any(not 0 <= count <= MOST_EXAMPLES for count in facts.classes):
        raise WireError(f"facts: {quoted(said)} cannot be")
    return facts


FAR = 30
"""Times the usual, and at least so many times as many, is far above it."""


def far_off(numbers: Mapping[str, int], others: Sequence[int] = ()) -> dict[str, int]:
    """Return whose number is so far above the usual that a network for it would be of no use to others, and the usual:
    the median. Of fewer than three nothing is usual."""
    known = [*numbers.values(), *others]
    usual = int(np.median(known)) if len(known) > 2 else MOST_TOKENS
    return {name: usual for name, number in numbers.items() if number > FAR * max(usual, FAR)}


def added_up(sums: Sequence[Sequence[Sequence[int]]]) -> tuple[tuple[int, ...], ...] | None:
    """Return the sums of all holders of images; None if there are none."""
    if not sums:
        return None
    return tuple(tuple(map(sum, zip(*rows, strict=True))) for rows in zip(*sums, strict=True))


class Together(BaseModel):
    """What an edge says of all its clients together."""

    model_config = ConfigDict(frozen=True, strict=True)

    classes: list[int] = Field(max_length=MOST_CLASSES)
    sums: list[list[int]] | None = Field(max_length=MOST_CLASSES)


def read_together(said: Mapping[str, Any], facts_of: Sequence[Facts]) -> Together:
    """Return the classes and sums of the clients of an edge, if they fit what it says of each."""
    try:
        found = Together.model_validate({name: said.get(name) for name in Together.model_fields})
    except ValidationError as error:
        raise WireError(
            "facts: classes and sums of all clients are missing; if its kit has other clients or another "
            "deploy.start_after than the cloud's, renew it"
        ) from error
    examples = sum(facts.train + facts.validation for facts in facts_of)
    if found.sums is not None and not are_sums(found.sums):
        raise WireError("facts: the sums of images cannot be")
    if min(found.classes, default=0) < 0 or sum(found.classes) != examples:
        raise WireError(f"facts: classes must add up to the {examples} examples of all clients")
    (dtype, shape), *others = {(facts.dtype, tuple(facts.shape)) for facts in facts_of}
    if not others:  # else they do not fit together, which is said in other words
        pixels = examples * math.prod(shape[1:])
        rows = [] if found.sums is None else found.sums
        if len(rows) != (shape[0] if dtype == "uint8" else 0) or any(row[2] != pixels for row in rows):
            raise WireError("facts: sums must be of every pixel of all images, channel by channel")
    return found
