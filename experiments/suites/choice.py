"""Regret and cost of recommenders relative to an oracle, by replay of a table.

    R_t = (oracle − choice) / (oracle − tuned FedAvg)     the lost share of the gain beyond a tuned step size; only if
                                                          that gain is at least 0.01 and more than twice its error
    R_f = (oracle − choice) / (oracle − FedAvg)           the same relative to FedAvg with the study's settings; only
                                                          if that gain is at least 0.02

Accuracies are of seeds on which neither recommenders nor the oracle chose, so a regret may be negative. A value of a
cell is R_t of one search seed. Rows choose by a recommender, by `oracle` or `reference` (tuned FedAvg), or by a
searcher of the user's own.

*Archives* are the full trainings elsewhere that a recommender needs before it can choose, each counted once. A warm
start depends on the studies of other federations that it may read: their trials, FedAvg's included, and what these
depend on. An informed search whose first generation includes the project's priors depends on every trial of other data
sets in the tables. Neither reads anything of its own federation, so that is not counted. Nor are the trials by which
rules and defaults were set, and those of the priors that the rules read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.grids.cells import COST, CellContext, CellValues, Measured
from fedscout.experiments.grids.experiment import Cell, Experiment
from fedscout.experiments.grids.federation_runner import Choice
from fedscout.experiments.grids.methods import Choose
from fedscout.experiments.grids.recommenders import ChoiceContext, ChoiceTask, Recommender, recommender_named
from fedscout.experiments.suites.replay import (
    KNOWLEDGE,
    PUBLISHED,
    SPACE,
    ReplayedFederation,
    read_table,
    trial_counts,
)
from fedscout.search.confirmation.intervals import paired_difference
from fedscout.search.ledger import StudyFacts, full_trainings_of
from fedscout.search.objective import ACCURACY
from fedscout.search.recommenders.priors import SOURCE, PriorStudy, project_studies
from fedscout.search.study import StudyOutcome
from fedscout.search.warm_start import EarlierStudy

ORACLE, REFERENCE = "oracle", "reference"
SMALLEST_GAIN = 0.02
SMALLEST_TUNED_GAIN = 0.01

Scores = npt.NDArray[np.float64]


def regret_tuned(lost: float, gains: Sequence[float]) -> float | None:
    """Return R_t of a choice that is `lost` below an oracle with these gains over tuned FedAvg, one per seed."""
    mean, error = float(np.mean(gains)), float(np.std(gains, ddof=1) / np.sqrt(len(gains)))
    return lost / mean if mean >= SMALLEST_TUNED_GAIN and mean > 2 * error else None


def regret_fedavg(lost: float, gain: float) -> float | None:
    """Return R_f of a choice `lost` below an oracle with this gain over FedAvg; None if the gain is too small."""
    return lost / gain if gain >= SMALLEST_GAIN else None


# Archives.

Trained = Mapping[Hashable, float]
"""Numbers of full trainings by configuration, so that studies share entries."""


def union(parts: Iterable[Trained]) -> Trained:
    """Return the union of several archives; for the same configuration the longest training counts."""
    trained: dict[Hashable, float] = {}
    for part in parts:
        for key, trainings in part.items():
            trained[key] = max(trainings, trained.get(key, 0.0))
    return trained


def trained_by(outcome: StudyOutcome, facts: StudyFacts, federation: str) -> Trained:
    """Return what a study trained, FedAvg included, keyed by the federation's name, seed and configuration."""
    trials = [outcome.baseline, *outcome.trials]
    return union(
        {(federation, facts.session.seed, trial.spec): full_trainings_of([trial], facts.num_rounds)} for trial in trials
    )


def prior_trainings(outcome: StudyOutcome, facts: StudyFacts) -> Trained:
    """Return the trainings behind the priors in a study's first generation; empty without priors."""
    if not any(candidate.source == SOURCE for candidate in outcome.first_generation):
        return {}
    dataset = None if facts.data_origin is None else facts.data_origin.dataset
    return {study.name: float(trials) for study, trials in _tabled() if study.dataset != dataset}


