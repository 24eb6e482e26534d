"""Recommenders replayed on a table of trials: a minute for what takes a day to train.

A recommender asks as in any study, over the whole joint space. Its trial is the nearest one of the table: of the
same strategy, at the smallest root mean square distance of the parameters' places in their ranges (log-scaled where the
range is), the first of equals. So a replay is exact on the grid, and a rough surrogate between its points; what it
compares is kinds of search, not the last point of accuracy.

Each seed is a search seed in its turn. What was chosen on it is judged by the others, on which nobody has chosen. So
are the references: FedAvg as the study has it; *tuned*, FedAvg at the client rate that is best on the mean of all seeds
but the one that judges; and the *oracle*, the configuration of the table that is best there (a cross-validation of the
choice, without which the largest of 130 noisy means would flatter itself).

The table of trials on which recommenders are replayed: its grid of configurations, and its Parquet file.

| column | meaning |
| --- | --- |
| `federation` | its name |
| `about` | what is known of the federation, as JSON (`TabledFederation`), in its first row |
| `specification` | strategy and clients' settings, as JSON |
| `seed` | of split, initial model and batches |
| `failed` | whether the trial failed |
| `round_accuracy` | after each round it finished, in hundredths of a percent, weighted over clients |

As in the tabular mode of FedHPO-Bench (Wang et al., ICML 2023, arXiv:2206.03966) a searcher that asks for a trial is
told what is written there, so that a new one is judged in minutes, and by others too.

The grid lies over the joint space of strategies and clients' settings. Of every default strategy it has a few values
that the literature and the documented defaults take, each at three client rates and two numbers of local epochs;
FedAvg, of which the tuned reference is made, at six rates; and small batches for FedAvg and for the two strategies that
rules propose most. What does not exist in a federation is left out.

A searcher of the user's own in a replay: `--searcher package.module:Class`.

The class is a `Searcher` (`fedscout.search.searcher`), made from a `SearchTask` as the built-in ones are. Its study is
theirs: FedAvg beside what is proposed first, then what it asks for until `search.budget` trials are spent, or to its
own end where it has a budget of its own. No warm start learns from it, so that the built-in recommenders' figures are
the same with it and without.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.errors import ConfigurationError, Fault, FedscoutError, LogError, first_line
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.text import shown
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial, TrialSettings, late_mean
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.grids.federation_runner import Choice
from fedscout.experiments.grids.recommenders import ChoiceTask, Recommender
from fedscout.experiments.studies.workflow import cohort_of
from fedscout.search.ledger import BASELINE, Ledger, StudyFacts, best_of, full_trainings_of
from fedscout.search.searcher import Proposal, Searcher, SearchTask
from fedscout.search.study import planned_space, study_space
from fedscout.strategies import ChoiceRange, Range, SearchSpace, StrategySpec, Value, given_values, parse_strategy
from fedscout.strategies.arguments import imported_class

FORMAT = b"fedscout trial table 1"
Half = Literal["development", "held out"]
"""Whoever sets a rule, a default or a prior after a look at a held-out data set moves it to the others."""
PUBLISHED = Path(__file__).parent / "choice" / "trials.parquet"
"""The project's own table."""
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


SPACE = (
    "search.client_ranges.learning_rate={low: 0.02, high: 1.0, log: true}",
    "search.client_ranges.local_epochs={low: 1, high: 3}",
    "search.client_ranges.batch_size={low: 8, high: 32, log: true}",
)
"""The clients' part of the joint space; strategies and their parameters are the default ones."""

RATES = (0.02, 0.1, 0.5)
FEDAVG_RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
EPOCHS = (1, 3)
BATCHES = (32, 8)
"""The first is the study's own, at which the whole grid is."""

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
    """Return the configurations that exist in a federation's space, equivalents once."""
    found: dict[str, StrategySpec] = {}
    for spec in grid_points(space):
        found.setdefault(space.digest(spec), spec)
    return list(found.values())


