"""The small federation of one cell: clients of one heterogeneity and one quantity, drawn from proxy rows.

Each client draws its classes, and holds near-equal numbers of their rows; where a class has too few, all of them, and
more of the others. Rows of a class are dealt in one random order that begins anew when it is used up: so no client
holds a row twice, and clients share rows only where there are not enough. Every client's test part is the balanced part
of the proxy data, whole and after its training rows: what a trial scores is the global model on that part.

Where a cell's row is the value of a metric, which of the counts near that value a client holds is drawn.

Deviation: the source says nothing of the shares of a client's classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client_data import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.model.parameter_layout import ModelFactory
from fedscout.engine.seeds import stream
from fedscout.experiments.studies.settings_tables.proxy_data import ProxyData
from fedscout.experiments.studies.settings_tables.settings_grid import Place


@dataclass(frozen=True)
class ProxyClients:
    """Of one cell.

    Attributes:
        rows: Each client's training rows, positions among the proxy rows; shape `(clients, quantity)`.
        num_repeated: How many of these some earlier client holds.
    """

    rows: IntArray
    num_repeated: int


def place_faults(place: Place, proxy: ProxyData) -> list[str]:
    """Return why proxy clients of a cell can't be drawn; empty if they can."""
    what = f"{place.quantity} rows of {place.num_classes} classes"
    axis = "heterogeneity" if place.row is None else place.row.metric
    cell = f"the cell of {axis} {place.heterogeneity(proxy.num_classes):.2g} and quantity {place.quantity}"
    if place.row is not None:
        fault = place.row.fault(place.quantity, proxy.class_rows)
        return [] if fault is None else [f"{cell} {fault}"]
    there = int(np.count_nonzero(proxy.class_rows))
    if place.num_classes > there:
        return [f"{cell} needs {place.num_classes} classes, got proxy data with {there} of {proxy.num_classes}"]
    if place.quantity < place.num_classes:
        return [f"{cell} needs a row of each of {place.num_classes} classes, so a quantity of at least as many"]
    if (most := proxy.most_rows(place.num_classes)) < place.quantity:
        return [
            f"{cell} needs {what} a client, got proxy data with at most {most}; a smaller --quantity or a larger "
            "federation.server_rows would do"
        ]
    return []


def draw_proxy_clients(place: Place, proxy: ProxyData, num_clients: int, seed: int) -> ProxyClients:
    """Draw the clients of a cell.

    Raises:
        ConfigurationError: If the proxy rows do not reach.
    """
    if faults := place_faults(place, proxy):
        raise ConfigurationError(faults)
    purpose = "proxy-clients"
    if place.row is not None:
        purpose += f" {place.row.metric} {place.row.value!r}"
    generator = stream(seed, purpose, place.num_classes, place.quantity)
    order = generator.permutation(proxy.num_trained)
    queues = [order[proxy.labels[order] == label] for label in range(proxy.num_classes)]
    dealt = np.zeros(proxy.num_classes, np.int64)
    clients = []
    for _ in range(num_clients):
        shares = _shares(place, proxy.class_rows, generator)
        held = [
            queue.take(np.arange(start, start + share), mode="wrap")
            for queue, start, share in zip(queues, dealt, shares, strict=True)
            if share
        ]
        clients.append(np.sort(np.concatenate(held)))
        dealt += shares
    rows = np.array(clients, np.int64)
    return ProxyClients(rows, rows.size - len(np.unique(rows)))


def cell_federation(clients: ProxyClients, proxy: ProxyData, model: ModelFactory, name: str) -> Federation:
    """Return the federation of a cell; a share of `test_share` of each client's rows are its test part."""
    scored = np.arange(proxy.num_trained, len(proxy.labels))
    return Federation(
        name=name,
        features=proxy.features,
        labels=proxy.labels,
        num_classes=proxy.num_classes,
        partition=Partition.from_lists([np.concatenate([rows, scored]) for rows in clients.rows]),
        model=model,
        split="last",
    )


def test_share(place: Place, proxy: ProxyData) -> float:
    """Return the share of a proxy client's rows that score."""
    return proxy.num_scored / (proxy.num_scored + place.quantity)


def _shares(place: Place, class_rows: IntArray, generator: np.random.Generator) -> IntArray:
    """Return how many rows of each class a client holds, shape `(num_classes,)`.

    Classes are drawn at random; while they hold too few rows, the smallest makes way for the largest of the others.
    """
    if place.row is not None:
        return np.asarray(generator.choice(place.row.counts(place.quantity, class_rows)))
    drawn = generator.permutation(np.flatnonzero(class_rows))
    chosen, others = list(drawn[: place.num_classes]), list(drawn[place.num_classes :])
    while class_rows[chosen].sum() < place.quantity:
        chosen.remove(min(chosen, key=lambda label: class_rows[label]))
        chosen.append(max(others, key=lambda label: class_rows[label]))
        others.remove(chosen[-1])
    shares = np.zeros(len(class_rows), np.int64)
    left = place.quantity
    by_size = sorted(chosen, key=lambda label: class_rows[label])  # as drawn, where they hold equally many
    for others_left, label in zip(reversed(range(len(by_size))), by_size, strict=True):
        shares[label] = min(class_rows[label], left // (others_left + 1))
        left -= int(shares[label])
    return shares
