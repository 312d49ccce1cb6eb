"""All clients at once through ``torch.func``: the trainer for a GPU, and for any network.

Clients lie in one stack, those with the most steps first, so that the clients that still have a batch are a prefix.
On a GPU a step of such a prefix is captured once in a CUDA graph that reads its batch from a table on the device:
a round is a row of replays, without a Python call per layer.
"""

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from fedbac.core import trees
from fedbac.core.parts import Anatomy, Params, Personalization, Stepping, predict
from fedbac.core.requests import Evaluate, Measured, Train, Trained
from fedbac.core.rng import torch_seed
from fedbac.core.runtime import draws, kernels, seeded
from fedbac.core.settings import FloatArray, IntArray
from fedbac.errors import ConfigError
from fedbac.local.batches import BatchTable, Visits
from fedbac.local.examples import Examples, cells, rates, shares
from fedbac.local.folding import for_many
from fedbac.local.loop import distinct, recall
from fedbac.local.own_steps import OwnSteps
from fedbac.local.stack import Precision, Stack
from fedbac.local.stages import adamw_of, stages_now, stages_of
from fedbac.models import weights

EVALUATION_BATCH = 2048
WEIGHT_COPIES, ON_THE_WAY = 6, 1.5
"""What a client takes in training: so often its weights (with momentum, gradients, and the copy that comes back), and
so often what its networks keep of a batch until gradients are taken."""


