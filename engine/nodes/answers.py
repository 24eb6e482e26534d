"""Validation of remote clients' results before use, as a client may be faulty or malicious.

Field types were already checked on decoding (`fedscout.engine.nodes.wire`). Here a model must have the federation's
size and be finite, numbers of rows must not exceed those that the client introduced itself with, scores and weights
must be possible, and nothing that was not requested is accepted. Properties that results have in common can't be
checked on one alone: results whose arrays have other shapes, or that report other sums, than the majority are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.contracts.algorithm import ClientScore, ClientState
from fedscout.engine.contracts.client_table import FAR_KEY
from fedscout.engine.messages.calls import EvaluateResults, HostCall, QueryResults, TrainResults
from fedscout.engine.messages.keys import INITIAL_LOSS_KEY, NUM_CLIENTS_KEY, NUM_EXAMPLES_KEY, ROUND_KEY
from fedscout.engine.messages.values import LARGEST_FLOAT, fits
from fedscout.engine.metrics import Metric, Sums
from fedscout.engine.nodes.client import is_mark
from fedscout.engine.nodes.wire import one_line
from fedscout.engine.text import shown

LARGEST_ANSWER = 1e30
"""Largest magnitude in a query's answer; its fourth power is finite."""


class AnswerError(ValueError):
    """A result can't be used; the message says why."""


@dataclass(frozen=True)
class ExpectedAnswer:
    """The request to which a result must conform.

    Attributes:
        client: The client's number.
        call: The request.
        num_rows: Upper limit on the client's rows.
        num_classes: Outputs of the model.
    """

    client: int
    call: HostCall
    num_rows: int
    num_classes: int


def checked_training(results: Any, expectation: ExpectedAnswer) -> TrainResults:
    """Return one client's training results, restricted to what was requested.

    Args:
        results: The client's results.
        expectation: The client and the request.

    Raises:
        AnswerError: If they can't be used.
    """
    if not isinstance(results, TrainResults):
        raise AnswerError("its answer is not a training result")
    client, call = expectation.client, expectation.call
    assert call.vector is not None
    wanted = results.evaluation if call.evaluated else None
    common = TrainResults(
        failures=_failures(results.failures, client) if call.clients else {},
        evaluation=None if wanted is None else checked_scores(wanted, expectation),
        received_losses=_measured(results.received_losses, expectation),
        states=_marks(results.states, call, client),
        seconds=_seconds(results.seconds),
    )
    if not results.clients:
        return common
    if results.clients != [client] or client not in call.clients:
        raise AnswerError(f"its answer is for the clients {shown(results.clients)}")
    algorithm, size = call.session.algorithm, len(call.vector)
    hides_counts = call.session.client_table is not None  # all count as one row and one step
    rows = _rows(results.num_examples, 1, replace(expectation, num_rows=1) if hides_counts else expectation)
    initial_losses = [_number("loss", results.initial_losses)] if call.config.get(INITIAL_LOSS_KEY) else []
    observed = None if call.watched is None else call.watched.observed
    norms = {client: results.update_norms.get(client)} if observed is not None and observed.update_norms else {}
    return replace(
        common,
        clients=[client],
        num_examples=[rows],
        num_steps=[int(_number("number of steps", results.num_steps, 1, 1 if hides_counts else LARGEST_FLOAT))],
        losses=[_number("loss", results.losses)],
        initial_losses=initial_losses,
        vectors=_only("model", results.vectors, size),
        auxiliary=_checked_auxiliary(results.auxiliary, {} if algorithm is None else algorithm.auxiliary, size),
        sums=_sums(results.sums, call, rows),
        update_norms={number: _number("norm", [norm]) for number, norm in norms.items()},
        num_withheld=int(_number("number of withheld values", [results.num_withheld], 0, size)),
    )


