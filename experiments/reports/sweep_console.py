"""Output of sweeps, of experiments and of tuning a table of client settings.

While running, sweeps and tuning show what is in progress and the time left; at the end, the means over seeds or the
table. The Markdown of an experiment holds published and measured numbers, gains over the reference, and verdicts on
statements; a page of several has a summary, and a short section for each.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedscout.engine.trials.log import num_trials
from fedscout.experiments.grids import comparison
from fedscout.experiments.grids.cells import Values
from fedscout.experiments.grids.experiment import PERCENT, SHARE, part_name
from fedscout.experiments.reports.console import markdown_table, plain_table, seconds_text, show_path
from fedscout.experiments.reports.progress import WorkLine
from fedscout.experiments.text import tell, visible
from fedscout.search.confirmation.intervals import MOST_SEEDS, PairedDifference
from fedscout.search.objective import Measure

if TYPE_CHECKING:
    from fedscout.experiments.client_settings.request import TunedTable
    from fedscout.experiments.studies.workers import Display, Piece
    from fedscout.experiments.sweeps.run import Group, SweepOutcome


NAMED = 2
"""Number of running pieces that are named; the others are counted."""

TOLD = 20
"""Number of incomplete studies that are listed on standard error; the table has all."""


class GridProgress(WorkLine):
    """Progress of a sweep or of tuning: running pieces, number of finished ones, their trials, and time left.

    Args:
        what: What a piece is, in the plural.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what
        self._pieces: Sequence[Piece] = ()
        self._left: set[int] = set()
        self._running: set[int] = set()
        self._ended: set[int] = set()

    def display(self) -> Display:
        """Return the callbacks for a grid."""
        from fedscout.experiments.studies.workers import Display

        return Display(known=self.known, begun=self.begun, ended=self.ended, tick=self._refresh)

    def known(self, pieces: Sequence[Piece], finished: Collection[int]) -> None:
        """Set all pieces and those that are finished."""
        self._pieces, self._left = pieces, {*range(len(pieces))} - {*finished}
        self._refresh()

    def begun(self, position: int) -> None:
        """Record that a piece started or restarted."""
        if self._started is None:
            self._started = time.monotonic()
        self._running.add(position)
        self._refresh()

    def ended(self, position: int) -> None:
        """Record that a piece ended."""
        for positions in (self._left, self._running):
            positions.discard(position)
        self._ended.add(position)
        self._refresh()

    def _refresh(self) -> None:
        if not self.shown:
            return
        running = [self._pieces[position] for position in sorted(self._running)]
        trials = [num_trials(piece.folder / "trials") for piece in running]
        done = sum(self._pieces[position].weight for position in self._ended)
        done += sum(
            piece.weight * min(1.0, number / max(1, piece.num_trials))
            for piece, number in zip(running, trials, strict=True)
        )
        total = sum(self._pieces[position].weight for position in self._left | self._ended)
        seconds = self._seconds_left(done, total - done)
        time_left = "" if seconds is None else f", about {seconds_text(round(seconds))} left"
        names = [piece.name.rpartition("-")[0] or piece.name for piece in running]
        rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        num_ended = len(self._pieces) - len(self._left)
        self._progress.update(
            self._task,
            total=total or 1,
            completed=done if total else 1,
            description=visible("; ".join(names[:NAMED]) + rest) or ("starting" if self._left else "reading"),
            counts=f"{num_ended}/{len(self._pieces)} {self._what}, {sum(trials)} trials under way{time_left}",
        )


