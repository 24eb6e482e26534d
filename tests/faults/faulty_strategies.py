"""A strategy with a fault that is chosen by name, and shows in its second round."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

LONG = 600.0
PRINTED = "printed by the strategy "


def _raise() -> None:
    raise RuntimeError("my own fault")


def _stubborn() -> None:
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        with suppress(Exception):  # what a careless strategy does
            time.sleep(LONG)


def _print() -> None:
    for _ in range(400):
        print(PRINTED * 200)
        print(PRINTED * 200, file=sys.stderr)


CONFIGURING: Mapping[str, Callable[[], Any]] = {
    "exits": lambda: sys.exit(3),
    "leaves the process": lambda: os._exit(7),
    "hangs": lambda: time.sleep(LONG),
    "hangs and survives errors": _stubborn,
    "prints megabytes": _print,
}


def _each(change: Callable[[Any], Any]) -> Callable[[ArrayRecord], Any]:
    """Return what changes every array of a model."""
    return lambda arrays: (ArrayRecord({name: Array(change(one.numpy())) for name, one in arrays.items()}), None)


AGGREGATING: Mapping[str, Callable[[ArrayRecord], Any]] = {
    "raises in aggregate_train": lambda _: _raise(),
    "gives None": lambda _: None,
    "gives an empty record": lambda _: (ArrayRecord(), None),
    "gives NaN": _each(lambda values: np.full_like(values, np.nan)),
    "gives what overflows float32": _each(lambda values: np.full(values.shape, 1e300)),
    "gives wrong shapes": _each(lambda values: values[:-1]),
    "gives text": _each(lambda values: np.full(values.shape, "a")),
}


class Faulty(FedAvg):
    """FedAvg, but for its fault.

    Args:
        fault: Key of `CONFIGURING` or `AGGREGATING`, `raises in aggregate_evaluate`, or `none`.
        counts: Of Flower.
    """

    def __init__(self, fault: str = "none", **counts: Any) -> None:
        super().__init__(**counts)
        self.fault = fault

    def configure_train(self, server_round: int, *args: Any) -> Any:
        if server_round == 2 and self.fault in CONFIGURING:
            CONFIGURING[self.fault]()
        if server_round == 2 and self.fault == "configures None":
            return None
        return super().configure_train(server_round, *args)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if server_round == 2 and self.fault in AGGREGATING:
            assert arrays is not None
            return AGGREGATING[self.fault](arrays)
        return arrays, metrics

    def aggregate_evaluate(self, server_round: int, replies: Any) -> Any:
        if server_round == 2 and self.fault == "raises in aggregate_evaluate":
            _raise()
        return super().aggregate_evaluate(server_round, replies)
