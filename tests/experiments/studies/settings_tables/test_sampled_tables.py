"""Tables of class samplings or entropies: cells' clients have them, clients find theirs, and a command does it all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.contracts.class_sampling import ClassSampling, missing_entropy, sampling_distances
from fedscout.engine.contracts.settings_lookup import ENTROPY, SAMPLINGS
from fedscout.experiments.cli.main import main
from fedscout.experiments.studies.settings_tables.proxy_clients import draw_proxy_clients, place_faults
from fedscout.experiments.studies.settings_tables.sampled_classes import arrangements, sampled_rows, sampled_shares
from fedscout.experiments.studies.settings_tables.settings_grid import (
    LEVELS,
    refined_parameters,
    sampled_grid,
    warm_started_by,
)
from fedscout.experiments.studies.settings_tables.table_refinement import finer_grid
from fedscout.search.settings_table_file import read_settings_table
from tests.experiments.studies.settings_tables.test_proxy_clients import rows_of

KINDS = ("gaussian", "poisson", "dirichlet")
SMALL = (
    "federation.dataset=wine",
    "federation.num_clients=3",
    "federation.server_rows=0.4",
    "training.num_rounds=2",
    "search.budget=2",
    "search.kind=random",
    "engine.grid=local",
)


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("metric", SAMPLINGS)
def test_clients_of_a_cell_are_nearest_to_its_parameter(metric: str) -> None:
    kind, distance = SAMPLINGS[metric]
    proxy = rows_of([400] * 10)
    places = sampled_grid(kind, LEVELS[kind], [60, 300], 10)
    samplings = [place.sampling for place in places if place.sampling is not None and place.quantity == 60]
    shares = np.array([sampling.shares(10) for sampling in samplings])
    for place in places:
        clients = draw_proxy_clients(place, proxy, 5, seed=1)
        own = set()
        for rows in clients.rows:
            counts = np.bincount(proxy.labels[rows], minlength=10)
            assert counts.sum() == place.quantity == len(np.unique(rows))
            assert samplings[np.argmin(sampling_distances(kind, distance, counts, shares))] == place.sampling
            own.add(int(np.argmax(counts)))
        assert len(own) > 1, "clients of one cell differ in which classes they have"


@pytest.mark.parametrize("num_classes", [2, 3, 10, 62])
@pytest.mark.parametrize("missing", [0.0, 1e-6, 0.2, 0.5, 0.99, 1.0])
def test_shares_of_an_entropy_have_it_and_are_geometric(num_classes: int, missing: float) -> None:
    shares = ClassSampling("entropy", missing).shares(num_classes)
    assert shares.sum() == pytest.approx(1)
    assert missing_entropy(shares) == pytest.approx(missing, abs=1e-9)
    held = shares[shares > 1e-200]
    np.testing.assert_allclose(held[1:] / held[:-1], (held[1:] / held[:-1])[:1].repeat(len(held) - 1), rtol=1e-9)
    assert (np.diff(shares) <= 0).all()


def test_clients_of_an_entropy_have_it_but_for_rounding() -> None:
    proxy = rows_of([400] * 10)
    for place in sampled_grid(ENTROPY, LEVELS[ENTROPY], [60, 300], 10):
        (wanted,) = {place.heterogeneity(10)}
        for rows in draw_proxy_clients(place, proxy, 5, seed=1).rows:
            counts = np.bincount(proxy.labels[rows], minlength=10)
            assert counts.sum() == place.quantity == len(np.unique(rows))
            assert missing_entropy(counts) == pytest.approx(wanted, abs=2 / place.quantity)


@given(
    st.sampled_from(KINDS),
    st.floats(0.05, 20),
    st.integers(1, 60),
    st.lists(st.integers(0, 40), min_size=2, max_size=8),
    st.integers(0, 99),
)
def test_shares_are_drawn_where_there_are_rows_and_refused_where_not(
    kind: str, parameter: float, quantity: int, class_rows: list[int], seed: int
) -> None:
    sampling = ClassSampling(kind, parameter)  # type: ignore[arg-type]
    rows = np.array(class_rows)
    counts = sampled_rows(sampling, quantity, len(rows))
    assert counts.sum() == quantity
    assert (np.abs(counts - quantity * sampling.shares(len(rows))) < 1).all()
    (place,) = sampled_grid(kind, [parameter], [quantity], len(rows))
    if not arrangements(sampling, counts, rows):
        (fault,) = place_faults(place, rows_of(class_rows))
        assert "a smaller --quantity or a larger federation.server_rows would do" in fault
        return
    drawn = sampled_shares(sampling, quantity, rows, np.random.default_rng(seed))
    assert (drawn <= rows).all()
    assert sorted(drawn.tolist()) == sorted(counts.tolist())


def test_neighbours_and_refinement_go_by_the_parameter() -> None:
    grid = sampled_grid("dirichlet", [4.0, 0.25, 1.0], [20, 40], 9)
    assert [place.heterogeneity(9) for place in grid[::2]] == [0.25, 1.0, 4.0]
    assert warm_started_by(grid)[grid[3]] == (grid[1], grid[2])
    np.testing.assert_allclose(refined_parameters("poisson", [0.25, 1.0, 4.0]), [0.125, 0.25, 0.5, 1, 2, 4, 8])
    np.testing.assert_allclose(refined_parameters(ENTROPY, [0.2, 0.8]), [0, 0.2, 0.5, 0.8, 1])
    assert {place.quantity for place in finer_grid(grid, rows_of([100] * 9))} == {10, 20, 30, 40, 50}


def largest(label_counts: np.ndarray, num_rows: int) -> float:
    """A metric of a user's own."""
    return float(label_counts.max() / num_rows)


