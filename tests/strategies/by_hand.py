"""Rounds of a strategy over a small federation, and local training by hand in float64: the references of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from flwr.app import ConfigRecord
from torch import nn

from fedscout.detectors.queries import CLIENT_QUERIES
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation, split_client
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.messages.contents import claim_task_identity, client_of, read_array, train_config, view_record
from fedscout.engine.messages.keys import FLAT_KEY
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.seeds import seed_global_random, stream
from fedscout.engine.training.loop import batch_bounds, epoch_orders
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import StrategySpec
from tests.engine.federations import dense, uneven_federation, with_server_rows

Vector = npt.NDArray[Any]

SIZES = (40, 17, 20, 12, 26, 33, 9, 30)
SEED = 3
TRAINING = LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.1)
WHOLE = LocalTraining(local_epochs=1, batch_size=1000, learning_rate=0.2)
"""One step on all rows."""

Correct = Callable[[Vector, Vector], Vector]
"""Weights and gradient to the gradient that is followed."""


def ended(rule: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each server's half of this class is added as its trial ends."""
    found: list[Any] = []
    told = rule.trial_notes
    monkeypatch.setattr(rule, "trial_notes", lambda self: found.append(self) or told(self))
    return found


def spec_of(strategy: StrategySpec, **changes: Any) -> TrialSettings:
    """Return a trial of five rounds with five of the eight clients."""
    own = {name: changes.pop(name) for name in Session.__dataclass_fields__ if name in changes}
    session = Session(**{"seed": SEED, "training": TRAINING, **own})
    settings: dict[str, Any] = {"num_rounds": 5, "num_sampled": 5, "keep_model": True, **changes}
    return TrialSettings(strategy, session=session, **settings)


def host_of(model: ModelFactory = dense, sizes: tuple[int, ...] = SIZES) -> ClientHost:
    """Return a host of clients, whose server holds labelled rows for those methods that read them."""
    return ClientHost(with_server_rows(uneven_federation(model, sizes, min_release=1), labelled=True), CLIENT_QUERIES)


def result_of(host: ClientHost, strategy: StrategySpec, merge_on_hosts: bool = True, **changes: Any) -> Trial:
    spec = spec_of(strategy, **changes)
    result = run_trial(spec, LocalGrid(host, session=spec.session, merge_on_hosts=merge_on_hosts))
    assert result.error is None, result.error
    return result


def models(
    host: ClientHost, spec: TrialSettings, merge_on_hosts: bool = True
) -> Iterator[tuple[list[int], npt.NDArray[np.float32]]]:
    """Yield who trained in each round, and the model after it."""
    claim_task_identity()
    grid = LocalGrid(host, session=spec.session, merge_on_hosts=merge_on_hosts)
    cohort = Cohort(grid.facts.num_clients, spec.num_sampled, spec.session.training.learning_rate)
    strategy, vector = spec.strategy.build(cohort), grid.initial_vector(spec.session.seed)
    for server_round in range(1, spec.num_rounds + 1):
        seed_global_random(spec.session.seed, "train", server_round)
        config = ConfigRecord(dict(train_config(spec.session.training, spec.session.seed, server_round, "merged")))
        messages = list(strategy.configure_train(server_round, view_record({FLAT_KEY: vector}), config, grid))
        clients = sorted(client_of(message.metadata.dst_node_id) for message in messages)
        arrays, _ = strategy.aggregate_train(server_round, grid.send_and_receive(messages))
        vector = np.asarray(read_array(arrays[FLAT_KEY]), np.float32)
        yield clients, vector


def plain_loss(module: nn.Module, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(module(features), labels)


@dataclass
class Hand:
    """Local training of a small net in float64, by autograd.

    Attributes:
        federation: Whose clients train.
        training: With SGD.
        model: Makes the net.
        loss: Of net, features and labels, the mean over a batch.
        validation_share: Of the training rows, those that do not train.
    """

    federation: Federation
    training: LocalTraining = TRAINING
    model: ModelFactory = dense
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor] = plain_loss
    validation_share: float = 0.0
    _generators: dict[tuple[int, int], np.random.Generator] = field(default_factory=dict)

    def num_rows(self, client: int) -> int:
        """Return a client's training rows."""
        return len(self._rows(client)[1])

    def descend(
        self, start: Vector, client: int, server_round: int, correct: Correct | None = None
    ) -> tuple[Vector, int]:
        """Return a client's vector after its steps, and how many they were; called again, it draws on."""
        features, labels = self._rows(client)
        vector, momentum, num_steps = np.array(start, np.float64), 0.0, 0
        generator = self._generators.setdefault((server_round, client), stream(SEED, "batches", server_round, client))
        for order in epoch_orders(len(labels), self.training.local_epochs, generator):
            for first, last in batch_bounds(len(labels), self.training.batch_size):
                batch = order[first:last]
                vector, gradient = self._gradient(vector, features[batch], labels[batch])
                weights = vector[: len(gradient)]
                momentum = self.training.momentum * momentum + (
                    gradient if correct is None else correct(weights, gradient)
                )
                weights -= self.training.learning_rate * momentum
                num_steps += 1
        return vector, num_steps

    def tuned(self, start: Vector, client: int, epochs: int) -> Vector:
        """Return a client's vector after training ahead of its score."""
        self._generators[0, client] = stream(SEED, "tuning", client)
        return self.in_epochs(epochs).descend(start, client, 0)[0]

    def in_epochs(self, epochs: int) -> Hand:
        """Return the same with other local epochs; both draw from the same generators."""
        return replace(self, training=self.training.model_copy(update={"local_epochs": epochs}))

    def accuracy(self, vector: Vector, client: int) -> float:
        """Return the share of a client's test rows that a model gets right."""
        features, labels = self._rows(client, "test")
        outputs = self.loaded(vector).eval()(features)
        return float((outputs.argmax(dim=1) == labels).double().mean())

    def label_counts(self, client: int) -> Vector:
        """Return a client's training rows of each class."""
        return np.bincount(self._rows(client)[1].numpy(), minlength=3)

    def _rows(self, client: int, part: str = "train") -> tuple[torch.Tensor, torch.Tensor]:
        own = self.federation.client_data(client).own
        split = split_client(own.labels[own.rows], SEED, client, 0.2, self.validation_share)
        rows = own.rows[getattr(split, part)]
        return torch.from_numpy(own.features[rows]).double(), torch.from_numpy(own.labels[rows])

    def loaded(self, vector: Vector) -> nn.Module:
        """Return the net that a vector is, in float64."""
        module, start = self.model().double(), 0
        for tensor in _tensors(module):
            tensor.data = torch.tensor(vector[start : start + tensor.numel()]).view(tensor.shape)
            start += tensor.numel()
        return module

    def _gradient(self, vector: Vector, features: torch.Tensor, labels: torch.Tensor) -> tuple[Vector, Vector]:
        """Return the vector, whose buffers may have changed, and the gradient of its trainable part."""
        module = self.loaded(vector).train()
        self.loss(module, features, labels).backward()  # type: ignore[no-untyped-call]
        gradient = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None]).numpy()
        return torch.cat([tensor.detach().reshape(-1) for tensor in _tensors(module)]).numpy(), gradient


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]


def weights_of(hand: Hand, clients: Sequence[int]) -> Vector:
    """Return n_i/Σn of some clients."""
    rows = np.array([hand.num_rows(client) for client in clients], np.float64)
    return rows / rows.sum()