def sweep_table(
    groups: Sequence[Group], measure: Measure, is_confirmed: bool
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return headings and rows of the means over seeds, one row per combination of values."""
    from fedscout.experiments.sweeps.run import LABELS, TUNED
    from fedscout.experiments.sweeps.sweep import value_text

    axes = list(groups[0].values) if groups else []
    choosers = list(dict.fromkeys(chooser for group in groups for chooser in group.accuracy))
    against = f"{measure.unit} vs. {'tuned FedAvg' if TUNED in choosers else 'FedAvg'}"
    headings = [*axes, "studies", *(LABELS[chooser] for chooser in choosers), against, "95 % interval"]
    headings += [*(["better (studies)"] if is_confirmed else []), "label skew", "feature skew", "outliers"]
    rows = []
    for group in groups:
        num_completed, num_studies, gain = group.num_completed, group.num_studies, group.gain
        counts = [*([group.num_better] if is_confirmed else []), *group.detected.values()]
        scores = [group.accuracy[chooser].mean if chooser in group.accuracy else None for chooser in choosers]
        interval = ""
        if gain is not None and gain.low is not None and gain.high is not None:
            interval = f"[{measure.number(gain.low)}, {measure.number(gain.high)}]"
        row = (
            *(value_text(value) for value in group.values.values()),
            str(num_studies) if num_completed == num_studies else f"{num_completed} of {num_studies}",
            *("" if score is None else f"{score:.4f}" for score in scores),
            "" if gain is None else measure.number(gain.mean),
            interval,
            *(f"{count}/{num_completed}" if num_completed else "" for count in counts),
        )
        rows.append(row)
    return headings, rows


def show_sweep(console: Console, outcome: SweepOutcome) -> None:
    """Print the means over seeds and the output paths."""
    is_confirmed, name = outcome.measure == "accuracy", outcome.scored.name
    title = f"{name[:1].upper()}{name[1:]} on fresh seeds" if is_confirmed else "Fitness on the search's seed"
    headings, rows = sweep_table(outcome.groups, outcome.scored, is_confirmed)
    table = plain_table(*headings, title=f"{title}, mean over studies", numbers=headings)
    table.columns[headings.index("95 % interval")].no_wrap = True
    for row in rows:
        table.add_row(*row)
    console.print(table)
    completed = len(outcome.with_status("completed"))
    console.print(f"\n{completed} of {len(outcome.studies)} studies completed.")
    show_path(console, "Table", outcome.folder / "table.parquet", " (and table.csv): one row per study and method")


def show_not_completed(outcome: SweepOutcome) -> None:
    """Print to standard error which studies did not complete, and why."""
    others = [study for study in outcome.studies if study.end.status != "completed"]
    for study in others[:TOLD]:
        tell(f"{study.configuration.text} {study.end.status}: {study.end.error}")
    if len(others) > TOLD:
        tell(f"{len(others) - TOLD} more did not complete; the table lists them")
    if outcome.with_status("lost"):
        tell("run the same command to resume the lost studies")


def table_document(tuned: TunedTable) -> dict[str, Any]:
    """Return a table of client settings as JSON."""
    cells = [
        {**vars(cell), **provenance}
        for cell, provenance in zip(tuned.table.cells, tuned.provenance["cells"], strict=True)
    ]
    return {"out": str(tuned.path), "cells": cells, "proxy": tuned.provenance["proxy"]}


def show_table(console: Console, tuned: TunedTable) -> None:
    """Print the table, one row per heterogeneity, and how to train with it."""
    scored = zip(tuned.table.cells, tuned.provenance["cells"], strict=True)
    cells = {(cell.heterogeneity, cell.quantity): (cell, record["score"]) for cell, record in scored}
    quantities, metric = sorted({quantity for _, quantity in cells}), str(tuned.provenance["metric"])
    table = plain_table(metric, *(f"{quantity} rows" for quantity in quantities), title="lr/batch size/epochs: score")
    for heterogeneity in sorted({value for value, _ in cells}):
        row = [
            f"{cell.learning_rate:.2g}/{cell.batch_size}/{cell.local_epochs} {score:.2f}"
            for cell, score in (cells[heterogeneity, quantity] for quantity in quantities)
        ]
        table.add_row(f"{heterogeneity:.3g}", *row)
    console.print(table)
    _show_proxy(console, tuned)
    show_path(console, "Table", tuned.path)


def _show_proxy(console: Console, tuned: TunedTable) -> None:
    proxy, cell_records = tuned.provenance["proxy"], tuned.provenance["cells"]
    num_repeated, num_cells = sum(record["repeated_rows"] for record in cell_records), len(cell_records)
    trials = sum(record["trials"] for record in cell_records)
    chosen = {(cell.learning_rate, cell.batch_size, cell.local_epochs) for cell in tuned.table.cells}
    console.print(
        f"\n{num_cells} cells have {len(chosen)} different settings of {trials} tried, on {proxy['num_rows']} "
        f"proxy rows, {proxy['num_scored']} of them for scoring; proxy clients of a cell share "
        f"{num_repeated / num_cells:.0f} rows"
    )
    if proxy["synthetic"] is not None:
        console.print("the proxy rows are sampled from the class means that clients reported")
    elif proxy["dataset"] == tuned.provenance["dataset"]:
        console.print(
            f"train with federation.server_rows={proxy['server_rows']} federation.seed={proxy['federation_seed']}, "
            "so that no client holds a proxy row"
        )


NOTHING = "–"


def result_lines(result: comparison.ExperimentResult) -> list[str]:
    """Return a result's section of the document."""
    unit = "percent" if result.unit == PERCENT else result.unit
    covers = "for new data from these clients" if result.test_to_train else "of repetitions"
    number = "published ± standard deviation | ours" if _is_published(result) else "mean"
    lines = [
        f"## {result.name}",
        "",
        f"{_sentence(result.title)}.",
        "",
        f"`{result.command}`, {result.date}, version {result.version}. In {unit}; {number} [95 % interval {covers}].",
        *_grid(result.rows, result.columns, lambda *cell: _cell(result, result.of(cell))),
    ]
    for column in result.columns if result.levels else ():
        parts = {level: part_name(column, level) for level in result.levels}
        numbers = {(one.row, one.column): _number(one.mean, result.unit) for one in result.parts}
        grid = _grid(result.rows, [*parts], lambda row, level: numbers[row, parts[level]])  # noqa: B023
        lines += ["", f"{_sentence(column)}, whose means are shown above:", *grid]
    lines += _groups(result)
    if result.reference is not None:
        others = [row for row in result.rows if row != result.reference]
        gains = _grid(others, result.columns, lambda *cell: _difference_text(result.of(cell).gain, result.unit))
        lines += ["", f"Gain over {result.reference}, paired by seed:", *gains]
    for name in dict.fromkeys(name for cell in result.cells for name, values in cell.figures.items() if any(values)):
        figures = _grid(result.rows, result.columns, lambda *cell: _figure(result.of(cell).figures.get(name, ())))  # noqa: B023
        lines += ["", f"{_sentence(name)}:", *figures]
    if (correlation := comparison.rank_correlation(result.cells)) is not None:
        lines += ["", f"Kendall's τ of published and measured cells: {correlation:.2f}."]
    if result.statements:
        headings = ["statement", "cells", *(["published"] if _is_published(result) else []), "ours", "verdict"]
        lines += ["", *markdown_table(headings, [_said(result, one) for one in result.statements])]
    absent = [f"{entry}: {reason}" for entry, reason in _by_reason(result.absent)]
    return [*lines, *([""] if result.notes or absent else []), *(f"- {note}" for note in [*result.notes, *absent])]


def page_lines(results: Sequence[comparison.ExperimentResult]) -> list[str]:
    """Return a page of several results: a summary, the notes that several share, and a section for each."""
    names: dict[str, list[str]] = {}
    for result in results:
        for note in result.notes:
            names.setdefault(note, []).append(result.name)
    shared = {note: of for note, of in names.items() if len(of) > 1}
    lines = [*summary(results), ""]
    for note, of in shared.items():
        lines += _wrapped(f"- **{', '.join(of)}**: {note}", indent="  ")
    for result in results:
        lines += ["", f"## {result.name}", "", *_wrapped(_told(result, [*shared]))]
        measured = [row for row in result.rows if any(_any_number(result.of((row, name))) for name in result.columns)]
        lines += _grid(measured, result.columns, lambda *cell: _cell(result, result.of(cell)))  # noqa: B023
    return lines


def summary(results: Sequence[comparison.ExperimentResult]) -> list[str]:
    """Return a Markdown table of statements by verdict and agreement in order, linked to the results' sections."""
    counts = [comparison.verdict_counts(result) for result in results]
    rows = []
    for result, found in zip(results, counts, strict=True):
        seen, noise, *others = (found[verdict] or "" for verdict in comparison.VERDICTS)
        needed = f" ({_seeds_needed(result)})" if noise else ""
        link = f"[{result.name}](#{result.name.replace('/', '').lower()})"
        tau = comparison.rank_correlation(result.cells)
        rows.append([link, result.title, seen, f"{noise}{needed}", *others, "" if tau is None else f"{tau:.2f}"])
    rows.append(["all", "", *(sum(found[verdict] for found in counts) or "" for verdict in comparison.VERDICTS), ""])
    return markdown_table(
        ["study", "", "seen", "within noise (seeds to decide)", *comparison.VERDICTS[2:], "Kendall's τ"], rows
    )


def _seeds_needed(result: comparison.ExperimentResult) -> str:
    """Return the range of the seeds that decide statements within noise, and how many of these no number decides."""
    needed = [one.seeds_to_decide for one in result.statements if one.verdict == "within noise"]
    numbers = sorted({number for number in needed if number is not None})
    texts = [f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])] if numbers else []
    return ", ".join([*texts, *([f"{needed.count(None)} not"] if None in needed else [])])


