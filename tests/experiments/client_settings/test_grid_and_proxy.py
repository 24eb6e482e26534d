"""The grid: which indices there are, who begins with whom, and what a refined one adds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from fedscout.detectors.feature_skew import ClassMoments
from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_table import ENTROPY, heterogeneity_index, metric_named
from fedscout.engine.data.federation import Federation, ServerData
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.client_settings import proxies
from fedscout.experiments.client_settings.proxies import CellPosition, grid_of
from fedscout.experiments.client_settings.request import HETEROGENEITIES
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.data.dataset import row_digests
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from tests.kits.refusals import refused


def test_ten_classes_give_the_published_rows() -> None:
    assert [proxies.classes_of(value, 10) for value in HETEROGENEITIES] == [8, 6, 5, 3]


@given(st.integers(2, 200), st.floats(0, 1))
def test_the_index_that_there_is_is_the_nearest(num_classes: int, wanted: float) -> None:
    distances = [abs(CellPosition(held, 1).heterogeneity(num_classes) - wanted) for held in range(1, num_classes + 1)]
    held = proxies.classes_of(wanted, num_classes)
    assert distances[held - 1] == pytest.approx(min(distances), abs=1e-12)
    assert proxies.classes_of(CellPosition(held, 1).heterogeneity(num_classes), num_classes) == held


def test_quantities_keep_their_proportions() -> None:
    assert proxies.scaled(proxies.QUANTITIES, 1000) == proxies.scaled(proxies.QUANTITIES, 5000) == proxies.QUANTITIES
    assert proxies.scaled(proxies.QUANTITIES, 120) == (12, 24, 48, 72, 96, 120)


def test_a_cell_begins_with_neighbours_before_it_and_never_in_a_circle() -> None:
    grid = grid_of(HETEROGENEITIES, proxies.QUANTITIES, 10)
    first = proxies.warm_started_by(grid)
    assert first[CellPosition(8, 100)] == ()
    assert set(first[CellPosition(6, 200)]) == {CellPosition(8, 200), CellPosition(6, 100)}
    position = {place: number for number, place in enumerate(grid)}
    assert all(position[near] < position[place] for place in grid for near in first[place])


def test_what_is_known_comes_before_all_that_is_new() -> None:
    known = grid_of([0.2, 0.8], [100, 300], 10)
    new = [place for place in grid_of([0.2, 0.6, 0.8], [100, 200, 300], 10) if place not in known]
    first = proxies.warm_started_by(new, known)
    assert set(first[CellPosition(8, 200)]) == {CellPosition(8, 100), CellPosition(8, 300)}
    assert set(first[CellPosition(5, 200)]) == {CellPosition(8, 200), CellPosition(5, 100)}


def test_a_refined_grid_has_what_lies_between_and_beyond() -> None:
    assert proxies.refined_quantities([100, 200, 400]) == (50, 100, 150, 200, 300, 400, 500)
    assert proxies.refined_quantities([100]) == (50, 100, 150)
    assert proxies.refined_levels([0, 0.5, 1]) == (0, 0.25, 0.5, 0.75, 1)
    assert proxies.refined_levels([0.25, 0.5]) == (0.125, 0.25, 0.375, 0.5, 0.625)
    assert proxies.refined_levels([0.125, 0.875], ENTROPY) == (0, 0.125, 0.5, 0.875, 1)  # in [0, 1]
    assert proxies.refined_levels([1.0, 2.0], OWN) == (0.5, 1.0, 1.5, 2.0, 2.5)
    assert proxies.refined_levels([3.0], OWN) == (3.0,)
    assert grid_of(proxies.refined_levels([0, 1]), [9], 2) == (CellPosition(2, 9), CellPosition(1, 9))


# Proxy rows and clients: nobody else's rows, exactly the cell's heterogeneity and quantity, one shared test part.


def rows_of(counts: list[int], num_scored: int = 0) -> proxies.ProxyData:
    """Return proxy data with so many training rows of each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    features = np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2)
    return proxies.ProxyData(features, labels.astype(np.int64), len(counts), num_scored)


def federation_with(server: ServerData) -> Federation:
    """Return one whose server holds these rows."""
    federation = build_federation(FederationConfig(dataset="wine", num_clients=3), ModelConfig())
    return replace(federation, server=server)


def of_digits() -> tuple[Federation, proxies.ProxyData]:
    config = FederationConfig(dataset="digits", server_rows=0.3, server_labels=True)
    federation = build_federation(config, ModelConfig())
    return federation, proxies.proxy_data(federation, 0, of_another=False)


