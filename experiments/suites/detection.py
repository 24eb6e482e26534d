"""Accuracy and cost of detection: published and calibrated rules on federations whose ground truth is known.

A federation is one combination of data set, case, number of clients and seed. A figure is over those for which it is
defined:

- **Recall**, if there is something to detect: the rule detects it; for outliers, it flags every affected client.
- **False alarms**, if there is nothing of the kind: the rule detects it nevertheless.
- **Blamed**, if some clients are affected: the rule flags one that is not.

| case | label skew | feature skew | outliers |
| --- | --- | --- | --- |
| `iid` | no | no | none |
| `label_skew`, `dirichlet` (α = 0.3) | yes | no | none |
| `rare_client`: the first client holds one class, the others all | yes | open | none |
| `feature_skew` | no | yes | none |
| `noisy_labels`, `label_poisoning` | open | open | the third client |
| `corrupted_client` | open | yes | the third client |
| `two_poisoners`, `three_poisoners`, of five and of seven clients or more | open | open | the first ones |
| `sign_flip` (factor 4), `scaled_update`, `gaussian_update` (0.1) | no | no | the third client |

*Open*: wrong labels change a client's label counts and class features, so a detection there is neither right nor wrong.

`withheld_labels` measures false alarms and power of calibrated label skew if clients withhold the counts of small
classes. Label counts are drawn, passed through the clients' release (`fedscout.engine.data.client`), and decided on as
in a detection with default settings. In one half of the federations all clients draw from one distribution; any
detection is a false alarm, whose rate must not exceed that of one detector. In the other half they do not:

- Dirichlet: each client's distribution of five classes is drawn from a symmetric Dirichlet distribution;
- one client: the first draws two classes evenly, all others with 95 and 5 %.

The cost of a detection is given in rounds of FedAvg on the same hosts: every client trains and evaluates, through the
Grid. Detections alternate with blocks of rounds after one of each as a warm-up, so that other load affects both alike.
`fedscout.detectors.detect` merges the exchanges of all modules; a module alone has exchanges of its own.

The growth of a module's cost with a quantity, such as the number of clients, is the slope of log cost on log quantity:
the exponent b of cost ∝ quantity^b, on synthetic federations in this process. Processor seconds are those of clients
and server together, on one thread; bytes and messages are those of both directions.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from statistics import median_high
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from flwr.app import Message
from threadpoolctl import threadpool_limits

from fedscout.detectors import CalibratedFinding, DetectionConfig, Finding, HeterogeneityReport
from fedscout.detectors.conversation import hold
from fedscout.detectors.detect import detect, measure_labels, measure_models
from fedscout.detectors.feature_exchanges import measure_features
from fedscout.detectors.label_skew import ReleasedCounts, decide_label_skew_calibrated
from fedscout.detectors.statistics import paired_clients
from fedscout.engine.arrays import IntArray
from fedscout.engine.config import EngineConfig
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition, Release, release_counts
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, UserError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.messages.calls import Session
from fedscout.engine.seeds import stream
from fedscout.engine.trials.runner import TrialRunner
from fedscout.experiments.grids.cells import CellContext, CellValues, Measured, built_columns
from fedscout.experiments.grids.experiment import Cell, Experiment, Given, Settings, arguments
from fedscout.experiments.grids.federation_runner import read_config
from fedscout.experiments.grids.recommenders import UNCONFIRMED
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import MODELS
from fedscout.experiments.studies.runner import open_runner
from fedscout.experiments.studies.workflow import Display, Pipeline, measure, run_training, run_workflow
from fedscout.experiments.timings.engine import run_rounds
from fedscout.strategies import FedAvgSpec

FEDERATION = ("dataset", "case", "clients", "seed")
COLUMNS = (*FEDERATION, "rule", "detector")
RULES = ("published", "calibrated")
MEASURES = ("recall", "false alarms", "blamed")
ANY = "any"
SEEDS_APART = 10_000
LEVELS = "{levels}"
"""Stands for the heterogeneity of each client: 1 for the first, 0 for the others."""


class Case(NamedTuple):
    """A kind of federation.

    Attributes:
        label_skew: Whether there is any; None is open.
        feature_skew: Likewise.
        outliers: Whether the affected clients are outliers.
        settings: Of `federation`, which create it.
        min_clients: With fewer, affected clients would be half of all.
    """

    label_skew: bool | None
    feature_skew: bool | None
    outliers: bool
    settings: tuple[str, ...]
    min_clients: int = 3


def _attack(effect: str) -> Case:
    return Case(False, False, True, ("partition.kind=iid", f"scenario={{kind: {effect}, clients: [2]}}"))


def _poisoners(num_attackers: int) -> Case:
    effect = f"scenario={{kind: poisoning, clients: {list(range(num_attackers))}}}"
    return Case(None, None, True, ("partition.kind=iid", effect), 2 * num_attackers + 1)


CASES: Mapping[str, Case] = {
    "iid": Case(False, False, False, ("scenario=iid",)),
    "label_skew": Case(True, False, False, ("scenario=label_skew",)),
    "dirichlet": Case(True, False, False, ("partition.kind=dirichlet", "partition.alpha=0.3")),
    "feature_skew": Case(False, True, False, ("scenario=feature_skew",)),
    "noisy_labels": Case(None, None, True, ("scenario=noisy_labels",)),
    "label_poisoning": Case(None, None, True, ("scenario=label_poisoning",)),
    "corrupted_client": Case(None, True, True, ("scenario=corrupted_client",)),
    "rare_client": Case(True, None, False, ("partition.kind=heterogeneity_index", f"partition.levels={LEVELS}")),
    "two_poisoners": _poisoners(2),
    "three_poisoners": _poisoners(3),
    "sign_flip": _attack("sign_flip, factor: 4"),
    "scaled_update": _attack("scaled_update"),
    "gaussian_update": _attack("gaussian_update, std: 0.1"),
}
"""In an order that decides their seeds: new ones come last."""


@dataclass(frozen=True)
class Detections:
    """Recall, false alarms and wrong blame by rule (columns), for detectors and subsets of federations (rows).

    A row's arguments are `detector`, or `any`, and the selection of federations: `dataset`, `case`, `clients`. No two
    cases share a seed, so that no partition counts twice.

    Attributes:
        datasets: Names; with `max_rows`, and `client_rows` as the minimum for each client.
        clients: Numbers of clients.
        cases: Of `CASES`; None is all.
    """

    datasets: Mapping[str, Mapping[str, int]]
    clients: Sequence[int]
    cases: Sequence[str] | None = None

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Run detection on every federation that a row includes."""
        import pandas as pd

        rows = {row: method.arguments for row, method in experiment.rows.items() if isinstance(method, Given)}
        verdicts: list[dict[str, Any]] = []
        missing: dict[str, str] = {}
        for dataset, case, clients in product(self.datasets, self.cases or CASES, self.clients):
            if case not in CASES:
                raise ConfigurationError.of("cases", f"be from {', '.join(CASES)}", repr(case))
            facts = {"dataset": dataset, "case": case, "clients": clients}
            is_wanted = any(all(row.get(key, value) == value for key, value in facts.items()) for row in rows.values())
            if clients < CASES[case].min_clients or not is_wanted:
                continue
            name = f"{dataset}, {case}, {clients} clients"
            context.note(name)
            try:
                verdicts += [facts | one for one in self._detected(dataset, case, clients, context)]
            except UserError as error:
                missing[name] = str(error)
        if not verdicts and missing:
            raise UserError([next(iter(missing.values()))])
        table = pd.DataFrame(verdicts).reindex(columns=[*COLUMNS, *MEASURES])
        cells = {}
        for (row, selection), rule, measure_name in product(rows.items(), RULES, MEASURES):
            of_row = table[table["rule"] == rule]
            for key, value in selection.items():
                of_row = of_row if (key, value) == ("detector", ANY) else of_row[of_row[key] == value]
            defined = of_row.dropna(subset=measure_name).groupby([*FEDERATION], sort=False)[measure_name]
            values = tuple(float(value) for value in defined.max())  # an alarm of any of its detectors
            cells[row, f"{measure_name}, {rule}"] = CellValues(values=values)
        return Measured(cells, missing)

    def _detected(self, dataset: str, case: str, clients: int, context: CellContext) -> Iterator[dict[str, Any]]:
        """Yield the verdicts on the federations of one data set, case and number of clients."""
        sample = self.datasets[dataset]
        rows = max(sample.get("max_rows", 0), sample.get("client_rows", 0) * clients)
        first, levels = SEEDS_APART * list(CASES).index(case), str([1, *[0] * (clients - 1)])
        for seed in range(first, first + context.num_seeds):
            arguments = [
                f"federation.dataset={dataset}",
                f"federation.num_clients={clients}",
                f"federation.seed={seed}",
                f"seed={seed}",
                *([f"federation.max_rows={rows}"] if rows else []),
                *(f"federation.{setting.replace(LEVELS, levels)}" for setting in CASES[case].settings),
            ]
            config = read_config(arguments, context.settings)
            pipeline = Pipeline(config, Display())
            with pipeline.place(config.detection.num_rounds) as runner:
                report = measure(runner, config)
            replied = {facts.client for facts in report.clients}
            affected = [client for client in pipeline.federation.affected_clients if client in replied]
            findings: Sequence[tuple[str, Sequence[Finding | CalibratedFinding]]]
            findings = (("published", report.findings), ("calibrated", report.calibrated))
            for rule, finding in ((rule, finding) for rule, of_rule in findings for finding in of_rule):
                found = verdict(finding, CASES[case], affected)
                yield {"seed": seed, "rule": rule, "detector": finding.name, **found}


