"""A table from its command to its file: bits, what a kill leaves, what is refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from shutil import copytree

import pandas as pd
import pytest

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_table import SettingsCell, SettingsTable
from fedscout.engine.trials.log import read_trials
from fedscout.experiments.client_settings import tuning
from fedscout.search.client_settings import read_settings_table, write_settings_table
from tests.experiments.cli.conftest import exit_code
from tests.experiments.client_settings.test_grid_and_proxy import OWN

SMALL = (
    *("federation.dataset=wine", "federation.num_clients=3", "federation.server_rows=0.4", "training.num_rounds=2"),
    *("search.budget=3", "search.kind=random"),
)
GRID = ("--heterogeneity", "0,0.5", "--quantity", "6,12")
LOCAL = (*SMALL, *GRID, "engine.grid=local")


tune = partial(exit_code, "tune-table")


def logs(out: Path) -> dict[str, float]:
    """Return the fitness of every logged trial by its key."""
    found = pd.concat(
        [read_trials(log.parent) for log in out.with_suffix(".tuning").glob("cells/*/trials") if any(log.iterdir())]
    )
    assert found["key"].is_unique  # nothing is trained twice
    return dict(zip(found["key"], found["fitness"], strict=True))


def cells(path: Path) -> pd.DataFrame:
    """Return a table's cells with what was measured for each."""
    table, told = read_settings_table(path)
    return pd.DataFrame([vars(cell) | beside for cell, beside in zip(table.cells, told["cells"], strict=True)])


def rows_per_least(label_counts: IntArray, num_rows: int) -> float:
    """A metric that not all clients have."""
    return num_rows // int(label_counts.min())


