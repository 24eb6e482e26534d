"""Cells that are the best trial of a strategy in a long search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.benchmarks.choice.choice_choosers import Choosing
from fedscout.experiments.benchmarks.choice.choice_laboratory import open_laboratory, search_seeds
from fedscout.experiments.reproduction.chosen_cells import searched
from fedscout.experiments.reproduction.published_study import Cell, Desk, Measured
from fedscout.experiments.reproduction.ready_columns import ready_columns
from fedscout.experiments.reproduction.trained_cells import split_ratio
from fedscout.search.confirmation.confirmation_runs import resolution


@dataclass(frozen=True)
class FiftyTrials:
    """The best fitness of each strategy among a search's trials, FedAvg included.

    Attributes:
        federations: Arguments of each column.
        settings: Of the search.
        kinds: Of strategies, a row each; a search that never tried one has no number there.
        num_seeds: Searches of each column.
    """

    federations: Mapping[str, tuple[str, ...]]
    settings: tuple[str, ...]
    kinds: Sequence[str]
    num_seeds: int = 5

    def measure(self, desk: Desk) -> Measured:
        """Search where there is no log yet."""
        values: dict[Cell, tuple[float | None, ...]] = {}
        absent: dict[str, str] = {}
        ratio = step = 0.0
        for column, ready in ready_columns(self.federations, desk, absent):
            ratio = max(ratio, split_ratio(ready.config))
            with open_laboratory(ready, desk.folder) as laboratory:
                searches = []
                for seed in search_seeds(desk.num_seeds or self.num_seeds):
                    desk.note(f"{column}, search {seed}")
                    outcome = searched(Choosing(laboratory, seed), self.settings)
                    searches.append([outcome.baseline, *outcome.whole_trials])
                step = max(step, resolution(searches))
            values |= {(kind, column): tuple(best_of(kind, trials) for trials in searches) for kind in self.kinds}
        return Measured(values, ratio, absent, step)


def best_of(kind: str, trials: Sequence[Trial]) -> float | None:
    """Return the best fitness of a kind of strategy; None if it was not tried."""
    return max((trial.fitness for trial in trials if trial.spec.kind == kind), default=None)
