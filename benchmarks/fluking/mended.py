"""fluke's clients with one deviation taken away each, to show what makes a difference."""

from copy import deepcopy
from typing import Any

import torch
from fluke.algorithms.apfl import APFLClient
from fluke.algorithms.fedbabu import FedBABU
from fluke.algorithms.fedrod import BalancedSoftmaxLoss, FedRODClient
from torch import Tensor, nn
from torch.func import functional_call


class LearningAPFL(APFLClient):
    """v learns through the blend and is not replaced by it; the blend with the network for all predicts (the paper)."""

    def _blend(self, shared: nn.Module) -> dict[str, Tensor]:
        share = self.hyper_params.lam
        return {
            name: share * own + (1 - share) * shared.get_parameter(name).detach()
            for name, own in self.personalized_model.named_parameters()
        }

    def fit(self, override_local_epochs: int = 0) -> float:
        if self.optimizer is None:
            self.optimizer, self.scheduler = self._optimizer_cfg(self.model)
            self.pers_optimizer, self.pers_scheduler = self._optimizer_cfg(self.personalized_model)
        loss_fn = self.hyper_params.loss_fn
        for _ in range(self.hyper_params.local_epochs):
            for x, y in self.train_set:
                blend = self._blend(self.model)  # both gradients are taken where the step begins
                self.optimizer.zero_grad()
                loss_fn(self.model(x), y).backward()
                self.optimizer.step()
                self.pers_optimizer.zero_grad()
                loss_fn(functional_call(self.model, blend, x), y).backward()
                self.pers_optimizer.step()
        return 0.0

    def evaluate(self, evaluator: Any, test_set: Any) -> dict[str, float]:
        blended = deepcopy(self.model)
        blended.load_state_dict(self._blend(self.model))
        return evaluator.evaluate(self._last_round, blended, test_set, device=self.device)


class TunedFromMeanBABU(FedBABU):
    """Fine-tuning begins with the last average (the paper), not with what each client trained before it."""

    def finalize(self) -> None:
        self.server.broadcast_model(self.clients)
        for client in self.clients:
            client.receive_model()
        super().finalize()


class ZeroHeadROD(FedRODClient):
    """The personal head begins at zero."""

    def receive_model(self) -> None:
        begins = self.inner_model is None
        super().receive_model()
        if begins:
            for value in self.inner_model.parameters():
                nn.init.zeros_(value)


class HeadFirstROD(FedRODClient):
    """The personal head is trained before the body and the generic head, which keep still meanwhile."""

    def fit(self, override_local_epochs: int = 0) -> float:
        if self.optimizer is None:
            self.optimizer, self.scheduler = self._optimizer_cfg(self.model)
            self.optimizer_head, self.scheduler_head = self._optimizer_cfg(self.inner_model)
        for _ in range(self.hyper_params.local_epochs):
            for x, y in self.train_set:
                with torch.no_grad():
                    seen = self.model.encoder(x)
                    generic = self.model.head(seen)
                self.optimizer_head.zero_grad()
                self.hyper_params.loss_fn(generic + self.inner_model(seen), y).backward()
                self.optimizer_head.step()
        balanced = BalancedSoftmaxLoss(self.sample_per_class)
        for _ in range(self.hyper_params.local_epochs):
            for x, y in self.train_set:
                self.optimizer.zero_grad()
                balanced(y, self.model(x)).backward()
                self.optimizer.step()
        return 0.0


class ZeroHeadFirstROD(ZeroHeadROD, HeadFirstROD):
    """Both, as in ours."""
