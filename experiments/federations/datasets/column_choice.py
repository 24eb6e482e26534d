"""Checks of what a user asks of a data set whose files fix the label, the natural clients and the parts."""

from __future__ import annotations

from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import did_you_mean
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest

SPLITS = ("train", "test", "all")


def choose_label(request: DatasetRequest, labels: tuple[str, ...], client: str | None) -> str:
    """Return the label to predict.

    Args:
        request: The user's choices. A client column may be left out: the natural clients are known anyway.
        labels: The labels that the files have, the usual one first.
        client: What its natural clients are, or None.

    Raises:
        DataError: If another label, or another client column, was given.
    """
    faults = []
    if request.label not in {None, *labels}:
        allowed = ", ".join(map(repr, labels))
        must = f"one of {allowed}" if len(labels) > 1 else allowed
        meant = did_you_mean(request.label, labels)
        faults.append(
            Fault(f"federation.label of data set {request.name!r}", f"be {must}", f"{request.label!r}{meant}")
        )
    if request.client_column not in {None, client}:
        must = (
            f"{client!r} or left out"
            if client
            else "left out, as its files have no column of natural clients and no other is known"
        )
        faults.append(
            Fault(f"federation.client_column of data set {request.name!r}", f"be {must}", repr(request.client_column))
        )
    if faults:
        raise DataError(faults)
    return request.label or labels[0]


def choose_parts(request: DatasetRequest) -> tuple[str, ...]:
    """Return which of the official parts to read: `("train",)`, `("test",)` or both.

    Raises:
        DataError: If `federation.split` names none of them.
    """
    split = request.part or "train"
    if split not in SPLITS:
        raise DataError(
            Fault(f"federation.split of data set {request.name!r}", f"be one of {', '.join(SPLITS)}", repr(split))
        )
    return ("train", "test") if split == "all" else (split,)
