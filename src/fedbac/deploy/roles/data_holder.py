"""A site's own work: training on its data and measuring with them. The only place that sees examples."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbac.config.experiment import Experiment, Runtime
from fedbac.core import trees
from fedbac.core.codecs import Changes
from fedbac.core.links import Link
from fedbac.core.parts import Parts
from fedbac.core.queries import Moment
from fedbac.core.requests import Evaluate, Measured, Train, Trained, Trainer
from fedbac.core.settings import IntArray
from fedbac.data import Dataset, Shards
from fedbac.deploy import log
from fedbac.deploy.local_data import LocalData, read_local
from fedbac.deploy.protocol.charter import Charter, Facts, outputs, read_charter, read_experiment, runnable
from fedbac.deploy.protocol.failures import Failure, SiteError
from fedbac.deploy.protocol.messages import (
    Expected,
    check_rows,
    read_evaluate_request,
    read_fit_request,
    received,
    sent,
)
from fedbac.deploy.protocol.packing import ForgottenError, Shelf
from fedbac.deploy.protocol.wire import Message, WireError, decode
from fedbac.deploy.roles.calls import FORGOTTEN, STRANGER
from fedbac.deploy.roles.models import read_models
from fedbac.deploy.roles.releases import Releases, RoundFiles, Training
from fedbac.deploy.roles.secret_sums import SECRET, SecretSums
from fedbac.deploy.secret.member import Signer
from fedbac.engines.adjusting import adjusted
from fedbac.errors import DeployError
from fedbac.files import remove
from fedbac.local import Examples, make_trainer, one_thread, per_example
from fedbac.rounds.privacy import silent

ROUNDS_BACK = 3
"""How far a cloud may go back: it keeps two checkpoints, and may have died before it wrote one."""
GREY = 128
"""A pixel that is neither black nor white."""
NOTHING: dict[str, Any] = {"parts": {}, "momentum": {}, "left": {}, "links": {}}


class LocalState(RoundFiles):
    """The versions of what one owner keeps, in a folder."""

    name, kind = "own", "version"

    def before(self, moment: Training) -> tuple[int, dict[str, Any] | None]:
        """Return the round of the newest version before a moment that can be read, and what it holds; or 0 and None."""
        for made, file in sorted(self._files().items(), reverse=True):
            if made < moment and (kept := self._read(file)) is not None:
                return made[0], kept
        return 0, None

    def expected(self, moment: Training, expected: Expected, failure: Failure, number: int) -> dict[str, Any] | None:
        """Return what was kept before a moment if it is what the records of the run tell, or a SiteError.

        A cloud that was killed may go back a few rounds, to what is here; what was kept beyond is then removed. One
        that goes back further is that of an old backup, and who lacks what it should have was robbed of its folder.
        """
        last, (found, kept) = moment[0] - 1, self.before(moment)
        newest = max((made for made in self._files()), default=(0, 0))
        if newest[0] > last + ROUNDS_BACK or found < expected.trained:
            if not expected.anyway:
                at_most = newest[0] if newest[0] > last else found
                error = SiteError(failure, number, last, at_most)
                log.error("%s: %s; restore this folder, or the newest run folder of the cloud", self.folder, error)
                raise error
            kept = self._adopt(moment, min(expected.trained, last))
        for made, file in self._files().items():
            if made >= moment:
                again = logging.INFO if made[0] == moment[0] else logging.WARNING
                log.log(again, "round %d is played again; %s is removed", moment[0], file.name)
                remove(file)
        return kept

    def _adopt(self, moment: Training, trained: int) -> dict[str, Any] | None:
        """Take the newest version before a moment, else the first after it, else none, for that of another round."""
        files = self._files()
        order = [*sorted((m for m in files if m < moment), reverse=True), *sorted(m for m in files if m >= moment)]
        made, kept = next(((m, kept) for m in order if (kept := self._read(files[m])) is not None), (None, None))
        log.warning("going on with the state of round %s instead of %d, as the cloud wants", made and made[0], trained)
        self._write((trained, 0), **(kept or NOTHING))
        return kept

    def keep(self, moment: Training, **kept: Parts | dict[str, Parts]) -> None:
        """Write a version if there is something to keep, and remove those that nobody goes back to."""
        if not any(kept.values()):
            return
        self._write(moment, **{**NOTHING, **kept})
        files = self._files()
        old = sorted(made for made in files if made < (moment[0] - ROUNDS_BACK, 0))
        for made in old[:-1]:  # the newest of them is what a cloud that goes back would ask for
            remove(files[made])


ALONE = ("fit", "evaluate")
"""What a site answers with numbers of its own, which nobody may see where there are secret sums."""
KINDS = ("enroll", "begin", "fit", "evaluate", "model", *SECRET)


@dataclass(frozen=True, eq=False)
class OwnExamples(Examples):
    """The examples of one site: all test data of a client are its own share."""

    @cached_property
    def client_test(self) -> tuple[IntArray, ...]:
        """Per client, its test data; of an edge's, none is a client's."""
        whole = np.arange(len(self.dataset.y_test))
        return tuple(whole if mine.size else mine for mine in self.shards.train)


class DataHolder:
    """What a client does, and an edge with test data: answers its parent's messages from its own data."""

    def __init__(
        self,
        name: str,
        number: int,
        edge: int,
        is_client: bool,
        source: str,
        state: Path,
        runtime: Runtime,
        signer: Callable[[Charter], Signer] | None = None,
    ) -> None:
        """``signer`` signs as the site, for secret sums."""
        self.name, self.number, self.edge, self.is_client = name, number, edge, is_client
        self.state, self.runtime = state, runtime
        self.sums = SecretSums(self, signer)
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
        if message.kind == "model":
            return self._model(message)
        if self.is_client and message.kind in ALONE and self.charter.experiment.method.secret:
            raise SiteError(
                Failure.NO_SUM, detail="what it learns leaves it in sums alone, and this asks for it as it is"
            )
        with one_thread():
            if message.kind == "evaluate":
                return sent("evaluation", measured=self.evaluate(message)[1])
            try:
                if message.kind in SECRET:
                    return self.sums.answer(message)
                _, trained, changes = self.fit(message)
                return sent("update", changes, "trained/parts_C", trained=trained)
            except ForgottenError:
                return FORGOTTEN

    def facts(self, experiment: Experiment) -> Facts:
        """Return what the cloud must know of the data."""
        data = self._held_out(experiment)
        counted = ("train", "validation") if self.is_client else ("test",)
        return Facts(
            **self._held(data),
            shape=list(data.example.shape[1:]),
            dtype=str(data.example.dtype),
            classes=data.classes(*counted),
            sums=self._sums(experiment, data),
            largest_token=data.largest_token,
            label_shape=list(data.label_shape),
        )

    def _held(self, data: LocalData) -> dict[str, Any]:
        learned = {split: data.size(split) if self.is_client else 0 for split in ("train", "validation")}
        return {**learned, "test": data.size("test"), "fingerprint": data.fingerprint}

    def _sums(self, experiment: Experiment, data: LocalData) -> list[list[int]] | None:
        """Return the sums of the pixels; those of as many grey ones where privacy is promised, which tell nothing."""
        sums = data.sums() if self.is_client else None
        if sums is None or experiment.method.privacy is None:
            return sums
        return [[GREY * count, GREY**2 * count, count] for _, _, count in sums]

    def _held_out(self, experiment: Experiment) -> LocalData:
        if not self.is_client:
            return self.raw
        return self.raw.with_validation(experiment.task.partition.validation_fraction, experiment.seed, self.number)

    def _enroll(self, message: Message) -> bytes:
        experiment = read_experiment(received(message)["experiment"])
        loss, raw, classes = experiment.task.loss, self.raw, self.raw.num_classes
        if loss.labels != raw.labels:
            detail = f"task.loss {loss.kind} learns {loss.labels}, and y_train or y_test are {raw.labels}"
            fix = "give other labels, or have the federation change task.loss"
            raise SiteError(Failure.OTHER_LABELS, detail=f"{detail}; {fix}")
        with runnable():
            known = outputs(experiment, classes, raw.label_shape, raw.example.shape[1:], raw.largest_token)
        if known < classes and raw.labels != "numbers":
            detail = f"the network predicts {known} {raw.labels}, the labels are {classes}"
            raise SiteError(Failure.OTHER_LABELS, detail=detail)
        return sent("facts", facts=self.facts(experiment).model_dump())

    def _begin(self, message: Message) -> bytes:
        begin = received(message)
        charter = read_charter(begin["charter"], begin["known"])
        if self.charter is not None and self.charter.id == charter.id:
            return sent("ready")
        data, held = self._held_out(charter.experiment), charter.holdings.get(self.name)
        if held is None or held.model_dump(exclude={"salt"}) != self._held(data):
            raise SiteError(Failure.OTHER_DATA)
        charter.check_here()
        if self.raw.labels != "numbers" and self.raw.num_classes > charter.num_classes:  # who joins later tells nobody
            raise SiteError(Failure.MORE_CLASSES, self.raw.num_classes - 1, charter.num_classes - 1)
        self.charter, self.data = charter, data
        self.__dict__.pop("trainer", None)
        self.__dict__.pop("shelf", None)
        split = "train" if self.is_client else "test"
        log.info("part of %s with %d examples to %s", charter.title, data.size(split), split)
        if self.is_client and charter.experiment.method.secret:
            log.info("what it learns leaves it only in secret sums (method.aggregation.secret)")
        return sent("ready")

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
        charter, data, task = self.terms, self.data, self.terms.experiment.task
        learned_from = [split for split in ("train", "validation") if self.is_client and split in data.y]
        x = np.concatenate([data.x[split] for split in learned_from]) if learned_from else charter.blank()
        y = np.concatenate([data.y[split] for split in learned_from]) if learned_from else charter.blank_labels()
        tested = data.size("test") > 0
        x_test, y_test = (data.x["test"], data.y["test"]) if tested else (charter.blank(), charter.blank_labels())
        dataset = Dataset(task.dataset, x, y, x_test, y_test, charter.num_classes)
        size, held = data.size("train"), data.size("validation")

        def own(indices: IntArray, owner: int | None, count: int) -> tuple[IntArray, ...]:
            return tuple(indices if one == owner else indices[:0] for one in range(count))

        client, num_clients = self.number if self.is_client else None, len(charter.names)
        shards = Shards(
            train=own(np.arange(size), client, num_clients),
            validation=own(np.arange(size, size + held), client, num_clients),
            test=own(np.arange(data.size("test")), self.edge, len(charter.clients)),
            clients=charter.clients,
        )
        seed, normalization = charter.experiment.seed, charter.normalization
        examples = OwnExamples(dataset, shards, task.training, task.augment, seed, normalization, task.loss)
        scheme = charter.experiment.method.personalization
        gradients = per_example(charter.experiment, self.noise_seed)
        return adjusted(make_trainer(charter.network, scheme, examples, self.runtime, gradients), scheme)

    @property
    def noise_seed(self) -> int:
        """What noise comes from: where clients keep secrets by it, one of their own."""
        privacy, seed = self.terms.experiment.method.privacy, self.terms.experiment.seed
        return seed if privacy is None or not privacy.keeps_secrets else self.releases.secret

    @property
    def releases(self) -> Releases:
        """What was released of this run with noise."""
        return Releases(self.state / self.terms.run)

    def fit(self, message: Message) -> tuple[Train, Trained, Changes]:
        """Train as asked; return what was asked, what is sent of what was learned, and how."""
        charter, experiment = self.terms, self.terms.experiment
        request, expected = read_fit_request(message, charter, self.number, self.shelf)
        if charter.codec("client_down") is not None:
            self.shelf.put(request.bank)
        scheme, at = experiment.method.personalization, (request.round, request.edge_round)
        if experiment.method.privacy is not None:
            self._check_accounted(request)
        kept = self._kept(at, expected)
        whole = request.bank | charter.own("client", self.number, kept["parts"], request.bank)
        bank = {part: whole[part] for part in scheme.parts}
        momentum = None
        if experiment.task.training.momentum_state == "persist":
            momentum = kept["momentum"] or self._at_rest(bank)
        (trained,) = self.trainer.train([replace(request, bank=bank, momentum=momentum)])
        trained = replace(trained, parts_C={part: trees.to(p, "cpu") for part, p in trained.parts_C.items()})
        moment, privacy = Moment(request.round, experiment.task.rounds), experiment.method.privacy
        link = Link("client", scheme, moment, experiment.chains, self.noise_seed)

        def released(parts_C: Parts) -> Parts:
            start, passing = ({part: some[part] for part in link.passing["up"]} for some in (bank, parts_C))
            return parts_C | self.releases.once(at, start, lambda: passing)

        if privacy is not None:
            trained = replace(trained, loss_C=silent(trained.loss_C))
            if not privacy.bounds_clients:
                trained = replace(trained, parts_C=released(trained.parts_C))
        left = kept["left"]
        if link.chain("up").codec is not None:
            left = {part: trees.zeros(bank[part]) for part in link.passing["up"]} | left
        parts_C, left, changes = link.upload(trained.parts_C, bank, left, (self.number,), request.edge_round)
        if privacy is not None and privacy.where == "clients":
            parts_C = released(parts_C)
        finite = (torch.isfinite(value).all() for params in trained.parts_C.values() for value in params.values())
        if np.isfinite(trained.loss_C).all() and all(finite):
            own = charter.only(trained.parts_C, "client")
            self.local_state.keep(at, parts=own, momentum=trained.momentum or {}, left=left)
        passed = {part: params for part, params in parts_C.items() if part in link.passing["up"]}
        return replace(request, bank=bank), replace(trained, parts_C=passed), changes

    def _check_accounted(self, request: Train | Evaluate) -> None:
        """Refuse what the account of ``method.privacy`` does not hold: a dishonest parent might ask for it."""
        task, edge_rounds = self.terms.experiment.task, self.terms.experiment.edge_rounds
        if isinstance(request, Evaluate):
            told = request.split != "test"
        else:
            told = bool(request.keep) or not (1 <= request.round <= task.rounds and request.edge_round < edge_rounds)
        if told:
            raise WireError("it asks for more about the data than method.privacy has noise for")

    def evaluate(self, message: Message) -> tuple[Evaluate, Measured]:
        """Measure models as asked, with what the client owns in place; return what was asked, too."""
        owner = self.number if self.is_client else self.edge
        request, before, expected = read_evaluate_request(message, self.terms, owner)
        if self.is_client and self.terms.experiment.method.privacy is not None:
            self._check_accounted(request)
        if self.is_client:
            own = self.terms.own("client", self.number, self._kept(before, expected)["parts"], request.bank)
            own = {part: params for part, params in own.items() if part in request.row_V}
            rows = {part: np.zeros_like(request.row_V[part]) for part in own}
            request = replace(request, bank=request.bank | own, row_V={**request.row_V, **rows})
        check_rows(request.row_V, request.bank)
        (measured,) = self.trainer.evaluate([request])
        return request, measured

    def _model(self, message: Message) -> bytes:
        """Keep the client's model of a round, with what it owned then."""
        models = read_models(message, self.terms, (self.number,), "client")
        _, kept = self.local_state.before((models.round + 1, 0))
        models.with_own("client", self.number, (kept or NOTHING)["parts"]).keep(self.state)
        return sent("ready")

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
    def local_state(self) -> LocalState:
        """What the client keeps of this run."""
        return LocalState(self.state / self.terms.run)

    def _kept(self, before: Training, expected: Expected) -> dict[str, Parts]:
        if not self.terms.keeps("client"):
            return NOTHING
        return self.local_state.expected(before, expected, Failure.CLIENT_STATE, self.number) or NOTHING
