"""The table of trials, and recommenders and a user's searchers replayed on it, against values worked out by hand."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.engine.errors import ConfigurationError, LogError, StrategyError
from fedscout.experiments.config import load_config
from fedscout.experiments.grids.cells import CellContext, Measured, Values
from fedscout.experiments.grids.experiment import Experiment, arguments, read_experiment
from fedscout.experiments.grids.federation_runner import Choice, other_seeds
from fedscout.experiments.grids.recommenders import RECOMMENDERS, ChoiceTask, Recommender
from fedscout.experiments.suites import replay
from fedscout.search.ledger import BASELINE
from fedscout.search.study import planned_space
from fedscout.strategies import FedAdamSpec, FedAvgSpec, SearchSpace, StrategySpec, parse_strategy
from tests.kits.refusals import refused
from tests.search.recommenders.reports import report_of
from tests.snippets import blocks

# Made-up tables of trials: eight clients on wine's arguments, every configuration with an accuracy of its own.


SEEDS = (0, 1, 2)
NUM_ROUNDS = 6
WINE = ("federation.dataset=wine", "federation.num_clients=8")
ARGUMENTS = (*WINE, f"training.num_rounds={NUM_ROUNDS}", "training.learning_rate=0.1")
REPORT = report_of(divergence=0.5, rows=(160,) * 8, distances=(1.0,) * 8, num_classes=3)


def space_of(arguments: tuple[str, ...] = ARGUMENTS) -> SearchSpace:
    """Return the joint space of a study of eight clients."""
    from fedscout.experiments.studies.workflow import cohort_of

    config = load_config((*arguments, *replay.SPACE))
    return planned_space(config.search, cohort_of(config, 8), config.training.local())


def federation(
    score: Callable[[StrategySpec, int], float], half: Any = "development", name: str | None = None, *more: str
) -> replay.FederationTrials:
    """Return a federation whose trials have the same accuracy in every round; NaN fails in the third."""
    about = replay.TabledFederation(
        name=name or f"made up, {half}",
        half=half,
        arguments=(*ARGUMENTS, *more),
        num_clients=8,
        guessing=0.25,
        data_digest=name or half,
        reports={seed: REPORT.model_dump(mode="json") for seed in SEEDS},
    )
    trials = {}
    for spec in replay.joint_grid(space_of()):
        for seed in SEEDS:
            accuracy = score(spec, seed)
            failed = math.isnan(accuracy)
            rounds = (0.5, 0.5) if failed else (accuracy,) * NUM_ROUNDS
            trials[spec, seed] = replay.tabled_trial(spec, seed, failed, rounds)
    return replay.FederationTrials(about, trials)


def rate_of(spec: StrategySpec) -> float:
    """Return a configuration's client rate."""
    return float(spec.client_values()["client_learning_rate"])


def by_rate(spec: StrategySpec, seed: int) -> float:
    """FedAvg is best at rate 0.5, and FedAdam at eta 0.3 is ten points better."""
    if isinstance(spec, FedAdamSpec) and spec.eta == 0.3:
        return round(0.9 + 0.01 * seed, 4)
    is_best = spec.kind == "fedavg" and rate_of(spec) == 0.5
    return round((0.8 if is_best else 0.6) + 0.01 * seed, 4)


def replayed(path: Path, names: Sequence[str], *settings: str, columns: Sequence[str] | None = None) -> Measured:
    """Return what recommenders of these names do on a table that lies in a file, in the joint space."""
    known = [each.about.name for each in replay.read_table(path)] if columns is None else columns
    document = {
        "title": "a test",
        "unit": "R_t",
        "method": {"kind": "choose"},
        "measured_by": {"function": "fedscout.experiments.suites.replay:Replayed"},
        "columns": {name: {} for name in known},
        "rows": {name: {"by": name} for name in names},
    }
    return replay.Replayed(str(path)).measure(Experiment.model_validate(document), CellContext(path.parent, settings))


def written(path: Path, *federations: replay.FederationTrials) -> Path:
    """Write a table, and return its file."""
    replay.write_table(path, federations)
    return path


# The table of trials, and recommenders replayed on it, against values worked out by hand.


BATTERY = read_experiment(replay.SUITES / "replay.yaml")
BEST = FedAdamSpec(eta=0.3, tau=1e-3, beta_1=0.9, beta_2=0.99)


def test_the_grid_lies_in_the_space_and_holds_the_study_itself() -> None:
    space = space_of()
    points = list(replay.grid_points(space))
    assert all(space.contains(spec) for spec in points)
    assert {spec.kind for spec in points} == {*space.kinds}
    grid = replay.joint_grid(space)
    assert len({space.digest(spec) for spec in grid}) == len(grid)
    rates = replay.fedavg_rates(space, grid)
    assert sorted(rate_of(spec) for spec in rates) == [0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    assert all(spec.client_values()["client_local_epochs"] == 1 for spec in rates)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = federation(lambda spec, seed: math.nan if spec.kind == "krum" else by_rate(spec, seed))
    replay.write_table(tmp_path / "t.parquet", [made, federation(by_rate, "held out")])
    read, other = replay.read_table(tmp_path / "t.parquet")
    assert read.about == made.about
    assert other.about.half == "held out"
    assert read.trials == made.trials
    scores = dict(zip([spec.kind for spec in read.specs], read.scores.mean(axis=1), strict=True))
    assert scores["krum"] == 0.25, "a failed trial is worth guessing"


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("nothing")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "another.parquet")
    for name in ("text.parquet", "another.parquet"):
        with refused(LogError, key="a table of trials", names=name):
            replay.read_table(tmp_path / name)