def grid_points(space: SearchSpace) -> Iterator[StrategySpec]:
    """Yield every point of the grid, a value out of its range moved to the nearest in it; several may be equivalent."""
    for kind in space.kinds:
        for point in SERVER_POINTS[kind]:
            for settings in _client_settings(kind):
                spec = space.nearest(space.members[kind].with_values({**point, **settings}))
                assert spec is not None, "its kind is in the space"
                yield spec


def fedavg_rates(space: SearchSpace, grid: Sequence[StrategySpec]) -> list[StrategySpec]:
    """Return FedAvg at every client rate of the grid, all else as the study has it: of which the tuned reference is."""
    own = {name: space.given[name] for name in ("client_local_epochs", "client_batch_size")}
    return [spec for spec in grid if spec.kind == "fedavg" and own.items() <= {**own, **spec.client_values()}.items()]


def _client_settings(kind: str) -> Iterator[Mapping[str, Value]]:
    own, *smaller = BATCHES
    rates = FEDAVG_RATES if kind == "fedavg" else RATES
    for epochs in EPOCHS:
        for rate in rates:
            yield {"client_learning_rate": rate, "client_local_epochs": epochs, "client_batch_size": own}
    for batch in smaller if kind in SMALL_BATCHES else ():
        for rate in RATES:
            yield {"client_learning_rate": rate, "client_local_epochs": EPOCHS[0], "client_batch_size": batch}


class TabledFederation(BaseModel, frozen=True):
    """What is known of a federation of the table without its rows.

    Attributes:
        name: Of the federation.
        half: Whether rules and defaults may be set on it, or it is held out.
        arguments: As for `fedscout run`.
        num_clients: That take part.
        guessing: Accuracy of always guessing the most frequent class.
        data_digest: Of its rows and who holds which.
        reports: How the clients' data differ as detected on each seed, as JSON.
    """

    name: str
    half: Half
    arguments: tuple[str, ...]
    num_clients: int
    guessing: float
    data_digest: str
    reports: Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class TabledTrial:
    """One row: what was trained, on which seed, and the accuracy after each round."""

    spec: StrategySpec
    seed: int
    failed: bool
    round_accuracy: tuple[float, ...]

    @classmethod
    def of(cls, trial: Trial) -> TabledTrial:
        """Return what of a trial is kept."""
        return cls(trial.spec, trial.seed, trial.status == "failed", trial.round_accuracy)

    def score(self, guessing: float) -> float:
        """Return the mean of the last five rounds; that of guessing where the trial failed."""
        return guessing if self.failed else late_mean(self.round_accuracy)


@dataclass(frozen=True)
class FederationTrials:
    """All trials of one federation.

    Attributes:
        about: The federation.
        trials: By specification and seed, every specification on every seed.
    """

    about: TabledFederation
    trials: Mapping[tuple[StrategySpec, int], TabledTrial]

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
        """The fitness of each configuration on each seed, shape `(specs, seeds)`; guessing where a trial failed."""
        guessing = self.about.guessing
        return np.array([[self.trials[spec, seed].score(guessing) for seed in self.seeds] for spec in self.specs])


def write_table(path: Path, federations: Iterable[FederationTrials]) -> None:
    """Write a table; accuracies are rounded to its unit."""
    rows = [row for federation in federations for row in _rows_of(federation)]
    table = pa.Table.from_pylist(rows, SCHEMA.with_metadata({b"format": FORMAT}))
    pq.write_table(table, path, compression="zstd", compression_level=19)


def _rows_of(federation: FederationTrials) -> Iterator[dict[str, Any]]:
    for place, trial in enumerate(federation.trials.values()):
        yield {
            "federation": federation.about.name,
            "about": None if place else federation.about.model_dump_json(),
            "specification": json.dumps({"kind": trial.spec.kind, **trial.spec.parameters()}),
            "seed": trial.seed,
            "failed": trial.failed,
            "round_accuracy": [None if isnan(each) else round(UNITS * each) for each in trial.round_accuracy],
        }