@cache
def _tabled() -> tuple[tuple[PriorStudy, int], ...]:
    """Return the federations of the priors, each as a study, with the number of its trials in the table."""
    counts = trial_counts(PUBLISHED) | trial_counts(KNOWLEDGE)
    return tuple((study, counts[study.name]) for study in project_studies() if study.name in counts)


@dataclass
class Archive:
    """Studies for later warm starts, by seed: the federation's name, the study, and the trainings behind it."""

    studies: dict[int, list[tuple[str, EarlierStudy, Trained]]] = field(default_factory=dict)

    def choose(self, recommender: Recommender, context: ChoiceContext, seed: int) -> tuple[Choice, float]:
        """Return the choice on a federation, and the number of trainings elsewhere that it depends on."""
        earlier = [one for one in self.studies.get(seed, ()) if one[0] != context.name] if recommender.is_warm else []
        task = ChoiceTask(context, seed, [study for _, study, _ in earlier])
        choice = recommender.choose(task)
        if choice.searched is None:
            return choice, 0.0
        others = task.others()
        read = [trained for _, study, trained in earlier if any(study is other for other in others)]
        behind = union([*read, prior_trainings(choice.searched.outcome, choice.searched.facts)])
        if not recommender.is_warm:
            trained_here = trained_by(choice.searched.outcome, choice.searched.facts, context.name)
            entry = (context.name, choice.searched.study, union([trained_here, behind]))
            self.studies.setdefault(seed, []).append(entry)
        return choice, sum(behind.values())


def _choosers(experiment: Experiment) -> dict[str, Recommender | str]:
    """Return the chooser of each row, those first that need no other federation.

    Raises:
        ConfigurationError: If a name is unknown, or if a table can't hold what the recommender chooses.
    """
    choosers: dict[str, Recommender | str] = {}
    for row, method in experiment.rows.items():
        if isinstance(method, Choose):
            choosers[row] = method.by if method.by in (ORACLE, REFERENCE) else recommender_named(method.by)
    for row, chooser in choosers.items():
        if isinstance(chooser, Recommender) and not chooser.in_tables:
            raise ConfigurationError.of(f"rows.{row}", "choose from a table of trials", chooser.name)
    return dict(sorted(choosers.items(), key=lambda item: isinstance(item[1], Recommender) and item[1].is_warm))


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
        """Replay every row on every column."""
        choosers = _choosers(experiment)
        settings = (*(() if self.strategies_alone else SPACE), *context.settings)
        table = read_table(PUBLISHED if self.table is None else Path(self.table))
        is_warm = any(isinstance(chooser, Recommender) and chooser.is_warm for chooser in choosers.values())
        needed = [
            federation_trials
            for federation_trials in table
            if federation_trials.about.name in experiment.federations
            or (is_warm and federation_trials.about.half == "development")
        ]
        federations = [ReplayedFederation(federation_trials, settings) for federation_trials in needed]
        to_learn = Archive()
        cells: dict[Cell, CellValues] = {}
        for row, by in choosers.items():
            context.note(row)
            for federation in federations:
                if isinstance(by, str):
                    scores = federation.oracle if by == ORACLE else federation.tuned
                    results = [(scores, 0.0, 0.0)] * len(federation.federation.seeds)
                else:
                    archive = to_learn if by.is_warm or federation.about.half == "development" else Archive()
                    results = []
                    for seed in federation.federation.seeds:
                        choice, archived = archive.choose(by, federation, seed)
                        results.append((federation.scores_of(choice), choice.cost, archived))
                if federation.name in experiment.federations:
                    cells[row, federation.name] = _replayed(federation, results)
        return Measured(cells)


def _replayed(federation: ReplayedFederation, results: Sequence[tuple[Scores, float, float]]) -> CellValues:
    """Return a cell from the choice on each seed: its scores on all seeds, its cost, and its archives."""
    stacked, costs, archives = zip(*results, strict=True)
    scores, others = np.stack(stacked), ~np.eye(len(results), dtype=bool)

    def on_others(numbers: Scores) -> list[float]:
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
        "archives, trainings": archives,
        "share below tuned FedAvg": (float(is_below),),
    }
    return CellValues(values=tuple(regret_tuned(value, gains) for value in lost), figures=figures)
