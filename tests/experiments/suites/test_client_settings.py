"""Ways to obtain client settings by their laws, and a table of them at a tiny scale."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pytest

from fedscout.engine.config import EngineConfig
from fedscout.engine.trials import runner as trial_runner
from fedscout.engine.trials.log import read_trials
from fedscout.experiments import suites
from fedscout.experiments.grids.catalogue import catalogue
from fedscout.experiments.grids.cells import CellContext, Measured, run_cells
from fedscout.experiments.grids.experiment import Experiment, Given, Settings, arguments
from fedscout.experiments.grids.federation_runner import built_federation, open_federation, other_seeds
from fedscout.experiments.studies.run_folder import GridFolder
from fedscout.experiments.suites import client_settings as ways

(TABLE,) = [entry.read() for entry in catalogue(Path(suites.__file__).parent) if entry.name == "client-settings/table"]
TINY: Settings = {
    **TABLE.federations["digits"],
    "federation.server_rows": 0.2,
    "model.hidden": [8],
    "training.num_rounds": 2,
    "search.budget": 2,
    "federation.partition.levels": [0.2, 0.8],
    "federation.partition.quantities": [16, 32, 48],
    "federation.num_clients": 6,
}


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ways.SettingsTuning]:
    """One federation for all tests: what one of them tunes, another finds in the logs."""
    out = tmp_path_factory.mktemp("tuning")
    with open_federation(built_federation("digits", arguments(TINY)), out) as runner:
        yield ways.SettingsTuning(runner, other_seeds("client settings", 1)[0], out)


def settings_in(found: ways.Tuned) -> list[tuple[float, int, int]]:
    """Return the settings of a table's cells."""
    return [(cell.learning_rate, cell.batch_size, cell.local_epochs) for cell in found.lookup.table.cells]


def measure(out: Path, rows: dict[str, Any]) -> Measured:
    method = {"kind": "given", "function": f"{ways.settings_cell.__module__}:settings_cell"}
    experiment = Experiment.model_validate(
        {"title": "a test", "columns": {"digits": TINY}, "method": method, "rows": rows}
    )
    context = CellContext(out, num_seeds=2, fresh_stream="client settings")
    return run_cells(experiment, GridFolder(out), context, EngineConfig(grid="local"))


@pytest.mark.slow
def test_a_whole_table_trains_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row: {"arguments": method.arguments} for row, method in TABLE.rows.items() if isinstance(method, Given)}
    found = measure(tmp_path, rows)
    clients, cells, tried = 6, 6, 2
    assert {row for row, _ in found.values} == {*rows}
    assert all(len(values) == 2 for values in found.values.values())
    steps = {
        row: tuple(found.figures[what][row, "digits"][0] for what in ("steps of proxy clients", "steps of clients"))
        for row in rows
    }
    assert steps["table"] == (5 * cells * tried, 0)
    assert steps["random table"] == (0, 0)
    assert steps["global"] == steps["FedRL"] == (0, tried * clients)

    rmtree(tmp_path / "cells")
    monkeypatch.setattr(trial_runner, "run_trial", lambda *_: pytest.fail("all of it is in the log"))
    assert measure(tmp_path, rows) == found


@pytest.mark.slow
def test_each_way_is_what_it_says(tuning: ways.SettingsTuning) -> None:
    tuned = ways.table(tuning)
    assert sorted(settings_in(ways.table(tuning, change="shuffled"))) == sorted(settings_in(tuned))
    ranges = tuning.config.search.client_ranges
    for rate, batch, epochs in settings_in(ways.random_table(tuning)):
        assert ranges.learning_rate.low <= rate <= ranges.learning_rate.high
        assert 8 <= batch <= 64
        assert 1 <= epochs <= 10
    assert ways.table(tuning, strategy="fedadagrad") != tuned
    assert len(settings_in(ways.one_for_all(tuning))) == 1
    learner = ways.reinforced(tuning)
    assert learner.lookup is None
    assert learner.setting == settings_in(ways.one_for_all(tuning))[0]


@pytest.mark.slow
def test_a_refined_table_holds_the_coarse_one_and_cells_between_and_beyond(tuning: ways.SettingsTuning) -> None:
    coarse, finer = ways.table(tuning, grid=(2, 2)), ways.table(tuning, grid=(2, 2), change="refined")
    assert {*coarse.lookup.table.cells} < {*finer.lookup.table.cells}
    held = {cell.quantity for cell in finer.lookup.table.cells}
    assert held == {12, 24, 36, 48}, "between and beyond; eight classes have no room in 6 rows"
    classes = {round(9 * (1 - cell.heterogeneity)) + 1 for cell in finer.lookup.table.cells}
    assert classes == {3, 6, 8, 10}, "one class has no 48 rows"
    assert finer.proxy_steps > coarse.proxy_steps


def test_a_grid_is_refined_until_every_client_has_a_cell_within_the_threshold(tuning: ways.SettingsTuning) -> None:
    coarse, finer = tuning.grid_within(1.0), tuning.grid_within(0.1)
    assert {*coarse} == {*tuning.coarser_grid(2, 2)} < {*finer}
    table = tuning.lookup(dict.fromkeys(finer, (0.1, 8, 1))).table
    clients = product((2 / 9, 7 / 9), (12, 24, 36))  # indices of 8 and 3 classes, three quarters of the rows
    assert max(table.distances(*client).min() for client in clients) <= 0.1


@pytest.mark.slow
def test_a_tuned_rate_is_that_of_the_best_trial_on_each_seed(tmp_path: Path) -> None:
    changed: Settings = {"federation.partition.levels": [0.5], "federation.partition.quantities": [32]}
    changed |= {"search.kind": "grid", "search.grid_points": 3, "search.budget": 3}
    changed["search.client_ranges"] = {"learning_rate": {"low": 0.01, "high": 1.0, "log": True}}
    kept = {key: value for key, value in TINY.items() if not key.startswith("search.client_ranges")}
    context = CellContext(tmp_path, num_seeds=2, fresh_stream="client settings")
    found = ways.tuned_rate(("rate", "digits"), {**kept, **changed}, context)
    best = []
    for folder in tmp_path.glob("benchmark/tables/cells/*"):
        trials = read_trials(folder)
        assert sorted(trials["param_client_learning_rate"]) == pytest.approx([0.01, 0.1, 1.0])
        best.append(trials.loc[trials["fitness"].idxmax(), "param_client_learning_rate"])
    assert sorted(found.values) == sorted(best)
    assert len(best) == 2


def test_worse_proxies_are_worse_as_they_say(tuning: ways.SettingsTuning) -> None:
    usual = ways.worse_proxies(tuning, "usual")
    changed = {
        name: np.mean(ways.worse_proxies(tuning, name).labels != usual.labels)
        for name in ("mislabelled", "meaningless")
    }
    assert 0.25 < changed["mislabelled"] < 0.45  # of the two fifths that are drawn a tenth comes out right
    assert 0.8 < changed["meaningless"] < 1
    few = ways.worse_proxies(tuning, "few")
    assert len(few.labels) < 0.3 * len(usual.labels)
    scored = np.bincount(few.labels[few.num_trained :], minlength=10)
    assert (scored == scored[0]).all()
    assert len(ways.worse_proxies(tuning, "synthetic").labels) > 0.9 * len(usual.labels)


def test_every_way_is_a_row_of_a_table() -> None:
    entries = [entry for entry in catalogue(Path(suites.__file__).parent) if entry.source == "client-settings"]
    methods = [method for entry in entries for method in entry.read().rows.values()]
    assert {method.arguments["way"] for method in methods if isinstance(method, Given)} == {*ways.WAYS}
