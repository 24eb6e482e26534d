"""The measurement of selection policies: the same seeds, nothing trained twice, early stops and times by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_allclose

from fedscout.engine.errors import UserError
from fedscout.engine.trials import trial_runner
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.experiments.benchmarks.choice.choice_battery import ready_case
from fedscout.experiments.benchmarks.selection.policy_cost import cost_lines, policy_costs
from fedscout.experiments.benchmarks.selection.selection_battery import (
    GRID,
    PARTS,
    POLICIES,
    PUBLISHED,
    case_of,
    part_of,
)
from fedscout.experiments.benchmarks.selection.selection_measurement import run_selection
from fedscout.experiments.benchmarks.selection.selection_results import early_stop_accuracy, seconds_to
from fedscout.experiments.benchmarks.selection.selection_tables import table_lines
from tests.search.studies import Measured, completed, failed

ROUNDS = ("training.num_rounds=6", "model.hidden=[8]", "training.local_epochs=1")
WORTH = {"random": 0.5, "oort": 0.7, "flash": 0.8}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TrialSettings]:
    """Have trials come out by their policy, and tell what was asked for."""
    seen: list[TrialSettings] = []

    def run(settings: TrialSettings, *_: Any) -> Trial:
        seen.append(settings)
        assert settings.selection is not None
        return Trial.of(settings, **outcome(settings))

    def outcome(settings: TrialSettings) -> Measured:
        if settings.strategy.kind == "scaffold" and settings.selection.kind == "oort":  # type: ignore[union-attr]
            return failed("too bad")
        worth = WORTH[settings.selection.kind]  # type: ignore[union-attr]
        return {**completed(worth + (settings.session.seed % 7) / 1000, num_rounds=6), "round_seconds": (2.0,) * 6}

    monkeypatch.setattr(trial_runner, "run_trial", run)
    return seen


def measure(
    out: Path,
    *heterogeneities: str,
    part: str = "table",
    kinds: tuple[str, ...] = ("random", "oort"),
    strategies: tuple[str, ...] = ("fedavg", "scaffold"),
) -> Any:
    asked_for = part_of(part, kinds, strategies, heterogeneities or ("skew",))
    return run_selection(asked_for, part, "digits", 3, ROUNDS, out)


@pytest.mark.slow
def test_rows_meet_the_same_seeds_and_a_second_measurement_trains_what_is_new(
    tmp_path: Path, asked: list[TrialSettings]
) -> None:
    report = measure(tmp_path)
    assert len(asked) == 3 * 2 * 3
    seeds = {settings.selection.kind: set() for settings in asked}  # type: ignore[union-attr]
    for settings in asked:
        seeds[settings.selection.kind].add(settings.session.seed)  # type: ignore[union-attr]
    assert len({frozenset(each) for each in seeds.values()}) == 1
    losses = {(each.selection.kind, each.session.training.reverse_weight) for each in asked}  # type: ignore[union-attr]
    assert losses == {("random", 0), ("oort", 0), ("flash", 4)}

    again = measure(tmp_path)
    assert len(asked) == 18
    assert again == report
    measure(tmp_path, part="robust", kinds=("random",))
    assert len(asked) == 18 + 6, "FLASH is in both"


def test_differences_are_of_means_over_strategies_and_failures_count_at_chance(
    tmp_path: Path, asked: list[TrialSettings]
) -> None:
    report = measure(tmp_path)
    (random, oort, flash) = report.differences
    assert_allclose(random.difference.mean, 0.3, atol=0.005)
    assert (random.wins, random.num_strategies) == (2, 2)
    assert_allclose(random.published, PUBLISHED["skew"]["flash"] - PUBLISHED["skew"]["random"])
    cell = report.of("skew", "oort", "scaffold")
    assert cell.failures == ("too bad",) * 3
    assert len(set(cell.accuracies)) == 1
    assert cell.accuracies[0] < 0.2, "the most frequent of ten classes"
    assert_allclose(oort.difference.mean, 0.8 - (0.7 + cell.accuracies[0]) / 2, atol=0.005)
    assert flash.difference.mean == 0
    lines = "\n".join(table_lines(report))
    unpublished = report.model_copy(
        update={"differences": tuple(one.model_copy(update={"published": None}) for one in report.differences)}
    )
    assert "published" not in "\n".join(table_lines(unpublished))
    assert "| flash, robust loss |" in lines
    assert "†3" in lines
    assert "| seen |" in lines
    assert (tmp_path / "table.md").read_text() == lines + "\n"


def test_times_are_told_with_one_strategy_as_with_several(tmp_path: Path, asked: list[TrialSettings]) -> None:
    """Rounds take two seconds, and the first five have the mean that is the target already: ten seconds."""
    report = measure(tmp_path, "skew", "noise", strategies=("fedavg",))
    lines = table_lines(report)
    place = lines.index("Simulated seconds to the accuracy in the heading, median over the seeds that reach it:")
    targets = [report.targets[name] for name in ("skew", "noise")]
    assert all(0.45 <= target < 0.46 for target in targets), "nine tenths of random choice's 0.5"
    skew, noise = (f"{100 * target:.1f} %" for target in targets)
    assert lines[place + 2] == f"| policy | skew: {skew} | noise: {noise} |"
    assert lines[place + 4 : place + 7] == [
        "| random | 10 | 10 |",
        "| oort | 10 | 10 |",
        "| flash, robust loss | 10 | 10 |",
    ]
    silent = report.model_copy(
        update={"cells": tuple(cell.model_copy(update={"seconds": (None,) * 3}) for cell in report.cells)}
    )
    assert not [line for line in table_lines(silent) if "Simulated seconds" in line]


def trial(clean: list[float], seconds: list[float] | None = None, status: Any = "completed") -> Trial:
    ones = tuple(clean)
    return Trial(
        status=status,
        round_accuracy=ones,
        round_clean_accuracy=ones,
        round_seconds=None if seconds is None else tuple(seconds),
    )


def test_the_best_round_and_the_time_to_a_mean_of_five_by_hand() -> None:
    rising = trial([0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.7], [1, 2, 3, 4, 5, 6, 7])
    assert early_stop_accuracy(rising, 0.1) == 0.9
    assert seconds_to(rising, 0.4) == 15  # the mean of the first five rounds
    assert seconds_to(rising, 0.41) == 21
    assert seconds_to(rising, 0.8) is None
    assert seconds_to(trial([0.9] * 7), 0.1) is None, "without a clock"
    assert early_stop_accuracy(trial([0.9], status="failed"), 0.1) == 0.1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: part_of("nix", None, None), "--part must be one of table, robust"),
        (lambda: part_of("nix"), "rates, grid, regret, cost, got 'nix'"),
        (lambda: part_of("table", None, ["fedavg", "nix"]), "kind must be a known strategy, got 'nix'"),
        (lambda: part_of("table", None, [{"kind": "fedavg"}]), "--strategies must be kinds such as fedavg, fedprox"),
        (lambda: part_of("table", [{"kind": "oort"}]), "--policies must be of fedcor, feel, flash"),
        (lambda: part_of("grid", heterogeneities=["skew"]), "must be of 0% skewed, noise 0; 0% .* in grid, got 'skew'"),
        (lambda: part_of("table", heterogeneities=["skew", "nix"]), "must be of skew; noise; both in table, got 'nix'"),
        (lambda: part_of("table", ["nix"], None), "--policies must be of fedcor, feel, flash"),
        (lambda: case_of("nix", "skew"), "--dataset must be of digits, fashion_mnist"),
        (lambda: case_of("digits", "nix"), "--heterogeneities must be of skew, noise, both"),
    ],
)
def test_what_there_is_not_is_refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        call()


def test_names_with_commas_come_in_pieces() -> None:
    asked_for = ["60% skewed", "noise 25", "0% skewed", "noise 0"]
    assert part_of("grid", heterogeneities=asked_for).heterogeneities == ("60% skewed, noise 25", "0% skewed, noise 0")
    assert part_of("grid", heterogeneities=[*GRID]) == PARTS["grid"]
    assert part_of("speed", heterogeneities=["skew", "devices unlike"]) == PARTS["speed"]


def test_the_source_s_rows_are_those_of_its_table() -> None:
    assert set(PUBLISHED) == {"skew", "noise", "both"}
    assert all(tuple(row) == POLICIES and max(row, key=row.__getitem__) == "flash" for row in PUBLISHED.values())
    assert [row.policy["kind"] for row in PARTS["table"].rows] == [*POLICIES]


@pytest.mark.parametrize("name", ["skew", "30% skewed, noise 15"])
def test_federations_can_be_built(name: str) -> None:
    assert len(GRID) == 9
    ready = ready_case(case_of("digits", name), (), quick=False)
    assert ready.federation.num_clients == 50
    assert len(ready.federation.devices) == 50


@pytest.mark.slow
def test_policies_are_timed() -> None:
    (cost,) = policy_costs(["oort"])
    assert 0 < cost.own_seconds < cost.round_seconds
    assert 0 < cost.many_seconds <= cost.most_seconds
    assert "| oort |" in cost_lines([cost])[2]
