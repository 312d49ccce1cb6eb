"""What a site learns of clients of whom only the sum may be known (``core.secret``): in a simulation, where sums are
made without masks, and in a federation, where they come out of the same numbers."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedbac.core import trees
from fedbac.core.aggregation import EdgeAverage
from fedbac.core.parts import Params, Parts
from fedbac.core.requests import Average, Averaged, Evaluate, Measured, Trained
from fedbac.core.secret import MOST, Scale, Secret, Words, flat, rounding, told_in_training
from fedbac.core.settings import BoolArray, FloatArray, IntArray
from fedbac.errors import ConfigError


class Summed:
    """Eq. 1 of sums: clients that start from the same networks, with the same teachers, are added up together, and what
    that gives is spread over the rows of the bank."""

    def __init__(self, request: Average) -> None:
        assert request.secret is not None
        self.request, self.secret, train = request, request.secret, request.train
        shared = [train.row_C[part] for part in train.bank if part not in self.secret.kept]
        if train.teachers is not None:
            taught_C = np.column_stack([train.teachers.weight_CT, train.teachers.share_C])
            shared.append(np.unique(taught_C, axis=0, return_inverse=True)[1].reshape(-1))
        rows_C = np.stack(shared, 1) if shared else np.zeros((len(train.clients), 1), dtype=np.int64)
        _, self.group_C = np.unique(rows_C, axis=0, return_inverse=True)
        self.group_C = self.group_C.reshape(-1)
        self.groups = [np.flatnonzero(self.group_C == group) for group in range(self.group_C.max(initial=-1) + 1)]
        """The places of the clients of each sum; too few of them are in none."""
        start = {part: {name: value[:1] for name, value in train.bank[part].items()} for part in self.secret.sends}
        self.width = flat(start, self.secret.sends).shape[1] if start else 0

    def averaged(self, total_G: Mapping[int, Words], answered_C: BoolArray) -> Averaged:
        """Return what the site learns, given the sums of some groups and who is in them."""
        train, secret = self.request.train, self.secret
        bank = dict(train.bank)
        weight = {part: np.zeros(trees.count(rows), dtype=np.int64) for part, rows in bank.items()}
        heard = {group: total for group, total in total_G.items() if int(total.numbers[0])}
        healthy_C = answered_C & np.isin(self.group_C, list(heard))
        at = 0
        for part in sorted(secret.sends):
            width = sum(value[0].numel() for value in train.bank[part].values())
            for to in (part, *(twin for twin, one in secret.twins.items() if one == part)):
                bank[to], weight[to] = self._rows(to, part, slice(at, at + width), heard)
            at += width
        for part in bank.keys() - {*secret.sends, *secret.twins}:
            np.add.at(weight[part], train.row_C[part][healthy_C], self.request.size_C[healthy_C])
        told = np.full(1, np.nan)
        if heard:
            numbers = Words.zeros(0, len(next(iter(heard.values())).numbers))
            for total in heard.values():
                np.add(numbers.numbers, total.numbers, out=numbers.numbers)
            told = secret.fixed.told(numbers.numbers[1:], int(numbers.numbers[0]))
        told_C = np.where(healthy_C[:, None], told, np.nan)
        epoch_CE = told_C[:, 1:] if "epochs" in train.keep else None
        return Averaged(bank, weight, healthy_C, told_C[:, 0], epoch_CE=epoch_CE)

    def _rows(self, to: str, part: str, columns: slice, heard: Mapping[int, Words]) -> tuple[Params, IntArray]:
        """Return the rows of a part after the sums, and the examples behind each."""
        train = self.request.train
        before, row_C, from_C = train.bank[to], train.row_C[to], train.row_C[part]
        weight = np.zeros(trees.count(before), dtype=np.int64)
        after = {name: value.clone() for name, value in before.items()}
        places = {group: self.groups[group][0] for group in heard}
        for row in sorted({int(row_C[place]) for place in places.values()}):
            mine = [group for group, place in places.items() if row_C[place] == row]
            count_G = np.array([int(heard[group].numbers[0]) for group in mine])
            network = np.zeros(columns.stop - columns.start, dtype=np.uint32)
            for group in mine:
                np.add(network, heard[group].network[columns], out=network)
            weight[row] = count_G.sum()
            began_G = from_C[[places[group] for group in mine]]
            change = self.secret.fixed.change(network, int(weight[row]))
            place = 0
            for name in sorted(before):
                value = after[name][row]
                start_G = train.bank[part][name][torch.from_numpy(began_G)].cpu().double()
                share_G = torch.from_numpy(count_G / count_G.sum()).view(-1, *[1] * value.dim())
                start = start_G[0] if (began_G == began_G[0]).all() else (share_G * start_G).sum(0)
                moved = torch.from_numpy(change[place : place + value.numel()]).view_as(value.cpu())
                after[name][row] = (start + moved).to(value)
                place += value.numel()
        return after, weight


class SecretAverage:
    """A sum without masks, of clients that come a few at a time."""

    def __init__(self, request: Average) -> None:
        assert request.secret is not None
        self.request, self.secret, self.summed = request, request.secret, Summed(request)
        self.sound_C = np.zeros(request.size_C.size, dtype=bool)
        """Who adds something, which nobody learns."""
        self.network_G = [np.zeros(self.summed.width, dtype=np.uint32) for _ in self.summed.groups]
        train, kept = request.train, self.secret.kept
        own, rows = {part: train.bank[part] for part in kept}, {part: train.row_C[part] for part in kept}
        self.own = EdgeAverage(request.size_C, own, rows)
        """What clients keep for themselves."""

    def add(self, parts_C: Parts, loss_C: FloatArray) -> None:
        """Count the next clients."""
        train, sends, first = self.request.train, self.secret.sends, self.own.seen
        here = slice(first, first + loss_C.size)
        started = {part: trees.select(train.bank[part], train.row_C[part][here]) for part in sends}
        change_CD = np.zeros((loss_C.size, 0))
        if sends:
            after_CD = flat(parts_C, sends)
            change_CD = (after_CD - flat(started, sends).to(after_CD.device)).cpu().numpy()
        for change, loss, place in zip(change_CD, loss_C, range(here.start, here.stop), strict=True):
            rng = rounding(self.secret.seed, train.round, train.edge_round, train.clients[place])
            weight = int(self.request.size_C[place])
            words = self.secret.fixed.words(change, told_in_training(loss, None), weight, self.secret.bound, rng)
            self.sound_C[place] = bool(words.numbers[0])
            network = self.network_G[self.summed.group_C[place]]
            np.add(network, words.network, out=network)
        self.own.add({part: parts_C[part] for part in self.secret.kept}, loss_C)

    def averaged(self, returned: Trained) -> Averaged:
        """Return what the site learns, and what clients keep that it does not learn."""
        totals: dict[int, Words] = {}
        for group, members in enumerate(self.summed.groups):
            if members.size < self.secret.threshold:
                continue
            numbers = []
            for place in members:
                epochs = None if returned.epoch_CE is None else returned.epoch_CE[place]
                told, weight = told_in_training(returned.loss_C[place], epochs), int(self.request.size_C[place])
                sound = weight if self.sound_C[place] else 0
                numbers.append(self.secret.fixed.words(np.zeros(0), told, sound, self.secret.bound, None).numbers)
            totals[group] = Words(self.network_G[group], np.sum(numbers, axis=0, dtype=np.uint64))
        found = self.summed.averaged(totals, np.ones(self.sound_C.size, dtype=bool))
        momentum, before = returned.momentum, self.request.train.momentum
        if momentum is not None and before is not None:
            well = np.flatnonzero(self.sound_C)
            momentum = {part: trees.put(before[part], well, trees.select(momentum[part], well)) for part in momentum}
        own = self.own
        return replace(found, bank=found.bank | own.bank, weight={**found.weight, **own.weight}, momentum=momentum)


def summed_measurement(request: Evaluate, measured: Measured) -> Measured:
    """Return what a site learns of measurements: everybody's mean, in the place of each."""
    secret, count = request.secret, len(request.owners)
    assert secret is not None
    if count < secret.threshold:
        raise ConfigError(
            f"method.aggregation.secret: {count} clients of a site hold {request.split} data, and a sum may be known "
            f"of {secret.threshold} or more (method.aggregation.threshold); let more clients hold such data"
        )
    size_C = measured.count_G if secret.size_C is None else secret.size_C
    numbers = [numbers_of_models(measured, g, int(size_C[g]), secret.fixed) for g in range(count)]
    return measurement_of(secret, np.sum(numbers, axis=0, dtype=np.uint64), measured.count_G)


