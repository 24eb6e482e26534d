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

PINNED_BYTES = 2**24
"""Most of one array that is sent by way of pinned memory, which stays with the process."""


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
        share: Of the device, for this process.
    """

    def __init__(self, device: torch.device, room_bytes: int | None = None, share: float = 1.0) -> None:
        self._device = device
        if room_bytes is None and device.type == "cuda":
            room_bytes = int(KEPT_SHARE * share * torch.cuda.mem_get_info(device)[0])
        self._room_bytes = room_bytes
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def reach(self, data: Samples, rows: IntArray) -> Reached:
        """Return rows of a client's source, of any shape of `rows`, each a number of that source."""
        answers = self._sent(data.answers(rows))
        resident = self._resident(data.features)
        if resident is not None:
            return Reached(resident, self._sent(rows), answers)
        needed, places = np.unique(rows, return_inverse=True)
        return Reached(self._sent(data.features[needed]), self._sent(places.reshape(rows.shape)), answers)

    def _resident(self, source: npt.NDArray[Any]) -> Tensor | None:
        """Return the copy of a source, or None where it has no room, or less than was foreseen."""
        room = float("inf") if self._room_bytes is None else self._room_bytes
        if source.nbytes > room:
            return None
        kept = self._kept.pop(id(source), None)
        if kept is None:
            try:
                kept = _Kept(source, self._sent(source))
            except torch.OutOfMemoryError:
                self._room_bytes = source.nbytes - 1
                return None
        self._kept[id(source)] = kept
        while sum(each.source.nbytes for each in self._kept.values()) > room:
            self._kept.popitem(last=False)
        return kept.tensor

    def _sent(self, array: npt.NDArray[Any]) -> Tensor:
        return sent(torch.from_numpy(array), self._device)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; a small one goes to a GPU by way of pinned memory, and nobody waits for it."""
    if device.type != "cuda" or tensor.is_cuda or tensor.nbytes > PINNED_BYTES:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