@given(st.lists(st.integers(0, 40), min_size=2, max_size=12), st.data())
def test_clients_have_exactly_the_index_and_the_quantity_of_their_cell(counts: list[int], data: st.DataObject) -> None:
    proxy = rows_of(counts)
    there = sum(count > 0 for count in counts)
    assume(there)
    held = data.draw(st.integers(1, there))
    place = CellPosition(held, data.draw(st.integers(held, proxy.most_rows(held))))
    clients = proxies.draw_proxy_clients(place, proxy, 5, seed=data.draw(st.integers(0, 99)))
    assert clients.shape == (5, place.quantity)
    for rows in clients:
        found = np.bincount(proxy.labels[rows], minlength=len(counts))
        assert heterogeneity_index(found) == pytest.approx(place.heterogeneity(len(counts)))
        assert len(np.unique(rows)) == place.quantity  # no client holds a row twice


@pytest.mark.parametrize(("quantity", "num_repeated"), [(20, 0), (24, 20)])
def test_rows_repeat_between_clients_only_where_there_are_not_enough(quantity: int, num_repeated: int) -> None:
    rows = proxies.draw_proxy_clients(CellPosition(4, quantity), rows_of([25] * 4), 5, seed=0)
    assert rows.size - len(np.unique(rows)) == num_repeated


def test_shares_of_classes_are_near_equal() -> None:
    proxy = rows_of([30] * 6)
    for rows in proxies.draw_proxy_clients(CellPosition(4, 30), proxy, 5, seed=3):
        counts = np.bincount(proxy.labels[rows])
        assert set(counts[counts > 0]) == {7, 8}


def test_the_ends_of_a_finer_grid_reach_as_far_as_the_rows(caplog: pytest.LogCaptureFixture) -> None:
    plenty, scarce = rows_of([1000] * 9), rows_of([40] * 9)
    places = grid_of([0.25, 0.75], [20, 100], 9)
    assert {place.num_classes for place in proxies.finer_grid(places, plenty)} == {1, 3, 5, 7, 9}
    assert {place.quantity for place in proxies.finer_grid(places, plenty)} == {10, 20, 60, 100, 140}
    assert not caplog.records
    found = proxies.finer_grid(places, scarce)  # three classes hold 120 rows, one holds 40
    assert {place.quantity for place in found} == {10, 20, 60, 100}
    assert {place.num_classes for place in found} == {3, 5, 7, 9}
    assert "quantity 140, heterogeneity 1," in caplog.text
    assert {*places} <= {*found}
    assert found == tuple(sorted(found, key=lambda place: (-place.num_classes, place.quantity)))
    assert CellPosition(9, 20) in found
    assert np.all([place.quantity >= place.num_classes for place in found])


def largest(label_counts: IntArray, num_rows: int) -> float:
    """A metric of a user's own."""
    return float(label_counts.max() / num_rows)


OWN = f"{__name__}:largest"


@pytest.mark.parametrize(
    ("metric", "values", "class_rows", "quantities"),
    [(ENTROPY, HETEROGENEITIES, [400] * 10, [60, 300]), (OWN, (0.05, 0.3, 0.9), [60] * 62, [40, 200])],
)
def test_clients_of_a_metric_find_their_cell(
    metric: str, values: tuple[float, ...], class_rows: list[int], quantities: list[int]
) -> None:
    """Whatever classes they hold; a cell's clients differ."""
    proxy, num_classes = rows_of(class_rows), len(class_rows)
    for place in grid_of(values, quantities, num_classes, metric):
        if place.heterogeneity(num_classes) * place.quantity > 60 and metric == OWN:  # 60 rows are of a class at most
            assert proxies.place_faults(place, proxy)
            continue
        held = set()
        for rows in proxies.draw_proxy_clients(place, proxy, 5, seed=1):
            counts = np.bincount(proxy.labels[rows], minlength=num_classes)
            assert counts.sum() == place.quantity == len(np.unique(rows))
            value = metric_named(metric)(counts, place.quantity)
            assert min(values, key=lambda level: abs(level - value)) == place.heterogeneity(num_classes)
            held.add(tuple(counts.tolist()))
        assert len(held) > 1


def test_neighbours_and_refinement_of_a_metric_go_by_the_value() -> None:
    grid = grid_of([0.8, 0.2, 0.4], [20, 40], 9, ENTROPY)
    assert [place.heterogeneity(9) for place in grid[::2]] == [0.2, 0.4, 0.8]
    assert proxies.warm_started_by(grid)[grid[3]] == (grid[1], grid[2])
    found = proxies.finer_grid(grid, rows_of([100] * 9), ENTROPY)
    assert {*grid} < {*found}
    assert {place.quantity for place in found} == {10, 20, 30, 40, 50}