def numbers_of_models(measured: Measured, group: int, weight: int, fixed: Scale) -> NDArray[np.uint64]:
    """Return what a client of so many examples adds of the losses and accuracies of models. One that has no example or
    finds no loss finite adds nothing, as it says nothing about the models."""
    loss_V, accuracy_V = measured.loss_VG[:, group], measured.accuracy_VG[:, group]
    sound = measured.count_G[group] > 0 and np.isfinite(loss_V).any()
    told = np.concatenate([np.nan_to_num(loss_V, nan=MOST, posinf=MOST, neginf=-MOST), np.nan_to_num(accuracy_V)])
    return fixed.words(np.zeros(0), told, weight if sound else 0, 1.0, None).numbers


def measurement_of(secret: Secret, numbers: NDArray[np.uint64], count_G: IntArray) -> Measured:
    """Return the means of a sum, in the place of each client that measured so many examples."""
    weight = int(numbers[0])
    if not weight:
        nothing = np.full((numbers.size // 2, count_G.size), np.nan)
        return Measured(nothing, nothing, np.zeros_like(count_G))
    loss_V, accuracy_V = np.split(secret.fixed.told(numbers[1:], weight), 2)
    loss_VG, accuracy_VG = (np.repeat(one_V[:, None], count_G.size, axis=1) for one_V in (loss_V, accuracy_V))
    return Measured(loss_VG, np.clip(accuracy_VG, 0.0, 1.0), count_G)
