"""Message keys, pickling of values of users' classes, and the number of values that messages transfer.

Hosts read the keys, too, so this module does not need Flower.

`OwnValue` transfers a value of a user's class, a client algorithm or server-side work, to other processes, whose import
path may differ. It consists of the pickled bytes and the folder from which the module was imported; the receiver first
appends that folder to its import path.

The counted values are those that a federation over a network would transfer: the float32 values of the model and of
every auxiliary vector. Model elements that an algorithm keeps on the client (`ClientAlgorithm.private_mask`) are not
counted. Messages contain them here, since Flower's strategies require whole models, but with the received values.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.models.layout import ParameterLayout

ARRAYS_KEY = "arrays"
METRICS_KEY = "metrics"
CONFIG_KEY = "config"
FLAT_KEY = "flat"
GROUP_KEY = "group"
"""Which of several models is a client's; see `fedscout.engine.messages.contents`."""
NUM_EXAMPLES_KEY = "num-examples"
NUM_CLIENTS_KEY = "num-clients"
NUM_STEPS_KEY = "num-steps"
SIMULATED_SECONDS_KEY = "simulated-seconds"
"""Simulated duration of a client's round, in train replies where a strategy needs it."""
AUXILIARY_KEY = "auxiliary"
"""The record of what travels beside the model; see `fedscout.engine.messages.contents`."""
TRAIN_LOSS_KEY = "train_loss"
ROUND_KEY = "server-round"
SEED_KEY = "seed"
REPLY_KEY = "reply"
INITIAL_LOSS_KEY = "initial-loss"
FUNCTION_KEY = "function"
CLIPPING_KEY, NORM_BIT_KEY = "clipping_norm", "norm_bit"
"""Of Flower's strategies whose clients clip their updates: the norm, and whether an update was not above it."""

RATE_KEY = "learning-rate"
RATE_ALIAS = "lr"
"""What Flower's own examples call it; see `fedscout.engine.messages.contents`."""

ReplyMode = Literal["merged", "individual"]


@dataclass(frozen=True)
class OwnValue:
    """A picklable wrapper of a value whose class is defined in a user's module.

    Attributes:
        folder: Folder from which the module was imported; empty if unknown.
        pickled: The pickled value.
    """

    folder: str
    pickled: bytes

    @classmethod
    def of(cls, value: object) -> Self:
        """Wrap a value."""
        module = type(value).__module__
        file = getattr(sys.modules.get(module), "__file__", None)
        folder = "" if file is None else str(Path(file).resolve().parents[module.count(".")])
        return cls(folder, pickle.dumps(value))

    def opened(self) -> Any:
        """Return the unpickled value."""
        if self.folder and self.folder not in sys.path:
            sys.path.append(self.folder)
        return pickle.loads(self.pickled)  # noqa: S301  # as all that travels between these processes


def is_own(value: object) -> bool:
    """Return whether a value's class is defined outside of fedscout."""
    return type(value).__module__.partition(".")[0] != "fedscout"


BYTES_A_VALUE = 4


def num_shared(layout: ParameterLayout, algorithm: ClientAlgorithm | None) -> int:
    """Return the number of model values that are transferred."""
    private_mask = None if algorithm is None else algorithm.private_mask(layout)
    return layout.size - (0 if private_mask is None else int(np.count_nonzero(private_mask)))


def client_bytes_down(layout: ParameterLayout, algorithm: ClientAlgorithm | None, vectors: Iterable[FloatArray]) -> int:
    """Return the bytes sent to one client: the model and the auxiliary vectors."""
    return BYTES_A_VALUE * (num_shared(layout, algorithm) + sum(vector.size for vector in vectors))


def client_bytes_up(layout: ParameterLayout, algorithm: ClientAlgorithm | None) -> int:
    """Return the bytes that one client sends: the model and the auxiliary vectors that its algorithm declares."""
    num_auxiliary = 0 if algorithm is None else len(algorithm.auxiliary)
    return BYTES_A_VALUE * (num_shared(layout, algorithm) + num_auxiliary * layout.size)