def trial_counts(path: Path) -> dict[str, int]:
    """Return how many trials a table has of each federation, by its name."""
    names = pq.read_table(path, columns=["federation"]).column("federation").to_pylist()
    return dict(Counter(names))


def read_table(path: Path) -> list[FederationTrials]:
    """Read a table.

    Raises:
        LogError: If it is not one.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise LogError(Fault("a table of trials", "be a Parquet file that can be read", f"{path}: {error}")) from error
    if (table.schema.metadata or {}).get(b"format") != FORMAT:
        raise LogError(Fault("a table of trials", "be one that `fedscout bench table` has written", path))
    abouts: dict[str, TabledFederation] = {}
    trials: dict[str, dict[tuple[StrategySpec, int], TabledTrial]] = {}
    parsed = cache(lambda document: parse_strategy(json.loads(document)))
    for row in table.to_pylist():
        name: str = row["federation"]
        if row["about"] is not None:
            abouts[name] = TabledFederation.model_validate_json(row["about"])
        accuracy = tuple(nan if each is None else each / UNITS for each in row["round_accuracy"])
        trial = TabledTrial(parsed(row["specification"]), row["seed"], row["failed"], accuracy)
        trials.setdefault(name, {})[trial.spec, trial.seed] = trial
    return [FederationTrials(abouts[name], found) for name, found in trials.items()]


ONE_SEED = "search.tuning_seeds=1"
"""The others judge."""

Scores = np.ndarray[tuple[int], np.dtype[np.float64]]


class NoLog(TrialLog):
    """Keeps nothing: the table has it all."""

    def __init__(self) -> None:
        pass

    def read(self, config_hash: str | None = None) -> list[Trial]:
        """Return nothing."""
        return []

    def append(self, record: Trial) -> Path:
        """Write nothing."""
        return Path()


@dataclass
class ReplayRunner:
    """Tells of the nearest trial of the table in place of training.

    Attributes:
        federation: Whose trials.
        space: In whose ranges distances are measured.
    """

    federation: FederationTrials
    space: SearchSpace

    def run(self, batch: Sequence[TrialSettings], progress: object = None) -> Iterator[tuple[int, Trial]]:
        """Yield a trial for each that is asked for."""
        for position, settings in enumerate(batch):
            yield position, self._trial(settings)

    def forget(self, key: str) -> None:
        """Nothing is kept."""

    def nearest(self, spec: StrategySpec, given: Mapping[str, Value]) -> StrategySpec:
        """Return the configuration of the table that is nearest to one of these clients' settings.

        Raises:
            ConfigurationError: If the table has none of its strategy.
        """
        known = {**spec.search_values(), **given}
        tabled = self._tabled.get(spec.label)
        if tabled is None:
            raise ConfigurationError(Fault("the strategy of a replay", "be of the table", spec.label))
        ranges = self.space.parameters_of(spec.label)
        place = np.array([_place(found, known[name]) for name, found in ranges.items()])
        return tabled.specs[int(np.argmin(((tabled.places - place) ** 2).sum(axis=1)))]

    @cached_property
    def _tabled(self) -> Mapping[str, _Tabled]:
        trained = {self.space.digest(spec): spec for spec in self.federation.specs}
        kinds: dict[str, dict[StrategySpec, StrategySpec]] = {}
        for spec in grid_points(self.space):
            if (equivalent := trained.get(self.space.digest(spec))) is not None:
                kinds.setdefault(spec.label, {})[spec] = equivalent
        return {kind: _Tabled(tuple(points.values()), self._places(kind, [*points])) for kind, points in kinds.items()}

    def _places(self, kind: str, specs: Sequence[StrategySpec]) -> np.ndarray[Any, np.dtype[np.float64]]:
        ranges = self.space.parameters_of(kind)
        values = [spec.search_values() for spec in specs]
        return np.array([[_place(found, each[name]) for name, found in ranges.items()] for each in values])

    def _trial(self, settings: TrialSettings) -> Trial:
        spec = settings.strategy
        assert isinstance(spec, StrategySpec)
        tabled = self.federation.trials[
            self.nearest(spec, given_values(settings.session.training)), settings.session.seed
        ]
        accuracy = tabled.round_accuracy[: settings.num_rounds]
        failed = tabled.failed and len(accuracy) < settings.num_rounds
        return Trial.of(
            settings,
            status="failed" if failed else "completed",
            error="it failed when the table was trained" if failed else None,
            round_accuracy=accuracy,
            round_clean_accuracy=accuracy,
        )


@dataclass(frozen=True)
class _Tabled:
    """What stands for each point of one strategy, and where the points are, shape `(points, parameters)`."""

    specs: tuple[StrategySpec, ...]
    places: np.ndarray[Any, np.dtype[np.float64]]


def _place(found: Range, value: Value) -> float:
    return float(found.choices.index(value)) if isinstance(found, ChoiceRange) else found.to_unit(value)


class ReplayedFederation:
    """One federation of the table, as a recommender sees it.

    Args:
        federation: Of the table.
        settings: Of the studies; by default they search the joint space. Without ranges of the clients' settings,
            recommenders and references know the configurations at the study's own.
    """

    def __init__(self, federation: FederationTrials, settings: Sequence[str] = SPACE) -> None:
        self.federation = federation
        self.about = federation.about
        self.name, self.data_digest = self.about.name, self.about.data_digest
        self.arguments = (*self.about.arguments, *settings, ONE_SEED)
        self.feature_names: tuple[str, ...] = ()
        self.out = Path()
        self.config = load_config(self.arguments)
        self.cohort: Cohort = cohort_of(self.config, self.about.num_clients)
        self.space = planned_space(self.config.search, self.cohort, self.config.training.local())
        joint = load_config((*self.about.arguments, *SPACE))
        self._joint = planned_space(joint.search, self.cohort, joint.training.local())
        self.runner = ReplayRunner(federation, self._joint)

    @property
    def resolution(self) -> float:
        """One test row's share."""
        rows = sum(client.num_rows for client in self.report(next(iter(self.about.reports))).clients)
        return 1 / (self.config.training.test_fraction * rows)

    def report(self, seed: int) -> HeterogeneityReport:
        """Return what was detected when the table was trained."""
        return HeterogeneityReport.model_validate(self.about.reports[seed])

    def ledger(self, config: StudyConfig) -> Ledger:
        """Return the ledger of a study on this federation."""
        facts = StudyFacts(
            name=self.name,
            num_rounds=config.training.num_rounds,
            cohort=self.cohort,
            session=config.training.session(config.seed, config.search.validation_fraction),
            view=config.search.view,
            searcher=config.search.kind,
            config_hash=config.digest(),
            config=config.model_dump_json(),
            data_digest=self.data_digest,
            guessing=self.about.guessing,
            is_measured=True,
        )
        return Ledger(facts, self.runner, NoLog())

    def places(self, choice: Choice) -> int:
        """Return which configuration of the table a choice is."""
        given = dict(given_values(choice.spec.local_training(self.config.training.local())))
        if choice.learning_rate is not None:
            given["client_learning_rate"] = choice.learning_rate
        return self.federation.specs.index(self.runner.nearest(choice.spec, given))

    def scores_of(self, choice: Choice) -> Scores:
        """Return what a choice scores, by seed."""
        scores: Scores = self.federation.scores[self.places(choice)]
        return scores

    @cached_property
    def baseline(self) -> Scores:
        """FedAvg as the study has it, by seed."""
        return self.scores_of(Choice(BASELINE))

    @cached_property
    def tuned(self) -> Scores:
        """FedAvg at the client rate that is best on all other seeds, all else as the study has it, by seed."""
        rates = fedavg_rates(self.space, self.federation.specs)
        return best_elsewhere(self.federation.scores[[self.federation.specs.index(spec) for spec in rates]])

    @cached_property
    def oracle(self) -> Scores:
        """The configuration of the table that is best on all other seeds, by seed."""
        return best_elsewhere(self.federation.scores[self._allowed])

    @cached_property
    def _allowed(self) -> list[int]:
        """Places of the configurations that a study of these settings can try."""
        own, searched = given_values(self.config.training.local()), self.space.client_ranges
        fixed = {name: value for name, value in own.items() if name not in searched}
        specs = self.federation.specs
        return [place for place, spec in enumerate(specs) if fixed.items() <= spec.client_values().items()]


