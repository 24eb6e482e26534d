"""The measurement of strategies: equal effort, equal seeds, nothing trained twice, failures at chance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscout.engine.errors import ConfigurationError, LogError, StrategyError
from fedscout.engine.trials import trial_runner
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.experiments.benchmarks.choice.choice_battery import ready_case
from fedscout.experiments.benchmarks.choice.choice_laboratory import open_laboratory, other_seeds
from fedscout.experiments.benchmarks.strategies.strategy_battery import BATTERY, federations_of
from fedscout.experiments.benchmarks.strategies.strategy_claims import CLAIMS, Claim, verdict_of
from fedscout.experiments.benchmarks.strategies.strategy_measurement import (
    RATES,
    chance_level,
    faults_of,
    plan_of,
    run_strategies,
)
from fedscout.experiments.benchmarks.strategies.strategy_results import StrategiesReport
from fedscout.experiments.benchmarks.strategies.strategy_tables import table_lines
from fedscout.search.confirmation.intervals import PairedDifference, paired_difference
from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, parse_strategy
from tests.search.studies import Measured, completed, failed

SETTINGS = ("training.num_rounds=2", "model.hidden=[4]")
FRESH = other_seeds("fresh strategies", 3)


def measured(out: Path, strategies: list[Any], federations: list[str], seeds: int = 3) -> StrategiesReport:
    return run_strategies(plan_of(strategies, federations, seeds, num_tuning_seeds=2), SETTINGS, out)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[TrialSettings], Measured]], list[TrialSettings]]:
    """Return a function that has trials come out as an outcome says, and gives what is then asked for."""

    def script(outcome: Callable[[TrialSettings], Measured]) -> list[TrialSettings]:
        asked: list[TrialSettings] = []

        def run(settings: TrialSettings, *_: Any) -> Trial:
            trial = Trial.of(settings, **outcome(settings))
            asked.append(settings)
            return trial

        monkeypatch.setattr(trial_runner, "run_trial", run)
        return asked

    return script


def rate_of(settings: TrialSettings) -> float:
    return settings.session.training.learning_rate


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StrategiesReport]:
    out = tmp_path_factory.mktemp("strategies") / "out"
    return out, measured(out, ["scaffold", "fedbn"], ["dirichlet_0.5", "unequal_steps"])


@pytest.mark.slow
def test_every_strategy_is_measured_on_every_federation_unless_that_is_for_claims(
    outcome: tuple[Path, StrategiesReport],
) -> None:
    _, report = outcome
    assert report.strategies == ("fedavg", "scaffold", "fedbn")
    assert [(one.federation, one.strategy) for one in report.measured] == [
        *(("dirichlet_0.5", strategy) for strategy in report.strategies),
        *(("unequal_steps", strategy) for strategy in ("fedavg", "scaffold")),
    ]
    for one in report.measured:
        if one.impossible is None:
            assert (len(one.tuning), len(one.accuracies), one.failures) == (len(RATES), 3, ())
            assert one.learning_rate == RATES[int(np.argmax(one.tuning))]


@pytest.mark.slow
def test_differences_are_to_fedavg_on_the_same_re_splits(outcome: tuple[Path, StrategiesReport]) -> None:
    _, report = outcome
    for federation in report.federations:
        fedavg, ours = (report.of(federation.name, name) for name in ("fedavg", "scaffold"))
        assert fedavg is not None
        assert ours is not None
        assert ours.difference == paired_difference(
            ours.accuracies, fedavg.accuracies, resolution=federation.resolution, test_to_train=0.25
        )
        assert fedavg.difference is not None
        assert fedavg.difference.differences == (0.0,) * 3


def test_a_strategy_that_a_federation_does_not_allow_is_told_and_not_trained(
    outcome: tuple[Path, StrategiesReport],
) -> None:
    _, report = outcome
    fedbn = report.of("dirichlet_0.5", "fedbn")
    assert fedbn is not None
    assert "batch normalisation" in (fedbn.impossible or "")
    assert (fedbn.accuracies, fedbn.difference) == ((), None)
    assert any(line.startswith("| fedbn | – |") for line in table_lines(report))


def test_a_claim_is_an_ordering_of_what_was_measured(outcome: tuple[Path, StrategiesReport]) -> None:
    _, report = outcome
    (ordering,) = report.orderings
    scaffold = report.of("unequal_steps", "scaffold")
    assert scaffold is not None
    assert (ordering.strategy, ordering.than, ordering.federation) == ("scaffold", "fedavg", "unequal_steps")
    assert ordering.difference == scaffold.difference


def test_the_same_command_trains_nothing_again_and_finds_the_same(
    outcome: tuple[Path, StrategiesReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, report = outcome
    monkeypatch.setattr(trial_runner, "run_trial", lambda *_: pytest.fail("a stored trial was trained again"))
    assert measured(out, ["scaffold", "fedbn"], ["dirichlet_0.5", "unequal_steps"]) == report
    assert StrategiesReport.model_validate(json.loads((out / "result.json").read_text())) == report
    assert (out / "table.md").read_text() == "\n".join(table_lines(report)) + "\n"


def test_a_measurement_that_was_cut_off_goes_on(tmp_path: Path, scripted: Callable[..., list[TrialSettings]]) -> None:
    interrupted = other_seeds("tuning strategies", 2)[1]

    def until_interrupted(settings: TrialSettings) -> Measured:
        if (settings.strategy.kind, rate_of(settings), settings.session.seed) == ("fedmedian", 0.3, interrupted):
            raise KeyboardInterrupt
        return completed(0.5)

    before = scripted(until_interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, ["fedmedian"], ["dirichlet_0.5"])
    after = scripted(lambda _: completed(0.5))
    report = measured(tmp_path, ["fedmedian"], ["dirichlet_0.5"])
    assert len(before) + len(after) == 2 * (2 * len(RATES) + 3)
    assert not {one.key for one in before} & {one.key for one in after}
    assert all(one.accuracies == (0.5,) * 3 for one in report.measured)


def test_each_strategy_gets_the_same_trials_and_its_own_best_rate(
    tmp_path: Path, scripted: Callable[..., list[TrialSettings]]
) -> None:
    best = {"fedavg": 0.3, "fedmedian": 0.03}
    asked = scripted(lambda settings: completed(0.9 if rate_of(settings) == best[settings.strategy.kind] else 0.4))
    report = measured(tmp_path, ["fedmedian"], ["dirichlet_0.5"])
    trials = {kind: [one for one in asked if one.strategy.kind == kind] for kind in best}
    seeds = {kind: [one.session.seed for one in trials[kind]] for kind in best}
    assert seeds["fedavg"] == seeds["fedmedian"]
    assert len({*seeds["fedavg"][:-3]} | {*FRESH}) == 2 + 3
    for one in report.measured:
        assert (one.learning_rate, one.accuracies) == (best[one.strategy], (0.9,) * 3)
        fresh = trials[one.strategy][-3:]
        assert [(rate_of(trial), trial.session.seed) for trial in fresh] == [(best[one.strategy], s) for s in FRESH]


def test_a_failed_trial_counts_at_chance_and_is_marked(
    tmp_path: Path, scripted: Callable[..., list[TrialSettings]]
) -> None:
    """FedMedian fails at its largest rates, and on one fresh seed at the rate that is left; it reached 0.9 before."""

    def outcome(settings: TrialSettings) -> Measured:
        if settings.strategy.kind == "fedmedian" and (rate_of(settings) > 0.1 or settings.session.seed == FRESH[1]):
            return failed("round 2: diverged")
        return completed(0.05 if rate_of(settings) < 0.1 else 0.5)

    scripted(outcome)
    report = measured(tmp_path, ["fedmedian"], ["dirichlet_0.5"])
    ours = report.of("dirichlet_0.5", "fedmedian")
    (federation,) = report.federations
    assert ours is not None
    assert federation.chance == pytest.approx(183 / 1797)  # threes are the most frequent digits
    assert ours.tuning == pytest.approx((0.05, 0.5, federation.chance, federation.chance))
    assert ours.accuracies == pytest.approx((0.5, federation.chance, 0.5))
    assert ours.failures == ("round 2: diverged",)
    assert ours.difference is not None
    assert ours.difference.differences == pytest.approx((0, federation.chance - 0.5, 0))
    text = "\n".join(table_lines(report))
    assert " †1 |" in text
    assert "fedmedian on dirichlet_0.5 failed: round 2: diverged" in text


def test_chance_is_that_of_the_labels_that_clients_have() -> None:
    (swapped,) = federations_of(["two_concepts"])
    federation = ready_case(swapped.case, SETTINGS, quick=False).federation
    labels = [federation.client_data(client).own.labels for client in range(federation.num_clients)]
    rows = [federation.client_data(client).own.rows for client in range(federation.num_clients)]
    own = np.concatenate([one[where] for one, where in zip(labels, rows, strict=True)])
    assert chance_level(federation) == max(np.bincount(own)) / len(own)


def test_parameters_make_a_strategy_of_their_own() -> None:
    plan = plan_of(["ditto", {"kind": "ditto", "personal_pull": 1.0}, "fedavg"], ["two_concepts"])
    (federation,) = plan.federations
    assert [*plan.specs_on(federation)] == ["fedavg", "ditto", "ditto(personal_pull=1.0)"]
    assert [spec.kind for spec in plan_of(None, None).strategies] == [*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS]


# The battery and the claims.


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.is_testable], ids=lambda claim: claim.strategy)
def test_a_claim_can_be_tested_where_it_should_show(claim: Claim, tmp_path: Path) -> None:
    """What a strategy needs beside the rows of clients is among the arguments of the federation."""
    (federation,) = federations_of([claim.federation])
    with open_laboratory(ready_case(federation.case, (), quick=False), tmp_path) as laboratory:
        assert [fault for spec in claim.specs() for fault in faults_of(spec, laboratory)] == []


def test_what_needs_a_clock_can_not_be_trained_without_one(tmp_path: Path) -> None:
    (federation,) = federations_of(["dirichlet_0.5"])
    with open_laboratory(ready_case(federation.case, SETTINGS, quick=False), tmp_path) as laboratory:
        (fault,) = faults_of(parse_strategy("fedbuff"), laboratory)
    assert "fedbuff needs a simulated clock" in fault


def test_each_pair_of_clients_has_a_class() -> None:
    (pairs,) = federations_of(["class_pairs"])
    federation = ready_case(pairs.case, (), quick=False).federation
    classes = [{*federation.labels[federation.partition.client(client)].tolist()} for client in range(20)]
    assert sorted(digit for own in classes for digit in own) == sorted([*range(10)] * 2)


def test_a_fifth_attacks_and_their_rows_are_honest() -> None:
    (attacked,) = federations_of(["attackers"])
    federation = ready_case(attacked.case, (), quick=False).federation
    assert len(federation.attacks) / federation.num_clients == 0.2
    assert not any(federation.client_data(client).corrupted for client in range(federation.num_clients))


def test_wrong_labels_are_at_four_clients_and_scores_by_right_ones() -> None:
    (noisy,) = federations_of(["noisy_labels"])
    ready = ready_case(noisy.case, (), quick=False)
    assert ready.config.search.view == "clean"
    for client in range(10):
        data = ready.federation.client_data(client)
        own, clean = (samples.labels[samples.rows] for samples in (data.own, data.clean))
        assert np.count_nonzero(own != clean) == (round(0.4 * len(own)) if client >= 6 else 0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.01, 0.2, "seen"), (-0.1, 0.2, "within noise"), (-0.2, -0.1, "not seen")]
)
def test_an_ordering_is_seen_beyond_noise_alone(low: float, high: float, verdict: str) -> None:
    assert verdict_of(PairedDifference(mean=(low + high) / 2, low=low, high=high, differences=())) == verdict


# What a user may get wrong.


def test_mistakes_are_told_before_anything_is_trained(tmp_path: Path) -> None:
    names = ", ".join(federation.name for federation in BATTERY)
    with pytest.raises(ConfigurationError, match=rf"--federations must be of {names}, got 'nowhere'"):
        plan_of(None, ["nowhere"])
    with pytest.raises(StrategyError, match="kind must be a known strategy, got 'nothing'"):
        plan_of(["nothing"], None)
    with pytest.raises(ConfigurationError, match="client_learning_rate must be left out of --strategies"):
        plan_of([{"kind": "ditto", "client_learning_rate": 0.1}], None)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(LogError, match=r"got .* with notes.txt"):
        measured(tmp_path, ["fedmedian"], ["dirichlet_0.5"])
