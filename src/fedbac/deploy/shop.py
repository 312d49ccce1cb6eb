"""A site's own work: training on its data and measuring with them. The only place that sees examples."""

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedbac.config.experiment import Experiment, Runtime
from fedbac.config.explain import parse
from fedbac.core import trees
from fedbac.core.links import Link
from fedbac.core.parts import Parts
from fedbac.core.queries import Moment
from fedbac.core.requests import Train, Trained, Trainer
from fedbac.core.settings import IntArray
from fedbac.data import Dataset, Shards
from fedbac.deploy.asking import FORGOTTEN, STRANGER
from fedbac.deploy.charter import Charter, Facts, read_charter
from fedbac.deploy.failures import Failure, SiteError
from fedbac.deploy.keepsakes import Keepsakes
from fedbac.deploy.local_data import LocalData, read_local
from fedbac.deploy.messages.lessons import findings, learned, moment_in, read_lesson, read_question
from fedbac.deploy.messages.packing import ForgottenError, Shelf
from fedbac.deploy.wire import Message, all_finite, decode, encode, laid_out
from fedbac.engines.adjusting import adjusted
from fedbac.errors import ConfigError, DeployError
from fedbac.local import Examples, make_trainer, one_thread

KINDS = ("enroll", "begin", "lesson", "question")

log = logging.getLogger("fedbac")


@dataclass(frozen=True, eq=False)
class OwnExamples(Examples):
    """The examples of one site: all test data of a client are its own share."""

    @cached_property
    def client_test(self) -> tuple[IntArray, ...]:
        """Per client, its test data; of an edge's, none is a client's."""
        whole = np.arange(len(self.dataset.y_test))
        return tuple(whole if mine.size else mine for mine in self.shards.train)


