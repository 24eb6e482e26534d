"""How a client divides its local rows into training, validation and test parts.

80/20 by default, stratified by the client's own labels where the class counts allow, and drawn from the trial's seed:
candidates of one search share the split, confirmation seeds draw a new one. Validation rows are cut from the training
part, never from test.

Rows that belong together, such as those of a subject, go whole groups at a time: whoever saw a subject in training has
seen the answer. Groups are visited in a random order in which every stretch holds its share of each class, a group's
class being its most frequent one, and drawn as long as each brings the number of rows nearer to the wanted one. So it
is missed by at most half of the largest drawn or smallest undrawn group, but where no group is small enough: then the
smallest is drawn, so that there is something to test on. A client of one group only trains.

A series may be cut in the order of its rows instead of drawn: its last rows are the test part, those before them the
validation part. Nothing is stratified then. Groups are cut whole, in the order of their first rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.seeds import stream

SplitKind = Literal["random", "last"]


@dataclass(frozen=True)
class ClientSplit:
    """Positions in `[0, num_rows)`; disjoint, and together all of them."""

    train: IntArray
    validation: IntArray
    test: IntArray


def _draw(labels: IntArray, positions: IntArray, fraction: float, generator: np.random.Generator) -> IntArray:
    """Draw a stratified share of `positions`: at least one, and at least one is left.

    Systematic sampling: rows are shuffled, ordered by class, and every (1/fraction)-th is taken from a random start,
    which gives each class its share rounded down or up.
    """
    num_rows = len(positions)
    if fraction <= 0 or num_rows < 2:
        return np.empty(0, np.int64)
    num_drawn = int(np.clip(round(fraction * num_rows), 1, num_rows - 1))
    shuffled = generator.permutation(positions)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    ticks = (np.arange(num_drawn) + generator.random()) * (num_rows / num_drawn)
    return np.sort(by_class[np.minimum(ticks.astype(np.int64), num_rows - 1)])


def _draw_groups(
    labels: IntArray, groups: IntArray, positions: IntArray, fraction: float, generator: np.random.Generator
) -> IntArray:
    """Draw whole groups of about a share of `positions`: at least one, and at least one is left."""
    _, members = np.unique(groups[positions], return_inverse=True)
    sizes = np.bincount(members)
    if fraction <= 0 or len(sizes) < 2:
        return np.empty(0, np.int64)
    wanted, total = fraction * len(positions), 0
    drawn: list[int] = []
    for group in spread_over_classes(_majorities(labels[positions], members), generator):
        nearer = abs(total + sizes[group] - wanted) < abs(total - wanted)
        if nearer and len(drawn) < len(sizes) - 1:
            drawn.append(group)
            total += sizes[group]
    return np.asarray(positions[np.isin(members, drawn or [np.argmin(sizes)])])


def _majorities(labels: IntArray, members: IntArray) -> IntArray:
    """Return the most frequent label of each group, the lowest of several, shape `(num_groups,)`."""
    pairs, counts = np.unique(np.column_stack([members, labels]), axis=0, return_counts=True)
    most = np.lexsort((pairs[:, 1], -counts, pairs[:, 0]))
    return np.asarray(pairs[most[np.unique(pairs[most, 0], return_index=True)[1]], 1])


def spread_over_classes(classes: IntArray, generator: np.random.Generator) -> list[int]:
    """Return a random order in which the first part, however long, has its share of each class, rounded.

    Args:
        classes: Of each item, shape `(items,)`.
        generator: Draws it.
    """
    shuffled = generator.permutation(len(classes))
    keys = np.empty(len(classes))
    for label in np.unique(classes):
        own = shuffled[classes[shuffled] == label]
        keys[own] = (np.arange(len(own)) + generator.random()) / len(own)
    order: list[int] = np.argsort(keys, kind="stable").tolist()
    return order


def _cut_last(order: IntArray, groups: IntArray | None, positions: IntArray, fraction: float) -> IntArray:
    """Return about the last share of `positions` in an order, in whole groups if there are any; at least one is left.

    Args:
        order: Of all rows: the larger, the later.
        groups: Of all rows, or None.
        positions: Where to cut.
        fraction: Share that is cut off.
    """
    units = positions if groups is None else groups[positions]
    _, members = np.unique(units, return_inverse=True)
    sizes = np.bincount(members)
    if fraction <= 0 or len(sizes) < 2:
        return np.empty(0, np.int64)
    begins = np.full(len(sizes), np.iinfo(np.int64).max)
    np.minimum.at(begins, members, order[positions])
    latest = np.argsort(begins, kind="stable")[::-1]
    wanted = round(fraction * len(positions))
    num_cut = 1 + int(np.argmin(np.abs(np.cumsum(sizes[latest])[:-1] - wanted)))
    return np.asarray(positions[np.isin(members, latest[:num_cut])])


def split_client(
    labels: IntArray,
    seed: int,
    client: int,
    test_fraction: float,
    validation_fraction: float = 0.0,
    groups: IntArray | None = None,
    order: IntArray | None = None,
) -> ClientSplit:
    """Split one client's rows.

    Args:
        labels: The client's own labels, shape `(num_rows,)`. With fewer than two rows the client only trains.
        seed: The trial's seed.
        client: The client's index.
        test_fraction: Share of test rows, in `[0, 1)`.
        validation_fraction: Share of the remaining rows kept for validation, in `[0, 1)`.
        groups: The group of each row, shape `(num_rows,)`; None where rows are independent.
        order: Where in a series each row stands, shape `(num_rows,)`, if it is cut and not drawn.
    """
    take = _taker(labels, groups, order, stream(seed, "split", client))
    every = np.arange(len(labels))
    test = take(every, test_fraction)
    rest = np.setdiff1d(every, test, assume_unique=True)
    validation = take(rest, validation_fraction)
    return ClientSplit(np.setdiff1d(rest, validation, assume_unique=True), validation, test)


def num_training_rows(num_rows: IntArray, test_fraction: float, validation_fraction: float) -> IntArray:
    """Return the training rows of clients that hold so many, shape `(clients,)`; of rows in groups, about so many.

    Args:
        num_rows: Shape `(clients,)`.
        test_fraction: As for `split_client`.
        validation_fraction: As for `split_client`.
    """
    return num_part_rows(num_rows, test_fraction, validation_fraction)["train"]


def num_part_rows(num_rows: IntArray, test_fraction: float, validation_fraction: float) -> dict[str, IntArray]:
    """Return the rows of each part of such clients, `train`, `validation` and `test`; as `num_training_rows`."""
    left, parts = np.asarray(num_rows), {}
    for part, fraction in (("test", test_fraction), ("validation", validation_fraction)):
        taken = np.clip(np.rint(fraction * left), 1, left - 1).astype(np.int64)
        parts[part] = np.where((fraction > 0) & (left >= 2), taken, 0)
        left = left - parts[part]
    return {**parts, "train": left}


def _taker(
    labels: IntArray, groups: IntArray | None, order: IntArray | None, generator: np.random.Generator
) -> Callable[[IntArray, float], IntArray]:
    """Return what takes a share of some positions."""
    if order is not None:
        return lambda positions, fraction: _cut_last(order, groups, positions, fraction)
    if groups is not None:
        return lambda positions, fraction: _draw_groups(labels, groups, positions, fraction, generator)
    return lambda positions, fraction: _draw(labels, positions, fraction, generator)