def test_clients_of_a_metric_of_ones_own_find_their_cell() -> None:
    """Whatever of 62 classes they hold; a cell's clients differ."""
    proxy, metric, values = rows_of([60] * 62), f"{__name__}:largest", (0.05, 0.3, 0.9)
    for place in sampled_grid(metric, values, [40, 200], 62):
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "levels", "found_by"),
    [
        ("dirichlet", (0.2, 2), ("dirichlet", "dirichlet_bhattacharyya")),
        ("entropy", (0.3, 0.7), ("entropy",)),
        (f"{__name__}:largest", (0.5, 0.8), (f"{__name__}:largest",)),
    ],
)
def test_a_table_is_tuned_refined_and_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, levels: tuple[float, float], found_by: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    low, high = levels
    grid = ("--metric", metric, "--heterogeneity", f"{low},{high}", "--quantity", "6,12")
    assert run("tune-table", *SMALL, *grid, "--out", "hrt.parquet") == 0
    table, told = read_settings_table(tmp_path / "hrt.parquet")
    assert [(cell.heterogeneity, cell.quantity) for cell in table.cells] == [(low, 6), (low, 12), (high, 6), (high, 12)]
    assert told["metric"] == metric
    settings = ("client_settings.kind=table", "client_settings.path=hrt.parquet")
    train = ("train", *SMALL[:4], "engine.grid=local", "search.tuned_baseline=false", *settings)
    for name in found_by:
        assert run(*train, f"client_settings.metric={name}", "--out", name) == 0
    assert run("tune-table", "--refine", "hrt.parquet", "--out", "fine.parquet", "engine.grid=local") == 0
    finer, _ = read_settings_table(tmp_path / "fine.parquet")
    assert {*table.cells} < {*finer.cells}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--metric", "spread"),
            "--metric must be one of heterogeneity, entropy, gaussian, poisson, dirichlet or package.module:function, "
            "got 'spread'",
        ),
        (("--metric", f"{__name__}:largest"), "--heterogeneity must say values that"),
        (("--metric", f"{__name__}:largest", "--heterogeneity", "nan"), "gives, got nan"),
        (("--metric", f"{__name__}:smallest", "--heterogeneity", "1"), "must be a function of (class counts, rows)"),
        (
            ("--metric", f"{__name__}:largest", "--heterogeneity", "0.5,2", "--quantity", "9"),
            "largest 2 and quantity 9 needs clients within 0.75 of that value, got 0.333 to 1 in 4,000 tries",
        ),
        (
            ("--metric", f"{__name__}:largest", "--heterogeneity", "0.5", "--quantity", "600"),
            "got no client that the proxy rows fill in 4,000 tries",
        ),
        (("--metric", "entropy", "--heterogeneity", "1.1"), "--heterogeneity must be in [0, 1], got 1.1"),
        (("--metric", "poisson", "--heterogeneity", "0"), "must be parameters of poisson above 0, got 0"),
        (("--metric", "gaussian", "--quantity", "600"), "the cell of gaussian 0.5 and quantity 600 needs"),
        (("strategy.client_local_epochs=2", "strategy.kind=fedavg"), "strategy must not say what a table is tuned for"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert run("tune-table", *SMALL, *arguments, "--out", tmp_path / "hrt.parquet") == 2
    told = capfd.readouterr().err.strip()
    assert said in told
    assert len(told.splitlines()) == 1


def test_a_table_of_another_metric_is_not_written_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = ("--quantity", "6", "--out", tmp_path / "hrt.parquet")
    assert run("tune-table", *SMALL, "--heterogeneity", "0.5", *out) == 0
    assert run("tune-table", *SMALL, "--metric", "poisson", "--heterogeneity", "0.5", *out) == 2
    assert "metric" in capfd.readouterr().err


def test_a_table_is_tuned_with_another_strategy(tmp_path: Path) -> None:
    out = ("--heterogeneity", "0.5", "--quantity", "6", "--out", tmp_path / "hrt.parquet")
    assert run("tune-table", *SMALL, "strategy.kind=fedadagrad", *out) == 0
    _, told = read_settings_table(tmp_path / "hrt.parquet")
    assert told["strategy"] == "fedadagrad"
    assert told["tuned"]["strategy"] == {"kind": "fedadagrad"}
    assert run("tune-table", *SMALL, *out) == 2, "FedAvg's is another table"
