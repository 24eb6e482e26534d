"""Strategies and client algorithms for the engine's tests: Flower's own classes behind the engine's contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import Message
from flwr.serverapp import strategy

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages.calls import Cohort, EngineNeeds, Session
from fedscout.engine.trials.record import Trial, TrialSettings

if TYPE_CHECKING:
    from torch import Tensor

MERGED = EngineNeeds(replies="merged")
INDIVIDUAL = EngineNeeds(replies="individual")
NAMED = EngineNeeds(arrays="named", replies="individual")


@dataclass(frozen=True)
class Choice:
    """A Flower class and its arguments, as a specification."""

    flower: type[strategy.Strategy]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    wants: EngineNeeds = MERGED
    algorithm: ClientAlgorithm | None = None

    @property
    def kind(self) -> str:
        return self.flower.__name__.lower()

    @property
    def label(self) -> str:
        return self.kind

    def parameters(self) -> Mapping[str, Any]:
        return self.arguments

    def code(self) -> Mapping[str, str]:
        return {}

    def needs(self) -> EngineNeeds:
        return self.wants

    def client_algorithm(self) -> ClientAlgorithm | None:
        return self.algorithm

    def notes_after(self, cohort: Cohort, num_models: int) -> list[str]:
        return []

    def build(self, cohort: Cohort) -> strategy.Strategy:
        counts = {
            "fraction_train": cohort.num_sampled / cohort.num_clients,
            "min_train_nodes": cohort.num_sampled,
            "min_evaluate_nodes": cohort.num_clients,
            "min_available_nodes": cohort.num_clients,
        }
        return self.flower(**counts, **self.arguments)


FEDAVG = Choice(strategy.FedAvg)
FEDADAM = Choice(strategy.FedAdam, {"eta": 0.05})
FEDAVGM = Choice(strategy.FedAvgM, {"server_momentum": 0.7, "server_learning_rate": 0.9})
FLOWER_CHOICES = {
    "fedavg": FEDAVG,
    "fedavg-individual": Choice(strategy.FedAvg, wants=INDIVIDUAL),
    "fedavg-named": Choice(strategy.FedAvg, wants=NAMED),
    "fedavgm": FEDAVGM,
    "fedadam": FEDADAM,
    "fedyogi": Choice(strategy.FedYogi, {"eta": 0.05}),
    "fedadagrad": Choice(strategy.FedAdagrad, {"eta": 0.05}),
    "fedmedian": Choice(strategy.FedMedian, wants=NAMED),
    "fedtrimmedavg": Choice(strategy.FedTrimmedAvg, {"beta": 0.2}, INDIVIDUAL),
    "krum": Choice(strategy.Krum, {"num_malicious_nodes": 1}, INDIVIDUAL),
    "multikrum": Choice(strategy.MultiKrum, {"num_malicious_nodes": 1, "num_nodes_to_select": 3}, INDIVIDUAL),
    "bulyan": Choice(strategy.Bulyan, {"num_malicious_nodes": 0}, INDIVIDUAL),
    "qfedavg": Choice(
        strategy.QFedAvg, {"client_learning_rate": 0.1, "q": 0.5}, EngineNeeds(replies="individual", initial_loss=True)
    ),
}


def less(strength: float, weights: Tensor, gradient: Tensor, shift: Tensor) -> None:
    gradient.sub_(shift, alpha=strength)


@dataclass(frozen=True)
class Variates(ClientAlgorithm):
    """An algorithm with state, in the manner of SCAFFOLD: each client's gradients are shifted by what it kept."""

    strength: float = 0.5

    def train(self, run: LocalRun) -> ClientResults:
        variate = run.kept("variate", torch.zeros_like(run.received))
        trained = run.descend(run.received, partial(less, self.strength), [variate])
        drift = (run.received - trained.vectors) / (trained.num_steps[:, None] * run.training.learning_rate)
        return ClientResults(trained, trained.vectors, {"variate": drift})


@dataclass(frozen=True)
class Participations(ClientAlgorithm):
    """Changes nothing and counts how often a client trained; it forgets at `forget_at`."""

    forget_at: int = 10**9

    def train(self, run: LocalRun) -> ClientResults:
        trained = run.descend(run.received)
        counts = run.kept("count", torch.zeros(1)) + 1
        return ClientResults(trained, trained.vectors, {} if (counts >= self.forget_at).all() else {"count": counts})


class RaisingFedAvg(strategy.FedAvg):
    """Raises in the second round."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        if server_round == 2:
            raise RuntimeError("the user's mistake")
        return super().aggregate_train(server_round, replies)


def spec_of(choice: Choice, **changes: Any) -> TrialSettings:
    """Return a short trial of all seven clients of the uneven federation; changes are those of its session, too."""
    own = {name: changes.pop(name) for name in Session.__dataclass_fields__ if name in changes}
    training = LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.1)
    session = Session(**{"seed": 3, "training": training, **own})
    settings: dict[str, Any] = {"num_rounds": 3, "num_sampled": 7, "keep_model": True, **changes}
    return TrialSettings(choice, session=session, **settings)


def rounds_of(trial: Trial) -> list[tuple[float, ...]]:
    """Return all that was measured, one tuple a round."""
    columns = ("accuracy", "clean_accuracy", "loss", "clean_loss", "train_loss")
    return list(zip(*(trial.rounds[name] for name in columns), strict=True))
