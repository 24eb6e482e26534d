"""What a notebook shows of a federation, a training and a study: small tables and pictures, and how far a study is.

Progress is text that is replaced in place by IPython's `display`, at most four times a second; outside a notebook
nothing is shown. IPython is no dependency: where it was not imported, there is no notebook.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedscout.engine.notebook_html import Markup, curve, interval, paragraph, shaded, table
from fedscout.experiments.studies.stages import STAGES, Stage
from fedscout.experiments.studies.workflow import SILENT, Display
from fedscout.search.ledger import StudyEvents

if TYPE_CHECKING:
    from fedscout.engine.trials.trial_record import Trial
    from fedscout.search.confirmation.confirmation import Confirmation

MOST_CLIENTS = 40
MOST_CLASSES = 40
MOST_TRIALS = 10
SECONDS_BETWEEN = 0.25


def federation_view(title: str, clients: pd.DataFrame) -> Markup:
    """Return clients × classes as a strip of shades, with the rows of each client.

    Args:
        title: What the federation is.
        clients: A row a client, by its number: `name`, `rows`, then a column a class.
    """
    classes = clients.columns[2:][:MOST_CLASSES]
    rows = []
    for client, name, size, *counts in clients.head(MOST_CLIENTS).itertuples(name=None):
        told = zip(classes, counts, strict=False)
        cells = [shaded(count / max(size, 1), f"{label}: {count} of {size}") for label, count in told]
        rows.append((client, name or "", size, *cells))
    left_out = len(clients) - MOST_CLIENTS
    more = paragraph(f"… and {left_out} more clients") if left_out > 0 else ""
    return Markup(paragraph(title, strong=True) + table(("client", "", "rows", *classes), rows) + more)


def study_view(confirmation: Confirmation | None, trials: pd.DataFrame) -> Markup:
    """Return the verdict, how sure it is, and the best trials with their curves."""
    parts: list[str] = []
    if confirmation is not None:
        parts += [paragraph(confirmation.sentence, strong=True), _confirmation_view(confirmation)]
    searched = trials[trials["phase"].isin(["baseline", "search"])].sort_values("fitness", ascending=False)
    shown = searched.head(MOST_TRIALS).to_dict("records")
    known = [value for one in shown for value in scores(one) if isfinite(value)]
    span = (min(known), max(known)) if known else None
    rows = [
        (one["trial"], one["phase"], one["strategy"], f"{one['fitness']:.4f}", curve(scores(one), span))
        for one in shown
    ]
    parts.append(table(("trial", "phase", "strategy", "fitness", "rounds, on one scale"), rows))
    if len(searched) > len(shown):
        parts.append(paragraph(f"The best {len(shown)} of {len(searched)} trials; `trials` has all."))
    return Markup("".join(parts))


def training_view(summary: Mapping[str, Any], scored: Sequence[float]) -> Markup:
    """Return a training's strategy, its fitness and its curve."""
    outcome = f"{summary['fitness']:.4f}" if summary["status"] == "completed" else f"failed: {summary['error']}"
    parameters = ", ".join(f"{name}={value}" for name, value in summary["parameters"].items())
    row = (summary["strategy"], parameters, outcome, curve(scored))
    return table(("strategy", "parameters", "fitness", "rounds"), [row])


def scores(trial: Mapping[Any, Any]) -> Sequence[float]:
    """Return the score of a logged trial after each round: its metric where it has one, else accuracy."""
    measured = trial.get("round_metric")
    return tuple(trial["round_accuracy"] if measured is None else measured)


@contextmanager
def notebook_progress() -> Iterator[Display]:
    """Give callbacks that tell a notebook how far a study is; silent ones elsewhere."""
    if not in_notebook():
        yield SILENT
        return
    line = _ProgressLine()
    try:
        yield line.display()
    finally:
        line.show("", at_once=True)


def in_notebook() -> bool:
    """Whether code runs in a kernel that shows HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


class _ProgressLine:
    def __init__(self) -> None:
        from IPython.display import display

        self._stage, self._finished, self._rounds = "", 0, 0
        self._shown = time.monotonic()
        self._line = display(Markup(""), display_id=True)  # type: ignore[no-untyped-call]

    def display(self) -> Display:
        return Display(stage=self._begin, trials=StudyEvents(self._finish, self._go_on))

    def show(self, text: str, at_once: bool = False) -> None:
        from IPython.display import HTML

        if at_once or time.monotonic() - self._shown > SECONDS_BETWEEN:
            self._shown = time.monotonic()
            self._line.update(HTML(paragraph(text) if text else ""))  # type: ignore[no-untyped-call]

    def _begin(self, stage: Stage) -> None:
        self._stage = STAGES[stage]
        self.show(f"{self._stage} …", at_once=True)

    def _finish(self, trial: Trial, known: bool) -> None:
        self._finished += 1
        self._tell()

    def _go_on(self, rounds: Mapping[str, int]) -> None:
        self._rounds = sum(rounds.values())
        self._tell()

    def _tell(self) -> None:
        self.show(f"{self._stage}: {self._finished} trials finished, {self._rounds} rounds of those that run")


def _confirmation_view(confirmation: Confirmation) -> Markup:
    measure, rows = confirmation.measure, []
    for role, views in confirmation.versus.items():
        found = views[confirmation.view]
        told, picture = measure.number(found.mean), Markup("")
        if found.low is not None and found.high is not None:
            told += f" [{measure.number(found.low)}, {measure.number(found.high)}]"
            picture = interval(found.low, found.mean, found.high, told)
        rows.append((f"{confirmation.contestants[0].name} − {role}", told, picture))
    return table(("on fresh seeds", measure.unit, ""), rows)
