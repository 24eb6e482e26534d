"""Obtains the settings of every row of a part on every seed, trains with them, and compares.

A seed fixes split, initial model and batches, and what is tuned on it, so differences are taken seed by seed. The
interval is that for new data of `intervals`. All lies in ordinary logs, each training once: a measurement that was cut
off goes on, and parts share what they have in common.

OUT/studies/             trials of the federation
OUT/tables/, clients/    trials of cells, and of clients that tune alone
OUT/DATA-PART.json       the last measurement of a part; of those that compare no accuracies, lines
OUT/DATA-PART.md         the same as Markdown, as it is printed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from fedscout.engine.errors import UserError
from fedscout.engine.trials.trial_record import FITNESS_ROUNDS, Trial
from fedscout.experiments.benchmarks.choice.choice_battery import ReadyCase, ready_case
from fedscout.experiments.benchmarks.choice.choice_laboratory import measurement_folder, open_laboratory, other_seeds
from fedscout.experiments.benchmarks.client_settings.settings_battery import (
    DATA,
    OTHER_PARTS,
    PARTS,
    Part,
    Row,
    case_of,
)
from fedscout.experiments.benchmarks.client_settings.settings_results import (
    SettingsCellResult,
    SettingsDifference,
    SettingsReport,
)
from fedscout.experiments.benchmarks.client_settings.settings_rivals import RIVALS
from fedscout.experiments.benchmarks.client_settings.settings_tables import table_lines
from fedscout.experiments.benchmarks.client_settings.workshop import CLIENTS, TABLES, UNIFORM, Note, Settings, Workshop
from fedscout.experiments.benchmarks.selection.selection_results import early_stop_accuracy
from fedscout.experiments.benchmarks.strategies.strategy_measurement import chance_level
from fedscout.search.confirmation.intervals import PairedDifference, paired_difference, tested_to_trained
from fedscout.search.measure import ACCURACY
from fedscout.strategies import StrategySpec, parse_strategy

OWN_FILES = [
    f"{data}-{part}{ending}" for data in DATA for part in (*PARTS, *OTHER_PARTS) for ending in (".json", ".md")
]
"""What a measurement leaves in its folder beside trials."""


def run_client_settings(
    part: Part,
    name: str,
    data: str,
    num_seeds: int,
    settings: Sequence[str],
    out: Path,
    note: Note = lambda _: None,
) -> SettingsReport:
    """Measure one part on one data set, and write the result into the folder.

    Args:
        part: What is measured.
        name: Of the part.
        data: Of the battery.
        num_seeds: Fresh ones, >= 2.
        settings: Arguments that hold everywhere.
        out: The folder; continued if it holds an earlier measurement.
        note: Told what is done next.

    Raises:
        UserError: If the federation can't be built, a strategy can't be used, or the folder can't.
    """
    ready = ready_case(case_of(data, part.sampled), settings, quick=False)
    seeds = other_seeds("client settings", num_seeds)
    with measurement_folder(out, [*OWN_FILES, TABLES, CLIENTS]) as folder:
        with open_laboratory(ready, folder.path) as laboratory:
            shops = [Workshop(ready, laboratory, seed, folder.path, note) for seed in seeds]
            measured = _Measurement(part, shops, chance_level(ready.federation), note)
            cells = [measured.cell(row, kind) for row, kind in product(part.rows, part.strategies)]
            compare = _Comparison(ready, 1 / shops[0].num_test_rows)
        report = SettingsReport(
            title=part.title,
            data=data,
            arguments=ready.arguments,
            rows=tuple(row.name for row in part.rows),
            strategies=part.strategies,
            published=part.published,
            num_seeds=num_seeds,
            cells=tuple(cells),
            differences=tuple(_to_last_row(part, compare, cells)),
            between=tuple(_to_first_strategy(part, compare, cells)),
            resolution=compare.resolution,
        )
        folder.write_text(f"{data}-{name}.json", report.model_dump_json(indent=2) + "\n")
        folder.write_text(f"{data}-{name}.md", "\n".join(table_lines(report)) + "\n")
    return report


@dataclass(frozen=True)
class _Measurement:
    part: Part
    shops: Sequence[Workshop]
    chance: float
    note: Note

    def cell(self, row: Row, kind: str) -> SettingsCellResult:
        """Train what is not in the log, and return one cell."""
        cell = SettingsCellResult(row=row.name, strategy=kind)
        found: list[tuple[Settings, Trial]] = []
        for number, shop in enumerate(self.shops, 1):
            self.note(f"{shop.ready.case.name}, seed {number}: {row.name}, {kind}")
            try:
                obtained = RIVALS[row.rival](shop, kind, **row.options)
            except UserError as error:
                return cell.model_copy(update={"impossible": str(error)})
            found.append((obtained, shop.trial(obtained, spec_of(kind))))
        return cell.model_copy(
            update={
                "accuracies": tuple(early_stop_accuracy(trial, self.chance) for _, trial in found),
                "last": tuple(last_accuracy(trial, self.chance) for _, trial in found),
                "proxy_steps": float(np.mean([obtained.proxy_steps for obtained, _ in found])),
                "client_steps": float(np.mean([obtained.client_steps for obtained, _ in found])),
                "failures": tuple(trial.error or "" for _, trial in found if trial.status == "failed"),
            }
        )


@dataclass(frozen=True)
class _Comparison:
    """How cells of a federation are compared.

    Attributes:
        ready: The federation.
        resolution: One test row's share.
    """

    ready: ReadyCase
    resolution: float

    def difference(self, ours: SettingsCellResult, theirs: SettingsCellResult) -> PairedDifference:
        training, search = self.ready.config.training, self.ready.config.search
        shared = tested_to_trained(training.test_fraction, search.validation_fraction)
        return paired_difference(
            ours.accuracies,
            theirs.accuracies,
            resolution=self.resolution,
            test_to_train=shared,
            span=ACCURACY.span,
        )


def spec_of(kind: str) -> StrategySpec:
    """Return a strategy of that kind in which clients count alike, if it asks."""
    return UNIFORM if kind == UNIFORM.kind else parse_strategy(kind)


def last_accuracy(trial: Trial, chance: float) -> float:
    """Return the mean accuracy of the last rounds; chance if the trial failed."""
    return float(np.mean(trial.round_clean_accuracy[-FITNESS_ROUNDS:])) if trial.status == "completed" else chance


def _to_last_row(part: Part, compare: _Comparison, cells: Sequence[SettingsCellResult]) -> list[SettingsDifference]:
    by_place = {(cell.row, cell.strategy): cell for cell in cells if cell.impossible is None}
    last, found = part.rows[-1].name, []
    for row, kind in product(part.rows[:-1], part.strategies):
        if (row.name, kind) in by_place and (last, kind) in by_place:
            difference = compare.difference(by_place[last, kind], by_place[row.name, kind])
            found.append(SettingsDifference(row=last, strategy=kind, than=row.name, difference=difference))
    return found


def _to_first_strategy(
    part: Part, compare: _Comparison, cells: Sequence[SettingsCellResult]
) -> list[SettingsDifference]:
    by_place = {(cell.row, cell.strategy): cell for cell in cells if cell.impossible is None}
    first, found = part.strategies[0], []
    for row, kind in product(part.rows, part.strategies[1:]):
        if (row.name, kind) in by_place and (row.name, first) in by_place:
            difference = compare.difference(by_place[row.name, kind], by_place[row.name, first])
            found.append(SettingsDifference(row=row.name, strategy=kind, than=first, difference=difference))
    return found