MOST_DIFFERENCES = 6


def _told(result: comparison.ExperimentResult, shared: Collection[str]) -> str:
    """Return what was compared and how, the statements that are seen or contradicted, and the result's own notes."""
    most = max((len(cell.values) for cell in result.cells), default=0)
    unit = "" if result.unit == PERCENT else f" In {result.unit}."
    told = [f"{_sentence(result.title)}.{unit} {most} seeds, {result.date}."]
    told += [] if result.test_to_train else ["Intervals of repetitions."]
    decided = (one for one in result.statements if one.verdict in ("seen", "contradicted"))
    for verdict, says in dict.fromkeys((one.verdict, one.says) for one in decided):
        of_claim = [one for one in result.statements if one.says == says]
        found = sorted((one for one in of_claim if one.verdict == verdict), key=_mean_difference)
        kept = found if len(found) <= MOST_DIFFERENCES else [found[0], found[-1]]
        differences = "; ".join(f"{_pair(one)}: {_difference_text(one.difference, result.unit)}" for one in kept)
        count = f" in {len(found)} of {len(of_claim)}" if len(of_claim) > 1 else ""
        extremes = "" if kept == found else ", from the least to the largest difference"
        told.append(f"**{_sentence(verdict)}**{count}{extremes}, {says} ({differences}).")
    own = [note for note in result.notes if note not in shared]
    absent = [f"{entry}: {reason}" for entry, reason in _by_reason(result.absent)]
    return " ".join([*told, *(f"{_sentence(note).rstrip('.')}." for note in [*own, *absent])])