def verdict(finding: Finding | CalibratedFinding, truth: Case, affected: Sequence[int]) -> dict[str, bool]:
    """Return those of `MEASURES` that are defined of a finding; `affected` are the affected clients that replied."""
    expected: bool | None = getattr(truth, finding.name)
    if truth.outliers and not affected:
        return {}
    if expected is False:
        return {"false alarms": finding.detected}
    flagged, attackers = set(finding.flagged_clients), set(affected) if truth.outliers else set()
    blamed = {"blamed": not flagged <= attackers} if attackers else {}
    if finding.name == "outliers":
        return {"recall": attackers <= flagged, **blamed}
    return {"recall": finding.detected, **blamed} if expected else blamed


SHARES: Mapping[str, tuple[float, ...]] = {
    "two classes, 0.5 %": (0.995, 0.005),
    "two classes, 2 %": (0.98, 0.02),
    "two classes, 5 %": (0.95, 0.05),
    "five classes, 2 %": (0.4, 0.3, 0.2, 0.08, 0.02),
}
SIZES: Mapping[str, tuple[int, ...]] = {
    **{f"{clients} × 30": (30,) * clients for clients in (3, 6, 20, 50)},
    **{f"{rows} and 5 × 1,000": (rows, *[1000] * 5) for rows in (15, 25)},
}
CONCENTRATIONS = {f"Dirichlet {value:g}": value for value in (0.1, 0.3, 1.0)}
NUM_CLASSES = 5