def of(found: Measured, figure: str, row: str) -> Values:
    (values,) = [own for (name, _), own in found.figures[figure].items() if name == row]
    return values


def test_references_are_chosen_on_other_seeds_than_the_judging_one(tmp_path: Path) -> None:
    """One rate is lucky on each seed: chosen elsewhere, none of them is what it seemed."""

    def lucky(spec: StrategySpec, seed: int) -> float:
        rates = (0.02, 0.2, 1.0)
        return 0.9 if spec.kind == "fedavg" and rate_of(spec) == rates[seed] else 0.5

    made = federation(lucky)
    found = replay.ReplayedFederation(made)
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
    found = replay.ReplayedFederation(federation(by_rate))
    near = FedAdamSpec(eta=0.27, tau=2e-3, beta_1=0.8, beta_2=0.99, client_learning_rate=0.11)
    nearest = found.federation.specs[found.places(Choice(near))]
    assert (nearest.eta, rate_of(nearest), nearest.client_values()["client_local_epochs"]) == (0.3, 0.1, 1)
    for place, spec in enumerate(found.federation.specs):
        assert found.places(Choice(spec)) == place


def test_a_short_trial_is_the_beginning_of_the_tabled_one() -> None:
    rising = federation(by_rate)
    spec, seed = next(iter(rising.trials))
    rounds = tuple(np.round(np.linspace(0.1, 0.6, NUM_ROUNDS), 4).tolist())
    made = replay.FederationTrials(
        rising.about, {**rising.trials, (spec, seed): replay.tabled_trial(spec, seed, False, rounds)}
    )
    ledger = replay.ReplayedFederation(made).ledger(load_config((*ARGUMENTS, *replay.SPACE, f"seed={seed}")))
    short, full = ledger.run([ledger.facts.trial("search", spec, num_rounds=n) for n in (3, None)])
    assert short.rounds["accuracy"] == rounds[:3]
    assert full.rounds["accuracy"] == rounds
    assert (short.is_full, full.is_full) == (False, True)


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
    found = replay.ReplayedFederation(federation(by_rate), ("training.learning_rate=0.5",))
    assert found.baseline.tolist() == pytest.approx([0.8, 0.81, 0.82])
    assert all(rate_of(found.federation.specs[place]) == 0.5 for place in found._allowed)
    assert found.oracle.tolist() == pytest.approx([0.9, 0.91, 0.92])


def test_the_tuned_reference_differs_in_its_rate_alone() -> None:
    """A study of three local epochs is compared with FedAvg of three local epochs."""

    def by_epochs(spec: StrategySpec, seed: int) -> float:
        return {1: 0.9, 3: 0.7}[int(spec.client_values()["client_local_epochs"])] if rate_of(spec) == 0.2 else 0.5

    three = ("training.local_epochs=3",)
    assert replay.ReplayedFederation(federation(by_epochs)).tuned.tolist() == pytest.approx([0.9] * 3)
    assert replay.ReplayedFederation(federation(by_epochs), three).tuned.tolist() == pytest.approx([0.7] * 3)


def test_priors_are_gains_over_the_fedavg_of_their_setting() -> None:
    joint, *fixed = replay.prior_studies([federation(by_rate)])
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
        replay.ReplayedFederation(federation(by_rate)).nearest(parse_strategy({"kind": "fedexp"}), {})


