"""Trains every row of a part with every strategy under every heterogeneity, on the same seeds.

A seed fixes split, initial model, batches, durations and what a policy draws, so differences are taken seed by seed,
of means over strategies. The interval is that for new data of `intervals`. Trials lie in ordinary logs, each trained
once: a measurement that was cut off goes on, and parts share what they have in common.

OUT/studies/        trials, by heterogeneity
OUT/PART.json       the last measurement of a part
OUT/PART.md         the same as Markdown, as it is printed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np

from fedscout.engine.errors import StrategyError
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.engine.trials.trial_state import cohort_of
from fedscout.experiments.benchmarks.choice.choice_battery import ReadyCase, ready_cases
from fedscout.experiments.benchmarks.choice.choice_laboratory import (
    Laboratory,
    measurement_folder,
    open_laboratory,
    other_seeds,
)
from fedscout.experiments.benchmarks.selection.selection_battery import PARTS, PUBLISHED, Part, Row, case_of
from fedscout.experiments.benchmarks.selection.selection_results import (
    RowDifference,
    SelectionCell,
    SelectionReport,
    early_stop_accuracy,
    seconds_to,
)
from fedscout.experiments.benchmarks.selection.selection_tables import table_lines
from fedscout.experiments.benchmarks.strategies.strategy_measurement import chance_level
from fedscout.experiments.config.config_file import load_config
from fedscout.search.confirmation.confirmation_runs import resolution
from fedscout.search.confirmation.intervals import paired_difference, tested_to_trained
from fedscout.search.measure import ACCURACY
from fedscout.strategies import parse_strategy

TARGET_SHARE = 0.9
"""Of what the first strategy reaches in the first row, FedAvg by random choice: the accuracy whose time is told."""

Note = Callable[[str], None]


def run_selection(
    part: Part,
    name: str,
    data: str,
    num_seeds: int,
    settings: Sequence[str],
    out: Path,
    note: Note = lambda _: None,
) -> SelectionReport:
    """Measure one part, and write the result into the folder.

    Args:
        part: What is measured.
        name: Of the part.
        data: Of which federations are made.
        num_seeds: Fresh ones, >= 2.
        settings: Arguments that hold everywhere.
        out: The folder; continued if it holds an earlier measurement.
        note: Told what is done next.

    Raises:
        UserError: If a federation can't be built, a strategy or policy can't be used, or the folder can't.
    """
    ready, missing = ready_cases([case_of(data, each) for each in part.heterogeneities], settings, quick=False)
    cells: list[SelectionCell] = []
    targets: dict[str, float] = {}
    steps: dict[str, float] = {}
    with measurement_folder(out, [f"{each}{ending}" for each in PARTS for ending in (".json", ".md")]) as folder:
        for one in ready:
            with open_laboratory(one, folder.path) as laboratory:
                measured = _Heterogeneity(laboratory, one, part, num_seeds)
                cells += measured.cells(note)
                targets[one.case.name], steps[one.case.name] = measured.target, measured.step
        found = tuple(one.case.name for one in ready)
        report = SelectionReport(
            title=part.title,
            data=data,
            arguments=ready[0].arguments,
            rows=tuple(row.name for row in part.rows),
            strategies=part.strategies,
            heterogeneities=found,
            num_seeds=num_seeds,
            cells=tuple(cells),
            differences=tuple(_differences(part, ready, cells, steps)),
            targets=targets,
            missing=missing,
            resolution=max(steps.values(), default=0.0),
        )
        folder.write_text(f"{name}.json", report.model_dump_json(indent=2) + "\n")
        folder.write_text(f"{name}.md", "\n".join(table_lines(report)) + "\n")
    return report


@dataclass
class _Heterogeneity:
    """The measurement under one heterogeneity.

    Attributes:
        target: Accuracy of which the time is told, once cells were measured.
        step: One test row's share, likewise.
    """

    laboratory: Laboratory
    ready: ReadyCase
    part: Part
    num_seeds: int
    target: float = 0.0
    step: float = 0.0

    def cells(self, note: Note) -> list[SelectionCell]:
        """Train what is not in the log, and return every cell."""
        chance = chance_level(self.ready.federation)
        trials: dict[tuple[str, str], list[Trial] | str] = {}
        for row, kind in product(self.part.rows, self.part.strategies):
            note(f"{self.ready.case.name}: {row.name}, {kind}")
            trials[row.name, kind] = self._trials(row, kind)
        self.step = resolution([each for each in trials.values() if not isinstance(each, str)])
        first = next((each for each in trials.values() if not isinstance(each, str)), [])
        reached = [early_stop_accuracy(trial, chance) for trial in first]
        self.target = TARGET_SHARE * fmean(reached) if reached else 0.0
        found = []
        for (row_name, kind), each in trials.items():
            cell = SelectionCell(heterogeneity=self.ready.case.name, row=row_name, strategy=kind)
            if isinstance(each, str):
                found.append(cell.model_copy(update={"impossible": each}))
                continue
            told = {
                "accuracies": tuple(early_stop_accuracy(trial, chance) for trial in each),
                "seconds": tuple(seconds_to(trial, self.target) for trial in each),
                "failures": tuple(trial.error or "" for trial in each if trial.status == "failed"),
            }
            found.append(cell.model_copy(update=told))
        return found

    def _trials(self, row: Row, kind: str) -> list[Trial] | str:
        """Return the trials of a cell, one a seed, or why there can be none."""
        config = load_config([*self.ready.arguments, *row.settings])
        ledger = self.laboratory.ledger(config)
        try:
            settings = self._settings(ledger.facts.trial("confirmation", parse_strategy(kind)), row)
        except StrategyError as error:
            return str(error)
        return ledger.run([settings.on_seed(seed) for seed in other_seeds("selection", self.num_seeds)])

    def _settings(self, settings: TrialSettings, row: Row) -> TrialSettings:
        cohort = cohort_of(settings, self.laboratory.runner.grid(settings.session))
        chosen = replace(settings, selection=row.spec(cohort))
        if faults := parse_strategy(settings.strategy.kind).faults(replace(cohort, chosen=True)):
            raise StrategyError(faults)
        return chosen


def _differences(
    part: Part, ready: Sequence[ReadyCase], cells: Sequence[SelectionCell], steps: Mapping[str, float]
) -> list[RowDifference]:
    found = []
    for one, row in product(ready, part.rows):
        search, training = one.config.search, one.config.training
        ours = _by_strategy(cells, one.case.name, part.rows[-1].name)
        theirs = _by_strategy(cells, one.case.name, row.name)
        common = [kind for kind in part.strategies if kind in ours and kind in theirs]
        if not common:
            continue
        left, right = (np.mean([side[kind] for kind in common], axis=0) for side in (ours, theirs))
        difference = paired_difference(
            left.tolist(),
            right.tolist(),
            resolution=steps[one.case.name],
            span=ACCURACY.span,
            test_to_train=tested_to_trained(training.test_fraction, search.validation_fraction),
        )
        known = PUBLISHED[one.case.name] if part.published else {}
        kind, last = str(row.policy["kind"]), str(part.rows[-1].policy["kind"])
        found.append(
            RowDifference(
                heterogeneity=one.case.name,
                row=row.name,
                mean=float(right.mean()),
                difference=difference,
                published=known[last] - known[kind] if kind in known and last in known else None,
                wins=sum(fmean(ours[each]) > fmean(theirs[each]) for each in common),
                num_strategies=len(common),
            )
        )
    return found


def _by_strategy(cells: Sequence[SelectionCell], heterogeneity: str, row: str) -> Mapping[str, tuple[float, ...]]:
    return {
        cell.strategy: cell.accuracies
        for cell in cells
        if (cell.heterogeneity, cell.row) == (heterogeneity, row) and cell.impossible is None
    }