class Shop:
    """What a client does, and an edge with test data: answers its parent's messages from its own data."""

    def __init__(self, name: str, number: int, edge: int, is_client: bool, source: str, state: Path, runtime: Runtime):
        self.name, self.number, self.edge, self.is_client = name, number, edge, is_client
        self.state, self.runtime = state, runtime
        self.raw = read_local(source)
        if is_client and self.raw.size("train") == 0:
            raise DeployError(f"{source}: x_train and y_train are missing; a client learns from them")
        self.data: LocalData = self.raw
        self.charter: Charter | None = None

    def answer(self, payload: bytes) -> bytes:
        """Answer one message."""
        message = decode(payload, KINDS)
        if message.kind == "enroll":
            return self._enroll(message)
        if message.kind == "begin":
            return self._begin(message)
        if self.charter is None or message.head.get("charter") != self.charter.id:
            return STRANGER  # whoever asks hands over the charter first, and asks again
        with one_thread():
            if message.kind == "question":
                return self._measure(message)
            try:
                return self._learn(message)
            except ForgottenError:
                return FORGOTTEN

    def facts(self, experiment: Experiment) -> Facts:
        """Return what the cloud must know of the data."""
        data = self._held_out(experiment)
        counted = ("train", "validation") if self.is_client else ("test",)
        return Facts(
            train=data.size("train") if self.is_client else 0,
            validation=data.size("validation") if self.is_client else 0,
            test=data.size("test"),
            shape=list(data.example.shape[1:]),
            dtype=str(data.example.dtype),
            classes=data.classes(*counted),
            sums=data.sums() if self.is_client else None,
            largest_token=data.largest_token,
            fingerprint=data.fingerprint,
        )

    def _held_out(self, experiment: Experiment) -> LocalData:
        if not self.is_client:
            return self.raw
        return self.raw.with_validation(experiment.task.partition.validation_fraction, experiment.seed, self.number)

    def _enroll(self, message: Message) -> bytes:
        try:
            experiment = parse(Experiment, message.value("experiment", dict))
        except ConfigError as error:
            raise SiteError(Failure.CANNOT_RUN, detail=str(error)) from error
        return encode("facts", {"facts": self.facts(experiment).model_dump()}, {})

    def _begin(self, message: Message) -> bytes:
        charter = read_charter(message)
        if self.charter is not None and self.charter.id == charter.id:
            return encode("ready", {"charter": charter.id}, {})
        data = self._held_out(charter.experiment)
        if charter.fingerprints.get(self.name) != data.fingerprint:
            raise SiteError(Failure.OTHER_DATA)
        self.charter, self.data = charter, data
        self.__dict__.pop("trainer", None)
        self.__dict__.pop("shelf", None)
        split = "train" if self.is_client else "test"
        log.info("part of run %s with %d examples to %s", charter.run, data.size(split), split)
        return encode("ready", {"charter": charter.id}, {})

    @property
    def terms(self) -> Charter:
        """The charter, once there is one."""
        assert self.charter is not None
        return self.charter

    @cached_property
    def shelf(self) -> Shelf:
        """The networks that it was sent last."""
        return Shelf(lambda: self.terms.first)

    @cached_property
    def trainer(self) -> Trainer:
        """Trains and measures, with the hooks of the scheme around it."""
        charter, data = self.terms, self.data
        learned_from = [split for split in ("train", "validation") if self.is_client and split in data.y]
        x = np.concatenate([data.x[split] for split in learned_from]) if learned_from else charter.blank()
        y = np.concatenate([data.y[split] for split in learned_from]) if learned_from else np.zeros(1, dtype=np.int64)
        tested = data.size("test") > 0
        dataset = Dataset(
            charter.experiment.task.dataset,
            x,
            y,
            data.x["test"] if tested else charter.blank(),
            data.y["test"] if tested else np.zeros(1, dtype=np.int64),
            charter.num_classes,
        )
        nothing = np.zeros(0, dtype=np.int64)
        num_clients = sum(map(len, charter.clients))
        size, held = data.size("train"), data.size("validation")

        def mine(indices: IntArray) -> tuple[IntArray, ...]:
            return tuple(
                indices if self.is_client and client == self.number else nothing for client in range(num_clients)
            )

        shards = Shards(
            train=mine(np.arange(size)),
            validation=mine(np.arange(size, size + held)),
            test=tuple(
                np.arange(data.size("test")) if edge == self.edge else nothing for edge in range(len(charter.clients))
            ),
            clients=tuple(range(clients[0], clients[-1] + 1) for clients in charter.clients),
        )
        task = charter.experiment.task
        examples = OwnExamples(
            dataset, shards, task.training, task.augment, charter.experiment.seed, charter.normalization
        )
        scheme = charter.experiment.method.personalization
        return adjusted(make_trainer(charter.network, scheme, examples, self.runtime), scheme)

    def _learn(self, message: Message) -> bytes:
        """Train as asked; what the client owns stays here."""
        charter, codec = self.terms, self.terms.codec("client_down")
        lesson = read_lesson(message, charter.template, charter.owners, codec, self.shelf)
        if codec is not None:
            self.shelf.put(lesson.bank)
        experiment, scheme = charter.experiment, charter.experiment.method.personalization
        kept = self._kept((lesson.round, lesson.edge_round))
        own = charter.own("client", self.number, _parts(kept, "parts"), lesson.bank)
        bank = {part: lesson.bank[part] if part in lesson.bank else own[part] for part in scheme.parts}
        momentum = None
        if experiment.task.training.momentum_state == "persist":
            momentum = _parts(kept, "momentum") or self._at_rest(bank)
        request = Train(
            clients=(self.number,),
            bank=bank,
            row_C={part: np.zeros(1, dtype=np.int64) for part in bank},
            round=lesson.round,
            edge_round=lesson.edge_round,
            learning_rate=lesson.learning_rate,
            momentum=momentum,
            keep=frozenset(lesson.keep),  # type: ignore[arg-type]
            phases=lesson.phases,
            teachers=lesson.teachers,
            edge_rounds=experiment.method.topology.edge_rounds,
            share=lesson.share,
        )
        (trained,) = self.trainer.train([request])
        trained = replace(trained, parts_C={part: trees.to(p, "cpu") for part, p in trained.parts_C.items()})
        moment = Moment(lesson.round, experiment.task.rounds)
        link = Link("client", scheme, moment, experiment.method.links.chains, experiment.seed)
        left = _parts(kept, "left")
        if link.chain("up").codec is not None:
            left = {part: trees.zeros(bank[part]) for part in link.passing["up"]} | left
        parts_C, left, changes = link.upload(trained.parts_C, bank, left, (self.number,), lesson.edge_round)
        if np.isfinite(trained.loss_C).all() and all_finite(trained.parts_C):
            self._keep((lesson.round, lesson.edge_round), trained, left)
        return learned(replace(trained, parts_C=parts_C), link.passing["up"], changes)

    def _measure(self, message: Message) -> bytes:
        """Measure models as asked, with what the client owns in place."""
        charter = self.terms
        if not self.is_client:
            asked = read_question(message, self.edge, {}, charter.template)
        else:
            kept = _parts(self._kept(moment_in(message)), "parts")
            own = charter.own("client", self.number, kept, message.parts("bank"))
            asked = read_question(message, self.number, own, charter.template)
        (measured,) = self.trainer.evaluate([asked])
        return findings(measured)

    def _at_rest(self, bank: Parts) -> Parts:
        """Return momentum of zero, for what is trained."""
        trainable = {name for name, _ in self.terms.network.named_parameters()}
        parts = self.terms.experiment.method.personalization.parts
        return {
            part: {name: torch.zeros_like(value) for name, value in params.items() if name in trainable}
            for part, params in bank.items()
            if parts[part].networks
        }

    @property
    def keepsakes(self) -> Keepsakes:
        """What the client keeps of this run."""
        return Keepsakes(self.state / self.terms.run)

    def _kept(self, before: tuple[int, int]) -> dict[str, Tensor]:
        return self.keepsakes.before(before) or {}

    def _keep(self, at: tuple[int, int], trained: Trained, left: Parts) -> None:
        own = self.terms.owners.only(trained.parts_C, "client")
        tensors = laid_out(own, "parts") | laid_out(trained.momentum or {}, "momentum") | laid_out(left, "left")
        if tensors:
            self.keepsakes.keep(at, tensors)


def _parts(kept: dict[str, Tensor], place: str) -> Parts:
    """Return the networks of a version at a place."""
    return Message("version", {}, kept).parts(place)