PARTIAL = f"{__name__}:rows_per_least"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_the_table_has_each_cells_best_setting(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The grid grows, and what was tuned is not tuned again."""
    out = tmp_path / "hrt.json"
    assert tune(*SMALL, "engine.grid=local", "--heterogeneity", "0", "--quantity", "6", "--out", out) == 0
    before, _ = logs(out), capfd.readouterr()
    assert tune(*LOCAL, "--out", out, "--json") == 0
    assert before.items() < logs(out).items()
    table, told = read_settings_table(out)
    assert [(cell.heterogeneity, cell.quantity) for cell in table.cells] == [(0, 6), (0, 12), (0.5, 6), (0.5, 12)]
    assert (told["dataset"], told["num_classes"], told["metric"]) == ("wine", 3, "heterogeneity")
    assert json.loads(capfd.readouterr().out)["cells"][3]["quantity"] == 12
    for cell, beside in zip(table.cells, told["cells"], strict=True):
        name = f"heterogeneity_{cell.heterogeneity:.2f},quantity_{cell.quantity}-*"
        (folder,) = out.with_suffix(".tuning").glob(f"cells/{name}")
        trials = read_trials(folder)
        best = trials.loc[trials["fitness"].idxmax()]
        assert beside["score"] == best["fitness"] == best["round_accuracy"][-1]  # after the last round
        assert best["param_client_learning_rate"] == cell.learning_rate
        assert beside["trials"] == len(trials) == 3


@pytest.mark.slow
def test_uninformed_cells_are_tuned_as_if_alone(tmp_path: Path) -> None:
    out, alone = tmp_path / "hrt.json", ("--heterogeneity", "0.5", "--quantity", "12")
    assert tune(*SMALL, "engine.grid=local", "search.informed=false", *alone, "--out", out) == 0
    before = logs(out)
    assert tune(*LOCAL, "search.informed=false", "--out", out) == 0
    assert before.items() < logs(out).items()
    assert len(logs(out)) == 4 * 3


@pytest.mark.slow
def test_a_grid_search_tries_every_combination_in_spite_of_the_patience(tmp_path: Path) -> None:
    grid = ("search.kind=grid", "search.grid_points=2", "search.budget=8", "--patience", "1", "engine.grid=local")
    assert tune(*SMALL[:4], *grid, "--heterogeneity", "0", "--quantity", "6", "--out", tmp_path / "hrt.json") == 0
    (folder,) = (tmp_path / "hrt.tuning").glob("cells/*")
    columns = ["param_client_learning_rate", "param_client_batch_size", "param_client_local_epochs"]
    tried = read_trials(folder)[columns].drop_duplicates()
    assert [sorted(tried[name].unique()) for name in columns] == [[pytest.approx(1e-5), 0.8], [4, 64], [1, 30]]
    assert len(tried) == 8


@pytest.mark.slow
def test_a_killed_tuner_goes_on_and_ends_with_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = tmp_path / "whole.json", tmp_path / "cut.json"
    assert tune(*LOCAL, "--out", whole) == 0
    ended = tuning.search_setting
    calls = iter(range(3))

    def killed(*arguments: object) -> object:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return ended(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "search_setting", killed)
        assert tune(*LOCAL, "--out", cut) == 130
    assert not cut.exists()
    before = logs(cut)
    assert 0 < len(before) < len(logs(whole))
    assert tune(*LOCAL, "--out", cut) == 0
    assert cut.read_bytes() == whole.read_bytes()
    assert logs(cut) == logs(whole)


@pytest.mark.stress
def test_workers_on_ray_give_the_bits_of_one_process(tmp_path: Path, ray_session: None) -> None:
    alone, side_by_side = tmp_path / "alone.json", tmp_path / "ray.json"
    assert tune(*LOCAL, "--out", alone) == 0
    assert tune(*SMALL, *GRID, "engine.address=auto", "--parallel", "2", "--out", side_by_side) == 0
    assert side_by_side.read_bytes() == alone.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--quantity", "0"), ("--quantity", "got 0")),
        (("--heterogeneity", "1.5"), ("--heterogeneity", "got 1.5")),
        (("--quantity", "ten"), ("--quantity", "'ten'")),
        (("--quantity", "600"), ("600 rows of 3 classes",)),
        (("federation.dataset=diabetes",), ("federation.server_rows",)),
        (("federation.dataset=cartpole",), ("federation.dataset", "federation.server_rows")),
        (("search.strategies=[fedprox]",), ("search.strategies",)),
        (("search.selection=[random, oort]",), ("search.selection",)),
        (("selection.kind=oort",), (" selection ",)),
        (("training.fraction_train=0.5",), ("training.fraction_train",)),
        (("training.scored_clients=2",), ("training.scored_clients",)),
        (("strategy.kind=fedex",), ("strategy.kind", "fedex")),
        (("search.kind=racing",), ("search.kind",)),
        (("--metric", "spread"), ("--metric ", "'spread'")),
        (("--metric", OWN), ("--heterogeneity ", "largest")),
        (("--metric", OWN, "--heterogeneity", "nan"), ("--heterogeneity ", "got nan")),
        (("--metric", f"{__name__}:smallest", "--heterogeneity", "1"), ("client_settings.metric", "smallest")),
        (("--metric", PARTIAL, "--heterogeneity", "3", "--quantity", "9"), ("rows_per_least must ",)),
        (("--metric", OWN, "--heterogeneity", "0.5,2", "--quantity", "9"), ("largest 2 and quantity 9 ", "0.333 to 1")),
        (("--metric", OWN, "--heterogeneity", "0.5", "--quantity", "600"), ("largest 0.5 and quantity 600 ",)),
        (("strategy.client_local_epochs=2", "strategy.kind=fedavg"), (" strategy ", "table")),
        (("--proxy", "wine"), ("federation.dataset=wine",)),
        (("--proxy", "digits"), ("data set 'wine'", "'digits'")),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    arguments: tuple[str, ...], named: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tune("federation.dataset=wine", "engine.grid=local", *arguments, "--out", tmp_path / "hrt.json") == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert all(part in line for part in named), line
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_no_client_trains_on_what_its_table_was_tuned_on(coarse: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table = ("client_settings.kind=table", f"client_settings.path={coarse}", "search.tuned_baseline=false")
    wine = ("train", *SMALL[:2], SMALL[3], "engine.grid=local")
    assert exit_code(*wine, *table) == 2
    assert "federation.server_rows=0.4" in capfd.readouterr().err
    assert exit_code(*wine, *table, "federation.server_rows=0.4") == 0


FEW_TRIALS = (*SMALL, "search.budget=2", "engine.grid=local")


def test_a_table_of_another_strategy_metric_or_seed_is_not_written_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "hrt.json"
    given = (*FEW_TRIALS, "--heterogeneity", "0.5", "--quantity", "6", "--out", out)
    assert tune(*given, "strategy.kind=fedadagrad") == 0
    _, told = read_settings_table(out)
    assert (told["strategy"], told["tuned"]["strategy"]) == ("fedadagrad", {"kind": "fedadagrad"})
    written = out.read_bytes()
    for other in ((), ("strategy.kind=fedadagrad", "seed=1"), ("strategy.kind=fedadagrad", "--metric", "entropy")):
        assert tune(*given, *other) == 2
    told_of = capfd.readouterr().err
    assert [part for part in ("seed: 0 before, 1 now", "metric: 'heterogeneity' before") if part not in told_of] == []
    assert out.read_bytes() == written


# A finer table: old cells stay to the bit, new ones are tuned, the grid reaches beyond its ends where rows do.


@pytest.fixture(scope="module")
def tuned_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table and its logs. Not to be written into."""
    folder = tmp_path_factory.mktemp("coarse")
    assert tune(*LOCAL, "--threshold", "0.3", "--out", folder / "coarse.json") == 0
    return folder


@pytest.fixture
def coarse(tuned_once: Path, tmp_path: Path) -> Path:
    return Path(copytree(tuned_once, tmp_path, dirs_exist_ok=True)) / "coarse.json"


@pytest.mark.slow
def test_old_cells_stay_and_new_ones_are_tuned(coarse: Path) -> None:
    fine = coarse.with_name("fine.json")
    assert tune("--refine", coarse, "engine.grid=local", "--out", fine) == 0
    old, new = (cells(path) for path in (coarse, fine))
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
        (("--out", "coarse.json"), ("--out ", "--refine")),
        (("--quantity", "5", "--clients", "5", "--out", "fine.json"), ("--quantity, --clients ", "--refine")),
        (("search.budget=4", "--out", "fine.json"), ("search.budget: 3 before, 4 now",)),
        (("--refine", "made.json", "--out", "fine.json"), ("--refine ",)),
    ],
)
def test_a_refinement_of_something_else_is_refused_in_a_line(
    arguments: tuple[str, ...], named: tuple[str, ...], coarse: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The last is a table that was not tuned."""
    write_settings_table(Path("made.json"), SettingsTable((SettingsCell(0.5, 10, 0.1, 8, 1),)), {"dataset": "wine"})
    before = coarse.read_bytes()
    assert tune("--refine", coarse, "engine.grid=local", *arguments) == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert all(part in line for part in named), line
    assert coarse.read_bytes() == before


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(("metric", "levels"), [("entropy", (0.3, 0.7)), (OWN, (0.5, 0.8))])
def test_a_table_of_a_metric_is_tuned_refined_and_trained_with(
    tmp_path: Path, metric: str, levels: tuple[float, float]
) -> None:
    low, high = levels
    grid = ("--metric", metric, "--heterogeneity", f"{low},{high}", "--quantity", "6,12")
    assert tune(*FEW_TRIALS, *grid, "--out", "hrt.json") == 0
    table, told = read_settings_table(tmp_path / "hrt.json")
    assert [(cell.heterogeneity, cell.quantity) for cell in table.cells] == [(low, 6), (low, 12), (high, 6), (high, 12)]
    assert told["metric"] == metric
    settings = ("client_settings.kind=table", "client_settings.path=hrt.json")
    train = ("train", *FEW_TRIALS[:4], "engine.grid=local", "search.tuned_baseline=false", *settings)
    assert exit_code(*train, f"client_settings.metric={metric}", "--out", "out") == 0
    assert tune("--refine", "hrt.json", "--out", "fine.json", "engine.grid=local") == 0
    finer, _ = read_settings_table(tmp_path / "fine.json")
    assert {*table.cells} < {*finer.cells}


@pytest.mark.slow
def test_a_table_of_synthetic_rows_says_so_and_can_be_refined(tmp_path: Path) -> None:
    small = (*SMALL[:2], "engine.grid=local", "training.num_rounds=2")
    grid = ("--heterogeneity", "0", "--quantity", "12", "search.budget=2", "search.kind=random")
    assert tune(*small, *grid, "--synthetic", "200", "--out", "coarse.json") == 0
    proxy = read_settings_table(tmp_path / "coarse.json")[1]["proxy"]
    assert (proxy["synthetic"], proxy["num_rows"], proxy["num_left_out"]) == (200, 200, 0)
    assert tune("--refine", "coarse.json", "engine.grid=local", "--out", "fine.json") == 0
    assert len(read_settings_table(tmp_path / "fine.json")[0].cells) > 1
