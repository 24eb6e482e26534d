"""Cells that are choices: a row chooses a strategy on the federation of a column, and what it chose is trained again.

For each seed of the search there is one fresh seed, on which every row's choice of that search is trained. So a cell's
numbers scatter as the whole procedure does, search and training, and rows are compared seed by seed. Searches and
trainings of one federation share a log: best and worst of fifty are of the same fifty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fedscout.engine.errors import RecommenderError
from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.benchmarks.choice.choice_battery import ReadyCase
from fedscout.experiments.benchmarks.choice.choice_choosers import CHOOSERS, Choosing
from fedscout.experiments.benchmarks.choice.choice_laboratory import (
    Laboratory,
    Pick,
    open_laboratory,
    other_seeds,
    search_seeds,
)
from fedscout.experiments.reproduction.published_study import Cell, Desk, Measured
from fedscout.experiments.reproduction.ready_columns import ready_columns
from fedscout.experiments.reproduction.trained_cells import split_ratio
from fedscout.experiments.studies.study_language_model import language_model
from fedscout.search.confirmation.confirmation_runs import resolution
from fedscout.search.recommenders.llm_recommender import LanguageModel, recommend_by_llm
from fedscout.search.study.study import StudyOutcome, run_study
from fedscout.search.study_trials import BASELINE


class Choice(Protocol):
    """Who chooses in a row."""

    def reason_against(self, ready: ReadyCase, desk: Desk) -> str | None:
        """Return why it can't choose on a federation; None if it can."""
        ...

    def pick(self, choosing: Choosing) -> Pick:
        """Return the choice."""
        ...


@dataclass(frozen=True)
class Known:
    """A chooser of `fedscout bench choice`, by its name there."""

    name: str

    def reason_against(self, ready: ReadyCase, desk: Desk) -> str | None:
        """Return None: it needs nothing."""
        return None

    def pick(self, choosing: Choosing) -> Pick:
        """Return the choice."""
        return CHOOSERS[self.name].choose(choosing)


@dataclass(frozen=True)
class Asked:
    """A language model's one answer, or one that was recorded.

    Attributes:
        settings: Arguments, such as `recommender.format=A`.
    """

    settings: tuple[str, ...] = ()

    def reason_against(self, ready: ReadyCase, desk: Desk) -> str | None:
        """Return why nobody answers."""
        return CHOOSERS["LLM"].unavailable(ready.config, desk.folder)

    def pick(self, choosing: Choosing) -> Pick:
        """Return the choice.

        Raises:
            RecommenderError: If the model gives no valid answer.
        """
        with language_model(choosing.config(self.settings), choosing.laboratory.out) as model:
            return Pick(recommend_by_llm(choosing.situation(), model).spec)


@dataclass(frozen=True)
class SearchedByModel(Asked):
    """The best of a search that asks a language model; `settings` name the search."""

    def pick(self, choosing: Choosing) -> Pick:
        """Return the choice.

        Raises:
            RecommenderError: If the model gives no valid answer.
        """
        with language_model(choosing.config(self.settings), choosing.laboratory.out) as model:
            outcome = searched(choosing, self.settings, model)
        return Pick(BASELINE if outcome.best is None else outcome.best.spec, outcome.trainings)


@dataclass(frozen=True)
class Searched:
    """The best or the worst of a search, FedAvg included, whose first generation knows of no diagnosis.

    Attributes:
        settings: Arguments of the study, such as `search.kind=tpe`.
        worst: Whether the worst is taken.
    """

    settings: tuple[str, ...]
    worst: bool = False

    def reason_against(self, ready: ReadyCase, desk: Desk) -> str | None:
        """Return None: a search can always be run."""
        return None

    def pick(self, choosing: Choosing) -> Pick:
        """Return the choice."""
        outcome = searched(choosing, self.settings)
        trial = outcome.worst if self.worst else outcome.best
        return Pick(BASELINE if trial is None else trial.spec, outcome.trainings)


def searched(choosing: Choosing, settings: tuple[str, ...], model: LanguageModel | None = None) -> StudyOutcome:
    """Return what a search found, without a confirmation."""
    config = choosing.config(settings)
    laboratory = choosing.laboratory
    return run_study(config.search, laboratory.ledger(config), laboratory.report(choosing.seed), model=model)


@dataclass(frozen=True)
class ChosenCells:
    """A choice a cell.

    Attributes:
        federations: Arguments of each column.
        choices: Who chooses in each row.
        num_seeds: Searches of each row in each column.
    """

    federations: Mapping[str, tuple[str, ...]]
    choices: Mapping[str, Choice]
    num_seeds: int = 5

    def measure(self, desk: Desk) -> Measured:
        """Search and train what is not in the logs."""
        count = desk.num_seeds or self.num_seeds
        values: dict[Cell, tuple[float | None, ...]] = {}
        absent: dict[str, str] = {}
        ratio = step = 0.0
        for column, ready in ready_columns(self.federations, desk, absent):
            ratio = max(ratio, split_ratio(ready.config))
            with open_laboratory(ready, desk.folder) as laboratory:
                for row, choice in self.choices.items():
                    desk.note(f"{row} × {column}")
                    if reason := choice.reason_against(ready, desk):
                        absent[row] = reason
                        continue
                    try:
                        trials = _chosen(laboratory, choice, count)
                    except RecommenderError as error:
                        absent[f"{row} × {column}"] = str(error)
                        continue
                    values[row, column] = tuple(trial.fitness for trial in trials)
                    step = max(step, resolution([trials]))
        return Measured(values, ratio, absent, step)


def _chosen(laboratory: Laboratory, choice: Choice, count: int) -> list[Trial]:
    picks = [choice.pick(Choosing(laboratory, seed)) for seed in search_seeds(count)]
    fresh = other_seeds("reproduction", count)
    return [laboratory.records([pick], [seed])[0] for pick, seed in zip(picks, fresh, strict=True)]
