"""From a sum over clients back to what hosts answer: as if one host held all clients and told of none by itself.

Counts that a host tells client by client stand at the first of those that trained, zeros at the others, and all have
the mean loss: sums and means over them, which are all that a merged reply is made of, are those of the clients. Scores
are those of one client that stands for all (`TOGETHER`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.grid.evaluation import TOGETHER
from fedscout.engine.messages.host_calls import EvaluateResults, TrainResults
from fedscout.engine.messages.session import Session
from fedscout.engine.nodes.sum_calls import VIEWS, Section

Totals = Mapping[str, npt.NDArray[Any]]
"""By section."""


def num_values(sections: Sequence[Section]) -> int:
    """Return how many values sections hold together."""
    return sum(int(np.prod(section.shape, dtype=np.int64)) for section in sections)


def told_apart(sections: Sequence[Section], total: IntArray) -> dict[str, npt.NDArray[Any]]:
    """Return what a summed vector holds, by section: whole numbers where their unit is 1, else float64."""
    found: dict[str, npt.NDArray[Any]] = {}
    start = 0
    for section in sections:
        stop = start + num_values([section])
        part, bits = total[start:stop].reshape(section.shape), section.fraction_bits
        found[section.name] = np.ldexp(part.astype(np.float64), -bits) if bits else part
        start = stop
    return found


def impossible(totals: Totals, weighted_by: str, total_rows: int) -> str | None:
    """Return why a sum can't be one of honest clients, as far as its own numbers show; None if it may be.

    Args:
        totals: By section.
        weighted_by: What weighs the mean of models.
        total_rows: Of all clients, as they said.
    """
    if "model" in totals:
        rows, weight = int(totals["rows"]), float(totals.get(f"weight.{weighted_by}", totals["rows"]))
        if not 0 < rows <= total_rows or not 0 < weight <= total_rows:
            return f"its clients say that they trained on {rows} rows, of {total_rows} that they hold"
    for view in VIEWS:
        rows, correct, *_ = totals.get(f"{view}.rows", np.zeros(4, np.int64)).tolist()
        if not 0 <= correct <= rows <= total_rows:
            return f"its clients say that {correct} of {rows} rows are right, of {total_rows} that they hold"
    return None


def summed_training(totals: Totals, clients: Sequence[int], weighted_by_clients: bool) -> TrainResults:
    """Return what some clients trained together.

    Args:
        totals: Their sum.
        clients: Who added to it, ascending.
        weighted_by_clients: Whether losses were, and not by rows.
    """
    if not clients:
        return TrainResults()
    others = [0] * (len(clients) - 1)
    rows, steps = int(totals["rows"]), int(totals["steps"])
    counted = len(clients) if weighted_by_clients else max(1, rows)
    named = {name.split(".", 1)[0]: {} for name in totals}  # type: ignore[var-annotated]
    for name, values in totals.items():
        kind, _, rest = name.partition(".")
        named[kind][rest] = values
    return TrainResults(
        clients=[*clients],
        num_examples=[rows, *others],
        num_steps=[steps, *others],
        losses=[float(totals["loss"]) / counted] * len(clients),
        initial_losses=[float(totals["initial-loss"]) / counted] * len(clients) if "initial-loss" in totals else [],
        total=totals["model"],
        companion_totals=dict(named.get("companion", {})),
        sums={
            name: [float(value), *map(float, others)]
            for kind in ("weight", "sum")
            for name, value in named.get(kind, {}).items()
        },
    )


def summed_scores(totals: Totals, session: Session) -> EvaluateResults:
    """Return how the rows of all clients are scored together."""
    results = EvaluateResults()
    algorithm = session.algorithm
    several = algorithm is not None and (algorithm.personal or algorithm.tunes)
    for view, into in zip(VIEWS, (results.own, results.clean, results.received), strict=True):
        if view == "received" and not several:
            continue
        rows, correct, without_loss, missing = totals[f"{view}.rows"].tolist()
        loss = float("nan") if without_loss else float(totals[f"{view}.loss"])
        into[TOGETHER] = ClientScore(rows, float("nan") if missing else correct, loss)
        if session.metric is not None:
            results.sums[view] = totals[f"{view}.metric"]
    return results
