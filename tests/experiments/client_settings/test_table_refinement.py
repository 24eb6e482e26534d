"""A finer table: old cells stay to the bit, new ones are tuned, the grid reaches beyond its ends where rows do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedscout.engine.contracts.client_table import SettingsCell, SettingsTable
from fedscout.engine.trials.log import read_trials
from fedscout.experiments.client_settings.proxies import CellPosition, grid_of
from fedscout.experiments.client_settings.request import finer_grid
from fedscout.search.settings_table_file import read_settings_table, write_settings_table
from tests.experiments.client_settings.test_proxy_clients import rows_of
from tests.experiments.client_settings.test_tune_table import LOCAL, tune


@pytest.fixture
def coarse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert tune(*LOCAL, "--threshold", "0.3", "--out", "coarse.parquet") == 0
    return tmp_path / "coarse.parquet"


@pytest.mark.slow
def test_old_cells_stay_and_new_ones_are_tuned(coarse: Path) -> None:
    fine = coarse.with_name("fine.parquet")
    assert tune("--refine", coarse, "engine.grid=local", "--out", fine) == 0
    old, new = pd.read_parquet(coarse), pd.read_parquet(fine)
    assert sorted({*new["quantity"]}) == [3, 6, 9, 12, 15]
    place = ["heterogeneity", "quantity"]
    kept = new.merge(old[place], on=place)
    pd.testing.assert_frame_equal(kept, old)
    assert read_settings_table(fine)[0].threshold == 0.3
    folders = [*fine.with_suffix(".tuning").glob("cells/*")]
    assert len(folders) == len(new) - len(old) == 6
    for row in new[~new["quantity"].isin(old["quantity"])].itertuples():
        name = f"heterogeneity_{row.heterogeneity:.2f},quantity_{row.quantity}-*"
        (folder,) = fine.with_suffix(".tuning").glob(f"cells/{name}")
        trials = read_trials(folder).sort_values("trial")
        best = trials.loc[trials["fitness"].idxmax()]
        assert (best["param_client_learning_rate"], best["fitness"]) == (row.learning_rate, row.score)
        assert trials["param_client_learning_rate"].iloc[0] in {*new["learning_rate"]}  # a neighbour's best


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--out", "coarse.parquet"), ("--out ", "--refine")),
        (("--quantity", "5", "--out", "fine.parquet"), ("--quantity ", "--refine")),
        (("search.budget=4", "--out", "fine.parquet"), ("search.budget: 3 before, 4 now",)),
    ],
)
def test_a_refinement_of_something_else_is_refused_in_a_line(
    arguments: tuple[str, ...], named: tuple[str, ...], coarse: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = coarse.read_bytes()
    assert tune("--refine", coarse, "engine.grid=local", *arguments) == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert all(part in line for part in named), line
    assert coarse.read_bytes() == before


def test_a_table_that_was_not_tuned_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made.parquet"
    write_settings_table(path, SettingsTable((SettingsCell(0.5, 10, 0.1, 8, 1),)), {"dataset": "wine"})
    assert tune("--refine", path, "--out", tmp_path / "fine.parquet") == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert "--refine " in line


def test_ends_are_extended_as_far_as_the_rows_reach(caplog: pytest.LogCaptureFixture) -> None:
    plenty, scarce = rows_of([1000] * 9), rows_of([40] * 9)
    places = grid_of([7, 3], [20, 100])
    assert {place.num_classes for place in finer_grid(places, plenty)} == {1, 3, 5, 7, 9}
    assert {place.quantity for place in finer_grid(places, plenty)} == {10, 20, 60, 100, 140}
    assert not caplog.records
    found = finer_grid(places, scarce)  # three classes hold 120 rows, one holds 40
    assert {place.quantity for place in found} == {10, 20, 60, 100}
    assert {place.num_classes for place in found} == {3, 5, 7, 9}
    assert "quantity 140, heterogeneity 1.00" in caplog.text
    assert {*places} <= {*found}
    assert found == tuple(sorted(found, key=lambda place: (-place.num_classes, place.quantity)))
    assert CellPosition(9, 20) in found
    assert np.all([place.quantity >= place.num_classes for place in found])
