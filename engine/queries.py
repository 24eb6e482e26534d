"""Client queries: the fixed table of aggregates a client is willing to compute over its own data.

A query is a pure function of the client's local data and of what the message carries. The host looks it up by name;
nothing else ever runs on a client's data in answer to a query message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.federation import Samples

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class QueryInputs:
    """What a query may read.

    Attributes:
        data: The client's local rows as it has them; read it with `chunks()` to bound memory.
        num_classes: Classes of the federation.
        arrays: The arrays of the message.
        config: The scalars of the message.
    """

    data: Samples
    num_classes: int
    arrays: Mapping[str, npt.NDArray[np.generic]]
    config: Mapping[str, Any]


ClientQuery = Callable[[QueryInputs], Arrays]
QueryTable = Mapping[str, ClientQuery]
