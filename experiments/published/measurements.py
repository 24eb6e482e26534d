"""Measurements for published tables that are not trainings, choices or reports: times and report statistics.

The cost of a detection is given in rounds of FedAvg on the same hosts: every client trains and evaluates, through the
Grid. Detections alternate with blocks of rounds after one of each as a warm-up, so that other load affects both alike.
`fedscout.detectors.detect` merges the exchanges of all modules; a module alone has exchanges of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from threadpoolctl import threadpool_limits

from fedscout.detectors import DetectionConfig, HeterogeneityReport
from fedscout.detectors.conversation import hold
from fedscout.detectors.detect import detect, measure_labels, measure_models
from fedscout.detectors.feature_exchanges import measure_features
from fedscout.detectors.statistics import paired_clients
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.runner import TrialRunner
from fedscout.experiments.grids.cells import CellContext, CellValues, Measured, built_columns
from fedscout.experiments.grids.experiment import Cell, Experiment, arguments
from fedscout.experiments.grids.federation_runner import read_config
from fedscout.experiments.studies.runner import open_runner
from fedscout.experiments.studies.workflow import Display, run_training, run_workflow
from fedscout.experiments.timings.engine import run_rounds
from fedscout.strategies import FedAvgSpec


def distance_of_the_third_client(report: HeterogeneityReport) -> float | None:
    """Return the ratio of the third client's model distance to the median of the others'."""
    distances = report.metrics.model_distances
    others = sorted(value for client, value in distances.items() if client != 2)
    return distances[2] / others[len(others) // 2] if 2 in distances and others else None


def centroid_distance(report: HeterogeneityReport) -> float | None:
    """Return the largest distance between two clients' centroids on the principal axes, in feature units."""
    centroids = list(report.centroids.values())
    pairs = (
        sum((one - other) ** 2 for one, other in zip(first, second, strict=True)) ** 0.5
        for first, second in product(centroids, repeat=2)
    )
    return max(pairs, default=None)


UNCONFIRMED = ("search.confirmation_seeds=0", "search.tuned_baseline=false")


@dataclass(frozen=True)
class TimedStudies:
    """Wall time of studies, as a ratio to that of one training in the same repetition.

    Attributes:
        studies: Arguments of a study in each row; None is the training.
    """

    studies: Mapping[str, tuple[str, ...] | None]

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Run all rows in each repetition."""
        built_federations, missing = built_columns(experiment, context)
        ratios: dict[Cell, list[float]] = {}
        for column in (built.name for built in built_federations):
            _study_seconds(None, arguments(experiment.federations[column]), context)  # the first one loads libraries
            for turn in range(context.num_seeds):
                context.note(f"turn {turn}")
                fixed = (*arguments(experiment.federations[column]), *UNCONFIRMED, f"seed={turn}")
                seconds = {row: _study_seconds(settings, fixed, context) for row, settings in self.studies.items()}
                training_seconds = next(seconds[row] for row, settings in self.studies.items() if settings is None)
                for row in self.studies:
                    ratios.setdefault((row, column), []).append(seconds[row] / training_seconds)
        return Measured({cell: CellValues(values=tuple(values)) for cell, values in ratios.items()}, missing)


def _study_seconds(settings: Sequence[str] | None, fixed: Sequence[str], context: CellContext) -> float:
    config = read_config((*fixed, *(settings or ())), context.settings)
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        run = run_training if settings is None else run_workflow
        run(config, Path(folder) / "run", Display())
        return time.perf_counter() - started


WHOLE = "whole detection, merged exchanges"
BLOCK_ROUNDS = 10
"""Rounds per measurement, after a warm-up round."""


@dataclass(frozen=True)
class TimedDetections:
    """Wall time of a detection and of its modules, in seconds or in rounds of FedAvg over the same clients.

    Rows are `detection, seconds`, `one round, seconds`, `detection, rounds`, or a name of `detection_modules` (rounds).
    """

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Time every federation, alternating detection and rounds."""
        cells: dict[Cell, CellValues] = {}
        built_federations, missing = built_columns(experiment, context)
        for built in built_federations:
            context.note(built.name)
            training = built.config.training.local()
            turns: list[dict[str, float]] = []
            with open_runner(built.federation, built.config.engine, None, parallel=1) as unstarted_runner:
                runner = unstarted_runner.started()
                modules = detection_modules(runner, training)
                for _ in range(1 + context.num_seeds):
                    round_time, whole = round_seconds(runner, training), _seconds(modules[WHOLE])
                    alone = {name: _seconds(modules[name]) / round_time for name in modules if name in experiment.rows}
                    times = {"detection, seconds": whole, "one round, seconds": round_time}
                    turns.append({**alone, **times, "detection, rounds": whole / round_time, WHOLE: whole / round_time})
            for row in experiment.rows:
                cells[row, built.name] = CellValues(values=tuple(turn[row] for turn in turns[1:]))
        return Measured(cells, missing)


def round_seconds(runner: TrialRunner, training: LocalTraining) -> float:
    """Return the mean wall time of a FedAvg round with all clients, over a block after a warm-up round."""
    ends: list[float] = []
    run_rounds(
        runner.grid,
        FedAvgSpec(),
        runner.facts.num_clients,
        training,
        1 + BLOCK_ROUNDS,
        lambda _: ends.append(time.perf_counter()),
    )
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def detection_modules(runner: TrialRunner, training: LocalTraining) -> Mapping[str, Callable[[], object]]:
    """Return, by name, functions that run a module of detection once, each alone, and the whole detection."""
    grid, settings, seed = runner.grid(Session(training=training, test_fraction=0.0)), DetectionConfig(), 0
    clients = tuple(range(runner.facts.num_clients))
    paired = paired_clients(clients, settings.max_pairwise_clients, seed)
    return {
        "label skew": lambda: hold(grid, measure_labels(settings, seed)),
        "feature skew": lambda: hold(grid, measure_features(clients, paired, settings, clients)),
        "outliers, published rule": lambda: hold(
            grid, measure_models(clients, (), grid.initial_vectors, training, settings, seed)
        ),
        WHOLE: lambda: detect(grid, grid.initial_vectors, training, settings, seed),
    }


def _seconds(module: Callable[[], object]) -> float:
    with threadpool_limits(limits=1):  # as in a detection
        began = time.perf_counter()
        module()
        return time.perf_counter() - began
