"""A whole study on Flower's own simulation, one training after the other: Optuna chooses, fresh seeds confirm.

T. Akiba, S. Sano, T. Yanase, T. Ohta, M. Koyama. Optuna: a next-generation hyperparameter optimization framework.
KDD 2019, with its default sampler (tree-structured Parzen estimator), over the strategies that Flower brings and that
ask nothing of clients but training and FedProx's term.

The steps are those of a study of ours (`study_plan`): FedAvg, the search, FedAvg at other client rates, then winner,
FedAvg and tuned FedAvg on fresh seeds. Each training is a simulation of its own, which is how Flower runs one and an
objective of Optuna calls it; or, as `one`, all of them share a single simulation, whose start is then paid once.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
)

from .flower_simulation import simulate
from .flower_study_clients import FOLDER_KEY, RATE_KEY, SEED_KEY, clients
from .study_plan import FITNESS_ROUNDS, StudyPlan, read_plan

STRATEGIES: Mapping[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "fedprox": FedProx,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedmedian": FedMedian,
    "fedtrimmedavg": FedTrimmedAvg,
    "krum": Krum,
    "multikrum": MultiKrum,
}


@dataclass(frozen=True)
class Training:
    """A strategy by name, with what its class is given, a seed, and the clients' rate."""

    strategy: str
    parameters: Mapping[str, float]
    seed: int
    learning_rate: float


Train = Callable[[Training], float]
"""Trains and returns the fitness."""


class EnoughError(Exception):
    """As many trainings as were to be measured have been."""


def drawn(trial: optuna.Trial, num_clients: int) -> tuple[str, dict[str, float]]:
    """Let Optuna choose a strategy and its parameters."""
    kind = trial.suggest_categorical("strategy", list(STRATEGIES))
    draw = trial.suggest_float
    parameters: dict[str, float] = {}
    match kind:
        case "fedavgm":
            parameters["server_learning_rate"] = draw("server_learning_rate", 0.1, 2.0, log=True)
            parameters["server_momentum"] = draw("server_momentum", 0.0, 0.99)
        case "fedprox":
            parameters["proximal_mu"] = draw("proximal_mu", 1e-3, 1.0, log=True)
        case "fedadam" | "fedyogi" | "fedadagrad":
            parameters["eta"] = draw("eta", 1e-3, 1.0, log=True)
            parameters["tau"] = draw("tau", 1e-4, 1e-1, log=True)
        case "fedtrimmedavg":
            parameters["beta"] = draw("beta", 0.05, 0.45)
        case "krum" | "multikrum":
            most = max(0, (num_clients - 3) // 2)
            parameters["num_malicious_nodes"] = trial.suggest_int("num_malicious_nodes", 0, most)
            if kind == "multikrum":
                parameters["num_nodes_to_select"] = trial.suggest_int("num_nodes_to_select", 1, num_clients)
    return kind, parameters


@dataclass
class Measured:
    """The trainings that were made, and how long each took."""

    at_most: int
    seconds: list[float] = field(default_factory=list)

    def around(self, train: Train) -> Train:
        """Return what trains, measures, and stops where enough is measured."""

        def measured(training: Training) -> float:
            if len(self.seconds) == self.at_most:
                raise EnoughError
            began = time.perf_counter()
            fitness = train(training)
            self.seconds.append(time.perf_counter() - began)
            return fitness

        return measured


def study(plan: StudyPlan, train: Train) -> dict[str, Any]:
    """Search, tune, confirm; return the winner and everybody's fitness on the fresh seeds."""
    own = partial(Training, "fedavg", {})
    baseline = train(own(plan.search_seed, plan.learning_rate))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=plan.search_seed))

    def objective(trial: optuna.Trial) -> float:
        return train(Training(*drawn(trial, plan.clients), plan.search_seed, plan.learning_rate))

    search.optimize(objective, n_trials=plan.searched)
    winner = drawn(optuna.trial.FixedTrial(search.best_params), plan.clients)  # type: ignore[arg-type]
    rate = tuned_rate(plan, train, baseline)
    contestants = {
        "winner": partial(Training, *winner, learning_rate=plan.learning_rate),
        "fedavg": partial(own, learning_rate=plan.learning_rate),
        "tuned-fedavg": partial(own, learning_rate=rate),
    }
    chosen = dict(list(contestants.items())[: plan.contestants])
    confirmed: dict[str, list[float]] = {name: [] for name in chosen}
    for seed in plan.confirmation_seeds:
        for name, of_seed in chosen.items():
            confirmed[name].append(train(of_seed(seed=seed)))
    return {"winner": winner[0], "parameters": winner[1], "tuned_rate": rate, "confirmed": confirmed}


def tuned_rate(plan: StudyPlan, train: Train, baseline: float) -> float:
    """Return FedAvg's best client rate among those that are not its own, so that it is confirmed in any case."""
    tried = {rate: [train(Training("fedavg", {}, plan.search_seed, rate))] for rate in plan.tuning_rates}
    everyone = {plan.learning_rate: [baseline], **tried}
    for rate in sorted(everyone, key=lambda one: -everyone[one][0])[: plan.finalists]:
        everyone[rate] += [train(Training("fedavg", {}, seed, rate)) for seed in plan.tuning_seeds]
    by_worth = sorted(tried, key=lambda one: (-len(tried[one]), -fmean(tried[one])))
    return by_worth[0] if by_worth else plan.learning_rate


def run_training(plan: StudyPlan, folder: Path, training: Training, grid: Grid) -> float:
    """Train and score all clients round by round; return the mean accuracy of the last rounds."""
    torch.manual_seed(training.seed)
    arrays = ArrayRecord(plan.net().state_dict())
    told = ConfigRecord({FOLDER_KEY: str(folder), SEED_KEY: training.seed, RATE_KEY: training.learning_rate})
    everybody = {"min_train_nodes": plan.clients, "min_evaluate_nodes": plan.clients}
    strategy = STRATEGIES[training.strategy](
        **{**training.parameters, **everybody, "min_available_nodes": plan.clients}  # type: ignore[arg-type]
    )
    result = strategy.start(grid, arrays, plan.rounds, train_config=told, evaluate_config=told)
    scored = [float(str(scores["accuracy"])) for _, scores in sorted(result.evaluate_metrics_clientapp.items())]
    if len(scored) != plan.rounds:
        raise RuntimeError(f"{plan.rounds} rounds must be scored, got {len(scored)}")
    return fmean(scored[-FITNESS_ROUNDS:])


def simulated(plan: StudyPlan, drive: Callable[[Grid], Any]) -> Any:
    """Return what a server's function gives in a simulation of its own."""
    server, found = ServerApp(), []

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        found.append(drive(grid))

    simulate(server, clients, plan.clients, plan.workers)
    return found[0]


def main(folder: Path, simulations: str, at_most: int) -> None:
    """Measure at most so many trainings of a folder's study, with `each` a simulation of its own, or in `one`."""
    plan, measured = read_plan(folder), Measured(at_most)
    torch.set_num_threads(1)

    def whole(train: Train) -> dict[str, Any]:
        try:
            return study(plan, measured.around(train))
        except EnoughError:
            return {}

    run = partial(run_training, plan, folder)
    if simulations == "one":
        found = simulated(plan, lambda grid: whole(partial(run, grid=grid)))
    else:
        found = whole(lambda training: simulated(plan, partial(run, training)))
    versions = {library: version(library) for library in ("flwr", "optuna", "ray", "torch")}
    print(json.dumps({"training_seconds": measured.seconds, **found, "versions": versions}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
