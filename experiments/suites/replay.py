"""Recommenders replayed on a table of trials: a minute for what takes a day to train.

A recommender asks as in any study, over the whole joint space. Its trial is the nearest one of the table: of the
same strategy, at the smallest root mean square distance of the parameters' places in their ranges (log-scaled where the
range is), the first of equals. So a replay is exact on the grid, and a rough surrogate between its points; what it
compares is kinds of search, not the last point of accuracy.

Each seed is a search seed in its turn. What was chosen on it is judged by the others, on which nobody has chosen. So
are the references: FedAvg as the study has it; *tuned*, FedAvg at the client rate that is best on the mean of all seeds
but the one that judges; and the *oracle*, the configuration of the table that is best there (a cross-validation of the
choice, without which the largest of 130 noisy means would flatter itself).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.trials.trial_log import TrialLog
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.grids.federation_runner import Choice
from fedscout.experiments.studies.workflow import cohort_of
from fedscout.experiments.suites.trial_table import SPACE, FederationTrials, fedavg_rates, grid_points
from fedscout.search.ledger import Ledger, StudyFacts
from fedscout.search.study.study import planned_space
from fedscout.search.study_trials import BASELINE
from fedscout.strategies import ChoiceRange, Range, SearchSpace, StrategySpec, Value, given_values

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
