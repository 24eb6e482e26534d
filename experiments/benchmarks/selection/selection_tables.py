"""The measurement of selection policies as Markdown tables, in points of accuracy."""

from __future__ import annotations

from statistics import fmean, median

from fedscout.experiments.benchmarks.selection.selection_battery import PUBLISHED
from fedscout.experiments.benchmarks.selection.selection_results import RowDifference, SelectionCell, SelectionReport
from fedscout.experiments.grids.comparison import verdict_of
from fedscout.experiments.reports.markdown_table import markdown_table
from fedscout.search.confirmation.intervals import PairedDifference

IMPOSSIBLE = "–"


def table_lines(report: SelectionReport) -> list[str]:
    """Return who is how good with which strategy, how fast, and which published orderings were seen."""
    lines = [
        f"{report.title}; {report.data}, {report.num_seeds} seeds.",
        "Percent of uncorrupted test rows, the best round of each training, mean over seeds. Beyond: what the last row "
        f"of a table is beyond this one, with the corrected 95 % interval. {IMPOSSIBLE} can't be trained; † so many "
        "trials failed, which count at chance.",
    ]
    if len(report.strategies) == 1:
        lines += ["", f"With {report.strategies[0]}:", "", *_of_one_strategy(report, report.strategies[0])]
        if _has_clock(report):
            title = "Simulated seconds to the accuracy in the heading, median over the seeds that reach it:"
            lines += ["", title, "", *_times_of_one_strategy(report, report.strategies[0])]
    for name in report.heterogeneities if len(report.strategies) > 1 else ():
        lines += ["", f"{name.capitalize()}:", "", *_accuracies(report, name)]
        if _has_clock(report):
            title = f"Simulated seconds to {100 * report.targets[name]:.1f} %, median over the seeds that reach it:"
            lines += ["", title, "", *_times(report, name)]
    reasons = sorted({f"{cell.strategy}: {cell.impossible}" for cell in report.cells if cell.impossible})
    failures = sorted({f"{cell.strategy}, {cell.row}: {why}" for cell in report.cells for why in cell.failures})
    left_out = [f"{name} is left out: {why}" for name, why in report.missing.items()]
    return [*lines, *[f"\n{line}" for line in (*reasons, *failures, *left_out)]]


def _accuracies(report: SelectionReport, heterogeneity: str) -> list[str]:
    compared = {one.row: one for one in report.differences if one.heterogeneity == heterogeneity}
    published = any(one.published is not None for one in compared.values())
    headings = ["policy", *report.strategies, "mean", "beyond"]
    headings += ["published mean", "published beyond", "ordering"] if published else []
    rows = []
    for row in report.rows:
        cells = [_percent(report.of(heterogeneity, row, strategy)) for strategy in report.strategies]
        one = compared.get(row)
        rows.append([row, *cells, *(_compared(one, row == report.rows[-1], published) if one else [])])
    return markdown_table(headings, rows)


def _of_one_strategy(report: SelectionReport, strategy: str) -> list[str]:
    """Return the policies by heterogeneities, in brackets what the last row is beyond each."""
    compared = {(one.heterogeneity, one.row): one.difference for one in report.differences}
    rows = []
    for row in report.rows:
        cells = []
        for name in report.heterogeneities:
            difference = None if row == report.rows[-1] else compared.get((name, row))
            told = "" if difference is None else f" ({_points(difference)})"
            cells.append(_percent(report.of(name, row, strategy)) + told)
        rows.append([row, *cells])
    return markdown_table(["policy", *report.heterogeneities], rows)


def _points(difference: PairedDifference) -> str:
    text = f"{100 * difference.mean:+.1f}"
    if difference.low is not None and difference.high is not None:
        text += f" [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
    return f"**{text}**" if difference.verdict else text


def _percent(cell: SelectionCell) -> str:
    if cell.impossible is not None:
        return IMPOSSIBLE
    return f"{100 * fmean(cell.accuracies):.1f}" + (f" †{len(cell.failures)}" if cell.failures else "")


def _compared(one: RowDifference, is_last: bool, published: bool) -> list[str]:
    mean = f"{100 * one.mean:.1f}"
    kind = one.row.partition(" ")[0].partition(",")[0]
    known = PUBLISHED[one.heterogeneity].get(kind) if published else None
    told = f"{known:.1f}" if known is not None else ""
    if is_last:
        return [mean, "", *([told, "", ""] if published else [])]
    if not published:
        return [mean, _points(one.difference)]
    beyond = "" if one.published is None else f"{one.published:+.1f}"
    verdict = "" if one.published is None else verdict_of("above", one.difference)
    return [mean, _points(one.difference), told, beyond, verdict]


def _has_clock(report: SelectionReport) -> bool:
    return any(second is not None for cell in report.cells for second in cell.seconds)


def _times(report: SelectionReport, heterogeneity: str) -> list[str]:
    rows = [
        [row, *(_seconds(report.of(heterogeneity, row, strategy)) for strategy in report.strategies)]
        for row in report.rows
    ]
    return markdown_table(["policy", *report.strategies], rows)


def _times_of_one_strategy(report: SelectionReport, strategy: str) -> list[str]:
    headings = [f"{name}: {100 * report.targets[name]:.1f} %" for name in report.heterogeneities]
    rows = [
        [row, *(_seconds(report.of(name, row, strategy)) for name in report.heterogeneities)] for row in report.rows
    ]
    return markdown_table(["policy", *headings], rows)


def _seconds(cell: SelectionCell) -> str:
    reached = [seconds for seconds in cell.seconds if seconds is not None]
    if not reached:
        return IMPOSSIBLE if cell.impossible is not None else "never"
    return f"{median(reached):.4g}" + (f" ({len(reached)} of {len(cell.seconds)})" if None in cell.seconds else "")
