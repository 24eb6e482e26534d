"""The table of trials, what it says there is to win, and choosers replayed on it, against values worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.errors import ConfigurationError, LogError
from fedscout.experiments.benchmarks.choice.choice_choosers import CHOOSERS, Chooser
from fedscout.experiments.benchmarks.choice.choice_laboratory import Pick
from fedscout.experiments.benchmarks.choice.joint_battery import (
    JOINT_BATTERY,
    SPACE,
    JointFederation,
    federations_of_half,
)
from fedscout.experiments.benchmarks.choice.joint_grid import fedavg_rates, grid_points, joint_grid
from fedscout.experiments.benchmarks.choice.prior_studies import prior_studies
from fedscout.experiments.benchmarks.choice.replay import ReplayLaboratory
from fedscout.experiments.benchmarks.choice.replay_measurement import gain_of, replay, run_replay
from fedscout.experiments.benchmarks.choice.replay_tables import replay_lines
from fedscout.experiments.benchmarks.choice.table_training import train_table
from fedscout.experiments.benchmarks.choice.trial_table import (
    PUBLISHED,
    FederationTrials,
    TabledTrial,
    read_table,
    write_table,
)
from fedscout.experiments.config.config_file import load_config
from fedscout.search.study_trials import BASELINE
from fedscout.strategies import FedAdamSpec, FedAvgSpec, StrategySpec, parse_strategy
from tests.experiments.benchmarks.made_up_tables import (
    ARGUMENTS,
    NUM_ROUNDS,
    SEEDS,
    by_rate,
    federation,
    rate_of,
    space_of,
)


def test_no_data_set_is_in_both_halves() -> None:
    def data(half: str) -> set[str]:
        return {each.case.arguments[2] for each in federations_of_half(half)}

    assert all(each.case.arguments[2].startswith("federation.dataset=") for each in JOINT_BATTERY)
    assert not data("development") & data("held-out")
    assert len(JOINT_BATTERY) >= 40
    assert len(federations_of_half("held-out")) == len(federations_of_half("development")) == len(JOINT_BATTERY) / 2
    assert len({each.name for each in JOINT_BATTERY}) == len(JOINT_BATTERY)


def test_the_grid_lies_in_the_space_and_holds_the_study_itself() -> None:
    space = space_of()
    points = list(grid_points(space))
    assert all(space.contains(spec) for spec in points)
    assert {spec.kind for spec in points} == {*space.kinds}
    grid = joint_grid(space)
    assert len({space.digest(spec) for spec in grid}) == len(grid)
    rates = fedavg_rates(space, grid)
    assert sorted(rate_of(spec) for spec in rates) == [0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    assert all(spec.client_values()["client_local_epochs"] == 1 for spec in rates)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = federation(lambda spec, seed: math.nan if spec.kind == "krum" else by_rate(spec, seed))
    write_table(tmp_path / "t.parquet", [made, federation(by_rate, "held out")])
    read, other = read_table(tmp_path / "t.parquet")
    assert read.about == made.about
    assert other.about.half == "held out"
    assert read.trials == made.trials


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("nothing")
    with pytest.raises(LogError, match="must be a Parquet file"):
        read_table(tmp_path / "t.parquet")
    import pandas as pd

    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(LogError, match="fedscout bench table"):
        read_table(tmp_path / "t.parquet")


def test_a_failed_trial_is_worth_guessing() -> None:
    made = federation(lambda spec, seed: math.nan if spec.kind == "krum" else 0.75)
    scores = dict(zip([spec.kind for spec in made.specs], made.scores.mean(axis=1), strict=True))
    assert scores["krum"] == 0.25
    assert scores["fedavg"] == pytest.approx(0.75)


def test_what_there_is_to_win() -> None:
    gain = gain_of(ReplayLaboratory(federation(by_rate)))
    assert gain.fedavg == pytest.approx(0.61)
    assert gain.tuned == pytest.approx(0.81)
    assert gain.oracle == pytest.approx(0.91)
    assert gain.standard_error == pytest.approx(0, abs=1e-12)
    assert gain.is_to_win


def test_references_are_chosen_on_other_seeds_than_the_judging_one() -> None:
    """One rate is lucky on each seed: chosen elsewhere, none of them is what it seemed."""

    def lucky(spec: StrategySpec, seed: int) -> float:
        rates = (0.02, 0.2, 1.0)
        return 0.9 if spec.kind == "fedavg" and rate_of(spec) == rates[seed] else 0.5

    laboratory = ReplayLaboratory(federation(lucky))
    assert laboratory.tuned.tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert laboratory.oracle.tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert not gain_of(laboratory).is_to_win


def test_regrets_of_the_best_the_tuned_and_the_plain_choice() -> None:
    best = FedAdamSpec(eta=0.3, tau=1e-3, beta_1=0.9, beta_2=0.99)
    choosers = [
        Chooser("best", lambda _: Pick(best, cost=3.0)),
        Chooser("tuned", lambda _: Pick(BASELINE, learning_rate=0.5)),
        Chooser("plain", lambda _: Pick(BASELINE)),
    ]
    found = {one.chooser: one for one in replay([federation(by_rate)], choosers).summary}
    expected = {"best": (0.0, 0.0, 0.1, 3.0, 0), "tuned": (1.0, 1 / 3, 0.0, 0.0, 0), "plain": (3.0, 1.0, -0.2, 0.0, 1)}
    for name, (tuned, fedavg, versus, cost, below) in expected.items():
        one = found[name]
        assert one.regret_tuned is not None
        assert one.regret_fedavg is not None
        assert one.versus_tuned is not None
        assert one.regret_tuned.mean == pytest.approx(tuned, abs=1e-9)
        assert one.regret_fedavg.mean == pytest.approx(fedavg, abs=1e-9)
        assert one.versus_tuned.mean == pytest.approx(versus)
        assert (one.cost, len(one.below)) == (cost, below)


def test_what_is_lost_of_many_trials_gain_stands_beside_the_published_loss() -> None:
    """FedAvg .61, tuned .81, best .91: tuned FedAvg loses .1 of .3."""
    best = FedAdamSpec(eta=0.3, tau=1e-3, beta_1=0.9, beta_2=0.99)
    choosers = [
        Chooser("FedAvg", lambda _: Pick(BASELINE)),
        Chooser("TPE 50", lambda _: Pick(best)),
        Chooser("genetic 8", lambda _: Pick(BASELINE, learning_rate=0.5)),
        Chooser("rules", lambda _: Pick(best)),
    ]
    told = "\n".join(replay_lines(replay([federation(by_rate)], choosers)))
    assert "genetic 8 0.33 (published 0.01), rules 0.00 (published 0.35)" in told


def test_a_pick_between_the_points_is_the_nearest_of_its_strategy() -> None:
    laboratory = ReplayLaboratory(federation(by_rate))
    near = FedAdamSpec(eta=0.27, tau=2e-3, beta_1=0.8, beta_2=0.99, client_learning_rate=0.11)
    found = laboratory.federation.specs[laboratory.places(Pick(near))]
    assert isinstance(found, FedAdamSpec)
    assert (found.eta, rate_of(found), found.client_values()["client_local_epochs"]) == (0.3, 0.1, 1)
    for place, spec in enumerate(laboratory.federation.specs):
        assert laboratory.places(Pick(spec)) == place


def test_a_short_trial_is_the_beginning_of_the_tabled_one() -> None:
    rising = federation(by_rate)
    spec, seed = next(iter(rising.trials))
    rounds = tuple(np.round(np.linspace(0.1, 0.6, NUM_ROUNDS), 4).tolist())
    made = FederationTrials(rising.about, {**rising.trials, (spec, seed): TabledTrial(spec, seed, False, rounds)})
    ledger = ReplayLaboratory(made).ledger(load_config((*ARGUMENTS, *SPACE, f"seed={seed}")))
    short, full = ledger.run([ledger.facts.trial("search", spec, num_rounds=n) for n in (3, None)])
    assert short.round_accuracy == rounds[:3]
    assert full.round_accuracy == rounds
    assert (short.whole, full.whole) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rules", "genetic 8", "genetic 8 informed", "racing", "TPE 8", "warm start 8"])
def test_choosers_choose_from_the_table(name: str) -> None:
    table = [federation(by_rate), federation(by_rate, "held out")]
    choosers = [CHOOSERS["genetic 8"], CHOOSERS[name]] if name != "genetic 8" else [CHOOSERS[name]]
    report = replay(table, choosers)
    own = [choice for choice in report.choices if choice.chooser == name]
    assert len(own) == len(table) * len(SEEDS)
    assert all(choice.cost == 8 for choice in own) or not name.endswith(("8", "informed"))
    assert name in "\n".join(replay_lines(report))


def test_without_the_clients_settings_choosers_know_those_of_the_study() -> None:
    laboratory = ReplayLaboratory(federation(by_rate), ("training.learning_rate=0.5",))
    assert laboratory.baseline.tolist() == pytest.approx([0.8, 0.81, 0.82])
    assert all(rate_of(laboratory.federation.specs[place]) == 0.5 for place in laboratory._allowed)
    assert isinstance(laboratory.best, FedAdamSpec)
    (choice, *_) = replay([laboratory.federation], [CHOOSERS["genetic 8"]], ("training.learning_rate=0.5",)).choices
    assert "client_learning_rate" not in choice.pick


def test_the_tuned_reference_differs_in_its_rate_alone() -> None:
    """A study of three local epochs is compared with FedAvg of three local epochs."""

    def by_epochs(spec: StrategySpec, seed: int) -> float:
        return {1: 0.9, 3: 0.7}[int(spec.client_values()["client_local_epochs"])] if rate_of(spec) == 0.2 else 0.5

    three = ("training.local_epochs=3",)
    assert ReplayLaboratory(federation(by_epochs)).tuned.tolist() == pytest.approx([0.9] * 3)
    assert ReplayLaboratory(federation(by_epochs), three).tuned.tolist() == pytest.approx([0.7] * 3)


def test_priors_are_gains_over_the_fedavg_of_their_setting() -> None:
    joint, *fixed = prior_studies([federation(by_rate), federation(by_rate, "held out")])
    assert len(fixed) == 6
    assert joint.gains[0][1] == pytest.approx(0.3)
    assert isinstance(joint.gains[0][0], FedAdamSpec)
    (at_half,) = (each for each in fixed if "learning_rate=0.5, local_epochs=1" in each.name)
    spec, gain = at_half.gains[0]
    assert isinstance(spec, FedAdamSpec)
    assert (spec.eta, gain, dict(spec.client_values())) == (0.3, pytest.approx(0.1), {})


def test_what_can_not_be_replayed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--half must be development or held-out, got 'both'"):
        run_replay("published", None, "both", (), strategies_alone=False)
    with pytest.raises(ConfigurationError, match=r"--chooser of a replay must be one of FedAvg, .*, got 'LLM'"):
        run_replay("published", ["LLM"], None, (), strategies_alone=False)
    with pytest.raises(LogError, match=r"nowhere\.parquet"):
        run_replay("nowhere.parquet", ["FedAvg"], None, (), strategies_alone=False)
    made = ReplayLaboratory(federation(by_rate))
    fedexp = parse_strategy({"kind": "fedexp"})
    with pytest.raises(ConfigurationError, match="the strategy of a replay must be of the table, got fedexp"):
        made.runner.nearest(fedexp, {})


@pytest.mark.slow
def test_the_table_is_that_of_the_trials(tmp_path: Path) -> None:
    """What is tabled is what an ordinary study trains, and what is there is not trained again."""
    from fedscout.experiments.studies.workflow import run_training

    case = next(each for each in JOINT_BATTERY if each.name == "wine, feature skew, 4 clients")
    settings = ("search.strategies=[fedavg]", "training.num_rounds=2")
    notes: list[str] = []
    path, priors = train_table([case], (0,), tmp_path / "t", settings, note=notes.append)
    (found,) = read_table(path)
    trained = FedAvgSpec(client_learning_rate=0.5, client_local_epochs=3, client_batch_size=32)
    own = {"kind": "fedavg", **trained.parameters()}
    config = load_config((*case.case.arguments, *settings, "engine.grid=local")).model_copy(update={"strategy": own})
    _, trial, _ = run_training(config, tmp_path / "own")
    assert found.trials[trained, 0].round_accuracy == pytest.approx(trial.round_accuracy, abs=5e-5)
    assert priors.exists()
    assert notes
    notes.clear()
    train_table([case], (0,), tmp_path / "t", settings, note=notes.append)
    assert not notes


def test_the_published_table_is_of_the_battery() -> None:
    table = read_table(PUBLISHED)
    halves = {each.name: each.half for each in JOINT_BATTERY}
    assert {each.about.name: each.about.half for each in table} == halves
    for each in table:
        assert len(each.trials) == len(each.specs) * len(each.seeds)
        assert each.seeds == (0, 1, 2, 3)
    assert isinstance(JOINT_BATTERY[0], JointFederation)
