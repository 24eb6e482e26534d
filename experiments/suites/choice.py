"""How good a choice is, and what it costs: recommenders against an oracle, by replay of a table or by training.

    R_t = (oracle − choice) / (oracle − tuned FedAvg)     what of the gain that a step size does not give was lost; only
                                                          where that is at least 0.01 and more than twice its error
    R_f = (oracle − choice) / (oracle − FedAvg)           the same against FedAvg as the study has it; only where that
                                                          gain is at least 0.02
    R_w = (oracle − choice) / (oracle − worst)            what of the range between best and worst was lost

Accuracies are of seeds on which neither recommenders nor the oracle chose, so a regret may be negative. A value of a
cell is one search seed's R_t. Rows name a recommender (`by`), or `oracle`, `reference` (tuned FedAvg) and, of
trainings, `worst`; a path `package.module:Class` is a searcher of the user's own, of a replay.

*Archives* are what was trained elsewhere before a recommender could choose, in full trainings, each counted once. A
warm start rests on the studies of other federations that it may read: their trials, FedAvg's included, and what these
rest on. An informed search into whose first generation the project's priors came rests on every trial of the table's
development half. Neither reads what is of its own federation, and that is not counted. What the rules and the defaults
were set on is in no count: nobody reads those trials to choose.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import ConfigurationError, DataError, Fault, RecommenderError
from fedscout.experiments.config import check_searchable
from fedscout.experiments.grids.cells import CellContext, Measured, Values, split_ratio, together
from fedscout.experiments.grids.experiment import Cell, Experiment, arguments
from fedscout.experiments.grids.federation_runner import (
    Choice,
    FederationRunner,
    built_federation,
    open_federation,
    other_seeds,
    search_seeds,
)
from fedscout.experiments.grids.methods import Given
from fedscout.experiments.grids.recommenders import RECOMMENDERS, TUNED, ChoiceContext, ChoiceTask, Recommender
from fedscout.experiments.models.request import is_import_path
from fedscout.experiments.suites.replay import (
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
from fedscout.search.searchers.genetic import grid_values
from fedscout.search.study import StudyOutcome
from fedscout.search.warm_start import SOURCE, EarlierStudy, project_studies
from fedscout.strategies import SearchSpace, StrategySpec

ORACLE, REFERENCE, WORST = "oracle", "reference", "worst"
SMALLEST_GAIN = 0.02
SMALLEST_TUNED_GAIN = 0.01
COST, ARCHIVES, ACCURATE = "cost, trainings", "archives, trainings", "accuracy"

Scores = npt.NDArray[np.float64]


def regret_tuned(lost: float, gains: Sequence[float]) -> float | None:
    """Return R_t of a choice so far below an oracle of such gains on tuned FedAvg, one a seed; None without any."""
    mean, error = float(np.mean(gains)), float(np.std(gains, ddof=1) / np.sqrt(len(gains)))
    return lost / mean if mean >= SMALLEST_TUNED_GAIN and mean > 2 * error else None


def regret_fedavg(lost: float, gain: float) -> float | None:
    """Return R_f of a choice so far below an oracle of such a gain on FedAvg; None where that is hardly any."""
    return lost / gain if gain >= SMALLEST_GAIN else None


# Archives.

Trained = Mapping[Hashable, float]
"""Full trainings by what was trained, so that what several studies share is one entry."""


def union(parts: Iterable[Trained]) -> Trained:
    """Return what all of them trained; of a configuration the longest training counts."""
    found: dict[Hashable, float] = {}
    for part in parts:
        for what, trainings in part.items():
            found[what] = max(trainings, found.get(what, 0.0))
    return found


def trained_by(outcome: StudyOutcome, facts: StudyFacts, federation: str) -> Trained:
    """Return what a study of a federation, by its name, trained, FedAvg included."""
    trials = [outcome.baseline, *outcome.trials]
    return union(
        {(federation, facts.session.seed, trial.spec): full_trainings_of([trial], facts.num_rounds)} for trial in trials
    )


def rested_on(outcome: StudyOutcome, facts: StudyFacts) -> Trained:
    """Return what was trained for the priors that came into a study's first generation; nothing where none did."""
    if not any(each.source == SOURCE for each in outcome.first_generation):
        return {}
    config = json.loads(facts.config)
    return {
        study.name: float(trials)
        for study, trials in _tabled()
        if not study.is_of(facts.config_hash, config, facts.data_digest) and not study.is_of_data(config)
    }