@pytest.mark.parametrize("place", [CellPosition(2, 61), CellPosition(4, 3), CellPosition(5, 20)], ids=str)
def test_a_cell_that_the_proxy_rows_do_not_reach_is_refused(place: CellPosition) -> None:
    """Two of four classes hold 60 rows; each class needs a row; there is no fifth class."""
    proxy = rows_of([30, 30, 30, 30, 0])
    with refused(ConfigurationError, key=proxies.place_faults(place, proxy)[0].key):
        proxies.draw_proxy_clients(place, proxy, 5, seed=0)
    assert proxies.place_faults(CellPosition(2, 60), proxy) == proxies.place_faults(CellPosition(4, 4), proxy) == []


def test_each_client_trains_on_its_rows_and_is_scored_on_the_one_balanced_part() -> None:
    federation, proxy = of_digits()
    place = CellPosition(5, 50)
    clients = proxies.draw_proxy_clients(place, proxy, 5, seed=0)
    cell, num_repeated = proxies.cell_federation(place, proxy, 5, 0, federation.model)
    assert num_repeated == clients.size - len(np.unique(clients))
    scored = np.arange(proxy.num_trained, len(proxy.labels))
    assert len({*np.bincount(proxy.labels[scored], minlength=10)}) == 1
    for client in range(5):
        rows = cell.partition.client(client)
        split = cell.split_rows(client, cell.labels[rows], 0, proxy.scored_share(50), 0.0)
        assert np.array_equal(np.sort(rows[split.train]), clients[client])
        assert np.array_equal(rows[split.test], scored)
        assert len(split.validation) == 0


def test_rows_that_the_data_set_holds_twice_are_left_out_and_of_another_data_set_refused() -> None:
    plain = build_federation(FederationConfig(dataset="wine", num_clients=3), ModelConfig())
    own = np.arange(2)
    new = np.linspace(-1, 1, 12 * plain.features.shape[1], dtype=np.float32).reshape(12, -1)
    features, labels = np.concatenate([plain.features[own], new]), np.append(plain.labels[own], np.arange(12) % 3)
    federation = federation_with(ServerData(features, labels))
    proxy = proxies.proxy_data(federation, 0, of_another=False)
    assert (proxy.num_left_out, len(proxy.labels)) == (2, 12)
    with refused(DataError, key="proxy data"):
        proxies.proxy_data(federation, 0, of_another=True)


def test_one_class_or_one_row_of_a_class_is_refused() -> None:
    new = np.linspace(-1, 1, 8 * 13, dtype=np.float32).reshape(8, 13)
    with refused(DataError, key="proxy data", given="1 in 8 rows"):
        proxies.proxy_data(federation_with(ServerData(new, np.zeros(8, np.int64))), 0, of_another=False)
    with refused(DataError, key="proxy data"):
        proxies.proxy_data(federation_with(ServerData(new, np.array([0] * 7 + [1]))), 0, of_another=False)


# Synthetic rows: they have the moments that clients told, of the classes that they told of, and are nobody's rows.


WINE = ("federation.dataset=wine", "federation.num_clients=3", "engine.grid=local")


def built(*settings: str) -> tuple[Federation, StudyConfig]:
    config = load_config([*WINE, *settings])
    return build_federation(config.federation, config.model), config


def test_rows_have_the_means_and_the_covariance_they_are_drawn_by() -> None:
    means = np.array([[0.0, 0.0], [7.0, 7.0], [10.0, -5.0]])
    counts = np.array([4, 0, 6])  # nobody told of the second class
    classes = ClassMoments(counts, means * counts[:, None], np.zeros((3, 2)))
    within = np.array([[2.0, 0.9], [0.9, 1.0]])
    rows, labels = proxies.draw_rows(classes, within, 40_001, np.random.default_rng(0))
    assert [*np.bincount(labels)] == [20_001, 0, 20_000]
    for label in (0, 2):
        own = rows[labels == label]
        error = 5 * np.sqrt(np.diag(within) / len(own))  # five standard errors of a mean
        assert (np.abs(own.mean(axis=0) - means[label]) < error).all()
        assert np.cov(own.T) == pytest.approx(within, abs=5 * np.sqrt(2 / len(own)) * 2)


def test_clients_are_asked_for_sums_and_no_row_of_theirs_comes_back() -> None:
    federation, config = built()
    server = proxies.synthetic_rows(federation, config, 300)
    own = {*row_digests(federation.features, federation.labels)}
    assert own.isdisjoint(row_digests(server.features, server.labels))
    for label in range(3):
        theirs = federation.features[federation.labels == label].mean(axis=0)
        assert np.abs(server.features[server.labels == label].mean(axis=0) - theirs).max() < 0.6


def test_clients_that_tell_nothing_end_it_in_a_line() -> None:
    federation, config = built("federation.min_release=70")
    with refused(DataError, key="--synthetic"):
        proxies.synthetic_rows(federation, config, 300)
