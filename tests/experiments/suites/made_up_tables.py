"""Made-up tables of trials: eight clients on wine's arguments, every configuration with an accuracy of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from fedscout.detectors import HeterogeneityReport
from fedscout.experiments.config import load_config
from fedscout.experiments.grids.cells import CellContext, Measured
from fedscout.experiments.grids.experiment import Experiment
from fedscout.experiments.suites.replay import (
    SPACE,
    FederationTrials,
    Replayed,
    TabledFederation,
    TabledTrial,
    joint_grid,
    read_table,
    write_table,
)
from fedscout.search.study import planned_space
from fedscout.strategies import FedAdamSpec, SearchSpace, StrategySpec
from tests.search.recommenders.reports import report_of

ARGUMENTS = (
    "federation.dataset=wine",
    "federation.num_clients=8",
    "training.num_rounds=6",
    "training.learning_rate=0.1",
)
SEEDS = (0, 1, 2)
NUM_ROUNDS = 6
REPORT = report_of(divergence=0.5, rows=(160,) * 8, distances=(1.0,) * 8, num_classes=3)


def space_of(arguments: tuple[str, ...] = ARGUMENTS) -> SearchSpace:
    """Return the joint space of a study of eight clients."""
    from fedscout.experiments.studies.workflow import cohort_of

    config = load_config((*arguments, *SPACE))
    return planned_space(config.search, cohort_of(config, 8), config.training.local())


def federation(
    score: Callable[[StrategySpec, int], float],
    half: str = "development",
    name: str | None = None,
    report: HeterogeneityReport = REPORT,
) -> FederationTrials:
    """Return a federation whose trials have the same accuracy in every round; NaN fails in the third."""
    about = TabledFederation(
        name=name or f"made up, {half}",
        half=half,  # type: ignore[arg-type]
        arguments=ARGUMENTS,
        num_clients=8,
        guessing=0.25,
        data_digest=name or half,
        reports={seed: report.model_dump(mode="json") for seed in SEEDS},
    )

    def trial(spec: StrategySpec, seed: int) -> TabledTrial:
        accuracy = score(spec, seed)
        failed = math.isnan(accuracy)
        return TabledTrial(spec, seed, failed, (0.5, 0.5) if failed else (accuracy,) * NUM_ROUNDS)

    return FederationTrials(
        about, {(spec, seed): trial(spec, seed) for spec in joint_grid(space_of()) for seed in SEEDS}
    )


def rate_of(spec: StrategySpec) -> float:
    """Return a configuration's client rate."""
    return float(spec.client_values()["client_learning_rate"])


def by_rate(spec: StrategySpec, seed: int) -> float:
    """FedAvg is best at rate 0.5, and FedAdam at eta 0.3 is ten points better."""
    if isinstance(spec, FedAdamSpec) and spec.eta == 0.3:
        return round(0.9 + 0.01 * seed, 4)
    is_best = spec.kind == "fedavg" and rate_of(spec) == 0.5
    return round((0.8 if is_best else 0.6) + 0.01 * seed, 4)


def replayed(path: Path, names: Sequence[str], *settings: str, columns: Sequence[str] | None = None) -> Measured:
    """Return what recommenders of these names do on a table that lies in a file, in the joint space."""
    known = [each.about.name for each in read_table(path)] if columns is None else columns
    document = {
        "title": "a test",
        "unit": "R_t",
        "method": {"kind": "choose"},
        "measured_by": {"function": "fedscout.experiments.suites.replay:Replayed"},
        "columns": {name: {} for name in known},
        "rows": {name: {"by": name} for name in names},
    }
    return Replayed(str(path)).measure(Experiment.model_validate(document), CellContext(path.parent, settings))


def written(path: Path, *federations: FederationTrials) -> Path:
    """Write a table, and return its file."""
    write_table(path, federations)
    return path
