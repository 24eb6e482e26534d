"""Regret and cost of recommenders relative to an oracle, by replay of a table or by training.

    R_t = (oracle − choice) / (oracle − tuned FedAvg)     the lost share of the gain beyond a tuned step size; only if
                                                          that gain is at least 0.01 and more than twice its error
    R_f = (oracle − choice) / (oracle − FedAvg)           the same relative to FedAvg with the study's settings; only
                                                          if that gain is at least 0.02

Accuracies are of seeds on which neither recommenders nor the oracle chose, so a regret may be negative. A value of a
cell is R_t of one search seed. Rows name a recommender (`by`), or `oracle` and `reference` (tuned FedAvg); in a replay,
a path `package.module:Class` is a searcher of the user's own.

*Archives* are the full trainings elsewhere that a recommender needs before it can choose, each counted once. A warm
start depends on the studies of other federations that it may read: their trials, FedAvg's included, and what these
depend on. An informed search whose first generation includes the project's priors depends on every trial of other data
sets in the tables. Neither reads anything of its own federation, so that is not counted. Nor are the trials by which
rules and defaults were set, and those of the priors that the rules read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import ConfigurationError, RecommenderError
from fedscout.experiments.config import check_searchable
from fedscout.experiments.grids.cells import CellContext, CellValues, Measured, built_columns, cell_name
from fedscout.experiments.grids.experiment import Cell, Experiment
from fedscout.experiments.grids.federation_runner import (
    Choice,
    FederationRunner,
    open_federation,
    other_seeds,
    search_seeds,
)
from fedscout.experiments.grids.methods import Given
from fedscout.experiments.grids.recommenders import RECOMMENDERS, TUNED, ChoiceContext, ChoiceTask, Recommender
from fedscout.experiments.models.request import is_import_path
from fedscout.experiments.suites.replay import (
    KNOWLEDGE,
    PUBLISHED,
    SPACE,
    ReplayedFederation,
    own_recommender,
    read_table,
    trial_counts,
)
from fedscout.search.confirmation.intervals import paired_difference
from fedscout.search.ledger import BASELINE, StudyFacts, full_trainings_of
from fedscout.search.objective import ACCURACY
from fedscout.search.recommenders.priors import SOURCE, PriorStudy, project_studies
from fedscout.search.searchers.genetic import grid_values
from fedscout.search.study import StudyOutcome
from fedscout.search.warm_start import EarlierStudy
from fedscout.strategies import SearchSpace, StrategySpec

ORACLE, REFERENCE = "oracle", "reference"
SMALLEST_GAIN = 0.02
SMALLEST_TUNED_GAIN = 0.01
COST, ARCHIVES, ACCURATE = "cost, trainings", "archives, trainings", "accuracy"

Scores = npt.NDArray[np.float64]
Costs = tuple[float, float]
"""Of a choice: its cost and its archives."""


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
        versions_and_digests = union([*read, prior_trainings(choice.searched.outcome, choice.searched.facts)])
        if not recommender.is_warm:
            trained_here = trained_by(choice.searched.outcome, choice.searched.facts, context.name)
            entry = (context.name, choice.searched.study, union([trained_here, versions_and_digests]))
            self.studies.setdefault(seed, []).append(entry)
        return choice, sum(versions_and_digests.values())


def _choosers(experiment: Experiment, is_replay: bool) -> dict[str, Recommender | str]:
    """Return the chooser of each row, those first that need no other federation.

    Raises:
        ConfigurationError: If a name is unknown, or if a table can't hold what the recommender chooses.
    """
    choosers: dict[str, Recommender | str] = {}
    for row, method in experiment.rows.items():
        if not isinstance(method, Given):
            continue
        name = str(method.arguments.get("by", row))
        if name in (ORACLE, REFERENCE):
            choosers[row] = name
        elif is_replay and is_import_path(name):
            choosers[row] = own_recommender(name)
        elif name in RECOMMENDERS and (RECOMMENDERS[name].in_tables or not is_replay):
            choosers[row] = RECOMMENDERS[name]
        else:
            raise ConfigurationError.of(f"rows.{row}", f"name one of {', '.join(RECOMMENDERS)}", repr(name))
    return dict(sorted(choosers.items(), key=lambda item: isinstance(item[1], Recommender) and item[1].is_warm))


def _regrets(
    lost: Sequence[float], gains: Sequence[float], gain: float, accuracies: Sequence[float], costs: Sequence[Costs]
) -> CellValues:
    """Return a cell from what each choice lost to the oracle, and the oracle's gains over tuned and plain FedAvg."""
    figures = {
        "R_f": tuple(regret_fedavg(value, gain) for value in lost),
        ACCURATE: tuple(accuracies),
        COST: tuple(cost for cost, _ in costs),
        ARCHIVES: tuple(archived for _, archived in costs),
    }
    return CellValues(values=tuple(regret_tuned(value, gains) for value in lost), figures=figures)


