"""The client half of Flower's strategies: what a message asks of a client beside plain local training.

| key of the configuration | written by | what the client does |
| --- | --- | --- |
| `learning-rate`, `local-epochs`, … (`LocalTraining`) | the trial | local training |
| `lr` | Flower's examples | another name of `learning-rate` |
| `proximal-mu` | `FedProx` | see `fedscout.strategies.methods.proximal_term` |
| `clipping_norm` | `DifferentialPrivacyClientSide…Clipping` | clips its update by Flower's own mod |

Whatever else a strategy sends, no client reads; `unread` names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.errors import TrialError
from fedscout.engine.messages.message_keys import INITIAL_LOSS_KEY, RATE_ALIAS, RATE_KEY, REPLY_KEY, ROUND_KEY, SEED_KEY

READ_BY_EVERY_CLIENT = frozenset(
    (
        *(SEED_KEY, ROUND_KEY, REPLY_KEY, INITIAL_LOSS_KEY, RATE_ALIAS, KEY_CLIPPING_NORM),
        *(name.replace("_", "-") for name in LocalTraining.model_fields),
    )
)


def unread(content: RecordDict, algorithm: ClientAlgorithm | None) -> Iterator[str]:
    """Yield the names of what a train or evaluate message holds and no client reads."""
    known = READ_BY_EVERY_CLIENT.union(() if algorithm is None else algorithm.reads)
    for name, record in content.items():
        if isinstance(record, ConfigRecord):
            yield from (key for key in record if key not in known)
        elif not isinstance(record, ArrayRecord):
            yield name


def one_learning_rate(config: Mapping[str, Any], trials_rate: float) -> Any:
    """Return the step size of a configuration that may have it under two names: the one that the strategy changed.

    Whether it is one is checked with all else that the configuration holds (`LocalTraining.from_config`).

    Args:
        config: Of a train message, over the trial's own.
        trials_rate: What both say that nobody changed.

    Raises:
        TrialError: If both were changed, to different values.
    """
    changed = [config[name] for name in (RATE_KEY, RATE_ALIAS) if config.get(name, trials_rate) != trials_rate]
    if len(changed) > 1 and changed[0] != changed[1]:
        raise TrialError(
            f"the strategy must change {RATE_KEY} or {RATE_ALIAS}, two names of one step size, "
            f"got {config[RATE_KEY]} and {config[RATE_ALIAS]}"
        )
    return changed[0] if changed else trials_rate


def asks_for_clipping(config: Mapping[str, Any]) -> bool:
    """Whether clients are to clip their updates."""
    return KEY_CLIPPING_NORM in config


def clipped(message: Message, reply: Message) -> Message:
    """Return a client's train reply as Flower's mod for client-side clipping sends it.

    It is the adaptive one: its clipping is the fixed one's, and the `norm_bit` that it adds to the metrics is read by
    the adaptive strategy alone.
    """
    from flwr.clientapp.mod import adaptiveclipping_mod

    no_context = Context(0, 0, {}, RecordDict(), {})
    try:
        return adaptiveclipping_mod(message, no_context, lambda *_: reply)
    except ArithmeticError as error:  # an update of length 0, which Flower's clients fail on as well
        reason = f"{type(error).__name__} in clipping: {error}"
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)