def best_elsewhere(scores: np.ndarray[Any, np.dtype[np.float64]]) -> Scores:
    """Return for each seed the score of what has the largest mean over the others; scores of shape `(specs, seeds)`."""
    total = scores.sum(axis=1, keepdims=True)
    best = np.argmax(total - scores, axis=0)
    found: Scores = scores[best, np.arange(scores.shape[1])]
    return found


def own_recommender(path: str) -> Recommender:
    """Return the recommender that searches with the class at a path.

    Raises:
        StrategyError: If it can't be imported, is no searcher or lacks a method.
    """
    searcher: type[Searcher] = imported_class(path, {"fedscout.search.searcher.Searcher": Searcher})
    return Recommender(path, lambda task: _choose(searcher, path, task))


def _choose(searcher: type[Searcher], path: str, task: ChoiceTask) -> Choice:
    config = task.config()
    ledger = task.context.ledger(config)
    facts = ledger.facts
    search = SearchTask(
        space=study_space(config.search, facts),
        seed=facts.session.seed,
        settings=config.search,
        num_rounds=facts.num_rounds,
        references=(BASELINE,),
        measure=facts.measure,
    )
    with _code_of(path):
        found = searcher(search)
    baseline, trials = _search(found, path, ledger, sys.maxsize if found.has_own_budget else config.search.budget)
    best = best_of([baseline, *trials])
    return Choice(BASELINE if best is None else best.spec, full_trainings_of(trials, facts.num_rounds))


