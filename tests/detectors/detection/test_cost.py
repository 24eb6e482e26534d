"""What a detection costs, in exchanges: one is a round trip to every host, whatever it holds."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.detectors import HeterogeneityReport
from tests.detectors.federations import RecordingGrid, federation, gaussian_clients, report_of


def detection(num_clients: int, **settings: int) -> tuple[HeterogeneityReport, RecordingGrid]:
    grid = RecordingGrid(federation(gaussian_clients([12] * num_clients)))
    return report_of(grid, **settings), grid


@pytest.mark.parametrize("num_clients", [3, 4, 8, 9, 40])
@pytest.mark.parametrize("repetitions", [1, 5, 12])
def test_four_exchanges_for_any_number_of_clients_and_repetitions(num_clients: int, repetitions: int) -> None:
    """The repetitions of a round go together, and features are asked about meanwhile."""
    _, grid = detection(num_clients, outlier_repetitions=repetitions, outlier_min_flags=1)
    assert len(grid.exchanges) == 4
    trained = [sum(kind == "train" for kind, _, _ in contents) for contents in grid.exchanges]
    assert trained == [0, repetitions, repetitions, 0]


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_a_round_more_is_an_exchange_more(rounds: int) -> None:
    """Counts, then the longer of two conversations: three exchanges about features, one a round and one of outputs."""
    _, grid = detection(9, outlier_rounds=rounds, outlier_repetitions=5)
    trained = [sum(kind == "train" for kind, _, _ in contents) for contents in grid.exchanges]
    assert trained == [0, *[5] * rounds, *[0] * max(1, 3 - rounds)]


def test_nobody_is_asked_the_same_thing_twice() -> None:
    _, grid = detection(20)
    asked = [
        (client, kind, config.get("function"), config.get("seed"), config.get("server-round"))
        for kind, clients, config in grid.sent
        for client in clients
    ]
    assert len(asked) == len(set(asked)) == 20 * (10 + 5 * 2)  # ten queries, ten trainings


def test_limits_on_what_the_server_holds_cost_exchanges_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for the triangles of three clients and the models of one repetition."""
    whole, _ = detection(20)
    triangle_bytes, class_bytes = 8 * 6 * 7 // 2, 2 * 8 * 6 * 2  # of two classes, sums and squares
    monkeypatch.setattr("fedscout.detectors.feature_exchanges.BLOCK_BYTES", 3 * (triangle_bytes + class_bytes))
    monkeypatch.setattr("fedscout.detectors.outliers.GROUP_BYTES", 1)
    parts, grid = detection(20)
    assert parts.without_timings() == whole.without_timings()
    assert list(parts.feature_skew.client_values) == list(range(20))
    moments = [len(clients) for _, clients, config in grid.sent if config.get("function") == "feature_moments"]
    assert moments == [8, 3, 3, 3, 3]
    trained = [sum(kind == "train" for kind, _, _ in contents) for contents in grid.exchanges]
    assert trained == [0, 5, 1, 1, 1, 1, 1, 0]


def test_the_order_of_exchanges_hides_no_dependence() -> None:
    """A client whose features are unusable is left out of what follows on features, and of nothing else."""
    clients = gaussian_clients([12] * 10)
    clients[9][0][0, 0] = np.inf
    grid = RecordingGrid(federation(clients))
    report = report_of(grid)
    asked = {config["function"]: clients for kind, clients, config in grid.sent if kind == "query"}
    assert asked["feature_centroid"] == asked["feature_histogram"] == asked["label_agreement"] == tuple(range(9))
    assert asked["mean_output"] == tuple(range(10))
    assert set(report.feature_skew.client_values) == set(range(9))