class VmapTrainer:
    """Trains the clients of all requests in step."""

    def __init__(
        self,
        network: nn.Module,
        scheme: Personalization,
        examples: Examples,
        device: torch.device,
        precision: Precision = "float32",
    ) -> None:
        if any(True for _ in network.buffers()):
            raise ConfigError(
                "network: one with buffers (such as batch normalization) cannot be trained for many clients at once; "
                "use --device cpu, or group normalization"
            )
        self.path = f"torch-vmap-{device.type}" + ("" if precision == "float32" else f"-{precision}")
        self.examples = examples
        self.scheme = scheme
        self.network, self.precision = copy.deepcopy(network).to(device), precision
        self.many = for_many(self.network)
        self.anatomy = Anatomy(scheme, network)
        self.stages = stages_of(self.anatomy, examples.training)
        self.device = device
        self.source = {"train": examples.source("train", device), "test": examples.source("test", device)}
        self.drawing = draws(network, examples.some())
        self.stack: Stack | None = None
        own = isinstance(scheme, Stepping)
        self.own = OwnSteps(self.network, scheme, examples, device, together=True) if own else None
        self.visits = Visits(examples)
        size = sum(4 * value.numel() for value in weights(network).values())
        copies = WEIGHT_COPIES + (adamw_of(examples.training) is not None)  # and second moments
        each = copies * size + ON_THE_WAY * examples.batch_room * self._bytes_per_example()
        self.bytes_per_client = int(len(self.anatomy.networks) * each)

    def _bytes_per_example(self) -> float:
        """Return what a network keeps of an example until its gradient is taken, found by a look at two."""
        x = self.examples.normalize(self.source["train"][0][:2])
        own = {name: value[None].requires_grad_() for name, value in weights(self.network).items()}
        known = {value.untyped_storage().data_ptr() for value in (x, *own.values())}
        kept: dict[int, int] = {}

        def pack(value: Tensor) -> Tensor:
            storage = value.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return value

        look = vmap(lambda params: functional_call(self.many, params, (x,)), randomness="different")
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value)
        with hooks, kernels(exact=True), seeded(0, device=self.device):
            # The result is held until all is counted: a place that was freed would be counted once for two.
            result = look(own) if len(x) else None
        del result
        return sum(size for place, size in kept.items() if place not in known) / max(len(x), 1)

    def train(self, requests: Sequence[Train]) -> list[Trained]:
        """Train the clients of all requests in one stack, each at the moment and the rate of its own request."""
        if self.own is not None:
            return self.own.train(requests)
        jobs = [(request, c) for request in requests for c in range(len(request.clients))]
        sizes = [self.examples.shards.train[request.clients[c]].size for request, c in jobs]
        order = np.argsort([-size for size in sizes], kind="stable")
        stages = stages_now(self.stages, requests)
        table = BatchTable(self.examples, [jobs[j] for j in order], stages, self.visits)
        if self.stack is None or not self.stack.holds(table, requests):
            self.stack = None  # the old one goes before the new one comes
            parts = self.network, self.many, self.anatomy, self.examples, self.source["train"]
            self.stack = Stack(*parts, table, requests[0], self.precision)
        stack = self.stack
        stack.load(table, requests, order, stages)
        self.many.train(True)
        # Layers such as dropout draw once for all clients of a step, so that they can have but one seed.
        seed = torch_seed(self.examples.seed, "dropout", requests[0].round, requests[0].edge_round)
        with kernels(self.precision == "float32"), seeded(seed, self.drawing, self.device):
            for number, stage in enumerate(stages):
                stack.begin_phase()
                for step in range(table.steps_FC[number].max(initial=0)):
                    stack.advance(number, stage, table.active(number, step), table.largest(number, step))
        self.visits.prefetch(requests, {stage.epochs for stage in stages})  # before the host waits for the device
        losses = stack.losses(table)
        rank, out = np.argsort(order), []
        for request, share in zip(requests, shares(requests), strict=True):
            rows = rank[share]
            at = torch.as_tensor(rows, device=self.device)
            kept = None if request.momentum is None else trees.part_rows(stack.velocity, at)
            out.append(losses.of(request, rows, trees.part_rows(stack.parts, at), kept))
        return out

    @torch.no_grad()
    def evaluate(self, requests: Sequence[Evaluate]) -> list[Measured]:
        """Evaluate the models of all requests; requests about the same models are measured together."""
        self.many.train(False)
        together: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for r, request in enumerate(requests):
            cells(request)  # says so if models cannot be paired
            same = [(id(request.bank[part]), rows.tobytes()) for part, rows in request.row_V.items()]
            together[(request.split == "test", r if request.paired else -1, *same)].append(r)
        measured: dict[int, Measured] = {}
        for numbers in together.values():
            groups = [self.examples.groups(requests[r]) for r in numbers]
            flat = [group for mine in groups for group in mine]
            with kernels(exact=True):
                loss_VG, accuracy_VG = self._measure(requests[numbers[0]], flat)
            begin = 0
            for r, mine in zip(numbers, groups, strict=True):
                columns = slice(begin, begin + len(mine))
                begin = columns.stop
                count_G = np.array([group.size for group in mine], dtype=np.int64)
                measured[r] = Measured(loss_VG[:, columns], accuracy_VG[:, columns], count_G)
        return [measured[r] for r in range(len(requests))]

    def _measure(self, request: Evaluate, groups: list[IntArray]) -> tuple[FloatArray, FloatArray]:
        networks, table = distinct(self.anatomy, request)
        source = self.source["test" if request.split == "test" else "train"]
        if not groups:
            nothing = np.zeros((1 if request.paired else len(table), 0))
            return nothing, nothing
        if not request.paired:
            return self._judge(networks, table, source, groups)
        each = []
        for places, group in zip(table, groups, strict=True):
            own = [networks[place] for place in places.values()]
            each.append(self._judge(own, [{n: i for i, n in enumerate(places)}], source, [group]))
        loss, accuracy = zip(*each, strict=True)
        return np.concatenate(loss, 1), np.concatenate(accuracy, 1)

    def _judge(
        self,
        networks: Sequence[tuple[str, Params]],
        table: Sequence[Mapping[str, int]],
        source: tuple[Tensor, Tensor],
        groups: Sequence[IntArray],
    ) -> tuple[FloatArray, FloatArray]:
        """Return loss and accuracy of every model of a table on every group."""
        group_of = torch.as_tensor(np.repeat(np.arange(len(groups)), [g.size for g in groups]), device=self.device)
        index = torch.as_tensor(np.concatenate(groups), device=self.device)
        pixels, labels = source
        loss = torch.zeros(len(table), len(groups), device=self.device, dtype=torch.float64)
        correct = torch.zeros_like(loss)
        stacks = []
        for network in dict.fromkeys(name for name, _ in networks):
            places = [i for i, (name, _) in enumerate(networks) if name == network]
            stacks.append((places, trees.stack([trees.to(networks[i][1], self.device) for i in places])))
        for chunk in torch.split(torch.arange(index.numel(), device=self.device), EVALUATION_BATCH):
            x, y = self.examples.normalize(pixels[index[chunk]]), labels[index[chunk]]
            logits: dict[int, Tensor] = {}
            for places, stack in stacks:
                many = vmap(lambda params, x=x: functional_call(self.many, params, (x,)))(stack)
                logits |= dict(zip(places, many, strict=True))
            applies = [recall(x, logits, row, networks, self._logits) for row in table]
            score_VB = torch.stack([predict(self.scheme, self.scheme.terms, apply, x) for apply in applies])
            judged, labels_VB = score_VB.flatten(0, 1), y.repeat(len(table), *[1] * (y.dim() - 1))
            loss_VB = self.examples.loss.loss(judged, labels_VB, "none")
            right_VB = self.examples.loss.right(judged, labels_VB)
            # A product with the groups' membership sums in a fixed order; adding by index would not on a GPU.
            member_BG = F.one_hot(group_of[chunk], len(groups)).double()
            loss += loss_VB.reshape(len(table), -1).double() @ member_BG
            correct += right_VB.reshape(len(table), -1).double() @ member_BG
        return rates(correct.cpu().numpy(), loss.cpu().numpy(), [group.size for group in groups])

    def _logits(self, network: str, params: Params, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.many, trees.to(params, self.device), (x,))
        return logits

    def close(self) -> None:
        """Let go of buffers and graphs."""
        self.stack = None