@cache
def _tabled() -> tuple[tuple[EarlierStudy, int], ...]:
    """Return the federations of the priors, each as a study, with the number of its trials in the table."""
    counts = trial_counts(PUBLISHED)
    return tuple((study, counts[study.name]) for study in project_studies() if study.name in counts)


@dataclass
class Archive:
    """Studies from which later ones may learn, by seed: the federation's name, the study, and on what it rests."""

    studies: dict[int, list[tuple[str, EarlierStudy, Trained]]] = field(default_factory=dict)

    def choose(self, recommender: Recommender, context: ChoiceContext, seed: int) -> tuple[Choice, float]:
        """Return what is chosen on a federation, and how many trainings elsewhere that rests on."""
        known = [one for one in self.studies.get(seed, ()) if one[0] != context.name] if recommender.is_warm else []
        task = ChoiceTask(context, seed, [study for _, study, _ in known])
        choice = recommender.choose(task)
        if choice.searched is None:
            return choice, 0.0
        others = task.others()
        read = [trained for _, study, trained in known if any(study is other for other in others)]
        rests_on = union([*read, rested_on(choice.searched.outcome, choice.searched.facts)])
        if not recommender.is_warm:
            own = trained_by(choice.searched.outcome, choice.searched.facts, context.name)
            entry = (context.name, choice.searched.study, union([own, rests_on]))
            self.studies.setdefault(seed, []).append(entry)
        return choice, sum(rests_on.values())


def _asked(experiment: Experiment, is_replay: bool) -> dict[str, Recommender | str]:
    """Return who chooses in each row, those first who need no other federation.

    Raises:
        ConfigurationError: If there is nobody of a name, or a table can't hold what it chooses.
    """
    found: dict[str, Recommender | str] = {}
    for row, method in experiment.rows.items():
        if not isinstance(method, Given):
            continue
        name = str(method.arguments.get("by", row))
        if name in (ORACLE, REFERENCE, WORST):
            found[row] = name
        elif is_replay and is_import_path(name):
            found[row] = own_recommender(name)
        elif name in RECOMMENDERS and (RECOMMENDERS[name].in_tables or not is_replay):
            found[row] = RECOMMENDERS[name]
        else:
            raise ConfigurationError(Fault(f"rows.{row}", f"be by one of {', '.join(RECOMMENDERS)}", repr(name)))
    return dict(sorted(found.items(), key=lambda item: isinstance(item[1], Recommender) and item[1].is_warm))


def _measured(cell: Cell, values: Values, figures: Mapping[str, Values]) -> Measured:
    return Measured({cell: values}, figures={name: {cell: numbers} for name, numbers in figures.items()})


# By replay.