def _mean_difference(one: comparison.StatementResult) -> float:
    return 0.0 if one.difference is None else one.difference.mean


def _pair(one: comparison.StatementResult) -> str:
    """Return the two cells of a statement, the row or the column that they share said once."""
    (row, column), (other_row, other_column) = one.first, one.second
    if column == other_column:
        return f"{row} minus {other_row}, {column}"
    return f"{row}, {column} minus {other_column if row == other_row else f'{other_row}, {other_column}'}"


def _any_number(cell: comparison.CellResult) -> bool:
    return cell.published is not None or cell.mean is not None


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _grid(rows: Sequence[str], columns: Sequence[str], text: Callable[[str, str], str]) -> list[str]:
    """Return a blank line and a table with the text of each row and column."""
    return ["", *markdown_table(["", *columns], [[row, *(text(row, column) for column in columns)] for row in rows])]


def _by_reason(absent: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the absent entries grouped by reason: the first, and the number of others."""
    reasons: dict[str, list[str]] = {}
    for what, why in absent.items():
        reasons.setdefault(why, []).append(what)
    return [
        (what[0] if len(what) == 1 else f"{what[0]} and {len(what) - 1} more", why) for why, what in reasons.items()
    ]


def _is_published(result: comparison.ExperimentResult) -> bool:
    return any(cell.published is not None for cell in result.cells)


def _cell(result: comparison.ExperimentResult, cell: comparison.CellResult) -> str:
    ours = _with_interval(cell.mean, cell.low, cell.high, result.unit)
    if result.unit == SHARE and cell.values:
        ours = f"{sum(cell.values):.0f}/{len(cell.values)} [{cell.low:.2f}, {cell.high:.2f}]"
    if not _is_published(result):
        return ours
    published = _number(cell.published, result.unit)
    if cell.deviation is not None:
        published += f" ± {_number(cell.deviation, result.unit)}"
    return NOTHING if cell.published is None and cell.mean is None else f"{published} \\| {ours}"


def _figure(values: Values) -> str:
    present = [value for value in values if value is not None]
    if not present:
        return NOTHING
    value = fmean(present)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def _groups(result: comparison.ExperimentResult) -> list[str]:
    """Return the means over each group of columns."""
    lines = []
    for group in dict.fromkeys(one.group for one in result.groups):
        means = {(one.row, one.figure): one for one in result.groups if one.group == group}
        rows, figures = ([*dict.fromkeys(names)] for names in zip(*means, strict=True))
        headings = {figure or result.unit: figure for figure in figures}
        table = _grid(rows, [*headings], lambda row, name: _mean_text(means.get((row, headings[name])), result.unit))  # noqa: B023
        most = max(one.columns for one in means.values())
        lines += ["", f"{_sentence(group)}, means over at most {most} columns [95 % bootstrap interval]:", *table]
    return lines


def _mean_text(one: comparison.GroupMean | None, unit: str) -> str:
    if one is None:
        return NOTHING
    if not one.figure and unit == PERCENT:
        return _with_interval(one.mean, one.low, one.high, unit)
    if one.low == one.high:
        return _figure((one.mean,))
    return f"{one.mean:.3g} [{one.low:.3g}, {one.high:.3g}]"


def _difference_text(difference: PairedDifference | None, unit: str) -> str:
    if difference is None:
        return NOTHING
    return _with_interval(difference.mean, difference.low, difference.high, unit, sign="+")


def _with_interval(mean: float | None, low: float | None, high: float | None, unit: str, sign: str = "") -> str:
    ends = "" if low is None else f" [{_number(low, unit, sign)}, {_number(high, unit, sign)}]"
    return _number(mean, unit, sign) + ends


def _said(result: comparison.ExperimentResult, one: comparison.StatementResult) -> list[str]:
    ours = _difference_text(one.difference, result.unit)
    published = [_number(one.published, result.unit, sign="+")] if _is_published(result) else []
    return [one.says, _pair(one), *published, ours, verdict_text(one)]


def verdict_text(one: comparison.StatementResult) -> str:
    """Return the verdict and, if it is within noise, the number of seeds that would decide."""
    if one.verdict != "within noise":
        return one.verdict
    would = f"{one.seeds_to_decide} seeds would" if one.seeds_to_decide else f"{MOST_SEEDS} seeds would not"
    return f"{one.verdict}; {would} decide"


def _number(value: float | None, unit: str, sign: str = "") -> str:
    if value is None:
        return NOTHING
    return f"{100 * value:{sign}.1f}" if unit == PERCENT else f"{value:{sign}.4g}"
