"""What each module of detection costs on its own, in seconds and in rounds of FedAvg on the same hosts.

`fedscout.detectors.detection.detect` holds the conversations of all modules together, so that what they send travels in
common exchanges. Here each is held alone, as its own published cost is: label skew, feature skew, outliers by the
published rule, and outliers with the parts of rows that the calibrated rule trains on as well; then whole detection.
Modules and blocks of rounds take turns, and the shortest of each counts, as in
`fedscout.experiments.benchmarks.detection_cost`.

The source of the published rules times them on another machine, with rounds of 1.16 s: label skew 8.3 s, feature skew
11.2 s, outliers 54.5 s. In rounds that can be set beside ours, as far as rounds can be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pydantic import BaseModel
from threadpoolctl import threadpool_limits

from fedscout.detectors import DetectionConfig
from fedscout.detectors.conversation import hold
from fedscout.detectors.detection.detect import detect
from fedscout.detectors.detection.feature_exchanges import measure_features
from fedscout.detectors.detection.label_exchange import measure_labels
from fedscout.detectors.detection.model_exchanges import measure_models
from fedscout.detectors.outliers.calibrated_outliers import MOST_TESTS
from fedscout.detectors.outliers.exchanged_models import model_test, row_parts
from fedscout.detectors.statistics.heterogeneity_metrics import paired_clients
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.engine_config import EngineConfig
from fedscout.engine.messages.session import Session
from fedscout.engine.trials.trial_runner import TrialRunner
from fedscout.experiments.benchmarks.detection_cost import round_seconds
from fedscout.experiments.reports.markdown_table import markdown_table
from fedscout.experiments.studies.open_runner import open_runner

LABELS: Final = "label skew"
FEATURES: Final = "feature skew"
PUBLISHED_OUTLIERS: Final = "outliers, published rule"
OUTLIERS: Final = "outliers, both rules"
WHOLE: Final = "whole detection, merged exchanges"

PUBLISHED_ROUND_SECONDS: Final = 1.16
PUBLISHED_SECONDS: Mapping[str, float] = MappingProxyType({LABELS: 8.3, FEATURES: 11.2, PUBLISHED_OUTLIERS: 54.5})
SEED: Final = 0


class ModuleCosts(BaseModel, frozen=True):
    """One measurement; all times are of the shortest of several runs.

    Attributes:
        round_seconds: Wall time of a round of FedAvg.
        seconds: Wall time of each module, by name.
    """

    federation: str
    clients: int
    hosts: int
    round_seconds: float
    seconds: Mapping[str, float]


def module_costs(
    federation: Federation, training: LocalTraining, engine: EngineConfig, repeats: int = 5
) -> ModuleCosts:
    """Measure modules and rounds on the same hosts, in so many turns after one that warms up.

    Raises:
        RuntimeError: If a round fails.
    """
    sizes = [int(size) for size in federation.partition.sizes]
    rounds: list[float] = []
    turns: list[dict[str, float]] = []
    with open_runner(federation, engine, None, parallel=1) as lazy:
        runner = lazy.started()
        modules = _modules(runner, training, sizes)
        for _ in range(1 + repeats):
            rounds.append(round_seconds(runner, training))
            turns.append({name: _seconds(module) for name, module in modules.items()})
        num_hosts = runner.num_hosts
    return ModuleCosts(
        federation=federation.name,
        clients=federation.num_clients,
        hosts=num_hosts,
        round_seconds=min(rounds[1:]),
        seconds={name: min(turn[name] for turn in turns[1:]) for name in modules},
    )


def _modules(runner: TrialRunner, training: LocalTraining, sizes: Sequence[int]) -> Mapping[str, Callable[[], object]]:
    """Return what runs each module once."""
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


def table_lines(costs: Sequence[ModuleCosts]) -> list[str]:
    """Return the measurements as one Markdown table, a line for each module."""
    rows = []
    for cost in costs:
        for name, spent in cost.seconds.items():
            published = PUBLISHED_SECONDS.get(name)
            beside = "" if published is None else f"{published / PUBLISHED_ROUND_SECONDS:.1f}"
            cells = (f"{1000 * spent:.1f}", f"{spent / cost.round_seconds:.1f}", beside)
            rows.append((cost.federation, cost.hosts, name, *cells, f"{1000 * cost.round_seconds:.2f}"))
    return markdown_table(("federation", "hosts", "module", "ms", "rounds", "published, rounds", "a round, ms"), rows)
