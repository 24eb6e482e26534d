"""Regret and cost of recommenders relative to an oracle, by replay of a table.

    R_t = (oracle − choice) / (oracle − tuned FedAvg)     the lost share of the gain beyond a tuned step size; only if
                                                          that gain is at least 0.01 and more than twice its error
    R_f = (oracle − choice) / (oracle − FedAvg)           the same relative to FedAvg with the study's settings; only
                                                          if that gain is at least 0.02

Accuracies are of seeds on which neither recommenders nor the oracle chose, so a regret may be negative. A value of a
cell is R_t of one search seed. Rows choose by a recommender, by `oracle` or `reference` (tuned FedAvg), or by a
searcher of the user's own.

Costs are a recommender's own trials. A warm start needs the studies of other federations, too, and an informed search
the project's priors, to which trials on all data sets but the federation's own contribute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.grids.cells import COST, CellContext, CellValues, Measured
from fedscout.experiments.grids.experiment import Cell, Experiment
from fedscout.experiments.grids.federation_runner import Choice
from fedscout.experiments.grids.methods import Choose
from fedscout.experiments.grids.recommenders import ChoiceTask, Recommender, recommender_named
from fedscout.experiments.suites.replay import (
    PUBLISHED,
    SPACE,
    ReplayedFederation,
    read_table,
)
from fedscout.search.confirmation.intervals import paired_difference
from fedscout.search.objective import ACCURACY
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


Archive = dict[int, list[EarlierStudy]]
"""Studies for later warm starts, by seed."""


def choice_of(recommender: Recommender, federation: ReplayedFederation, seed: int, archive: Archive) -> Choice:
    """Return the choice on a federation, and add its study to the archive unless it was a warm start."""
    choice = recommender.choose(ChoiceTask(federation, seed, archive.get(seed, ()) if recommender.is_warm else ()))
    if choice.study is not None and not recommender.is_warm:
        archive.setdefault(seed, []).append(choice.study)
    return choice


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
        to_learn: Archive = {}
        cells: dict[Cell, CellValues] = {}
        for row, by in choosers.items():
            context.note(row)
            for federation in federations:
                if isinstance(by, str):
                    scores = federation.oracle if by == ORACLE else federation.tuned
                    results = [(scores, 0.0)] * len(federation.federation.seeds)
                else:
                    archive = to_learn if by.is_warm or federation.about.half == "development" else {}
                    results = []
                    for seed in federation.federation.seeds:
                        choice = choice_of(by, federation, seed, archive)
                        results.append((federation.scores_of(choice), choice.cost))
                if federation.name in experiment.federations:
                    cells[row, federation.name] = _replayed(federation, results)
        return Measured(cells)


def _replayed(federation: ReplayedFederation, results: Sequence[tuple[Scores, float]]) -> CellValues:
    """Return a cell from the choice on each seed: its scores on all seeds, and its cost."""
    stacked, costs = zip(*results, strict=True)
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
        "share below tuned FedAvg": (float(is_below),),
    }
    return CellValues(values=tuple(regret_tuned(value, gains) for value in lost), figures=figures)