def drawn_counts(labels: str, generator: np.random.Generator, client: int, rows: int) -> IntArray:
    """Return label counts, `(classes,)`, of a client by the name of the label distribution."""
    shares: Sequence[float] | np.ndarray[Any, Any]
    if labels == "one client":
        shares = (0.95, 0.05) if client else (0.5, 0.5)
    elif labels in CONCENTRATIONS:
        shares = generator.dirichlet(np.full(NUM_CLASSES, CONCENTRATIONS[labels]))
    else:
        shares = SHARES[labels]
    return generator.multinomial(rows, shares)


def withheld_labels(
    cell: Cell, _: Settings, context: CellContext, *, labels: str, min_release: int = Release().min_release
) -> CellValues:
    """Return the detected label skew of one federation per seed for equal clients, and of a quarter as many for others.

    Args:
        cell: Its column names the clients' rows.
        context: With the number of seeds.
        labels: Name of the label distribution.
        min_release: Fewest rows of a class that a client reports.
    """
    count = context.num_seeds if labels in SHARES else max(1, context.num_seeds // 4)
    settings, sizes = DetectionConfig(), SIZES[cell[1]]
    detections, withheld = [], 0.0
    for index in range(count):
        generator = stream(0, f"withheld labels: {labels}, {cell[1]}", index)
        table = np.stack([drawn_counts(labels, generator, client, rows) for client, rows in enumerate(sizes)])
        counts = release_counts(table, min_release).astype(np.int64)
        released = ReleasedCounts(tuple(range(len(table))), counts, table.sum(axis=1), np.full(len(table), min_release))
        withheld += 1 - released.share_released
        decision = decide_label_skew_calibrated(released, settings.detector_rate, settings.label_effect, index)
        detections.append(float(decision.detected))
    return CellValues(values=tuple(detections), figures={"share of rows withheld": (withheld / count,)})


def distance_of_the_third_client(report: HeterogeneityReport) -> float | None:
    """Return the ratio of the third client's model distance to the median of the others'."""
    distances = dict(report.metrics.model_distances)
    third = distances.pop(2, None)
    return third / median_high(distances.values()) if third is not None and distances else None


def centroid_distance(report: HeterogeneityReport) -> float | None:
    """Return the largest distance between two clients' centroids on the principal axes, in feature units."""
    pairs = product(report.centroids.values(), repeat=2)
    return max((math.dist(*pair) for pair in pairs), default=None)


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
                modules = detection_modules(runner.grid(_untested(training)), training)
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


def _untested(training: LocalTraining) -> Session:
    return Session(training=training, test_fraction=0.0)


def detection_modules(grid: HostGrid[Any], training: LocalTraining) -> Mapping[str, Callable[[], object]]:
    """Return, by name, functions that run a module of detection once, each alone, and the whole detection."""
    settings, seed = DetectionConfig(), 0
    clients = tuple(range(grid.facts.num_clients))
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


@dataclass(frozen=True)
class Growth:
    """Growth exponents of the processor seconds, bytes and messages of detection modules.

    A row is a module of `detection_modules` and one of `COSTS`, such as `label skew, bytes up`; a column is the
    quantity that grows. The seconds are measured once per seed, the traffic, which is the same each time, once.

    Attributes:
        sizes: Arguments of `synthetic_federation` that do not grow.
        growing: Values of each quantity, ascending.
    """

    sizes: Mapping[str, int]
    growing: Mapping[str, Sequence[int]]

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Measure each module at all sizes of all quantities."""
        cells: dict[Cell, CellValues] = {}
        modules = {row.rpartition(", ")[0]: None for row in experiment.rows}
        for column, module in product(experiment.federations, modules):
            context.note(f"{module}, {column}")
            sizes = self.growing[column]
            costs = [module_costs(module, {**self.sizes, column: size}, context.num_seeds) for size in sizes]
            for cost in COSTS:
                if (row := f"{module}, {cost}") in experiment.rows:
                    of_sizes = np.array([costs_of_size[cost] for costs_of_size in costs])
                    exponents = np.polyfit(np.log(sizes), np.log(of_sizes), 1)[0].round(9) + 0.0
                    largest = {LARGEST: (float(of_sizes[-1].mean()),)}
                    cells[row, column] = CellValues(values=tuple(exponents.tolist()), figures=largest)
        return Measured(cells)


COSTS = ("processor seconds", "bytes up", "bytes down", "messages")
LARGEST = "cost at the largest size"


def synthetic_federation(clients: int, classes: int, features: int, rows: int) -> Federation:
    """Return IID clients of `rows` normal rows each, evenly many of each class, and a net with a layer of 32."""
    return Federation(
        name="synthetic",
        features=stream(0, "synthetic rows").standard_normal((clients * rows, features), dtype=np.float32),
        labels=np.arange(clients * rows) % classes,
        num_classes=classes,
        partition=Partition(np.arange(clients * rows), rows * np.arange(clients + 1)),
        model=MODELS["dense"].build(ModelRequest((features,), classes, ModelSettings(hidden=(32,)))),
    )


def module_costs(module: str, sizes: Mapping[str, int], repetitions: int) -> dict[str, list[float]]:
    """Return each of `COSTS` of a module of detection, once per repetition."""
    training, traffic = LocalTraining(), Counter[str]()
    with open_runner(synthetic_federation(**sizes), EngineConfig(grid="local"), None, parallel=1) as runner:
        grid = runner.started().grid(_untested(training))
        run, send = detection_modules(grid, training)[module], grid.send_and_receive

        def counted(messages: Iterable[Message], **options: Any) -> list[Message]:
            requests = [*messages]
            replies = [*send(requests, **options)]
            traffic["messages"] += len(requests) + len(replies)
            for direction, sent in (("bytes down", requests), ("bytes up", replies)):
                records = chain.from_iterable(message.content.values() for message in sent if message.has_content())
                traffic[direction] += sum(record.count_bytes() for record in records)
            return replies

        with patch.object(grid, "send_and_receive", counted):
            run()
        seconds = []
        with threadpool_limits(limits=1):
            for _ in range(repetitions):
                began = time.process_time()
                run()
                seconds.append(time.process_time() - began)
    return {"processor seconds": seconds, **{cost: [float(count)] * repetitions for cost, count in traffic.items()}}
