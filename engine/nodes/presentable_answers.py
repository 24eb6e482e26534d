"""What a client's answer to a driver leaves out: a simulation tells itself more than machines tell each other.

- Why something failed is told by its kind alone: the text of an error in a model or an algorithm may hold rows. It goes
  to the client's own log.
- Under a table of client settings (`fedscout.engine.contracts.settings_lookup`) nothing may tell the cell: scores are
  shares, as if of one row, and how long it took is not said.
- What a strategy has clients clip (`fedscout.engine.messages.client_half`) is clipped before it leaves.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM, KEY_NORM_BIT, compute_adaptive_clip_model_update

from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.data.availability import AbsentError
from fedscout.engine.messages.client_half import asks_for_clipping
from fedscout.engine.messages.host_calls import EvaluateResults, HostCall, QueryResults, TrainResults
from fedscout.engine.model.parameter_layout import ParameterLayout

logger = logging.getLogger("fedscout")

Results = TypeVar("Results", TrainResults, EvaluateResults, QueryResults, TrainResults | EvaluateResults)

_ERROR = re.compile(r"(?P<kind>\w+) in (?P<work>local training|evaluation|clipping|query '[^']*'): .*", re.DOTALL)


def presentable(results: Results, call: HostCall) -> Results:
    """Return results as they may leave the client."""
    alike = call.session.client_table is not None
    results.failures = _told(results.failures)
    if isinstance(results, TrainResults) and results.evaluation is not None:
        results.evaluation = presentable(results.evaluation, call)
    if alike:
        results.seconds = 0.0
    if alike and isinstance(results, EvaluateResults):
        results.own, results.clean = _as_one_row(results.own), _as_one_row(results.clean)
        results.received, results.sums = _as_one_row(results.received), {}
    return results


def clip(call: HostCall, layout: ParameterLayout, results: TrainResults, named: bool | None = None) -> None:
    """Clip what a client trained, if it is asked to, as Flower's mod does; whether it was short is told as a sum.

    Args:
        call: What it was asked.
        layout: Of the model.
        results: Its answer, which is changed.
        named: Whether arrays go by the model's names, on which a length's last bits depend; None asks the session.
    """
    if not asks_for_clipping(call.config) or not results.clients:
        return
    assert results.vectors is not None
    assert call.vector is not None
    named = call.session.needs.arrays == "named" if named is None else named
    trained, received = [results.vectors[0].copy()], [call.vector]
    if named:  # the mod measures whatever the record holds, counts of batches included
        counted = layout.integers_after(call.arrays, results.num_steps[0])
        trained = [*layout.split(trained[0], counted).values()]
        received = [*layout.split(call.vector, call.arrays).values()]
    try:
        is_short = compute_adaptive_clip_model_update(trained, received, call.config[KEY_CLIPPING_NORM])
    except ArithmeticError as error:  # an update of length 0, which Flower's clients fail on as well
        (client,) = results.clients
        results.__dict__.update(vars(TrainResults(states=results.states, evaluation=results.evaluation)))
        results.failures[client] = f"{type(error).__name__} in clipping: {error}"
        return
    parts = dict(zip(layout.split(results.vectors[0]), trained, strict=True)) if named else {}
    results.vectors = [layout.join({name: np.asarray(part) for name, part in parts.items()}) if named else trained[0]]
    results.sums[KEY_NORM_BIT] = [float(is_short)]


def _told(failures: Mapping[int, str]) -> dict[int, str]:
    """Return failures without what may tell of rows; who is absent by design says so in words that don't."""
    told = {}
    for client, reason in failures.items():
        found = _ERROR.fullmatch(reason)
        if found is None or found["kind"] == AbsentError.__name__:
            told[client] = reason
        else:
            logger.error("%s", reason)
            told[client] = f"{found['kind']} in {found['work']}; its own log says more"
    return told


def _as_one_row(scores: Mapping[int, ClientScore]) -> dict[int, ClientScore]:
    return {
        client: ClientScore(1, score.num_correct / score.num_examples, score.loss_sum / score.num_examples)
        if score.num_examples
        else score
        for client, score in scores.items()
    }