def _search(searcher: Searcher, path: str, ledger: Ledger, budget: int) -> tuple[Trial, list[Trial]]:
    """Return FedAvg's trial and those of the search; FedAvg is told with the first proposals, as in any study."""
    facts = ledger.facts
    told = ledger.run([facts.trial("baseline", BASELINE)])
    baseline, trials = told[0], list[Trial]()
    while budget > len(trials):
        with _code_of(path):
            proposals = searcher.plan(budget - len(trials))
        _check(proposals, path, searcher, budget - len(trials))
        if not proposals:
            break
        new = ledger.run([facts.trial("search", each.spec, num_rounds=each.num_rounds) for each in proposals])
        with _code_of(path):
            searcher.tell([*told, *new])
        told, trials = [], [*trials, *new]
    return baseline, trials


def _check(proposals: Sequence[Proposal], path: str, searcher: Searcher, left: int) -> None:
    """Refuse what a study could not train.

    Raises:
        ConfigurationError: With the first of it.
    """
    if len(proposals) > left:
        raise ConfigurationError(Fault(path, f"propose at most the {left} that are asked for", len(proposals)))
    for each in proposals:
        if not (isinstance(each.spec, StrategySpec) and searcher.task.space.contains(each.spec)):
            raise ConfigurationError(Fault(path, "propose configurations of task.space", shown(each.spec)))


@contextmanager
def _code_of(path: str) -> Iterator[None]:
    """Tell a fault of the user's code in one line, with its place."""
    try:
        yield
    except FedscoutError:
        raise
    except Exception as error:  # user code may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}, line {place.lineno}"
        raise ConfigurationError(
            Fault(path, "search without a fault", f"{type(error).__name__}: {first_line(error)} ({where})")
        ) from error
