"""What must be known of a run's scores: what its split leaks of rows that belong together, and that few clients score.

Columns of a table that tell the label (`label_leaks.py`) come first. Accuracy on test rows is that on new data only if
test rows are independent of the training rows. Said is that a data
set known to be a series is split at random; that one cut in its order is tested on the same rows by every seed, so that
no interval over seeds is one for new data; that a partition deals rows of one group to several clients, so that what
one tests on resembles what another trains on; and that more test rows have near copies among the training rows than
independent rows would (`fedscout.detectors.statistics.near_copies`).

The last is measured on the split of the study's seed, on rows as they are stored, over all clients together: up to
`LOOKED_AT` test rows against the training rows of all clients, of which a random sample is taken where they hold more
than `MAX_CELLS` numbers. With more than `CLIENTS_SPLIT` clients, test rows are those of as many drawn ones, and all
rows of the others train. Texts are not compared: their token numbers have no distance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from fedscout.detectors.statistics.near_copies import NearCopies, count_near_copies
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.federation import Federation
from fedscout.engine.fault_text import listed
from fedscout.engine.seeds import stream
from fedscout.experiments.federations.datasets.tables.hints import list_argument
from fedscout.experiments.federations.description.holdings import row_length

MOST_COLUMNS_TOLD: Final = 5
LOOKED_AT: Final = 200
CLIENTS_SPLIT: Final = 100
MAX_CELLS: Final = 20_000_000
"""Numbers in the training rows: about a second of work."""


def dependence_notes(federation: Federation, seed: int, test_fraction: float) -> tuple[str, ...]:
    """Return what a reader must know of rows that belong together; nothing where nothing is known or found.

    Args:
        federation: With its rows.
        seed: Of the study.
        test_fraction: Share of test rows a client.
    """
    if federation.task is not None:
        return ()
    columns: Sequence[Mapping[str, str]] = federation.facts.get("columns", ())
    notes = [*_leak_notes(columns)]
    series = federation.facts.get("series")
    if series and federation.split == "random" and federation.groups is None:
        notes.append(_series_note(str(series), federation.facts.get("accuracy_by_split")))
    if federation.split == "last":
        notes.append(
            "Every seed tests on the same rows, each client's last ones: intervals are for another training run here, "
            "and too short for new data."
        )
    shared, total = _shared_groups(federation)
    if shared:
        notes.append(
            f"{shared} of {total} groups of federation.group_column are held by several clients: no client tests on a "
            "group that it trains on, but on groups that others train on."
        )
    copies = near_copies_of_test_rows(federation, seed, test_fraction)
    if copies is not None and copies.too_many:
        notes.append(_copies_note(federation, copies))
    return tuple(notes)


def scored_notes(federation: Federation, num_scored: int | None) -> tuple[str, ...]:
    """Return that scores are of a few clients, where they are (`training.scored_clients`)."""
    if num_scored is None or num_scored >= federation.num_seen:
        return ()
    return (
        f"Every score is of {num_scored} of {federation.num_seen} clients, others for each seed "
        "(training.scored_clients): what is said of all, or of one, is of those.",
    )


def _leak_notes(columns: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield which of the columns that models see tell the label, and the key that drops them."""
    leaks = [column for column in columns if column["suspicion"] and not column["became"].startswith("left out")]
    if leaks:  # the key first, as screens cut the end
        said = listed([f"{column['name']} {column['suspicion']}" for column in leaks], MOST_COLUMNS_TOLD)
        key = list_argument("drop_columns", *(column["name"] for column in leaks))
        yield f"{key} leaves out what may be the label itself: {said}."


def _series_note(series: str, accuracy_by_split: str | None) -> str:
    """Return what a random split of a series leaks, with what was measured where it was."""
    told = (
        f"The rows are a series, {series}, split at random: neighbours of test rows train, which may flatter accuracy. "
    )
    if accuracy_by_split is None:
        return f"{told}federation.split=last tests on each client's last rows."
    return f"{told}FedAvg had {accuracy_by_split} (docs/bearing.md)."


def _copies_note(federation: Federation, copies: NearCopies) -> str:
    """Return what copies do, and what to do about them, before how many there are, as screens cut the end."""
    advice = (
        "federation.group_column keeps what belongs together on one side, federation.split=last cuts a series."
        if federation.groups is None
        else "Groups are kept together already, so copies are of other groups, or held by other clients."
    )
    columns: Sequence[Mapping[str, str]] = federation.facts.get("columns", ())
    named = [column["name"] for column in columns if column["key"] == f"federation.group_column={column['name']}"]
    if named and federation.groups is None:
        advice += f" What they belong to may stand in {listed(named, MOST_COLUMNS_TOLD)}."
    return (
        "Test rows have near copies among the training rows, so that what is learnt by heart counts as accuracy. "
        f"{advice} Copies: {copies.text()}."
    )


def _shared_groups(federation: Federation) -> tuple[int, int]:
    """Return how many groups several clients hold rows of, and how many there are."""
    if federation.groups is None:
        return 0, 0
    owners = np.repeat(np.arange(federation.num_clients), federation.partition.sizes)
    pairs = np.unique(np.column_stack([federation.groups[federation.partition.rows], owners]), axis=0)
    _, holders = np.unique(pairs[:, 0], return_counts=True)
    return int(np.count_nonzero(holders > 1)), len(holders)


def near_copies_of_test_rows(federation: Federation, seed: int, test_fraction: float) -> NearCopies | None:
    """Count near copies of test rows among the training rows of all clients; None for texts, or without rows.

    Args:
        federation: With its rows.
        seed: Of the study, whose split it is.
        test_fraction: Share of test rows a client.
    """
    if federation.facts.get("data_kind") == "tokens" or not len(federation.labels):
        return None
    generator = stream(seed, "near-copies")
    train, test = _split_rows(federation, seed, test_fraction, generator)
    test = generator.permutation(test)[:LOOKED_AT]
    train = generator.permutation(train)[: max(1, MAX_CELLS // max(row_length(federation), 1))]
    rows = federation.features.reshape(len(federation.labels), -1)
    return count_near_copies(rows[test].astype(np.float64), rows[train].astype(np.float64))


def _split_rows(
    federation: Federation, seed: int, test_fraction: float, generator: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Return the rows that train and those that test."""
    drawn = generator.permutation(federation.num_clients)[:CLIENTS_SPLIT]
    tested = [np.empty(0, np.int64)]
    for client in np.sort(drawn).tolist():
        rows = federation.partition.client(client)
        tested.append(rows[federation.split_rows(client, federation.labels[rows], seed, test_fraction, 0.0).test])
    test = np.unique(np.concatenate(tested))
    return np.setdiff1d(federation.partition.rows, test), test
