"""Keys of messages, and values whose classes are not of this program.

The names under which the engine's messages hold what they hold; hosts read them, who need no Flower.

A value of a user's own class on its way to other processes, which may look for modules elsewhere.

That is a client algorithm, or work on the server. It travels as bytes beside the folder from which its module was
imported. Who reads it puts that folder last on the import path first.

How many values travel between a server and a client, as a federation over a network would send them.

Counted are the float32 values of the model and of every companion. Elements of the model that an algorithm keeps at
home (`ClientAlgorithm.at_home`) are not: messages hold them here, as Flower's strategies want whole models, but as
values that nobody trained.
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
"""What a client's round takes, in train replies where a strategy needs it; of what a strategy gives, what its took."""
COMPANIONS_KEY = "companions"
"""The record of what travels beside the model; see `fedscout.engine.messages.contents`."""
TRAIN_LOSS_KEY = "train_loss"
ROUND_KEY = "server-round"
SEED_KEY = "seed"
REPLY_KEY = "reply"
INITIAL_LOSS_KEY = "initial-loss"
FUNCTION_KEY = "function"

RATE_KEY = "learning-rate"
RATE_ALIAS = "lr"
"""What Flower's own examples call it; see `fedscout.engine.messages.contents`."""

ReplyMode = Literal["merged", "individual"]


@dataclass(frozen=True)
class OwnValue:
    """A value whose module is not of this program.

    Attributes:
        folder: Which its module was imported from; empty if nobody knows.
        pickled: The value.
    """

    folder: str
    pickled: bytes

    @classmethod
    def of(cls, value: object) -> Self:
        """Return a value as it travels."""
        module = type(value).__module__
        file = getattr(sys.modules.get(module), "__file__", None)
        folder = "" if file is None else str(Path(file).resolve().parents[module.count(".")])
        return cls(folder, pickle.dumps(value))

    def opened(self) -> Any:
        """Return the value."""
        if self.folder and self.folder not in sys.path:
            sys.path.append(self.folder)
        return pickle.loads(self.pickled)  # noqa: S301  # as all that travels between these processes


def is_own(value: object) -> bool:
    """Whether a value is of a user's class."""
    return type(value).__module__.partition(".")[0] != "fedscout"


BYTES_A_VALUE = 4


def num_shared(layout: ParameterLayout, algorithm: ClientAlgorithm | None) -> int:
    """Return how many values of a model travel."""
    at_home = None if algorithm is None else algorithm.at_home(layout)
    return layout.size - (0 if at_home is None else int(np.count_nonzero(at_home)))


def client_bytes_down(layout: ParameterLayout, algorithm: ClientAlgorithm | None, beside: Iterable[FloatArray]) -> int:
    """Return the bytes that one client is sent, with these companions beside the model."""
    return BYTES_A_VALUE * (num_shared(layout, algorithm) + sum(vector.size for vector in beside))


def client_bytes_up(layout: ParameterLayout, algorithm: ClientAlgorithm | None) -> int:
    """Return the bytes that one client answers: the model and the companions that its algorithm declares."""
    num_companions = 0 if algorithm is None else len(algorithm.companions)
    return BYTES_A_VALUE * (num_shared(layout, algorithm) + num_companions * layout.size)
