"""What one client adds to a sum: its answer as one vector of whole numbers, before it is masked.

| part | sections | unit |
| --- | --- | --- |
| `train` | the model and companions, each by its weight | those of the exact mean (`engine/messages/exact_mean.py`) |
| | rows, steps | 1 |
| | what the algorithm reports: `weight.NAME` of what weighs a mean, at most a client's rows; `sum.NAME` | 2^-c; 2^-b |
| | losses by rows | 2^-b |
| `score` | of each view of the rows: rows, correct ones and clients without a loss; losses; a metric | 1; 2^-b; 1 |
| `query` | arrays of whole numbers; of others | 1; 2^-b |
| `rows` | rows | 1 |

With w the rows of all clients, b = 46 - (bits of w) leaves room for means up to 2^16, and c = 62 - (bits of w) for
weights. What is beyond is not added, and the client says so. A part that a client has nothing for is zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.client.gathered_updates import weight_of
from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, ClientState
from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.messages.exact_mean import GROWTH_BITS, ExactScale, fraction_bits
from fedscout.engine.messages.host_calls import EvaluateResults, HostCall, QueryResults, TrainResults
from fedscout.engine.messages.message_keys import INITIAL_LOSS_KEY, NUM_CLIENTS_KEY, NUM_EXAMPLES_KEY
from fedscout.engine.messages.session import Session
from fedscout.engine.metrics.metric import Sums
from fedscout.engine.nodes.node_call import Greeting, Introduction
from fedscout.engine.nodes.owner_policy import RefusedError
from fedscout.engine.nodes.sum_calls import VIEWS, Adding, Section

LARGEST = 2.0**GROWTH_BITS


class UnfitError(ValueError):
    """Something has no place in a sum."""


@dataclass
class Summands:
    """What a client adds.

    Attributes:
        sections: What lies where.
        failures: Why parts of it are zeros, by group.
        states: Marks of what the client keeps.
    """

    sections: list[Section] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    states: Mapping[int, ClientState] = field(default_factory=dict)
    _values: list[IntArray] = field(default_factory=list)

    def put(self, name: str, values: npt.ArrayLike, bits: int = 0) -> None:
        """Add a section.

        Args:
            name: Its own.
            values: In units of 2^-bits if they are whole numbers already, else as they are.
            bits: Of the fraction.
        """
        array = np.asarray(values)
        if array.dtype.kind == "f":
            array = np.rint(np.ldexp(array, bits))
        self.sections.append(Section(name, tuple(array.shape), bits))
        self._values.append(array.astype(np.int64).ravel())

    def vector(self) -> IntArray:
        """Return all of it, shape `(values,)`."""
        return np.concatenate(self._values)


def summands_of(client: int, asked: Adding, results: Any) -> Summands:
    """Return what a client adds.

    Args:
        client: Its number.
        asked: What for.
        results: Of its work, as an answer of its own would hold them.

    Raises:
        RefusedError: If it has no answer.
    """
    summands, bits = Summands(), fraction_bits(asked.max_weight)
    if isinstance(asked.asked, Greeting):
        assert isinstance(results, Introduction)
        summands.put("rows", np.int64(results.num_rows))
        if not results.num_rows:
            summands.failures["rows"] = "holds fewer rows than it tells of"
        return summands
    call = asked.asked.call
    if isinstance(results, QueryResults):
        _put_answer(summands, client, results, bits)
        return summands
    if isinstance(results, TrainResults):
        summands.states = results.states
        _put_training(summands, call, results, asked.max_weight, asked=client in asked.groups.get("train", ()))
    if "score" in asked.groups:
        scores = results.evaluation if isinstance(results, TrainResults) else results
        _put_scores(summands, client, call.session, scores or EvaluateResults(), asked.num_classes, bits)
        if client in asked.groups["score"] and (scores is None or client not in scores.own):
            told = None if scores is None else scores.failures.get(client)
            summands.failures["score"] = told or "has no scores"
    return summands


def _put_training(summands: Summands, call: HostCall, results: TrainResults, max_weight: int, asked: bool) -> None:
    """Add what one client trained, or zeros."""
    assert call.vector is not None
    algorithm, bits = call.session.algorithm or ClientAlgorithm(), fraction_bits(max_weight)
    model = ExactScale.of(call.vector, max_weight)
    scales = {name: ExactScale.of_companion(call.companions.get(name), max_weight) for name in algorithm.companions}
    if asked:
        try:
            _check(results, algorithm, call.session, model, scales)
        except UnfitError as error:
            summands.failures["train"] = next(iter(results.failures.values()), str(error))
            asked = False
    rows = results.num_examples[0] if asked else 0
    sums = {name: values[0] for name, values in results.sums.items()} if asked else {}

    def total(scale: ExactScale, vectors: Any, weighted_by: str) -> IntArray:
        if not asked:
            return np.zeros(len(call.vector), np.int64)  # type: ignore[arg-type]
        return scale.total(np.asarray(vectors), [weight_of(weighted_by, rows, sums)])

    summands.put("model", total(model, results.vectors, call.session.needs.weighted_by))
    for name, weighted_by in algorithm.companions.items():
        summands.put(f"companion.{name}", total(scales[name], results.companions.get(name), weighted_by))
    summands.put("rows", np.int64(rows))
    summands.put("steps", np.int64(results.num_steps[0] if asked else 0))
    weighing = weighing_sums(call.session)
    for name in algorithm.reports:
        value = float(sums.get(name, 0.0))
        kind, more = ("weight", GROWTH_BITS) if name in weighing else ("sum", 0)
        summands.put(f"{kind}.{name}", np.float64(value), bits + more)
    counted = 1 if call.session.needs.weighted_by == NUM_CLIENTS_KEY else rows
    summands.put("loss", np.float64(results.losses[0] * counted if asked else 0.0), bits)
    if call.config[INITIAL_LOSS_KEY]:
        summands.put("initial-loss", np.float64(results.initial_losses[0] * counted if asked else 0.0), bits)


def weighing_sums(session: Session) -> set[str]:
    """Return the names of the reported sums that weigh means."""
    companions = {} if session.algorithm is None else session.algorithm.companions
    return {session.needs.weighted_by, *companions.values()} - {NUM_CLIENTS_KEY, NUM_EXAMPLES_KEY}


def _check(
    results: TrainResults,
    algorithm: ClientAlgorithm,
    session: Session,
    model: ExactScale,
    scales: Mapping[str, ExactScale],
) -> None:
    """Return if what a client trained can be added.

    Raises:
        UnfitError: If not.
    """
    if not results.clients or results.vectors is None:
        raise UnfitError("did not train")
    if results.sums.keys() - {*algorithm.reports}:
        raise UnfitError(f"its algorithm must declare in `reports` what it reports, got {', '.join(results.sums)}")
    held = [
        model.holds(np.asarray(results.vectors)),
        *(scales[name].holds(np.asarray(results.companions[name])) for name in scales),
    ]
    losses, (rows,) = [*results.losses, *results.initial_losses], results.num_examples
    most = {name: rows if name in weighing_sums(session) else rows * LARGEST for name in results.sums}
    small = all(0 <= values[0] <= most[name] for name, values in results.sums.items())
    if not small or not all(map(np.all, held)) or not all(abs(loss) < LARGEST for loss in losses):
        raise UnfitError("what it trained is not finite, or too large to be summed")


def _put_scores(
    summands: Summands, client: int, session: Session, scores: EvaluateResults, num_classes: int, bits: int
) -> None:
    """Add one client's scores, or zeros."""
    nothing = ClientScore(0, 0, 0.0)
    own = scores.own.get(client, nothing)
    found = {"own": own, "clean": scores.clean.get(client, own), "received": scores.received.get(client, nothing)}
    for view in VIEWS:
        score = found[view]
        fits = isfinite(score.loss_sum) and abs(score.loss_sum) <= LARGEST * score.num_examples
        missing = score.is_missing
        right = 0 if missing else int(score.num_correct)
        summands.put(f"{view}.rows", np.array([score.num_examples, right, not fits, missing], np.int64))
        summands.put(f"{view}.loss", np.float64(score.loss_sum if fits else 0.0), bits)
        if session.metric is not None:
            none = session.metric.statistics(np.empty((0, num_classes), np.float32), np.empty(0, np.int64))
            summands.put(f"{view}.metric", _whole(scores.sums.get(view, none)))


def _whole(sums: Sums) -> Sums:
    if sums.dtype.kind not in "iu":
        raise RefusedError(f"a metric must count in whole numbers to be summed under masks, got {sums.dtype}")
    return sums


def _put_answer(summands: Summands, client: int, results: QueryResults, bits: int) -> None:
    """Add an answer to a query.

    Raises:
        RefusedError: If the client gives none, or one that can't be added.
    """
    if not results.clients:
        raise RefusedError(results.failures.get(client, "gives no answer"))
    (arrays,), (rows,) = results.arrays, results.num_examples
    for name in sorted(arrays):
        values = np.asarray(arrays[name])
        if not np.isfinite(values).all() or np.abs(values).max(initial=0) > LARGEST * rows:
            raise RefusedError(f"its {name} are too large to be summed")
        summands.put(name, values, 0 if values.dtype.kind in "biu" else bits)