@dataclass(frozen=True)
class Replayed:
    """Recommenders on a table of trials, on each of its seeds in turn, judged by the others.

    Warm ones learn from the development federations alone, and there from the others.

    Attributes:
        table: Its file; None is the published one.
        strategies_alone: Whether clients' settings are the study's own; else the joint space is searched.
    """

    table: str | None = None
    strategies_alone: bool = False

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Replay every row on every column."""
        asked = _asked(experiment, is_replay=True)
        settings = (*(() if self.strategies_alone else SPACE), *context.settings)
        table = read_table(PUBLISHED if self.table is None else Path(self.table))
        is_warm = any(isinstance(one, Recommender) and one.is_warm for one in asked.values())
        needed = [
            each
            for each in table
            if each.about.name in experiment.federations or (is_warm and each.about.half == "development")
        ]
        federations = [ReplayedFederation(each, settings) for each in needed]
        to_learn, parts = Archive(), []
        for row, by in asked.items():
            context.note(row)
            for federation in federations:
                if isinstance(by, str):
                    scores = federation.oracle if by == ORACLE else federation.tuned
                    found = [(scores, 0.0, 0.0)] * len(federation.federation.seeds)
                else:
                    archive = to_learn if by.is_warm or federation.about.half == "development" else Archive()
                    found = []
                    for seed in federation.federation.seeds:
                        choice, archived = archive.choose(by, federation, seed)
                        found.append((federation.scores_of(choice), choice.cost, archived))
                if federation.name in experiment.federations:
                    parts.append(_replayed((row, federation.name), federation, found))
        return together(parts)


def _replayed(cell: Cell, federation: ReplayedFederation, found: Sequence[tuple[Scores, float, float]]) -> Measured:
    """Return a cell from what was chosen on each seed: its scores on all, its cost, and its archive."""
    gains = (federation.oracle - federation.tuned).tolist()
    gain = float(federation.oracle.mean()) - float(federation.baseline.mean())
    names = ("R_f", "beyond tuned FedAvg", ACCURATE, COST, ARCHIVES)
    values: list[float | None] = []
    figures: dict[str, list[float | None]] = {name: [] for name in names}
    versus: list[list[float]] = [[] for _ in found]
    for place, (scores, cost, archived) in enumerate(found):
        judges = [other for other in range(len(found)) if other != place]
        lost = float((federation.oracle - scores)[judges].mean())
        differences = (scores - federation.tuned)[judges].tolist()
        for judge, difference in zip(judges, differences, strict=True):
            versus[judge].append(difference)
        values.append(regret_tuned(lost, gains))
        numbers = (regret_fedavg(lost, gain), fmean(differences), float(scores[judges].mean()), cost, archived)
        for name, number in zip(names, numbers, strict=True):
            figures[name].append(number)
    means = [fmean(own) for own in versus]  # a seed judges the mean of what was chosen on all others
    difference = paired_difference(means, [0.0] * len(means), resolution=federation.resolution, span=ACCURACY.span)
    is_below = difference.mean < -SMALLEST_TUNED_GAIN and difference.verdict < 0
    told = {name: tuple(numbers) for name, numbers in figures.items()}
    return _measured(cell, tuple(values), {**told, "share below tuned FedAvg": (float(is_below),)})


# By training.


@dataclass(frozen=True)
class Density:
    """How dense the oracle's grid is and how often it is repeated.

    The whole grid runs on the first seeds; the best of it on more seeds, as the largest of many noisy means would
    flatter itself. What the choice is worth is told by fresh seeds, which no one has chosen by.

    Attributes:
        one: Values of the only parameter of a strategy, equally spaced, in log space where it is log-scaled.
        two: Values of each of the first two of several.
        more: Values of each further one.
        seeds: On which the whole grid runs.
        finalists: The best that run on more seeds.
        final_seeds: These further seeds.
    """

    one: int = 8
    two: int = 4
    more: int = 2
    seeds: int = 2
    finalists: int = 10
    final_seeds: int = 4

    def of(self, place: int, num_parameters: int) -> int:
        """Return the values of the parameter at a place."""
        return self.one if num_parameters == 1 else self.two if place < 2 else self.more


def dense_grid(space: SearchSpace, density: Density) -> list[StrategySpec]:
    """Return the configurations of the grid, equivalents once, FedAvg first."""
    found: dict[str, StrategySpec] = {}
    for kind in sorted(space.kinds, key=lambda kind: kind != "fedavg"):
        for values in grid_values(space, kind, density.of):
            spec = space.members[kind].with_values(values)
            found.setdefault(space.digest(spec), spec)
    return list(found.values())


def best_and_worst(runner: FederationRunner, density: Density) -> tuple[StrategySpec, StrategySpec]:
    """Return the configurations of largest mean and, of those that did not fail, of smallest."""
    choices = [Choice(spec) for spec in dense_grid(runner.space, density)]
    scores = runner.scores(choices, other_seeds("oracle", density.seeds))
    order = np.argsort(-scores.mean(axis=1), kind="stable")
    finalists = [choices[place] for place in order[: density.finalists]]
    further = other_seeds("oracle's finalists", density.final_seeds)
    final = np.hstack([scores[order[: density.finalists]], runner.scores(finalists, further)])
    best = finalists[int(np.argmax(final.mean(axis=1)))]
    trained = [place for place in order if scores[place].min() > 0]
    return best.spec, (choices[int(trained[-1])] if trained else best).spec


@dataclass(frozen=True)
class Trainings:
    """Recommenders on federations, each choice trained on fresh seeds.

    Attributes:
        search_seeds: Choices of each recommender on each federation.
        density: Of the oracle's grid, in place of the usual.
    """

    search_seeds: int = 3
    density: Mapping[str, int] = field(default_factory=dict)

    def measure(self, experiment: Experiment, context: CellContext) -> Measured:
        """Let those choose first who need no other federation, then the warm ones; train what the logs lack."""
        asked = _asked(experiment, is_replay=False)
        parts, archive = [], Archive()
        with ExitStack() as stack:
            runners = []
            for column, settings in experiment.federations.items():
                try:
                    built = built_federation(column, arguments(settings), context.settings)
                except DataError as error:
                    parts.append(Measured({}, absent={column: str(error)}))
                    continue
                check_searchable(built.config)
                runners.append(stack.enter_context(open_federation(built, context.folder)))
            chosen: dict[Cell, list[tuple[Choice, float]]] = {}
            able = {row: by for row, by in asked.items() if isinstance(by, Recommender)}
            turns = [(row, by, runner) for runner in runners for row, by in able.items()]
            for row, by, runner in sorted(turns, key=lambda turn: turn[1].is_warm):
                cell = row, runner.name
                context.note(" × ".join(cell))
                if reason := _impossible(by, runner, archive):
                    parts.append(Measured({}, absent={" × ".join(cell): reason}))
                    continue
                try:
                    chosen[cell] = [archive.choose(by, runner, seed) for seed in search_seeds(self.search_seeds)]
                except RecommenderError as error:
                    parts.append(Measured({}, absent={" × ".join(cell): str(error)}))
            parts += [self._judged(runner, asked, chosen, context) for runner in runners]
        return together(parts)

    def _judged(
        self,
        runner: FederationRunner,
        asked: Mapping[str, Recommender | str],
        chosen: Mapping[Cell, Sequence[tuple[Choice, float]]],
        context: CellContext,
    ) -> Measured:
        """Return the cells of a federation, trained on the fresh seeds."""
        context.note(f"{runner.name}: grid and fresh seeds")
        fresh = context.fresh_seeds
        best, worst = best_and_worst(runner, Density(**self.density))
        oracle, lowest, fedavg = runner.scores([Choice(spec) for spec in (best, worst, BASELINE)], fresh)
        tunings = [TUNED.choose(ChoiceTask(runner, seed)) for seed in search_seeds(self.search_seeds)]
        tuned = runner.scores(tunings, fresh).mean(axis=0)
        resolution, ratio = runner.resolution(fresh), split_ratio(runner.config)
        special = {ORACLE: oracle, WORST: lowest, REFERENCE: tuned}
        parts = []
        for row, by in asked.items():
            cell = row, runner.name
            if isinstance(by, str):
                found, scores = [(Choice(BASELINE), 0.0)] * self.search_seeds, [special[by]] * self.search_seeds
            elif cell in chosen:
                found = [*chosen[cell]]
                scores = [*runner.scores([choice for choice, _ in found], fresh)]
            else:
                continue
            lost = [float(oracle.mean()) - float(own.mean()) for own in scores]
            span, gain = float(oracle.mean()) - float(lowest.mean()), float(oracle.mean()) - float(fedavg.mean())
            versus = [
                paired_difference(
                    own.tolist(), fedavg.tolist(), resolution=resolution, test_to_train=ratio, span=ACCURACY.span
                )
                for own in scores
            ]
            figures: dict[str, Values] = {
                "R_f": tuple(regret_fedavg(one, gain) for one in lost),
                "R_w": tuple(one / span if span > 0 else None for one in lost),
                ACCURATE: tuple(float(own.mean()) for own in scores),
                COST: tuple(choice.cost for choice, _ in found),
                ARCHIVES: tuple(archived for _, archived in found),
                "share worse than FedAvg": tuple(float(one.high is not None and one.high < 0) for one in versus),
            }
            gains = (oracle - tuned).tolist()
            parts.append(_measured(cell, tuple(regret_tuned(one, gains) for one in lost), figures))
        return together(parts)


def _impossible(recommender: Recommender, runner: FederationRunner, archive: Archive) -> str | None:
    """Return why a recommender can't choose on a federation; None if it can."""
    others = {name for known in archive.studies.values() for name, _, _ in known} - {runner.name}
    if recommender.is_warm and not others:
        return "no searcher was run on another federation, from which to learn"
    return recommender.unavailable(runner.config, runner.out)
