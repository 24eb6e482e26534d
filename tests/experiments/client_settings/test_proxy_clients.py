"""Proxy rows and clients: nobody else's rows, exactly the cell's heterogeneity and quantity, one shared test part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedscout.engine.contracts.client_table import heterogeneity_index
from fedscout.engine.data.federation import Federation, ServerData
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.client_settings.proxies import (
    CellPosition,
    ProxyData,
    cell_federation,
    draw_proxy_clients,
    place_faults,
    proxy_data,
    row_digests,
)
from fedscout.experiments.client_settings.proxies import test_share as share_of_test
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from tests.kits.refusals import refused


def rows_of(counts: list[int], num_scored: int = 0) -> ProxyData:
    """Return proxy data with so many training rows of each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    features = np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2)
    return ProxyData(features, labels.astype(np.int64), len(counts), num_scored)


def federation_with(server: ServerData) -> Federation:
    """Return one whose server holds these rows."""
    federation = build_federation(FederationConfig(dataset="wine", num_clients=3), ModelConfig())
    return replace(federation, server=server)


def of_digits() -> tuple[Federation, ProxyData]:
    config = FederationConfig(dataset="digits", server_rows=0.3, server_labels=True)
    federation = build_federation(config, ModelConfig())
    return federation, proxy_data(federation, 0, of_another=False)


@given(st.lists(st.integers(0, 40), min_size=2, max_size=12), st.data())
def test_clients_have_exactly_the_index_and_the_quantity_of_their_cell(counts: list[int], data: st.DataObject) -> None:
    proxy = rows_of(counts)
    there = sum(count > 0 for count in counts)
    assume(there)
    held = data.draw(st.integers(1, there))
    place = CellPosition(held, data.draw(st.integers(held, proxy.most_rows(held))))
    clients = draw_proxy_clients(place, proxy, 5, seed=data.draw(st.integers(0, 99)))
    assert clients.rows.shape == (5, place.quantity)
    for rows in clients.rows:
        found = np.bincount(proxy.labels[rows], minlength=len(counts))
        assert heterogeneity_index(found) == pytest.approx(place.heterogeneity(len(counts)))
        assert len(np.unique(rows)) == place.quantity  # no client holds a row twice
    assert clients.num_repeated == clients.rows.size - len(np.unique(clients.rows))


def test_rows_repeat_between_clients_only_where_there_are_not_enough() -> None:
    assert draw_proxy_clients(CellPosition(4, 20), rows_of([25] * 4), 5, seed=0).num_repeated == 0
    assert draw_proxy_clients(CellPosition(4, 24), rows_of([25] * 4), 5, seed=0).num_repeated == 20


def test_shares_of_classes_are_near_equal() -> None:
    proxy = rows_of([30] * 6)
    for rows in draw_proxy_clients(CellPosition(4, 30), proxy, 5, seed=3).rows:
        counts = np.bincount(proxy.labels[rows])
        assert set(counts[counts > 0]) == {7, 8}


@pytest.mark.parametrize(
    ("place", "cell", "names"),
    [
        (
            CellPosition(2, 61),
            "heterogeneity 0.75 and quantity 61",
            "61 rows of 2 classes per client, got proxy data with at most 60",
        ),
        (CellPosition(4, 3), "heterogeneity 0.25 and quantity 3", "4 classes"),
        (CellPosition(5, 20), "heterogeneity 0 and quantity 20", "4 of 5"),
    ],
)
def test_a_cell_that_the_proxy_rows_do_not_reach_is_refused_in_a_line(
    place: CellPosition, cell: str, names: str
) -> None:
    proxy = rows_of([30, 30, 30, 30, 0])
    assert names in place_faults(place, proxy)[0]
    with refused(ConfigurationError, key=f"the cell of {cell}", names=names):
        draw_proxy_clients(place, proxy, 5, seed=0)


def test_each_client_trains_on_its_rows_and_is_scored_on_the_one_balanced_part() -> None:
    federation, proxy = of_digits()
    place = CellPosition(5, 50)
    clients = draw_proxy_clients(place, proxy, 5, seed=0)
    cell = cell_federation(clients, proxy, federation.model, "cell")
    scored = np.arange(proxy.num_trained, len(proxy.labels))
    assert len({*np.bincount(proxy.labels[scored], minlength=10)}) == 1
    for client in range(5):
        rows = cell.partition.client(client)
        split = cell.split_rows(client, cell.labels[rows], 0, share_of_test(place, proxy), 0.0)
        assert np.array_equal(np.sort(rows[split.train]), clients.rows[client])
        assert np.array_equal(rows[split.test], scored)
        assert len(split.validation) == 0


def test_no_client_holds_a_proxy_row() -> None:
    federation, proxy = of_digits()
    dealt = federation.partition.rows
    theirs = {*row_digests(federation.features[dealt], federation.labels[dealt])}
    assert theirs.isdisjoint(row_digests(proxy.features, proxy.labels))
    assert len(proxy.labels) + proxy.num_left_out == round(0.3 * 1797)


def test_rows_that_the_data_set_holds_twice_are_left_out_and_of_another_data_set_refused() -> None:
    plain = build_federation(FederationConfig(dataset="wine", num_clients=3), ModelConfig())
    own = np.arange(2)
    new = np.linspace(-1, 1, 12 * plain.features.shape[1], dtype=np.float32).reshape(12, -1)
    features, labels = np.concatenate([plain.features[own], new]), np.append(plain.labels[own], np.arange(12) % 3)
    federation = federation_with(ServerData(features, labels))
    proxy = proxy_data(federation, 0, of_another=False)
    assert (proxy.num_left_out, len(proxy.labels)) == (2, 12)
    with refused(DataError, key="proxy data"):
        proxy_data(federation, 0, of_another=True)


def test_one_class_or_one_row_of_a_class_is_refused() -> None:
    new = np.linspace(-1, 1, 8 * 13, dtype=np.float32).reshape(8, 13)
    with refused(DataError, key="proxy data", given="1 in 8 rows"):
        proxy_data(federation_with(ServerData(new, np.zeros(8, np.int64))), 0, of_another=False)
    with refused(DataError, key="proxy data"):
        proxy_data(federation_with(ServerData(new, np.array([0] * 7 + [1]))), 0, of_another=False)
