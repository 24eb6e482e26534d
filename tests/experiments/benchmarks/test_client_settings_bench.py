"""The measurement of client settings: ways to obtain them by their laws, and a whole part at a tiny scale."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedscout.engine.contracts.class_sampling import Sampling, sampling_parameter
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials import trial_runner
from fedscout.experiments.benchmarks.client_settings import settings_battery
from fedscout.experiments.benchmarks.client_settings.sampled_clients import sampled_counts
from fedscout.experiments.benchmarks.client_settings.settings_battery import (
    OTHER_PARTS,
    PARTS,
    PUBLISHED,
    SettingsData,
    case_of,
    part_of,
)
from fedscout.experiments.benchmarks.client_settings.settings_measurement import run_client_settings
from fedscout.experiments.benchmarks.client_settings.settings_results import (
    SettingsCellResult,
    SettingsDifference,
    SettingsReport,
)
from fedscout.experiments.benchmarks.client_settings.settings_rivals import (
    RIVALS,
    by_hand,
    every_client,
    finer_table,
    interpolated_table,
    one_for_all,
    own_table,
    random_table,
    reinforced,
    settings_in,
    shuffled_table,
    table,
)
from fedscout.experiments.benchmarks.client_settings.settings_tables import table_lines
from fedscout.experiments.benchmarks.client_settings.tuning_steps import MEASUREMENTS, run_tuning_steps, workshops
from fedscout.experiments.benchmarks.client_settings.workshop import VALIDATION_SHARE, Workshop
from fedscout.experiments.benchmarks.client_settings.worse_proxies import PROXIES
from fedscout.experiments.cli.main import main
from fedscout.experiments.studies.settings_tables.settings_grid import LEVELS
from fedscout.search.confirmation.intervals import paired_difference

TINY = SettingsData(
    (
        *("federation.dataset=digits", "federation.server_rows=0.2", "model.kind=dense", "model.hidden=[8]"),
        *("training.num_rounds=2", "search.budget=2"),
    ),
    (0.2, 0.8),
    (12, 24, 36),
    needs_files=False,
)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings_battery.DATA, "digits", TINY)  # type: ignore[arg-type]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Workshop]:
    with workshops("digits", 1, (), tmp_path / "out") as found:
        yield found[0]


def measure(out: Path, *rows: str, part: str = "table", strategies: list[str] | None = None) -> SettingsReport:
    return run_client_settings(part_of(part, rows or None, strategies), part, "digits", 2, (), out)


@pytest.mark.slow
def test_a_whole_part_is_measured_and_nothing_is_trained_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = measure(tmp_path)
    assert report.rows == tuple(row.name for row in PARTS["table"].rows)
    clients, cells, tried = 6, 6, 2
    steps = {cell.row: (cell.proxy_steps, cell.client_steps) for cell in report.cells}
    assert all(len(cell.accuracies) == 2 and not cell.failures for cell in report.cells)
    assert steps["table"] == (5 * cells * tried, 0)
    assert steps["random table"] == (0, 0)
    assert steps["global"] == steps["FedRL"] == (0, tried * clients)
    assert steps["Bayesian for each client"] == (0, tried * clients)
    assert steps["by hand for each client"] == (5 * cells * tried, (1 + 4 * clients) * clients)
    for one in report.differences:
        ours, theirs = (np.array(report.of(row, "fedavg").accuracies) for row in ("table", one.than))
        assert_allclose(one.difference.differences, ours - theirs)

    def refused(*_: Any) -> Any:
        raise AssertionError("all of it is in the log")

    monkeypatch.setattr(trial_runner, "run_trial", refused)
    assert measure(tmp_path) == report
    assert (tmp_path / "digits-table.md").read_text() == "\n".join(table_lines(report)) + "\n"


@pytest.mark.slow
def test_strategies_are_compared_with_the_same_settings(tmp_path: Path) -> None:
    report = measure(tmp_path, part="normalisation")
    assert {(one.row, one.strategy, one.than) for one in report.between} == {
        (row, "fednova", "fedavg") for row in ("global", "table")
    }
    lines = "\n".join(table_lines(report))
    assert "Beyond fedavg with the same settings:" in lines
    assert "published" not in lines


@pytest.mark.slow
def test_each_rival_is_what_it_says(shop: Workshop) -> None:
    tuned = table(shop, "fedavg")
    assert sorted(settings_in(shuffled_table(shop, "fedavg"))) == sorted(settings_in(tuned))
    ranges = shop.config.search.client_ranges
    assert ranges.learning_rate is not None
    for rate, batch, epochs in settings_in(random_table(shop, "fedavg")):
        assert ranges.learning_rate.low <= rate <= ranges.learning_rate.high
        assert 8 <= batch <= 64
        assert 1 <= epochs <= 10
    assert own_table(shop, "fedavg") == tuned
    assert own_table(shop, "fedadagrad") != tuned
    assert len(settings_in(one_for_all(shop, "fedavg"))) == 1
    learner = reinforced(shop, "fedavg")
    assert learner.lookup is None
    assert learner.strategy is not None
    assert learner.setting == settings_in(one_for_all(shop, "fedavg"))[0]


@pytest.mark.slow
def test_interpolated_cells_lie_between_the_tuned_ones(shop: Workshop) -> None:
    guessed = interpolated_table(shop, "fedavg")
    assert guessed.proxy_steps == table(shop, "fedavg").proxy_steps, "of two by three cells all are tuned"
    assert_allclose(settings_in(guessed), settings_in(table(shop, "fedavg")))


def test_every_client_gets_its_own_settings_whatever_rows_it_holds_back(shop: Workshop) -> None:
    wanted = [(0.01 * (client + 1), 8 + client, 1) for client in range(shop.num_clients)]
    labels = shop.ready.federation.labels
    for share in (0.0, VALIDATION_SHARE):
        lookup = shop.table_for_each(wanted, share)
        for client, setting in enumerate(wanted):
            counts = np.bincount(labels[shop.train_rows(client, share)], minlength=10)
            found = lookup.settings(shop.config.training.local(), counts)
            assert (found.learning_rate, found.batch_size, found.local_epochs) == setting


@pytest.mark.slow
def test_a_refined_table_holds_the_coarse_one_and_cells_between_and_beyond(shop: Workshop) -> None:
    coarse, finer = table(shop, "fedavg", grid=(2, 2)), finer_table(shop, "fedavg", grid=(2, 2))
    assert coarse.lookup is not None
    assert finer.lookup is not None
    assert {*coarse.lookup.table.cells} < {*finer.lookup.table.cells}
    held = {cell.quantity for cell in finer.lookup.table.cells}
    assert held == {12, 24, 36, 48}, "between and beyond; eight classes have no room in 6 rows"
    classes = {round(9 * (1 - cell.heterogeneity)) + 1 for cell in finer.lookup.table.cells}
    assert classes == {3, 6, 8, 10}, "one class has no 48 rows"
    assert finer.proxy_steps > coarse.proxy_steps


@pytest.mark.parametrize("kind", ["gaussian", "poisson", "dirichlet"])
def test_clients_of_a_sampling_have_its_classes_and_a_sampled_quantity(kind: Sampling) -> None:
    counts = sampled_counts(kind, (40, 4000), 400, 10)
    sizes = counts.sum(axis=1)
    assert sizes.min() >= 40
    assert sizes.max() <= 4000
    assert np.median(sizes) == pytest.approx(400, rel=0.2), "evenly in the logarithm"
    lowest, highest = LEVELS[kind][0], LEVELS[kind][-1]
    found = [sampling_parameter(kind, "bhattacharyya", client) for client in counts]
    inside = [lowest / 2 < parameter < 2 * highest for parameter in found]
    assert np.mean(inside) > (0.6 if kind == "dirichlet" else 0.95), "a Dirichlet client's shares are drawn themselves"
    asked = counts.sum(axis=0)
    assert asked.max() < 1.5 * asked.min()
    assert np.array_equal(counts, sampled_counts(kind, (40, 4000), 400, 10))


@pytest.mark.slow
def test_metrics_are_compared_on_clients_of_their_own_kind(tmp_path: Path) -> None:
    asked = part_of("poisson", ["heterogeneity"], None)
    report = run_client_settings(asked, "poisson", "digits", 2, ("federation.server_rows=0.4",), tmp_path)
    assert report.rows == ("heterogeneity", "poisson")
    assert any("federation.partition.kind=counts" in argument for argument in report.arguments)
    assert [cell.impossible for cell in report.cells] == [None, None]


@pytest.mark.slow
def test_settings_by_hand_are_no_worse_by_what_they_are_chosen_by(shop: Workshop) -> None:
    places = [shop.place(client) for client in range(shop.num_clients)]
    tuned, found = table(shop, "fedavg").lookup, by_hand(shop, "fedavg")
    assert tuned is not None
    own = [tuned.table.nearest(*place) for place in places]
    begun = [(cell.learning_rate, cell.batch_size, cell.local_epochs) for cell in own]
    scores = [
        shop.validated(shop.table_for_each(settings, VALIDATION_SHARE)) for settings in (begun, settings_in(found))
    ]
    assert scores[1] >= scores[0]


@pytest.mark.slow
def test_nothing_that_is_tuned_sees_the_rows_that_test_it(shop: Workshop) -> None:
    federation = shop.ready.federation
    fraction = shop.config.training.test_fraction
    for client in range(shop.num_clients):
        rows = federation.partition.client(client)
        split = federation.split_rows(client, federation.labels[rows], shop.seed, fraction, 0)
        assert not {*shop.train_rows(client)} & {*rows[split.test]}
    assert len(every_client(shop, "fedavg").lookup.table.cells) == shop.num_clients  # type: ignore[union-attr]


def test_worse_proxies_are_worse_as_they_say(shop: Workshop) -> None:
    usual = PROXIES["usual"](shop)
    changed = {name: np.mean(PROXIES[name](shop).labels != usual.labels) for name in ("mislabelled", "meaningless")}
    assert 0.25 < changed["mislabelled"] < 0.45  # of the two fifths that are drawn a tenth comes out right
    assert 0.8 < changed["meaningless"] < 1
    few = PROXIES["few"](shop)
    assert len(few.labels) < 0.3 * len(usual.labels)
    scored = np.bincount(few.labels[few.num_trained :], minlength=10)
    assert (scored == scored[0]).all()
    assert len(PROXIES["synthetic"](shop).labels) > 0.9 * len(usual.labels)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASUREMENTS)
def test_costs_are_told(tmp_path: Path, name: str) -> None:
    lines = run_tuning_steps(name, "digits", 2, (), tmp_path)
    assert (tmp_path / f"digits-{name}.md").read_text() == "\n".join(lines) + "\n"
    assert json.loads((tmp_path / f"digits-{name}.json").read_text()) == lines
    assert run_tuning_steps(name, "digits", 2, (), tmp_path) == lines
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    if name == "cost":
        assert [row[0] for row in rows[2:]] == ["1", "3", "6"]
        assert {(row[1], row[2]) for row in rows[2:]} == {("60", "0")}, "flat"
        assert [int(row[3]) for row in rows[2:]] == [2, 6, 12], "as many as clients"
    if name == "steps":
        for row in rows[2:]:
            curve = [float(cell) for cell in row[1:]]
            assert curve == sorted(curve)
    if name == "threshold":
        for row in rows[2:]:
            far = [float(cell) for cell in row[1:]]
            assert far == sorted(far, reverse=True)


def report_of(best_rounds: dict[str, tuple[float, ...]]) -> SettingsReport:
    """Return the report of rows that came out so, the last of which is the table."""
    cells = [
        SettingsCellResult(row=row, strategy="fedavg", accuracies=found, last=found)
        for row, found in best_rounds.items()
    ]
    differences = [
        SettingsDifference(
            row="table", strategy="fedavg", than=row, difference=paired_difference(best_rounds["table"], found)
        )
        for row, found in best_rounds.items()
        if row != "table"
    ]
    return SettingsReport(
        title="Rows",
        data="fashion_mnist",
        arguments=(),
        rows=tuple(best_rounds),
        strategies=("fedavg",),
        published=True,
        num_seeds=3,
        cells=tuple(cells),
        differences=tuple(differences),
        between=(),
        resolution=0.001,
    )


def test_orderings_are_told_beside_the_source_s() -> None:
    assert all(one < tuned < hand for one, tuned, hand in PUBLISHED.values())
    hand = "by hand for each client"
    lines = table_lines(report_of({"global": (0.5, 0.6, 0.4), hand: (0.6, 0.7, 0.5), "table": (0.81, 0.9, 0.7)}))
    of_row = {line.split(" | ")[0].strip("| "): line for line in lines if line.startswith("| ")}
    assert "+5.7 (+3.2 … +7.1) | seen |" in of_row["global"]
    assert "-0.3 (-0.9 … -0.3) | not seen |" in of_row[hand], "by hand is behind, beyond noise"
    assert of_row["table"].endswith("|  |  |")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: part_of("nix", None, None), "--part must be one of table, searches"),
        (lambda: part_of("table", ["nix"], None), "--rows must be of global, random table"),
        (lambda: case_of("nix"), "--dataset must be of digits, fashion_mnist, wine, text"),
    ],
)
def test_what_there_is_not_is_refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        call()


def test_rows_name_rivals_that_there_are() -> None:
    assert {row.rival for part in PARTS.values() for row in part.rows} == {*RIVALS}
    assert {*MEASUREMENTS} == {*OTHER_PARTS}


@pytest.mark.parametrize("given", [("--rows", "global"), ("--strategies", "fednova")])
def test_what_a_part_does_not_read_is_refused(given: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["bench", "client-settings", "--part", "cost", *given])
    assert refused.value.code == 2
    assert f"{given[0]} must be left out with --part cost" in capfd.readouterr().err
