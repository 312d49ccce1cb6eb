"""All clients as one batch: the trainer for low-rank products on a frozen network.

The examples of all clients go through the frozen layers as those of one; only what is trained is multiplied client by
client. So the frozen weights are held once and read once for all, and any network will do that takes each example of a
batch by itself.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.checkpoint import checkpoint

from fedbac.core import trees
from fedbac.core.parts import Params, Parts, Personalization, Stepping
from fedbac.core.requests import Evaluate, Measured, Train, Trained
from fedbac.core.runtime import kernels, seeded, some_threads
from fedbac.local.batches import BatchTable
from fedbac.local.captured import refused
from fedbac.local.examples import Examples
from fedbac.local.loop import distilled
from fedbac.local.stages import Stage
from fedbac.local.vmapped import EVALUATION_BATCH, Precision, Stack, VmapTrainer
from fedbac.lowrank import stackable
from fedbac.models import weights

LOGITS = 2**26
"""Logits that are held at once. Where a step has more, its loss is taken in chunks, whose logits are computed again for
the gradient: of a vocabulary of 50,000 words they would take more memory than all the rest."""
JUDGED_ON_GPU = 2**29
"""The same in evaluation on a GPU, which keeps nothing for a gradient and is idle between small batches."""
CAPTURED = 2**15
"""Up to so many numbers (tokens, pixels) in a step, kernels take longer to start than to run."""
SAME, ROUNDINGS = 1e-3, 8
"""So much of the largest logit may clients in one batch differ from clients alone, by rounding; more where frozen
weights are coarse: so many times the precision of their numbers."""
SHAKEN = 0.02
"""By how much weights differ when it is tried out whether clients in one batch are as each is alone."""


class Whole(nn.Module):
    """One of the two halves of a network as a module of its own: ``features`` or ``head``."""

    def __init__(self, network: nn.Module, half: str) -> None:
        super().__init__()
        self.network, self.which = network, half

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        found: Tensor = getattr(self.network, self.which)(x)
        return found


def _run(network: nn.Module, half: str, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
    found: Tensor = functional_call(Whole(network, half), {f"network.{n}": v for n, v in params.items()}, (x,))
    return found


class BatchedStack(Stack):
    """The clients' trained weights, and their batches."""

    halves = False
    captured = True
    """Whether small steps are replayed from CUDA graphs; not once a network turned out to refuse."""

    def advance(self, number: int, stage: Stage, active: int, largest: int) -> None:
        """One step of the first ``active`` clients, whose batches have at most ``largest`` examples."""
        small = active * largest * self.source[0].shape[1:].numel() <= CAPTURED
        if self.captured and small and self.device.type == "cuda":
            try:
                super().advance(number, stage, active, largest)
                return
            except RuntimeError as error:
                refused(error)
                self.captured = False
        self._step(number, stage, active, largest)

    def _losses(
        self, stage: Stage, moving: Parts, still: Parts, x_AB: Tensor, y_AB: Tensor, weight_AB: Tensor,
        targets: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        assert stage.terms is not None
        networks = {name: {**still[name], **moving.get(name, {})} for name in stage.terms}
        x, count_A = x_AB.flatten(0, 1), weight_AB.sum(1).clamp(min=1)

        def mean(values_AB: Tensor) -> Tensor:
            return (values_AB * weight_AB).sum(1) / count_A

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            if self.halves and len(networks) == 1 and not targets:
                (params,) = networks.values()
                features_AB = _by_client(_run(self.many, "features", params, x), x_AB)
                loss_AB = self._in_chunks(params, features_AB, y_AB)
                return (lost_A := mean(loss_AB)), lost_A, loss_AB
            outputs = [functional_call(self.many, params, (x,)) for params in networks.values()]
        logits = torch.stack(outputs).float().sum(0)
        loss_AB = _by_client(self.examples.loss.loss(logits, y_AB.flatten(0, 1), "none"), x_AB)
        lost_A = mean(loss_AB)
        if not targets:
            return lost_A, lost_A, loss_AB

        def taught(lost: Tensor, logits: Tensor, weight: Tensor, *target: Tensor) -> Tensor:
            return distilled(lost, logits, lambda each_B: (each_B * weight).sum() / weight.sum().clamp(min=1), *target)

        return vmap(taught)(lost_A, _by_client(logits, x_AB), weight_AB, *targets), lost_A, loss_AB

    def _in_chunks(self, params: Params, features_AB: Tensor, y_AB: Tensor) -> Tensor:
        """Return the loss of every example, given what the last layer sees of it."""

        def loss(params: Params, features_AB: Tensor, y_AB: Tensor) -> Tensor:
            logits = _run(self.many, "head", params, features_AB.flatten(0, 1)).float()
            return _by_client(self.examples.loss.loss(logits, y_AB.flatten(0, 1), "none"), y_AB)

        each = self.examples.dataset.num_classes * y_AB.shape[2:].numel()
        clients, examples = y_AB.shape[:2]
        if clients * examples * each <= LOGITS:
            return loss(params, features_AB, y_AB)
        found_AB = torch.zeros(y_AB.shape[:2], device=y_AB.device)
        for mine, some in _chunks(clients, examples, max(1, LOGITS // each)):
            own = {name: value[mine] for name, value in params.items()}
            given = own, features_AB[mine, some], y_AB[mine, some]
            found_AB[mine, some] = checkpoint(loss, *given, use_reentrant=False, preserve_rng_state=False)
        return found_AB


def _by_client(values: Tensor, like_AB: Tensor) -> Tensor:
    """Return what belongs to the examples of all clients, one after another, as a row for each client."""
    return values.reshape(*like_AB.shape[:2], *values.shape[1:])


def _chunks(clients: int, examples: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Yield clients and which of their examples, at most so many at once: those of several clients, or some of one."""
    step, width = max(1, most // examples), min(most, examples)
    for first in range(0, clients, step):
        for start in range(0, examples, width):
            yield slice(first, first + step), slice(start, start + width)


class BatchedTrainer(VmapTrainer):
    """Trains the clients of all requests as one batch of a frozen network."""

    name = "torch-batched"

    def __init__(
        self, network: nn.Module, scheme: Personalization, examples: Examples, device: torch.device,
        precision: Precision = "float32", threads: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(network, scheme, examples, device, precision)
        self.threads = threads
        self.halves = self._has_halves()

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests, on all threads: products of all clients are large enough for them."""
        with some_threads(self.threads):
            return super().train(requests)

    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests."""
        with some_threads(self.threads):
            return super().evaluate(requests)

    @property
    def apart(self) -> bool:
        """Whether clients in one batch have the same outputs as each alone; found by a look at two, with other weights
        each. A network fails that takes the examples of a batch together, or puts another axis before theirs."""
        held = max((self.source[split][0] for split in ("train", "test")), key=len)  # an edge holds test data alone
        x, two = self.examples.normalize(held[torch.arange(2) % len(held)]), self._shaken(2)
        with torch.no_grad(), kernels(exact=True), seeded(0, device=self.device):
            together = functional_call(self.many, two, (x.repeat_interleave(2, 0),))
            alone = [functional_call(self.many, trees.take(two, c), (x[[c, c]],)) for c in range(2)]
        return self._same(together, torch.cat(alone))

    def _has_halves(self) -> bool:
        """Whether a network says what its last layer sees, and that makes its logits, one by one."""
        if not all(hasattr(self.many, half) for half in ("features", "head")):
            return False
        x, one = self.examples.normalize(self.source["train"][0][:1]), self._shaken(1)
        with torch.no_grad(), kernels(exact=True), seeded(0, device=self.device):
            try:
                whole = functional_call(self.many, one, (x,))
                return self._same(_run(self.many, "head", one, _run(self.many, "features", one, x)), whole)
            except (AttributeError, TypeError):  # of models of transformers that are no language models
                return False

    def _shaken(self, clients: int) -> Params:
        """Return weights of some clients, all different and none zero."""
        generator = torch.Generator().manual_seed(0)
        return {
            name: v + SHAKEN * torch.randn((clients, *v.shape), generator=generator).to(self.device)
            for name, v in weights(self.network).items()
        }

    def _for_many(self, network: nn.Module) -> nn.Module:
        return network.eval()

    def _stacked(self, table: BatchTable, like: Train) -> Stack:
        stack = BatchedStack(self, table, like)
        stack.halves = self.halves
        return stack

    def _at_once(self, num_models: int) -> int:
        each = self.examples.dataset.num_classes * math.prod(self.examples.dataset.y_test.shape[1:]) * num_models
        most = LOGITS if self.device.type == "cpu" else JUDGED_ON_GPU
        return max(1, min(EVALUATION_BATCH, most // each))

    def _outputs(self, stack: Params, x: Tensor) -> Tensor:
        rows = x.expand(trees.count(stack), *x.shape)
        found: Tensor = functional_call(self.many, stack, (rows.flatten(0, 1),))
        return _by_client(found.float(), rows)

    def _same(self, found: Tensor, wanted: Tensor) -> bool:
        coarse = max(torch.finfo(v.dtype).eps for v in self.network.parameters() if v.is_floating_point())
        most = max(SAME, ROUNDINGS * coarse) * max(1.0, float(wanted.abs().max()))
        return found.shape == wanted.shape and float((found - wanted).abs().max()) <= most


def fits(network: nn.Module, scheme: Personalization) -> bool:
    """Whether clients can be trained as one batch: all that is trained is in layers whose weights may be stacked."""
    return scheme.terms is not None and not isinstance(scheme, Stepping) and stackable(network)
