"""What a client on a machine of its own answers, looked at before it is used: a client may be broken, or lie.

A model must have the federation's size and be finite, numbers of rows must be those that the client introduced itself
with or fewer, scores must be possible. What answers to a query have in common can't be known by itself: those whose
arrays have other shapes than most are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.fault_text import shown
from fedscout.engine.messages.host_calls import EvaluateResults, HostCall, QueryResults, TrainResults
from fedscout.engine.metrics.row_losses import RowMeans


class AnswerError(ValueError):
    """An answer can't be used; the text says what is wrong with it."""


def checked_training(results: Any, call: HostCall, client: int, num_rows: int) -> TrainResults:
    """Return what one client trained, with nothing in it that was not asked for.

    Args:
        results: What it answered.
        call: What it was asked.
        client: Its number.
        num_rows: Which it holds at most.

    Raises:
        AnswerError: If it can't be used.
    """
    if not isinstance(results, TrainResults):
        raise AnswerError("it answered something else than a training")
    assert call.vector is not None
    failures = _failures(results.failures, client)
    evaluation = None if results.evaluation is None else checked_scores(results.evaluation, client, num_rows)
    measured = _measured(results.received_losses, client, num_rows)
    common = TrainResults(
        failures=failures,
        evaluation=evaluation,
        received_losses=measured,
        states=_marks(results.states, client),
        seconds=_seconds(results),
    )
    if not results.clients:
        return common
    if results.clients != [client] or client not in call.clients:
        raise AnswerError(f"it answered for the clients {shown(results.clients)}")
    algorithm = call.session.algorithm
    rows = _count("rows", results.num_examples, num_rows)
    return replace(
        common,
        clients=[client],
        num_examples=[rows],
        num_steps=[_count("steps", results.num_steps, None)],
        losses=[_number("loss", results.losses)],
        initial_losses=[_number("loss", results.initial_losses)] if results.initial_losses else [],
        vectors=_vectors("model", results.vectors, len(call.vector)),
        companions=_companions(results.companions, {} if algorithm is None else algorithm.companions),
        sums={str(name): [_number(f"sum {name}", values)] for name, values in results.sums.items()},
        update_norms={client: _number("norm", [results.update_norms[client]])} if results.update_norms else {},
        num_withheld=_count("values withheld", [results.num_withheld], len(call.vector)),
    )


def checked_scores(results: Any, client: int, num_rows: int) -> EvaluateResults:
    """Return one client's scores.

    Raises:
        AnswerError: If they are not possible.
    """
    if not isinstance(results, EvaluateResults):
        raise AnswerError("it answered something else than scores")
    parts = [
        {client: _score(scores[client], num_rows)} if client in scores else {}
        for scores in (results.own, results.clean, results.received)
    ]
    own, clean, received = parts
    sums = {str(part): np.asarray(values) for part, values in results.sums.items()}
    return EvaluateResults(own, clean, _failures(results.failures, client), _seconds(results), received, sums)


def checked_query(results: Any, client: int, num_rows: int) -> QueryResults:
    """Return one client's answer to a query.

    Raises:
        AnswerError: If it is not finite numbers over its rows.
    """
    if not isinstance(results, QueryResults):
        raise AnswerError("it answered something else than a query")
    if not results.clients:
        return QueryResults(failures=_failures(results.failures, client), seconds=_seconds(results))
    if results.clients != [client] or len(results.arrays) != 1:
        raise AnswerError(f"it answered for the clients {shown(results.clients)}")
    arrays = {str(name): np.asarray(array) for name, array in results.arrays[0].items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise AnswerError(f"its {name} are not finite numbers")
    rows = _count("rows", results.num_examples, num_rows)
    return QueryResults([client], [rows], [arrays], {}, _seconds(results))


def without_other_shapes(results: Sequence[QueryResults]) -> list[QueryResults]:
    """Return the answers to one query; those of other shapes than most have are failures."""
    shapes = [_shapes(one.arrays[0]) if one.clients else None for one in results]
    told = Counter(shape for shape in shapes if shape is not None)
    if len(told) < 2:
        return [*results]
    usual = told.most_common(1)[0][0]
    return [
        one
        if shape in (None, usual)
        else QueryResults(failures={one.clients[0]: "its answer has another shape than those of others"})
        for one, shape in zip(results, shapes, strict=True)
    ]


def _shapes(arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, array.shape) for name, array in arrays.items()))


def _count(what: str, values: Any, most: int | None) -> int:
    (value,) = values if isinstance(values, list) and len(values) == 1 else (None,)
    if type(value) is not int or value < 0 or (most is not None and value > most):
        most_text = "" if most is None else f", which can be {most} at most"
        raise AnswerError(f"it told {shown(value)} {what}{most_text}")
    return value


def _number(what: str, values: Any) -> float:
    (value,) = values if isinstance(values, list) and len(values) == 1 else (None,)
    if not isinstance(value, int | float) or not isfinite(value):
        raise AnswerError(f"its {what} is {shown(value)} and must be a finite number")
    return float(value)


def _vectors(what: str, rows: Any, size: int | None) -> npt.NDArray[np.float32]:
    if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.ndim != 2 or len(rows) != 1:
        raise AnswerError(f"its {what} is no vector of float32")
    if size is not None and rows.shape[1] != size:
        raise AnswerError(f"its {what} has {rows.shape[1]} parameters and must have {size}")
    if not np.isfinite(rows).all():
        raise AnswerError(f"its {what} is not finite")
    return rows


def _companions(given: Any, wanted: Mapping[str, str]) -> dict[str, npt.NDArray[np.float32]]:
    if not isinstance(given, Mapping) or given.keys() != wanted.keys():
        raise AnswerError(f"it must send {', '.join(wanted) or 'nothing'} beside the model, and sent {shown([*given])}")
    return {name: _vectors(name, given[name], None) for name in wanted}


def _marks(states: Any, client: int) -> dict[int, Any]:
    if not isinstance(states, Mapping) or not {*states} <= {client}:
        raise AnswerError("it told what others keep")
    return dict(states)


def _failures(failures: Any, client: int) -> dict[int, str]:
    return {client: str(failures[client])[:300]} if client in failures else {}


def _seconds(results: Any) -> float:
    seconds = results.seconds
    return float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < float("inf") else 0.0


def _measured(losses: Any, client: int, num_rows: int) -> dict[str, dict[int, RowMeans]]:
    found: dict[str, dict[int, RowMeans]] = {}
    for part, means in losses.items():
        found[str(part)] = {}
        if client in means:
            if not isinstance(means[client], RowMeans):
                raise AnswerError("its losses of the received model can't be read")
            _count("rows", [means[client].num_examples], num_rows)
            found[str(part)][client] = means[client]
    return found


def _score(score: Any, num_rows: int) -> ClientScore:
    if not isinstance(score, ClientScore):
        raise AnswerError("it answered something else than a score")
    rows = _count("rows", [score.num_examples], num_rows)
    correct, loss = score.num_correct, score.loss_sum
    are_numbers = isinstance(correct, int | float) and isinstance(loss, int | float)
    if not are_numbers or not (isnan(correct) or 0 <= correct <= rows):
        raise AnswerError(f"it scored {shown(correct)} of {rows} rows")
    return score