# By replay.


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
        choosers = _choosers(experiment, is_replay=True)
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
                    results = [(scores, (0.0, 0.0))] * len(federation.federation.seeds)
                else:
                    archive = to_learn if by.is_warm or federation.about.half == "development" else Archive()
                    results = []
                    for seed in federation.federation.seeds:
                        choice, archived = archive.choose(by, federation, seed)
                        results.append((federation.scores_of(choice), (choice.cost, archived)))
                if federation.name in experiment.federations:
                    cells[row, federation.name] = _replayed(federation, results)
        return Measured(cells)


def _replayed(federation: ReplayedFederation, results: Sequence[tuple[Scores, Costs]]) -> CellValues:
    """Return a cell from the choice on each seed: its scores on all seeds, of which the others judge it."""
    scores = np.stack([of_choice for of_choice, _ in results])
    others = ~np.eye(len(results), dtype=bool)
    on_others = [row[judges] for row, judges in zip(scores, others, strict=True)]
    lost = [float((federation.oracle - row)[judges].mean()) for row, judges in zip(scores, others, strict=True)]
    gains = federation.oracle - federation.tuned
    gain = float(federation.oracle.mean()) - float(federation.baseline.mean())
    beyond = scores - federation.tuned
    cell = _regrets(lost, gains.tolist(), gain, [float(row.mean()) for row in on_others], [cost for _, cost in results])
    means = [float(column[judges].mean()) for column, judges in zip(beyond.T, others, strict=True)]
    difference = paired_difference(means, [0.0] * len(means), resolution=federation.resolution, span=ACCURACY.span)
    is_below = difference.mean < -SMALLEST_TUNED_GAIN and difference.verdict < 0
    figures = {
        **cell.figures,
        "beyond tuned FedAvg": tuple(fmean(row[judges]) for row, judges in zip(beyond, others, strict=True)),
        "share below tuned FedAvg": (float(is_below),),
    }
    return cell.model_copy(update={"figures": figures})


# By training.


@dataclass(frozen=True)
class Density:
    """The density of the oracle's grid and its numbers of seeds.

    The whole grid runs on the first seeds and its best configurations on further seeds, as the maximum of many noisy
    means is biased upwards. The choice is scored on fresh seeds, on which nothing was chosen.

    Attributes:
        one: Values of a strategy's only parameter, equally spaced, in log space if it is log-scaled.
        two: Values of each of the first two of several parameters.
        more: Values of each further one.
        seeds: Seeds of the whole grid.
        finalists: Number of best configurations that run on further seeds.
        final_seeds: Number of these further seeds.
    """

    one: int = 8
    two: int = 4
    more: int = 2
    seeds: int = 2
    finalists: int = 10
    final_seeds: int = 4

    def of(self, place: int, num_parameters: int) -> int:
        """Return the number of values of the parameter at an index."""
        return self.one if num_parameters == 1 else self.two if place < 2 else self.more


def dense_grid(space: SearchSpace, density: Density) -> list[StrategySpec]:
    """Return the configurations of the grid, each of several equivalent ones once, FedAvg first."""
    specs_by_digest: dict[str, StrategySpec] = {}
    for kind in sorted(space.kinds, key=lambda kind: kind != "fedavg"):
        for values in grid_values(space, kind, density.of):
            spec = space.members[kind].with_values(values)
            specs_by_digest.setdefault(space.digest(spec), spec)
    return list(specs_by_digest.values())


