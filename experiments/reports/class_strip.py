"""Which rows the strip of clients × classes has, and how dark each of its cells is. Pure; drawing is elsewhere.

Up to `MAX_ROWS` clients have a row each, in their order. Of more, those whose labels are farthest from everyone's have
one, the farthest first, and then all measured clients are summarised by decile of that divergence: a decile's row adds
its clients' rows up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedscout.experiments.federations.description.description import ClientDescription, Description

MAX_ROWS = 40
MOST_DIFFERENT = 20
NUM_DECILES = 10
NUM_SHADES = 4


@dataclass(frozen=True)
class StripRow:
    """One row of the strip.

    Attributes:
        label: What it shows.
        num_rows: Rows of the data.
        counts: Of each column of the strip, shape `(columns,)`.
        divergence: Of its labels from everyone's in bits, a mean for several clients; None if not measured.
        affected: Whether a scenario affects the client.
        num_clients: Whose rows are added up.
    """

    label: str
    num_rows: int
    counts: npt.NDArray[np.int64]
    divergence: float | None
    affected: bool = False
    num_clients: int = 1

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """The counts over their sum; zeros without a row."""
        return self.counts / max(self.num_rows, 1)


@dataclass(frozen=True)
class Strip:
    """The strip.

    Attributes:
        clients: Rows of single clients.
        deciles: Rows of a tenth of the measured clients each, the most alike first; empty if every client has a row.
        classes_per_column: Neighbouring classes that share a column, as there are too many.
        num_clients: Of the federation.
    """

    clients: tuple[StripRow, ...]
    deciles: tuple[StripRow, ...]
    classes_per_column: int
    num_clients: int

    @property
    def remark(self) -> str | None:
        """What is not shown; None if everything is."""
        if len(self.clients) == self.num_clients:
            return None
        text = f"Of {self.num_clients} clients, the {len(self.clients)} whose labels differ most from everyone's"
        if not self.deciles:
            return f"{text}."
        return f"{text}; below them all measured clients by decile of that divergence, each decile's rows added up."


def strip_of(description: Description, max_columns: int) -> Strip:
    """Choose the rows of the strip.

    Args:
        description: Of the federation.
        max_columns: Columns for which there is room; with more classes, neighbours share one.
    """
    together = max(1, -(-description.realised.num_classes // max(max_columns, 1)))
    clients = description.clients
    if len(clients) <= MAX_ROWS:
        return Strip(tuple(_client_row(client, together) for client in clients), (), together, len(clients))
    measured = [client for client in clients if client.label_divergence is not None]
    ordered = sorted(measured, key=lambda client: (client.label_divergence or 0.0, -client.client))
    shown = [_client_row(client, together) for client in ordered[: -MOST_DIFFERENT - 1 : -1]]
    deciles: list[StripRow] = []
    if len(ordered) >= NUM_DECILES:
        positions = np.array_split(np.arange(len(ordered)), NUM_DECILES)
        deciles = [
            _decile_row(number, [ordered[position] for position in part], together)
            for number, part in enumerate(positions, 1)
        ]
    return Strip(tuple(shown), tuple(deciles), together, len(clients))


def label_of(client: ClientDescription) -> str:
    """Return what stands beside a client: its number, and its name if it has one."""
    return str(client.client) if client.name is None else f"{client.client} {client.name}"


def class_labels(description: Description) -> tuple[str, ...]:
    """Return the names of the classes; their numbers if they have none."""
    return description.class_names or tuple(str(number) for number in range(description.realised.num_classes))


def _client_row(client: ClientDescription, together: int) -> StripRow:
    counts = _columns(np.array(client.label_counts, np.int64), together)
    return StripRow(label_of(client), client.num_rows, counts, client.label_divergence, client.affected)


def _decile_row(number: int, clients: Sequence[ClientDescription], together: int) -> StripRow:
    counts = np.sum([client.label_counts for client in clients], axis=0).astype(np.int64)
    mean = float(np.mean([client.label_divergence or 0.0 for client in clients]))
    label = f"decile {number}: {len(clients)} clients"
    return StripRow(label, int(counts.sum()), _columns(counts, together), mean, num_clients=len(clients))


def _columns(counts: npt.NDArray[np.int64], together: int) -> npt.NDArray[np.int64]:
    """Add up neighbouring classes."""
    return np.add.reduceat(counts, np.arange(0, len(counts), together))


def shades(values: npt.ArrayLike, largest: float) -> npt.NDArray[np.int64]:
    """Return 0 for nothing, else 1 to `NUM_SHADES` in equal steps up to the largest value."""
    found = np.asarray(values, dtype=np.float64)
    steps = np.ceil(NUM_SHADES * found / largest) if largest > 0 else np.zeros_like(found)
    return np.where(found > 0, np.clip(steps, 1, NUM_SHADES), 0).astype(np.int64)
