"""Tables of entropies or values of one's own: cells' clients have them, find their cell, and a command does it all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.contracts.client_table import ENTROPY, missing_entropy
from fedscout.experiments.client_settings.proxies import (
    LEVELS,
    draw_proxy_clients,
    metric_grid,
    place_faults,
    refined_values,
    warm_started_by,
)
from fedscout.experiments.client_settings.request import finer_grid
from fedscout.search.settings_table_file import read_settings_table
from tests.experiments.client_settings.test_proxy_clients import rows_of
from tests.experiments.client_settings.test_tune_table import run, tune

SMALL = (
    "federation.dataset=wine",
    "federation.num_clients=3",
    "federation.server_rows=0.4",
    "training.num_rounds=2",
    "search.budget=2",
    "search.kind=random",
    "engine.grid=local",
)


def test_clients_of_an_entropy_find_their_cell() -> None:
    proxy = rows_of([400] * 10)
    for place in metric_grid(ENTROPY, LEVELS[ENTROPY], [60, 300], 10):
        (wanted,) = {place.heterogeneity(10)}
        for rows in draw_proxy_clients(place, proxy, 5, seed=1).rows:
            counts = np.bincount(proxy.labels[rows], minlength=10)
            assert counts.sum() == place.quantity == len(np.unique(rows))
            assert min(LEVELS[ENTROPY], key=lambda value: abs(value - missing_entropy(counts))) == wanted


def test_neighbours_and_refinement_go_by_the_value() -> None:
    grid = metric_grid(ENTROPY, [0.8, 0.2, 0.4], [20, 40], 9)
    assert [place.heterogeneity(9) for place in grid[::2]] == [0.2, 0.4, 0.8]
    assert warm_started_by(grid)[grid[3]] == (grid[1], grid[2])
    np.testing.assert_allclose(refined_values(ENTROPY, [0.2, 0.8]), [0, 0.2, 0.5, 0.8, 1])
    np.testing.assert_allclose(refined_values(f"{__name__}:largest", [1.0, 2.0]), [0.5, 1.0, 1.5, 2.0, 2.5])
    assert {place.quantity for place in finer_grid(grid, rows_of([100] * 9))} == {10, 20, 30, 40, 50}


def largest(label_counts: np.ndarray, num_rows: int) -> float:
    """A metric of a user's own."""
    return float(label_counts.max() / num_rows)


def test_clients_of_a_metric_of_ones_own_find_their_cell() -> None:
    """Whatever of 62 classes they hold; a cell's clients differ."""
    proxy, metric, values = rows_of([60] * 62), f"{__name__}:largest", (0.05, 0.3, 0.9)
    for place in metric_grid(metric, values, [40, 200], 62):
        if place.heterogeneity(62) == 0.9 and place.quantity == 200:  # 60 rows are of a class at most
            assert place_faults(place, proxy)
            continue
        held = set()
        for rows in draw_proxy_clients(place, proxy, 5, seed=1).rows:
            counts = np.bincount(proxy.labels[rows], minlength=62)
            assert counts.sum() == place.quantity == len(np.unique(rows))
            nearest = min(values, key=lambda value: abs(value - largest(counts, place.quantity)))
            assert nearest == place.heterogeneity(62)
            held.add(tuple(counts.tolist()))
        assert len(held) > 1


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(("metric", "levels"), [("entropy", (0.3, 0.7)), (f"{__name__}:largest", (0.5, 0.8))])
def test_a_table_is_tuned_refined_and_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, levels: tuple[float, float]
) -> None:
    monkeypatch.chdir(tmp_path)
    low, high = levels
    grid = ("--metric", metric, "--heterogeneity", f"{low},{high}", "--quantity", "6,12")
    assert tune(*SMALL, *grid, "--out", "hrt.parquet") == 0
    table, told = read_settings_table(tmp_path / "hrt.parquet")
    assert [(cell.heterogeneity, cell.quantity) for cell in table.cells] == [(low, 6), (low, 12), (high, 6), (high, 12)]
    assert told["metric"] == metric
    settings = ("client_settings.kind=table", "client_settings.path=hrt.parquet")
    train = ("train", *SMALL[:4], "engine.grid=local", "search.tuned_baseline=false", *settings)
    assert run(*train, f"client_settings.metric={metric}", "--out", "out") == 0
    assert tune("--refine", "hrt.parquet", "--out", "fine.parquet", "engine.grid=local") == 0
    finer, _ = read_settings_table(tmp_path / "fine.parquet")
    assert {*table.cells} < {*finer.cells}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--metric", "spread"), ("--metric ", "heterogeneity, entropy", "'spread'")),
        (("--metric", f"{__name__}:largest"), ("--heterogeneity ", "largest")),
        (("--metric", f"{__name__}:largest", "--heterogeneity", "nan"), ("--heterogeneity ", "got nan")),
        (
            ("--metric", f"{__name__}:smallest", "--heterogeneity", "1"),
            ("client_settings.metric", "smallest", "(class counts, rows)"),
        ),
        (
            ("--metric", f"{__name__}:largest", "--heterogeneity", "0.5,2", "--quantity", "9"),
            ("largest 2 and quantity 9 ", "0.75", "0.333 to 1", "4,000"),
        ),
        (
            ("--metric", f"{__name__}:largest", "--heterogeneity", "0.5", "--quantity", "600"),
            ("largest 0.5 and quantity 600 ", "no client", "4,000"),
        ),
        (("--metric", "entropy", "--heterogeneity", "1.1"), ("--heterogeneity ", "got 1.1")),
        (("--metric", "entropy", "--quantity", "600"), ("entropy 0.2 and quantity 600 ",)),
        (("strategy.client_local_epochs=2", "strategy.kind=fedavg"), (" strategy ", "table")),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: tuple[str, ...]
) -> None:
    assert tune(*SMALL, *arguments, "--out", tmp_path / "hrt.parquet") == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert all(part in line for part in named), line


def test_a_table_of_another_metric_is_not_written_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = ("--quantity", "6", "--out", tmp_path / "hrt.parquet")
    assert tune(*SMALL, "--heterogeneity", "0.5", *out) == 0
    assert tune(*SMALL, "--metric", "entropy", "--heterogeneity", "0.5", *out) == 2
    assert "metric" in capfd.readouterr().err


def test_a_table_is_tuned_with_another_strategy(tmp_path: Path) -> None:
    out = ("--heterogeneity", "0.5", "--quantity", "6", "--out", tmp_path / "hrt.parquet")
    assert tune(*SMALL, "strategy.kind=fedadagrad", *out) == 0
    _, told = read_settings_table(tmp_path / "hrt.parquet")
    assert told["strategy"] == "fedadagrad"
    assert told["tuned"]["strategy"] == {"kind": "fedadagrad"}
    assert tune(*SMALL, *out) == 2, "FedAvg's is another table"