def best_of_grid(runner: FederationRunner, density: Density) -> StrategySpec:
    """Return the configuration with the largest mean, also on further seeds."""
    choices = [Choice(spec) for spec in dense_grid(runner.space, density)]
    scores = runner.scores(choices, other_seeds("oracle", density.seeds))
    order = np.argsort(-scores.mean(axis=1), kind="stable")[: density.finalists]
    finalists = [choices[index] for index in order]
    further = other_seeds("oracle's finalists", density.final_seeds)
    final = np.hstack([scores[order], runner.scores(finalists, further)])
    return finalists[int(np.argmax(final.mean(axis=1)))].spec


@dataclass(frozen=True)
class Trainings:
    """Recommenders on federations, with each choice trained on fresh seeds.

    Attributes:
        search_seeds: Choices of each recommender on each federation.
        density: Of the oracle's grid, overriding the default.
    """

    search_seeds: int = 3
    density: Mapping[str, int] = field(default_factory=dict)

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Run the recommenders, warm starts last, and train what the logs lack."""
        choosers = _choosers(experiment, is_replay=False)
        archive = Archive()
        cells: dict[Cell, CellValues] = {}
        with ExitStack() as stack:
            runners = []
            built_federations, missing = built_columns(experiment, context)
            for built in built_federations:
                check_searchable(built.config)
                runners.append(stack.enter_context(open_federation(built, context.folder)))
            chosen: dict[Cell, list[tuple[Choice, float]]] = {}
            recommenders = {row: by for row, by in choosers.items() if isinstance(by, Recommender)}
            turns = [(row, by, runner) for runner in runners for row, by in recommenders.items()]
            for row, by, runner in sorted(turns, key=lambda turn: turn[1].is_warm):
                cell = row, runner.name
                context.note(cell_name(cell))
                if reason := _impossible(by, runner, archive):
                    missing[cell_name(cell)] = reason
                    continue
                try:
                    chosen[cell] = [archive.choose(by, runner, seed) for seed in search_seeds(self.search_seeds)]
                except RecommenderError as error:
                    missing[cell_name(cell)] = str(error)
            for runner in runners:
                cells |= self._judged(runner, choosers, chosen, context)
        return Measured(cells, missing)

    def _judged(
        self,
        runner: FederationRunner,
        asked: Mapping[str, Recommender | str],
        chosen: Mapping[Cell, Sequence[tuple[Choice, float]]],
        context: CellContext,
    ) -> dict[Cell, CellValues]:
        """Return the cells of a federation, trained on the fresh seeds."""
        context.note(f"{runner.name}: grid and fresh seeds")
        fresh = context.fresh_seeds
        best = best_of_grid(runner, Density(**self.density))
        oracle, fedavg = runner.scores([Choice(best), Choice(BASELINE)], fresh)
        tunings = [TUNED.choose(ChoiceTask(runner, seed)) for seed in search_seeds(self.search_seeds)]
        tuned = runner.scores(tunings, fresh).mean(axis=0)
        gain = float(oracle.mean()) - float(fedavg.mean())
        cells = {}
        for row, by in asked.items():
            if isinstance(by, str):
                scores = np.stack([oracle if by == ORACLE else tuned] * self.search_seeds)
                costs = [(0.0, 0.0)] * self.search_seeds
            elif (row, runner.name) in chosen:
                choices = chosen[row, runner.name]
                scores = runner.scores([choice for choice, _ in choices], fresh)
                costs = [(choice.cost, archived) for choice, archived in choices]
            else:
                continue
            means = scores.mean(axis=1).tolist()
            lost = [float(oracle.mean()) - mean for mean in means]
            cells[row, runner.name] = _regrets(lost, (oracle - tuned).tolist(), gain, means, costs)
        return cells


def _impossible(recommender: Recommender, runner: FederationRunner, archive: Archive) -> str | None:
    """Return why a recommender can't choose on a federation; None if it can."""
    others = {name for studies in archive.studies.values() for name, _, _ in studies} - {runner.name}
    if recommender.is_warm and not others:
        return "there is no search on another federation to learn from"
    return recommender.unavailable(runner.config, runner.out)
