"""Studies that were run again as Markdown: published | ours | seen?, and what stands in for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from fedscout.experiments.reports.markdown_table import markdown_table
from fedscout.experiments.reproduction.published_study import PERCENT, Cell
from fedscout.experiments.reproduction.reproduced import (
    ReproducedCell,
    ReproducedOrdering,
    ReproducedStudy,
    Verdict,
)

NOTHING = "–"

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


def study_lines(study: ReproducedStudy) -> list[str]:
    """Return a study's section."""
    unit = "percent" if study.unit == PERCENT else study.unit
    interval = (
        "95 % interval for new data from these clients" if study.test_to_train else "95 % interval of repetitions"
    )
    lines = [
        f"## {study.source}/{study.name}",
        "",
        f"{study.title[0].upper()}{study.title[1:]}.",
        "",
        f"`{study.command}`, {study.date}, version {study.version}. In {unit}; published ± standard deviation | ours "
        f"[{interval}].",
        "",
        *markdown_table(["", *study.columns], [_row(study, row) for row in study.rows]),
    ]
    if study.orderings:
        headings = ["what the source says", "of", "published", "ours", "ordering"]
        lines += ["", *markdown_table(headings, [_said(study, one) for one in study.orderings])]
    absent = [f"Not measured: {what}: {why}" for what, why in study.absent.items()]
    return [
        *lines,
        *(f"\n- {note}" if place == 0 else f"- {note}" for place, note in enumerate([*study.notes, *absent])),
    ]


def summary_lines(studies: Sequence[ReproducedStudy]) -> list[str]:
    """Return how many statements were seen, one line a study."""
    rows = [
        [
            f"[{study.source}/{study.name}](#{study.source}{study.name})",
            study.title,
            *(study.count(one) or "" for one in VERDICTS),
        ]
        for study in studies
    ]
    totals = ["all", "", *(sum(study.count(one) for study in studies) for one in VERDICTS)]
    return markdown_table(["study", "", *VERDICTS], [*rows, totals])


def _row(study: ReproducedStudy, row: str) -> list[str]:
    return [row, *(_cell(study.of((row, column)), study.unit) for column in study.columns)]


def _cell(cell: ReproducedCell, unit: str) -> str:
    published = _number(cell.published, unit)
    if cell.deviation is not None:
        published += f" ± {_number(cell.deviation, unit)}"
    ours = _number(cell.mean, unit)
    if cell.low is not None:
        ours += f" [{_number(cell.low, unit)}, {_number(cell.high, unit)}]"
    return NOTHING if cell.published is None and cell.mean is None else f"{published} \\| {ours}"


def _said(study: ReproducedStudy, one: ReproducedOrdering) -> list[str]:
    difference = one.difference
    ours = NOTHING
    if difference is not None:
        ours = _number(difference.mean, study.unit, sign="+")
        if difference.low is not None:
            ours += (
                f" [{_number(difference.low, study.unit, sign='+')}, {_number(difference.high, study.unit, sign='+')}]"
            )
    return [one.says, _pair(one.first, one.second), _number(one.published, study.unit, sign="+"), ours, one.verdict]


def _pair(first: Cell, second: Cell) -> str:
    if first[1] == second[1]:
        return f"{first[0]} less {second[0]}, {first[1]}"
    if first[0] == second[0]:
        return f"{first[1]} less {second[1]}, {first[0]}"
    return f"{first[0]}, {first[1]} less {second[0]}, {second[1]}"


def _number(value: float | None, unit: str, sign: str = "") -> str:
    if value is None:
        return NOTHING
    return f"{100 * value:{sign}.1f}" if unit == PERCENT else f"{value:{sign}.4g}"