def test_a_warm_start_learns_from_the_other_development_federations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two made-up ones; the held-out one reads both, the others each other, none that of the same data."""
    data = {"one": "digits", "two": "wine", "held": "breast_cancer"}
    table = [
        federation(by_rate, "held out" if name == "held" else "development", name, f"federation.dataset={of_data}")
        for name, of_data in data.items()
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
    path = replay.train_table([name], (0,), tmp_path / "t", settings)
    (found,) = replay.read_table(path)
    trained = FedAvgSpec(client_learning_rate=0.5, client_local_epochs=3, client_batch_size=32)
    own = {"kind": "fedavg", **trained.parameters()}
    config = load_config((*arguments(BATTERY.federations[name]), *settings, "engine.grid=local"))
    _, trial, _ = run_training(config.model_copy(update={"strategy": own}), tmp_path / "own")
    assert found.trials[trained, 0].rounds["accuracy"] == pytest.approx(trial.rounds["accuracy"], abs=5e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_runner, "run_trial", lambda *_: pytest.fail("a stored trial was trained again"))
        replay.train_table([name], (0,), tmp_path / "t", settings)


def test_the_published_table_is_of_the_battery() -> None:
    """No data set is in both halves."""
    sets = [{BATTERY.federations[name]["federation.dataset"] for name in names} for names in BATTERY.groups.values()]
    assert not sets[0] & sets[1]
    table = replay.read_table(replay.PUBLISHED)
    halves = {name: half for half, names in BATTERY.groups.items() for name in names}
    assert {each.about.name: each.about.half for each in table} == halves
    assert {*halves} == {*BATTERY.federations}
    for each in table:
        assert len(each.trials) == len(each.specs) * len(each.seeds)
        assert each.seeds == (0, 1, 2, 3)
        given = arguments(BATTERY.federations[each.about.name])
        assert load_config(given).federation == load_config(each.about.arguments).federation


# Regrets and archives by hand, and searchers of the user's own.


def test_a_record_of_answers_is_as_good_as_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = load_config(["federation.dataset=wine"])
    assert RECOMMENDERS["LLM"].unavailable(config, tmp_path) is not None
    (tmp_path / "llm.jsonl").touch()
    assert RECOMMENDERS["LLM"].unavailable(config, tmp_path) is None


def test_seeds_for_different_purposes_are_different() -> None:
    groups = [range(50), *(other_seeds(purpose, 50) for purpose in ("fresh", "tuning", "selection"))]
    assert len({seed for group in groups for seed in group}) == 200


@pytest.mark.parametrize(("lost", "regret"), [(0.0, 0.0), (0.1, 1.0), (0.2, 2.0), (-0.05, -0.5)])
def test_the_regret_of_what_a_step_size_does_not_give(lost: float, regret: float) -> None:
    """Gains of 0.11 and 0.09: mean 0.1, deviation 0.01 · √2, standard error 0.01."""
    assert replay.regret_tuned(lost, (0.11, 0.09)) == pytest.approx(regret)
    assert replay.regret_fedavg(lost, 0.1) == pytest.approx(regret)


@pytest.mark.parametrize(
    ("mean", "error", "is_to_win"),
    [(0.0101, 0.0, True), (0.0099, 0.0, False), (0.05, 0.0249, True), (0.05, 0.0251, False), (-0.05, 0.0, False)],
)
def test_a_gain_counts_from_a_point_and_two_standard_errors(mean: float, error: float, is_to_win: bool) -> None:
    """Two gains m ± e have the standard error e."""
    assert (replay.regret_tuned(0.1, (mean + error, mean - error)) is not None) == is_to_win
    assert replay.regret_fedavg(0.1, 0.0199) is None


# A searcher of the user's own in a replay: the page's example, and what is said to one that can't search.


SHOWN = "# file: halving.py"
SAID = {
    "Greedy": "[FedAdamSpec(eta=0.3)] * (num_proposals + 1)",
    "Outside": '[parse_strategy("fedexp")]',
    "Texts": '["fedadam"]',
    "Faulty": "self.nothing",
    "Silent": "[]",
}
WRONG = "from fedscout.search.searcher import Searcher\nfrom fedscout.strategies import FedAdamSpec, parse_strategy\n"
WRONG += "class Idle(Searcher):\n    pass\n"
WRONG += "".join(
    f"class {name}(Searcher):\n    def ask(self, num_proposals):\n        return {said}\n"
    for name, said in SAID.items()
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A table of one federation, in a folder with the page's example and others that are wrong."""
    (page,) = (block for block in blocks() if block.page == "choice.md" and block.text.startswith(SHOWN))
    (tmp_path / "halving.py").write_text(page.text)
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    yield written(tmp_path / "t.parquet", federation(by_rate))
    for name in ("halving", "wrong"):
        sys.modules.pop(name, None)


def costs(found: Measured) -> set[float | None]:
    return {cost for costs in found.figures["cost, trainings"].values() for cost in costs}


def test_the_example_of_the_page_finds_what_it_tries(table: Path) -> None:
    """Its first trial is nearest to eta 0.3, which is the oracle; more than eight trials it is not given."""
    found = replayed(table, ["halving:Halving"])
    (values,) = found.values.values()
    assert values == pytest.approx([0.0] * len(SEEDS), abs=1e-9)
    assert costs(found) == {8.0}
    assert costs(replayed(table, ["halving:Halving"], "search.budget=3")) == {3.0}


def test_without_a_proposal_fedavg_is_chosen(table: Path) -> None:
    found = replayed(table, ["wrong:Silent"])
    (regrets,) = found.figures["R_f"].values()
    assert costs(found) == {0.0}
    assert regrets == pytest.approx([1.0] * len(SEEDS))


@pytest.mark.parametrize("path", ["nowhere:Search", "wrong:Nobody", "wrong:FedAdamSpec", "wrong:Idle"])
def test_what_is_no_searcher_is_refused(table: Path, path: str) -> None:
    with pytest.raises(StrategyError):
        replayed(table, [path])


@pytest.mark.parametrize("path", ["wrong:Greedy", "wrong:Outside", "wrong:Texts", "wrong:Faulty", "no searcher:"])
def test_a_searcher_that_can_t_search_is_told_in_one_line(table: Path, path: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^[^\n]*{path}[^\n]*$"):
        replayed(table, [path])
