"""The table of trials, and recommenders replayed on it, against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.engine.errors import ConfigurationError, LogError
from fedscout.experiments.config import load_config
from fedscout.experiments.grids.cells import Measured, Values
from fedscout.experiments.grids.experiment import arguments, read_experiment
from fedscout.experiments.grids.federation_runner import Choice
from fedscout.experiments.grids.recommenders import RECOMMENDERS, ChoiceTask, Recommender
from fedscout.experiments.suites.replay import (
    PUBLISHED,
    SPACE,
    FederationTrials,
    ReplayedFederation,
    TabledTrial,
    fedavg_rates,
    grid_points,
    joint_grid,
    read_table,
    write_table,
)
from fedscout.experiments.suites.table_training import REPLAY, prior_studies, train_table
from fedscout.search.ledger import BASELINE
from fedscout.strategies import FedAdamSpec, FedAvgSpec, StrategySpec, parse_strategy
from tests.experiments.suites.made_up_tables import (
    ARGUMENTS,
    NUM_ROUNDS,
    SEEDS,
    by_rate,
    federation,
    rate_of,
    replayed,
    space_of,
    written,
)
from tests.kits.refusals import refused

BATTERY = read_experiment(REPLAY)
BEST = FedAdamSpec(eta=0.3, tau=1e-3, beta_1=0.9, beta_2=0.99)


def test_no_data_set_is_in_both_halves() -> None:
    data = {
        half: {BATTERY.federations[name]["federation.dataset"] for name in names}
        for half, names in BATTERY.groups.items()
    }
    assert not data["development"] & data["held out"]
    assert [len(names) for names in BATTERY.groups.values()] == [22, 22]
    assert {name for names in BATTERY.groups.values() for name in names} == {*BATTERY.federations}


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
    (tmp_path / "text.parquet").write_text("nothing")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "another.parquet")
    for name in ("text.parquet", "another.parquet"):
        with refused(LogError, key="a table of trials", names=name):
            read_table(tmp_path / name)


def test_a_failed_trial_is_worth_guessing() -> None:
    made = federation(lambda spec, seed: math.nan if spec.kind == "krum" else 0.75)
    scores = dict(zip([spec.kind for spec in made.specs], made.scores.mean(axis=1), strict=True))
    assert scores["krum"] == 0.25
    assert scores["fedavg"] == pytest.approx(0.75)


def of(found: Measured, figure: str, row: str) -> Values:
    (values,) = [own for (name, _), own in found.figures[figure].items() if name == row]
    return values


def test_what_there_is_to_win() -> None:
    found = ReplayedFederation(federation(by_rate))
    means = [own.mean() for own in (found.baseline, found.tuned, found.oracle)]
    assert means == pytest.approx([0.61, 0.81, 0.91])


def test_references_are_chosen_on_other_seeds_than_the_judging_one(tmp_path: Path) -> None:
    """One rate is lucky on each seed: chosen elsewhere, none of them is what it seemed."""

    def lucky(spec: StrategySpec, seed: int) -> float:
        rates = (0.02, 0.2, 1.0)
        return 0.9 if spec.kind == "fedavg" and rate_of(spec) == rates[seed] else 0.5

    made = federation(lucky)
    found = ReplayedFederation(made)
    assert found.tuned.tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert found.oracle.tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert replayed(written(tmp_path / "t.parquet", made), ["FedAvg"]).values == {
        ("FedAvg", made.about.name): (None,) * len(SEEDS)
    }


def test_regrets_of_the_best_the_tuned_and_the_plain_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = {"best": Choice(BEST, cost=3.0), "tuned": Choice(BASELINE, learning_rate=0.5), "plain": Choice(BASELINE)}
    for name, choice in choices.items():
        recommender = Recommender(name, lambda _, choice=choice: choice)  # type: ignore[misc]
        monkeypatch.setitem(RECOMMENDERS, name, recommender)  # type: ignore[arg-type]
    made = federation(by_rate)
    path = written(tmp_path / "t.parquet", made)
    found = replayed(path, [*choices, "oracle", "reference"])
    expected = {
        "best": (0.0, 0.0, 0.1, 3.0, 0.0),
        "oracle": (0.0, 0.0, 0.1, 0.0, 0.0),
        "tuned": (1.0, 1 / 3, 0.0, 0.0, 0.0),
        "reference": (1.0, 1 / 3, 0.0, 0.0, 0.0),
        "plain": (3.0, 1.0, -0.2, 0.0, 1.0),
    }
    names = ("R_f", "beyond tuned FedAvg", "cost, trainings", "share below tuned FedAvg")
    for row, (tuned, *others) in expected.items():
        assert found.values[row, made.about.name] == pytest.approx([tuned] * len(SEEDS), abs=1e-9)
        for name, value in zip(names, others, strict=True):
            assert {round(each, 9) for each in of(found, name, row) if each is not None} == {round(value, 9)}


def test_a_choice_between_the_points_is_the_nearest_of_its_strategy() -> None:
    found = ReplayedFederation(federation(by_rate))
    near = FedAdamSpec(eta=0.27, tau=2e-3, beta_1=0.8, beta_2=0.99, client_learning_rate=0.11)
    nearest = found.federation.specs[found.places(Choice(near))]
    assert isinstance(nearest, FedAdamSpec)
    assert (nearest.eta, rate_of(nearest), nearest.client_values()["client_local_epochs"]) == (0.3, 0.1, 1)
    for place, spec in enumerate(found.federation.specs):
        assert found.places(Choice(spec)) == place


def test_a_short_trial_is_the_beginning_of_the_tabled_one() -> None:
    rising = federation(by_rate)
    spec, seed = next(iter(rising.trials))
    rounds = tuple(np.round(np.linspace(0.1, 0.6, NUM_ROUNDS), 4).tolist())
    made = FederationTrials(rising.about, {**rising.trials, (spec, seed): TabledTrial(spec, seed, False, rounds)})
    ledger = ReplayedFederation(made).ledger(load_config((*ARGUMENTS, *SPACE, f"seed={seed}")))
    short, full = ledger.run([ledger.facts.trial("search", spec, num_rounds=n) for n in (3, None)])
    assert short.round_accuracy == rounds[:3]
    assert full.round_accuracy == rounds
    assert (short.whole, full.whole) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rules", "genetic 8", "genetic 8 informed", "racing", "TPE 8", "warm start 8"])
def test_recommenders_choose_from_the_table(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.parquet", federation(by_rate), federation(by_rate, "held out"))
    found = replayed(path, [*dict.fromkeys(["genetic 8", name])])
    cells = [values for (row, _), values in found.values.items() if row == name]
    assert [len(values) for values in cells] == [len(SEEDS)] * 2
    costs = {cost for (row, _), own in found.figures["cost, trainings"].items() if row == name for cost in own}
    assert costs == {8} or not name.endswith(("8", "informed"))


def test_without_the_clients_settings_recommenders_know_those_of_the_study() -> None:
    found = ReplayedFederation(federation(by_rate), ("training.learning_rate=0.5",))
    assert found.baseline.tolist() == pytest.approx([0.8, 0.81, 0.82])
    assert all(rate_of(found.federation.specs[place]) == 0.5 for place in found._allowed)
    assert found.oracle.tolist() == pytest.approx([0.9, 0.91, 0.92])


def test_the_tuned_reference_differs_in_its_rate_alone() -> None:
    """A study of three local epochs is compared with FedAvg of three local epochs."""

    def by_epochs(spec: StrategySpec, seed: int) -> float:
        return {1: 0.9, 3: 0.7}[int(spec.client_values()["client_local_epochs"])] if rate_of(spec) == 0.2 else 0.5

    three = ("training.local_epochs=3",)
    assert ReplayedFederation(federation(by_epochs)).tuned.tolist() == pytest.approx([0.9] * 3)
    assert ReplayedFederation(federation(by_epochs), three).tuned.tolist() == pytest.approx([0.7] * 3)


def test_priors_are_gains_over_the_fedavg_of_their_setting() -> None:
    joint, *fixed = prior_studies([federation(by_rate)])
    assert len(fixed) == 6
    adams = [(spec, gain) for spec, gain in joint.gains if isinstance(spec, FedAdamSpec)]
    assert max(gain for _, gain in adams) == pytest.approx(0.3)
    setting = {"client_learning_rate": 0.5, "client_local_epochs": 1, "client_batch_size": 32}
    (at_half,) = (each for each in fixed if each.clients == setting)
    spec, gain = max((one for one in at_half.gains if isinstance(one[0], FedAdamSpec)), key=lambda one: one[1])
    assert (spec.eta, gain, dict(spec.client_values())) == (0.3, pytest.approx(0.1), {})


def test_what_can_not_be_replayed_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.parquet", federation(by_rate))
    for name in ("LLM", "nobody"):
        with pytest.raises(ConfigurationError):
            replayed(path, [name])
    with pytest.raises(LogError):
        replayed(tmp_path / "nowhere.parquet", ["FedAvg"], columns=["made up"])
    with pytest.raises(ConfigurationError):
        ReplayedFederation(federation(by_rate)).nearest(parse_strategy({"kind": "fedexp"}), {})


def test_a_warm_start_learns_from_the_other_development_federations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two made-up ones; the held-out one reads both, the others each other, none that of the same data."""
    names, data = ("one", "two", "held"), ("digits", "wine", "breast_cancer")
    made = [federation(by_rate, "held out" if name == "held" else "development", name) for name in names]
    table = [
        replace(each, about=each.about.model_copy(update={"arguments": (*ARGUMENTS, f"federation.dataset={of_data}")}))
        for each, of_data in zip(made, data, strict=True)
    ]
    read: dict[str, set[str]] = {}

    def learn(task: ChoiceTask) -> Choice:
        read.setdefault(task.context.name, set()).update(study.name.split(",")[0] for study in task.others())
        return Choice(BASELINE)

    monkeypatch.setitem(RECOMMENDERS, "learner", Recommender("learner", learn, is_warm=True))  # type: ignore[arg-type]
    replayed(written(tmp_path / "t.parquet", *table), ["learner", "genetic 4"])
    assert read == {"one": {"two"}, "two": {"one"}, "held": {"one", "two"}}


