"""Consoles, tables, paragraphs and names on a screen.

The consoles of results, on which the words of others are shown and not obeyed; tables, paths and JSON on them.

A text in lines of a screen.

A table as Markdown, for the terminal as for a document.

What a trial is called wherever it is shown: its strategy with its parameters, and the policy that chose clients.

What tables of trials tell beside fitness, where there is something to tell: other accuracies, and bytes a round.

What became of a table's columns, as a table for `describe` and one line for `run`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedscout.engine.runtime.files import json_text
from fedscout.engine.text import listed
from fedscout.experiments.text import show_json_text, visible
from fedscout.search.objective import ACCURACY, Measure, Objective
from fedscout.strategies import StrategySpec
from fedscout.strategies.specification import SELECTION

if TYPE_CHECKING:
    from pathlib import Path

    from fedscout.engine.trials.record import Trial
    from fedscout.search.confirmation.confirmation import Candidate


class PlainConsole(Console):
    """A console for the words of others: markup, emoji codes and control characters are shown, not obeyed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text of a string, be it printed, in a table or a title."""
        return super().render_str(visible(text), **options)


def plain_table(*headings: str, numbers: Sequence[str] = (), **options: Any) -> Table:
    """Return a table without lines; columns of numbers stand on the right. Options are those of rich's own."""
    look = {"box": None, "padding": (0, 2, 0, 0), "title_justify": "left", "title_style": "bold"}
    columns = [Column(heading, justify="right" if heading in numbers else "left") for heading in headings]
    return Table(*columns, **{**look, **options})


def out_console() -> Console:
    """Return the console of results; wide enough for tables where standard output is no terminal."""
    return PlainConsole(width=None if sys.stdout.isatty() else 120, soft_wrap=False)


def show_path(console: Console, label: str, path: Path, remark: str = "") -> None:
    """Print where something lies, on one line however long the path is."""
    console.print(f"{label}: {path}{remark}", soft_wrap=True)


def show_json(document: Mapping[str, Any]) -> None:
    """Print a document alone on standard output."""
    show_json_text(json_text(document).removesuffix("\n"))


WIDTH = 80
INDENT = "  "


def paragraph(text: str, width: int, indent: str = INDENT, style: str = "") -> list[Text]:
    """Return a text in lines of at most this width."""
    lines = list(Text(visible(" ".join(text.split()))).wrap(Console(width=width), width - len(indent)))
    for line in lines:
        line.rstrip()
    return [Text(indent, style=style).append_text(line) for line in lines if line.plain]


