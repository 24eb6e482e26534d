"""pfl-research's simulation in one process (`pip install 'pfl[pytorch]'`).

F. Granqvist, C. Song, Á. Cahill, R. van Dalen, M. Pelikan, Y. S. Chan, X. Feng, N. Krishnaswami, V. Jina, M. Chitnis.
pfl-research: simulation framework for accelerating research in Private Federated Learning. arXiv:2404.06430, 2024.

Where its own schedule evaluates, it scores every client before and after training, too. So that it does the same work
as all others, that schedule is left to the first warm-up round, and a callback has its model score every client on the
new global model. Its batches are the same in every epoch.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted, Zero, get_overall_value
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .work import (
    BATCH_SIZE,
    LEARNING_RATE,
    WARM_UP_ROUNDS,
    Task,
    client_tensors,
    initial_model,
    num_correct,
    read_task,
    report,
)

ACCURACY = "accuracy"


class ScoredNet(nn.Module):
    """A net with the two methods that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(self.net(features), labels)

    def metrics(self, features: Tensor, labels: Tensor) -> dict[str, Any]:
        """Return the accuracy with its weight."""
        return {ACCURACY: Weighted(num_correct(self.net, features, labels), len(labels))}


class RoundEnds(TrainingProcessCallback):  # type: ignore[misc]  # has no type where pfl is not installed
    """Ends every round with the scores of all users; after the warm-up, begins anew with the initial parameters."""

    def __init__(self, users: list[Any], begun_with: dict[str, Tensor]) -> None:
        self._users = users
        self._begun_with = begun_with
        self.times: list[float] = []
        self.accuracy = float("nan")

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        """Score the new model, and note the time."""
        scores: Any = Zero
        for user in self._users:
            scores = scores + model.evaluate(user)
        self.accuracy = float(get_overall_value(scores[ACCURACY]))
        if central_iteration == WARM_UP_ROUNDS - 1:
            model.pytorch_model.load_state_dict(self._begun_with)
        if central_iteration >= WARM_UP_ROUNDS - 1:
            self.times.append(time.perf_counter())
        return False, Metrics()


def main(task: Task) -> None:
    """Time the rounds."""
    net = ScoredNet(initial_model(task.name, task.device))
    users = [
        Dataset(raw_data=client_tensors(task.name, client, task.samples, task.device), user_id=str(client))
        for client in range(task.clients)
    ]
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(task.clients))))
    rounds = WARM_UP_ROUNDS + task.rounds
    noted = RoundEnds(users, {name: value.clone() for name, value in net.state_dict().items()})
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=task.clients,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(
            model=net,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=BATCH_SIZE
        ),
        callbacks=[noted],
        send_metrics_to_platform=False,
    )
    report(noted.times, noted.accuracy, ["pfl", "torch"])


if __name__ == "__main__":
    main(read_task())
