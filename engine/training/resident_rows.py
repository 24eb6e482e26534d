"""Rows on the device: a source array is copied there once and stays, so that a round sends places and no rows.

Where a source is larger than its share of the device's memory, the rows that a block of clients reads are sent with it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client_data import Samples

KEPT_SHARE = 0.5
"""Of the memory that is free when a host starts; what models and their outputs need is in the rest."""


class Reached(NamedTuple):
    """Rows on the device.

    Attributes:
        features: Shape `(some rows, *feature_shape)`.
        places: Where among them the rows are that were asked for, in the shape in which they were.
        answers: Their labels, or standardised targets as float32, likewise.
    """

    features: Tensor
    places: Tensor
    answers: Tensor


@dataclass(frozen=True)
class _Kept:
    source: npt.NDArray[Any]
    """Held, as its identity names the copy."""
    tensor: Tensor


class ResidentRows:
    """Copies of source arrays on one device, the latest used, as many as fit.

    Args:
        device: Where; on `cpu` nothing is copied.
        room_bytes: Of all copies together; None takes a share of what is free on a GPU now.
    """

    def __init__(self, device: torch.device, room_bytes: int | None = None) -> None:
        self._device = device
        if room_bytes is None and device.type == "cuda":
            room_bytes = int(KEPT_SHARE * torch.cuda.mem_get_info(device)[0])
        self._room_bytes = room_bytes
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def reach(self, data: Samples, rows: IntArray) -> Reached:
        """Return rows of a client's source, of any shape of `rows`, each a number of that source."""
        answers = self._sent(data.answers(rows))
        if self._fits(data.features):
            return Reached(self._resident(data.features), self._sent(rows), answers)
        needed, places = np.unique(rows, return_inverse=True)
        return Reached(self._sent(data.features[needed]), self._sent(places.reshape(rows.shape)), answers)

    def _fits(self, source: npt.NDArray[Any]) -> bool:
        return self._room_bytes is None or source.nbytes <= self._room_bytes

    def _resident(self, source: npt.NDArray[Any]) -> Tensor:
        kept = self._kept.pop(id(source), None) or _Kept(source, self._sent(source))
        self._kept[id(source)] = kept
        room = float("inf") if self._room_bytes is None else self._room_bytes
        while sum(each.source.nbytes for each in self._kept.values()) > room:
            self._kept.popitem(last=False)
        return kept.tensor

    def _sent(self, array: npt.NDArray[Any]) -> Tensor:
        """Return an array on the device, by way of pinned memory where that is a GPU."""
        here = torch.from_numpy(array)
        if self._device.type == "cpu":
            return here
        return here.pin_memory().to(self._device, non_blocking=True)