@pytest.mark.slow
def test_the_table_is_that_of_the_trials(tmp_path: Path) -> None:
    """What is tabled is what an ordinary study trains, and what is there is not trained again."""
    from fedscout.engine.trials import runner as trial_runner
    from fedscout.experiments.studies.workflow import run_training

    name = "wine, feature skew, 4 clients"
    settings = ("search.strategies=[fedavg]", "training.num_rounds=2")
    path = train_table([name], (0,), tmp_path / "t", settings)
    (found,) = read_table(path)
    trained = FedAvgSpec(client_learning_rate=0.5, client_local_epochs=3, client_batch_size=32)
    own = {"kind": "fedavg", **trained.parameters()}
    config = load_config((*arguments(BATTERY.federations[name]), *settings, "engine.grid=local"))
    _, trial, _ = run_training(config.model_copy(update={"strategy": own}), tmp_path / "own")
    assert found.trials[trained, 0].round_accuracy == pytest.approx(trial.round_accuracy, abs=5e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_runner, "run_trial", lambda *_: pytest.fail("a stored trial was trained again"))
        train_table([name], (0,), tmp_path / "t", settings)


def test_the_published_table_is_of_the_battery() -> None:
    table = read_table(PUBLISHED)
    halves = {name: half for half, names in BATTERY.groups.items() for name in names}
    assert {each.about.name: each.about.half for each in table} == halves
    for each in table:
        assert len(each.trials) == len(each.specs) * len(each.seeds)
        assert each.seeds == (0, 1, 2, 3)
        given = arguments(BATTERY.federations[each.about.name])
        assert load_config(given).federation == load_config(each.about.arguments).federation