def markdown_table(headings: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table whose cells are told by `str`."""
    return [f"| {' | '.join(map(str, cells))} |" for cells in (headings, ["---"] * len(headings), *rows)]


def trial_name(spec: StrategySpec, selection: str | None) -> str:
    """Return the name, such as `fedadam(eta=0.1, selection=oort)`.

    Args:
        spec: What was tried.
        selection: The policy, also where it is the study's and the specification does not name it; None without one.
    """
    return str(spec if selection is None else spec.with_values({SELECTION: selection}))


SCORE, GLOBAL, NEW_CLIENT = "mean score", "global model", "new client"
DOWN, UP = "down a round", "up a round"
SIMULATED, TO_TARGET = "simulated time", "time to target"
UNITS = ("kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class TrialLine:
    """What one line of a table may tell; None where it is not known.

    Attributes:
        own: Score of the model that a client would use.
        shared: That of the global model; None where that is what clients use.
        new_client: That of the model that a client would use which never trained.
        bytes_down: What all clients of a round are sent.
        bytes_up: What they answer.
        told_own: Whether the own score stands apart, as the fitness is another thing.
        second: Fitness by the second objective, where there are two.
        simulated_seconds: What the rounds took on the simulated clock.
        seconds_to_target: What they took until the target was reached, where there is one.
    """

    own: float | None
    shared: float | None
    new_client: float | None
    bytes_down: float | None
    bytes_up: float | None
    told_own: bool = False
    second: float | None = None
    simulated_seconds: float | None = None
    seconds_to_target: float | None = None

    @classmethod
    def of_trial(cls, trial: Trial, measure: Measure = ACCURACY) -> TrialLine:
        """Return what a trial tells; of one that failed, bytes alone."""
        shared, new_client = trial.global_accuracy, trial.new_client_accuracy
        second = trial.objectives[1] if trial.objectives and trial.status == "completed" else None
        simulated = None if trial.round_seconds is None else sum(trial.round_seconds)
        to_target, told_own = _seconds_to_target(trial, measure.target), measure.of != "mean"
        sent = (trial.bytes_down, trial.bytes_up)
        return cls(trial.score, shared, new_client, *sent, told_own, second, simulated, to_target)

    @classmethod
    def of_contestant(cls, one: Candidate) -> TrialLine:
        """Return what a contestant tells, the mean over its seeds."""
        scores = (one.score or one.own, one.global_accuracy, one.new_client_accuracy)
        own, shared, new_client = (None if values is None else sum(values) / len(values) for values in scores)
        second = None if one.second is None else sum(one.second) / len(one.second)
        return cls(own, shared, new_client, one.bytes_down, one.bytes_up, one.score is not None, second)


def told_columns(lines: Sequence[TrialLine], second: str = "second objective") -> dict[str, list[str]]:
    """Return the columns that say something, by heading: one cell a line.

    The score stands where fitness is another thing. The global model stands where some line's clients use others, new
    clients where there are some, bytes where lines differ or one stands alone, time where there is a simulated clock.
    """
    columns: dict[str, list[str]] = {}
    if any(line.second is not None for line in lines):
        columns[second] = _cells([line.second for line in lines], _accuracy)
    if any(line.told_own for line in lines):
        columns[SCORE] = _cells([line.own for line in lines], _accuracy)
    if any(line.shared is not None for line in lines):
        columns[GLOBAL] = _cells([line.own if line.shared is None else line.shared for line in lines], _accuracy)
    if any(line.new_client is not None for line in lines):
        columns[NEW_CLIENT] = _cells([line.new_client for line in lines], _accuracy)
    sent = {(line.bytes_down, line.bytes_up) for line in lines} - {(None, None)}
    if len(sent) > 1 or len(lines) == len(sent) == 1:
        columns[DOWN] = _cells([line.bytes_down for line in lines], bytes_text)
        columns[UP] = _cells([line.bytes_up for line in lines], bytes_text)
    if any(line.simulated_seconds is not None for line in lines):
        columns[SIMULATED] = _cells([line.simulated_seconds for line in lines], seconds_text)
    if any(line.seconds_to_target is not None for line in lines):
        columns[TO_TARGET] = _cells([line.seconds_to_target for line in lines], seconds_text)
    return columns


def _seconds_to_target(trial: Trial, target: float | None) -> float | None:
    """Return what a trial took until a target was reached, in simulated seconds; None if it was not, or without one."""
    if target is None or trial.round_seconds is None or not trial.num_rounds:
        return None
    reached = Objective("time_to_accuracy", trial.num_rounds, target).reached(trial.scores() or ())
    return None if reached is None else sum(trial.round_seconds[:reached])


def seconds_text(seconds: float) -> str:
    """Return a time for people, such as `42.5 s`, `13.1 min` or `2.78 h`."""
    unit, size = next(((u, s) for u, s in (("h", 3600), ("min", 60)) if seconds >= 2 * s), ("s", 1))
    return f"{seconds / size:.3g} {unit}"


def bytes_text(count: float) -> str:
    """Return a number of bytes for people, in powers of 1000, such as `73.9 kB`."""
    if count < 1000:
        return f"{count:.0f} B"
    power = min(int(math.log10(count)) // 3, len(UNITS))
    return f"{count / 1000**power:.3g} {UNITS[power - 1]}"


def _accuracy(value: float) -> str:
    return f"{value:.4f}"


def _cells(values: Sequence[float | None], text: Callable[[float], str]) -> list[str]:
    return ["" if value is None else text(value) for value in values]


MOST_NAMED = 5


def show_columns(console: Console, facts: Mapping[str, Any], is_brief: bool = False) -> None:
    """Print what became of the columns of one's own table; nothing of other data.

    Args:
        console: Where to.
        facts: Of the federation.
        is_brief: One line, and only if something was left out unasked, or codes for missing values are suspected.
    """
    columns: Sequence[Mapping[str, Any]] = facts.get("columns", ())
    if is_brief:
        for line in _brief(columns):
            console.print(line)
        return
    if not columns:
        return
    console.print()
    table = plain_table("column", "kind", "missing", "features", "what became of it", "overruled by federation.…")
    for column in columns:
        became = "; ".join(filter(None, (column["became"], column["suspicion"])))
        counts = [f"{column[name]:,}" if column[name] else "" for name in ("num_missing", "num_features")]
        table.add_row(column["name"], column["kind"], *counts, became, column["key"].replace("federation.", ""))
    console.print(table)


def _brief(columns: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    left_out = [column["name"] for column in columns if column["became"].startswith("left out:")]
    coded = [
        f"{column['name']} ({', '.join(column['missing_codes'])})" for column in columns if column["missing_codes"]
    ]
    codes = {code: None for column in columns for code in column["missing_codes"]}
    parts = [f"left out {listed(left_out, MOST_NAMED)}"] if left_out else []
    parts += [
        f"{column['name']} is a text, which {column['key']} has models read"
        for column in columns
        if column["kind"] == "text" and column["became"].startswith("left out:")
    ][:1]
    parts += [
        f"{column['name']} gives {column['became']} {column['key']} predicts one"
        for column in columns
        if column["kind"] == "label" and column["key"] == "federation.task=regression"
    ]
    if coded:
        listed_codes = ", ".join(codes)
        parts.append(
            f"codes for missing values? {listed(coded, MOST_NAMED)}: 'federation.missing_values=[{listed_codes}]'"
        )
    if parts:
        yield f"columns: {'; '.join(parts)} (fedscout describe lists them)"
