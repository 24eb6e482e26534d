"""Split of a client's local rows into training, validation and test parts.

80/20 by default, stratified by the client's own labels if the class counts allow, and drawn from the trial's seed:
candidates of one search share the split, confirmation seeds draw a new one. Validation rows are cut from the training
part, never from test.

Rows of one group, such as those of a subject, stay together: a model that saw a subject in training would otherwise be
tested on it. Groups are visited in a random order in which every prefix holds its share of each class, where a
group's class is its most frequent one, and a group is drawn if it brings the number of rows closer to the target.
The target is thus missed by at most half of the largest drawn or smallest undrawn group, unless no group is small
enough: then the smallest is drawn, so that there are test rows. A client with a single group only trains.

A series may be cut in the order of its rows instead: its last rows are the test part, those before them the validation
part, without stratification. Groups stay together, in the order of their first rows.
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
    """Positions in `[0, num_rows)`; disjoint, and together all rows."""

    train: IntArray
    validation: IntArray
    test: IntArray


def _draw(labels: IntArray, positions: IntArray, fraction: float, generator: np.random.Generator) -> IntArray:
    """Draw a stratified share of `positions`: at least one, and at least one is left.

    Systematic sampling: rows are shuffled, ordered by class, and every (1/fraction)-th is taken from a random start,
    so that each class gets its share rounded down or up.
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
    """Draw whole groups with about a share of `positions`: at least one, and at least one is left."""
    _, members = np.unique(groups[positions], return_inverse=True)
    sizes = np.bincount(members)
    if fraction <= 0 or len(sizes) < 2:
        return np.empty(0, np.int64)
    wanted, total = fraction * len(positions), 0
    drawn: list[int] = []
    for group in spread_over_classes(_majorities(labels[positions], members), generator):
        is_closer = abs(total + sizes[group] - wanted) < abs(total - wanted)
        if is_closer and len(drawn) < len(sizes) - 1:
            drawn.append(group)
            total += sizes[group]
    return np.asarray(positions[np.isin(members, drawn or [np.argmin(sizes)])])


def _majorities(labels: IntArray, members: IntArray) -> IntArray:
    """Return the most frequent label of each group, the lowest one on ties, shape `(num_groups,)`."""
    pairs, counts = np.unique(np.column_stack([members, labels]), axis=0, return_counts=True)
    most = np.lexsort((pairs[:, 1], -counts, pairs[:, 0]))
    return np.asarray(pairs[most[np.unique(pairs[most, 0], return_index=True)[1]], 1])


def spread_over_classes(classes: IntArray, generator: np.random.Generator) -> list[int]:
    """Return a random order in which every prefix holds its share of each class, rounded.

    Args:
        classes: Class of each item, shape `(items,)`.
        generator: Random generator.
    """
    shuffled = generator.permutation(len(classes))
    keys = np.empty(len(classes))
    for label in np.unique(classes):
        members = shuffled[classes[shuffled] == label]
        keys[members] = (np.arange(len(members)) + generator.random()) / len(members)
    order: list[int] = np.argsort(keys, kind="stable").tolist()
    return order


def _cut_last(order: IntArray, groups: IntArray | None, positions: IntArray, fraction: float) -> IntArray:
    """Return about the last share of `positions` in an order, in whole groups if there are any; at least one is left.

    Args:
        order: Rank of each row; later rows have larger ranks.
        groups: Group of each row, or None.
        positions: Positions to cut.
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
        seed: Seed of the trial.
        client: Index of the client.
        test_fraction: Share of test rows, in `[0, 1)`.
        validation_fraction: Share of the remaining rows kept for validation, in `[0, 1)`.
        groups: The group of each row, shape `(num_rows,)`; None if rows are independent.
        order: Rank of each row in a series, shape `(num_rows,)`, if it is cut by order instead of drawn.
    """
    take = _taker(labels, groups, order, stream(seed, "split", client))
    every = np.arange(len(labels))
    test = take(every, test_fraction)
    rest = np.setdiff1d(every, test, assume_unique=True)
    validation = take(rest, validation_fraction)
    return ClientSplit(np.setdiff1d(rest, validation, assume_unique=True), validation, test)


def num_part_rows(num_rows: IntArray, test_fraction: float, validation_fraction: float) -> dict[str, IntArray]:
    """Return clients' rows of each part, `train`, `validation` and `test`; approximate for rows in groups.

    Args:
        num_rows: Number of rows of each client, shape `(clients,)`.
        test_fraction: As for `split_client`.
        validation_fraction: As for `split_client`.
    """
    remaining, parts = np.asarray(num_rows), {}
    for part, fraction in (("test", test_fraction), ("validation", validation_fraction)):
        taken = np.clip(np.rint(fraction * remaining), 1, remaining - 1).astype(np.int64)
        parts[part] = np.where((fraction > 0) & (remaining >= 2), taken, 0)
        remaining = remaining - parts[part]
    return {**parts, "train": remaining}


def _taker(
    labels: IntArray, groups: IntArray | None, order: IntArray | None, generator: np.random.Generator
) -> Callable[[IntArray, float], IntArray]:
    """Return a function that takes a share of some positions."""
    if order is not None:
        return lambda positions, fraction: _cut_last(order, groups, positions, fraction)
    if groups is not None:
        return lambda positions, fraction: _draw_groups(labels, groups, positions, fraction, generator)
    return lambda positions, fraction: _draw(labels, positions, fraction, generator)