def checked_scores(results: Any, expectation: ExpectedAnswer) -> EvaluateResults:
    """Return one client's scores, restricted to what was requested.

    Raises:
        AnswerError: If they are not possible.
    """
    if not isinstance(results, EvaluateResults):
        raise AnswerError("its answer is not a set of scores")
    client, metric = expectation.client, expectation.call.session.metric
    observed, clean, received = (
        {client: _score(scores[client], expectation)} if client in scores else {}
        for scores in (results.own, results.clean, results.received)
    )
    sums = (
        {}
        if metric is None
        else {part: _statistics(part_sums, metric, expectation) for part, part_sums in results.sums.items()}
    )
    if not {*sums} <= {"own", "clean", "received"} or (metric is not None and observed and "own" not in sums):
        raise AnswerError(f"its scores have the wrong sums, {shown([*sums])}")
    failures = _failures(results.failures, client)
    return EvaluateResults(observed, clean, failures, _seconds(results.seconds), received, sums)


def checked_query(results: Any, expectation: ExpectedAnswer) -> QueryResults:
    """Return one client's result of a query.

    Raises:
        AnswerError: If it is not finite numbers over its rows.
    """
    if not isinstance(results, QueryResults):
        raise AnswerError("its answer is not a query result")
    client = expectation.client
    if not results.clients:
        failures = _failures(results.failures, client) or {client: "it gave no answer"}
        return QueryResults(failures=failures, seconds=_seconds(results.seconds))
    if results.clients != [client] or len(results.arrays) != 1:
        raise AnswerError(f"its answer is for the clients {shown(results.clients)}")
    arrays = {name: np.asarray(array) for name, array in results.arrays[0].items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or not (np.abs(array) <= LARGEST_ANSWER).all():
            raise AnswerError(f"its {shown(name)} are not finite numbers")
    rows = _rows(results.num_examples, 1, expectation)
    return QueryResults([client], [rows], [arrays], {}, _seconds(results.seconds))


def like_most(results: Sequence[Any]) -> list[Any]:
    """Return the results of one call; those with other shapes or sums than the majority become failures."""
    forms = [_form(result) for result in results]
    frequencies = Counter(form for form in forms if form is not None)
    majority = max(frequencies, key=frequencies.__getitem__, default=None)
    reason = "its answer has a different form than those of most clients"
    return [
        result if form in (None, majority) else type(result)(failures=dict.fromkeys(result.clients, reason))
        for result, form in zip(results, forms, strict=True)
    ]


def _form(result: Any) -> Hashable:
    """Return the shapes or sums that results of one call have in common; None for a client without a result."""
    if isinstance(result, TrainResults) and result.clients:
        return tuple(sorted(result.sums))
    if isinstance(result, QueryResults) and result.clients:
        return tuple(sorted((name, array.shape) for name, array in result.arrays[0].items()))
    return None


def _number(
    what: str, values: Sequence[float | None], least: float = -LARGEST_FLOAT, most: float = LARGEST_FLOAT
) -> float:
    """Return the only one of some values, which must be in a range."""
    (value,) = values if len(values) == 1 else (None,)
    if value is None or not least <= value <= most:
        raise AnswerError(f"its {what} must be a number from {least:g} to {most:g}, got {shown(value)}")
    return float(value)


def _rows(values: Sequence[int], least: int, expectation: ExpectedAnswer) -> int:
    return int(_number("number of rows", values, least, expectation.num_rows))


def _only(what: str, vectors: Sequence[npt.NDArray[Any]] | None, size: int) -> list[npt.NDArray[np.float32]]:
    if vectors is None or len(vectors) != 1:
        raise AnswerError(f"it must send exactly one {what}")
    (vector,) = vectors
    if vector.dtype != np.float32 or vector.shape != (size,) or not np.isfinite(vector).all():
        raise AnswerError(f"its {what} must be {size} finite float32 numbers, got {vector.dtype} {vector.shape}")
    return [vector]


def _checked_auxiliary(
    given: Mapping[str, Sequence[npt.NDArray[Any]]], wanted: Mapping[str, str], size: int
) -> dict[str, list[npt.NDArray[np.float32]]]:
    if given.keys() != wanted.keys():
        raise AnswerError(f"it must send {', '.join(wanted) or 'nothing'} with the model, got {shown([*given])}")
    return {name: _only(name, given[name], size) for name in wanted}


def _sums(given: Mapping[str, Sequence[float]], call: HostCall, num_rows: int) -> dict[str, list[float]]:
    """Return the additive sums; those that weight a mean must be present and not exceed the rows."""
    sums = {name: [_number(f"sum {shown(name)}", values)] for name, values in given.items()}
    algorithm = call.session.algorithm
    auxiliary = {} if algorithm is None else algorithm.auxiliary
    for name in {call.session.needs.weighted_by, *auxiliary.values()} - {NUM_CLIENTS_KEY, NUM_EXAMPLES_KEY}:
        _number(name, sums.get(name, []), 0, num_rows)
    if sums.get(FAR_KEY, [0.0])[0] not in (0.0, 1.0):
        raise AnswerError(f"its {FAR_KEY} must be 0 or 1, got {shown(sums[FAR_KEY])}")
    return sums


def _marks(states: Mapping[int, Any], call: HostCall, client: int) -> dict[int, ClientState]:
    if not {*states} <= {client}:
        raise AnswerError("it sent states of other clients")
    if any(state and not is_mark(state, int(call.config[ROUND_KEY])) for state in states.values()):
        raise AnswerError("it sent something other than a marker of its local state")
    return dict(states)


def _failures(failures: Mapping[int, str], client: int) -> dict[int, str]:
    return {client: one_line(failures[client])} if client in failures else {}


def _seconds(seconds: float) -> float:
    return float(seconds) if 0 <= seconds <= LARGEST_FLOAT else 0.0


def _measured(
    losses: Mapping[str, Mapping[int, ClientScore]], expectation: ExpectedAnswer
) -> dict[str, dict[int, ClientScore]]:
    """Return the losses of the received model that were requested."""
    if expectation.call.watched is None:
        return {}
    observed, client = expectation.call.watched.observed, expectation.client
    wanted = {"train": observed.training_losses, "validation": observed.validation_losses}
    losses_by_part: dict[str, dict[int, ClientScore]] = {part: {} for part, is_wanted in wanted.items() if is_wanted}
    for part, scores in losses_by_part.items():
        reported = losses.get(part, {}).get(client)
        if reported is not None:
            rows = _rows([reported.num_examples], 0, expectation)
            sums = reported.statistics if rows else None
            if rows and (sums is None or sums.shape != (4,) or not all(0 <= each < inf for each in sums.tolist())):
                raise AnswerError(f"its losses of the received model must be finite and >= 0, got {shown(sums)}")
            scores[client] = ClientScore(rows, 0, 0.0, statistics=sums)
    return losses_by_part


def _score(score: ClientScore, expectation: ExpectedAnswer) -> ClientScore:
    metric, rows = expectation.call.session.metric, _rows([score.num_examples], 0, expectation)
    if not (fits(score.num_correct, float) and isnan(score.num_correct)):
        _number("number of correct predictions", [score.num_correct], 0, rows)
    if score.loss_sum < 0 or not fits(score.loss_sum, float):
        raise AnswerError(f"its loss must be >= 0, got {shown(score.loss_sum)}")
    if (score.metric is None) != (metric is None):
        raise AnswerError("its scores do not match the requested metric")
    return ClientScore(rows, score.num_correct, score.loss_sum, metric=score.metric)


def _statistics(sums: Sums, metric: Metric, expectation: ExpectedAnswer) -> Sums:
    """Return a metric's sums over one client's rows; no count may exceed its rows."""
    no_outputs = np.empty((0, expectation.num_classes), np.float32)
    expected = metric.statistics(no_outputs, np.empty(0, np.int64))
    has_form = sums.shape == expected.shape and sums.dtype.kind in "iu" and expected.dtype.kind in "iu"
    if not has_form or not 0 <= sums.min(initial=0) <= sums.max(initial=0) <= expectation.num_rows:
        raise AnswerError(f"its sums of {metric.name} are invalid")
    return sums
