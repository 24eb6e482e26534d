"""The measurement of client settings as Markdown tables, in points of accuracy."""

from __future__ import annotations

from statistics import fmean

from fedscout.experiments.benchmarks.client_settings.settings_battery import (
    GLOBAL,
    PUBLISHED,
    PUBLISHED_DATA,
    TABLE,
)
from fedscout.experiments.benchmarks.client_settings.settings_results import SettingsCellResult, SettingsReport
from fedscout.experiments.grids.comparison import verdict_of
from fedscout.experiments.reports.markdown_table import markdown_table
from fedscout.search.confirmation.intervals import PairedDifference

IMPOSSIBLE = "–"
BY_HAND = "by hand for each client"


def table_lines(report: SettingsReport) -> list[str]:
    """Return how good each row is, what it took, and which published orderings were seen."""
    lines = [
        f"{report.title}; {report.data}, {report.num_seeds} seeds.",
        "Percent of test rows, best round and mean of the last five, mean over seeds. Beyond: what the last row of a "
        "table is beyond this one, best rounds, with the corrected 95 % interval; bold beyond noise. Steps: one client "
        f"trying one setting for a whole training. {IMPOSSIBLE} can't be measured; † so many trials failed, which "
        "count at chance.",
        "",
        *(_of_one_strategy(report) if len(report.strategies) == 1 else _of_strategies(report)),
    ]
    reasons = sorted({f"{cell.row}, {cell.strategy}: {cell.impossible}" for cell in report.cells if cell.impossible})
    failures = sorted({f"{cell.row}, {cell.strategy}: {why}" for cell in report.cells for why in cell.failures})
    return [*lines, *[f"\n{line}" for line in (*reasons, *failures)]]


def _of_one_strategy(report: SettingsReport) -> list[str]:
    (strategy,) = report.strategies
    headings = ["settings", "best round", "last five", "beyond", "steps of proxies", "steps of clients"]
    headings += ["published beyond", "ordering"] if report.published else []
    rows = []
    for row in report.rows:
        cell, difference = report.of(row, strategy), report.beyond(row, strategy)
        told = [_percent(cell), "" if cell.impossible else f"{100 * fmean(cell.last):.1f}", points(difference)]
        told += [f"{cell.proxy_steps:,.0f}", f"{cell.client_steps:,.0f}"]
        rows.append([row, *told, *(_published(report.data, row, difference) if report.published else [])])
    return markdown_table(headings, rows)


def _of_strategies(report: SettingsReport) -> list[str]:
    """Return rows by strategies, and what each further strategy is beyond the first."""
    rows = []
    for row in report.rows:
        cells = []
        for kind in report.strategies:
            told = points(report.beyond(row, kind))
            cells.append(_percent(report.of(row, kind)) + (f" ({told})" if told else ""))
        rows.append([row, *cells])
    first, *others = report.strategies
    between = {(one.row, one.strategy): one.difference for one in report.between}
    compared = [[row, *(points(between.get((row, kind))) for kind in others)] for row in report.rows]
    return [
        *markdown_table(["settings", *report.strategies], rows),
        "",
        f"Beyond {first} with the same settings:",
        "",
        *markdown_table(["settings", *others], compared),
    ]


def _published(data: str, row: str, difference: PairedDifference | None) -> list[str]:
    """Return what the table is beyond a row in the source, and whether that ordering was seen."""
    place = {GLOBAL.name: 0, TABLE.name: 1, BY_HAND: 2}.get(row)
    if place is None or place == 1 or difference is None:
        return ["", ""]
    beyond = {name: figures[1] - figures[place] for name, figures in PUBLISHED.items()}
    own = PUBLISHED_DATA.get(data)
    told = f"{min(beyond.values()):+.1f} … {max(beyond.values()):+.1f}"
    told = f"{beyond[own]:+.1f} ({told})" if own else told
    if place == 0:
        return [told, verdict_of("above", difference)]
    reversed_ = difference.model_copy(
        update={"low": _negated(difference.high), "high": _negated(difference.low), "mean": -difference.mean}
    )
    return [told, verdict_of("above", reversed_)]


def _negated(value: float | None) -> float | None:
    return None if value is None else -value


def points(difference: PairedDifference | None) -> str:
    """Return a difference in points with its interval; bold beyond noise, empty of none."""
    if difference is None:
        return ""
    text = f"{100 * difference.mean:+.1f}"
    if difference.low is not None and difference.high is not None:
        text += f" [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
    return f"**{text}**" if difference.verdict else text


def _percent(cell: SettingsCellResult) -> str:
    if cell.impossible is not None:
        return IMPOSSIBLE
    return f"{100 * cell.accuracy:.1f}" + (f" †{len(cell.failures)}" if cell.failures else "")
