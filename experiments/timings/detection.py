"""Cost of detection, as a whole and by module, in rounds of FedAvg on the same hosts.

The unit is the wall time of one round of FedAvg over the same federation: every client trains and evaluates, through
the Grid. Detections alternate with blocks of FedAvg rounds of about the same duration, and the minimum of each counts,
so that other load affects both alike.

`fedscout.detectors.detect` merges the exchanges of all modules. Here each module also runs alone, as in the published
timings: label skew, feature skew, outliers by the published rule, and outliers including the row parts on which the
calibrated rule trains; then the whole detection.

The publication of the rules reports times on another machine, with rounds of 1.16 s: label skew 8.3 s, feature skew
11.2 s, outliers 54.5 s. In units of rounds they are roughly comparable with these measurements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pydantic import BaseModel
from threadpoolctl import threadpool_limits

from fedscout.detectors import DetectionConfig
from fedscout.detectors.conversation import hold
from fedscout.detectors.detect import detect, measure_labels, measure_models
from fedscout.detectors.feature_exchanges import measure_features
from fedscout.detectors.outliers import MOST_TESTS, model_test, row_parts
from fedscout.detectors.statistics import paired_clients
from fedscout.engine.config import EngineConfig
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.runner import TrialRunner
from fedscout.experiments.reports.console import markdown_table
from fedscout.experiments.studies.runner import open_runner
from fedscout.experiments.timings.peer_runs import run_rounds
from fedscout.strategies import FedAvgSpec

BLOCK_ROUNDS = 10
"""Rounds per measurement, after a warm-up round."""


def round_seconds(runner: TrialRunner, training: LocalTraining) -> float:
    """Return the mean wall time of a FedAvg round with all clients, over a block after a warm-up round."""
    ends: list[float] = []
    clients = runner.facts.num_clients
    run_rounds(
        runner.grid, FedAvgSpec(), clients, training, 1 + BLOCK_ROUNDS, lambda _: ends.append(time.perf_counter())
    )
    return (ends[-1] - ends[0]) / (len(ends) - 1)


LABELS: Final = "label skew"
FEATURES: Final = "feature skew"
PUBLISHED_OUTLIERS: Final = "outliers, published rule"
OUTLIERS: Final = "outliers, both rules"
WHOLE: Final = "whole detection, merged exchanges"
MODULES: Final = (LABELS, FEATURES, PUBLISHED_OUTLIERS, OUTLIERS, WHOLE)

PUBLISHED_ROUND_SECONDS: Final = 1.16
PUBLISHED_SECONDS: Mapping[str, float] = MappingProxyType({LABELS: 8.3, FEATURES: 11.2, PUBLISHED_OUTLIERS: 54.5})
SEED: Final = 0


class DetectionCost(BaseModel, frozen=True):
    """Cost of modules of detection; all times are minima over several runs.

    Attributes:
        round_seconds: Wall time of a round of FedAvg.
        seconds: Wall time of each module, by name.
    """

    federation: str
    clients: int
    hosts: int
    round_seconds: float
    seconds: Mapping[str, float]

    def rounds(self, module: str = WHOLE) -> float:
        """Return the wall time of a module in rounds."""
        return self.seconds[module] / self.round_seconds


def detection_cost(
    federation: Federation,
    training: LocalTraining,
    engine: EngineConfig,
    repeats: int = 5,
    names: Collection[str] = (WHOLE,),
) -> DetectionCost:
    """Return the cost of each named module, measured in `repeats` repetitions after a warm-up.

    Raises:
        RuntimeError: If a round fails.
    """
    sizes = [int(size) for size in federation.partition.sizes]
    rounds: list[float] = []
    turns: list[dict[str, float]] = []
    with open_runner(federation, engine, None, parallel=1) as unstarted_runner:
        runner = unstarted_runner.started()
        modules = {name: run for name, run in _modules(runner, training, sizes).items() if name in names}
        for _ in range(1 + repeats):
            rounds.append(round_seconds(runner, training))
            turns.append({name: _seconds(module) for name, module in modules.items()})
        num_hosts = runner.num_hosts
    return DetectionCost(
        federation=federation.name,
        clients=federation.num_clients,
        hosts=num_hosts,
        round_seconds=min(rounds[1:]),
        seconds={name: min(turn[name] for turn in turns[1:]) for name in modules},
    )


def _modules(runner: TrialRunner, training: LocalTraining, sizes: Sequence[int]) -> Mapping[str, Callable[[], object]]:
    """Return a function for each module that runs it once."""
    grid = runner.grid(Session(training=training, test_fraction=0.0))
    settings = DetectionConfig()
    clients = tuple(range(len(sizes)))
    paired = paired_clients(clients, settings.max_pairwise_clients, SEED)

    def outliers() -> object:
        parts = row_parts(sizes, SEED)
        models = hold(grid, measure_models(clients, paired, grid.initial_vectors, training, settings, SEED, parts))
        return model_test(models.comparisons, models.parts, settings.detector_rate / MOST_TESTS)

    return {
        LABELS: lambda: hold(grid, measure_labels(settings, SEED)),
        FEATURES: lambda: hold(grid, measure_features(clients, paired, settings, clients)),
        PUBLISHED_OUTLIERS: lambda: hold(
            grid, measure_models(clients, (), grid.initial_vectors, training, settings, SEED)
        ),
        OUTLIERS: outliers,
        WHOLE: lambda: detect(grid, grid.initial_vectors, training, settings, SEED),
    }


def _seconds(module: Callable[[], object]) -> float:
    with threadpool_limits(limits=1):  # as in a detection
        began = time.perf_counter()
        module()
        return time.perf_counter() - began


def table_lines(costs: Sequence[DetectionCost]) -> list[str]:
    """Return the measurements as one Markdown table, one line per module."""
    rows = []
    for cost in costs:
        for name, spent in cost.seconds.items():
            published = PUBLISHED_SECONDS.get(name)
            published_rounds = "" if published is None else f"{published / PUBLISHED_ROUND_SECONDS:.1f}"
            cells = (f"{1000 * spent:.1f}", f"{cost.rounds(name):.1f}", published_rounds)
            rows.append((cost.federation, cost.hosts, name, *cells, f"{1000 * cost.round_seconds:.2f}"))
    return markdown_table(("federation", "hosts", "module", "ms", "rounds", "published, rounds", "round, ms"), rows)
