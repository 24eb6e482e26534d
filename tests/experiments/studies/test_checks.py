"""What a study refuses before it starts, and its folder: for one process and configuration, never half-written."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Device
from fedscout.engine.errors import ConfigurationError, DataError, EngineError, Fault, LogError, UserError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import build_federation, built_study
from fedscout.experiments.federation_config import FederationConfig
from fedscout.experiments.scenarios.table import SCENARIOS
from fedscout.experiments.studies.checks import check_clock, check_precision, plain_seconds
from fedscout.experiments.studies.result import advised
from fedscout.experiments.studies.run_folder import (
    default_folder,
    differences,
    open_run_folder,
    strategy_code,
    versions,
)
from fedscout.experiments.studies.workflow import cohort_of, run_workflow, study_facts
from fedscout.strategies import CustomSpec, parse_strategy
from fedscout.strategies.methods.averaging import FedAvgSpec, FedBuffSpec
from fedscout.strategies.specification import StrategySpec
from tests.engine.federations import NUM_CLASSES, NUM_FEATURES, dense, normalised, uneven_federation
from tests.kits.refusals import refused

CONFIG = StudyConfig()


def config(deadline_seconds: float | None) -> StudyConfig:
    return StudyConfig.model_validate({"training": {"simulated_deadline_seconds": deadline_seconds}})


def test_the_fastest_client_decides() -> None:
    plain = uneven_federation()
    devices = {client: Device(shift_seconds=10.0 + client, mean_seconds=5.0) for client in range(plain.num_clients)}
    federation = replace(plain, devices=devices)
    check_clock(config(10.0), federation, FedAvgSpec())
    with refused(ConfigurationError, key="training.simulated_deadline_seconds"):
        check_clock(config(9.9), federation, FedAvgSpec())
    with refused(ConfigurationError, key="training.simulated_deadline_seconds"):
        check_clock(config(10.0), replace(federation, unseen=frozenset({0})), FedAvgSpec())
    check_clock(config(None), federation, FedAvgSpec())
    check_clock(config(1e-9), plain, FedAvgSpec())


def test_what_a_strategy_tells_its_clients_counts() -> None:
    """With a second a step, fewer epochs meet a deadline that more do not."""
    plain = uneven_federation(sizes=(100, 100))
    federation = replace(plain, devices=dict.fromkeys(range(2), Device(seconds_per_step=1.0)))
    steps = -(-80 // StudyConfig().training.batch_size)
    check_clock(config(steps), federation, FedAvgSpec())
    with refused(ConfigurationError, key="training.simulated_deadline_seconds"):
        check_clock(config(steps), federation, FedAvgSpec(client_local_epochs=2))


TIMED = StudyConfig.model_validate({"search": {"objective": "time_to_accuracy", "target": 0.5}})


@pytest.mark.parametrize(
    ("asked", "spec", "key"), [(TIMED, FedAvgSpec(), "search.objective"), (CONFIG, FedBuffSpec(), "strategy.kind")]
)
def test_time_and_asynchrony_need_a_clock(asked: StudyConfig, spec: StrategySpec, key: str) -> None:
    with refused(ConfigurationError, key=key):
        check_clock(asked, uneven_federation(), spec)
    check_clock(asked, replace(uneven_federation(), devices={0: Device(mean_seconds=1.0)}), spec)


class OwnTimed(FedBuffSpec):
    """A user's own that needs a clock, and does not ask whether there is one."""

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        return None


def test_a_user_s_own_that_needs_a_clock_is_refused_in_a_search(tmp_path: Path) -> None:
    own = f"search.customs=[{{path: '{__name__}:OwnTimed'}}]"
    config = load_config(["engine.grid=local", "federation.dataset=wine", "search.strategies=[fedavg]", own])
    with refused(ConfigurationError, key="strategy.kind"):
        run_workflow(config, tmp_path / "out", detection=False)
    assert not (tmp_path / "out").exists()


EFFECTS = (
    "{kind: latency, clients: all, mean_seconds: 1}",
    "[{kind: label_flip, rate: 0.1}, {kind: devices, clients: [0], seconds_per_step: 1}]",
    "{kind: dropout, probability: 0.1}",
)


@pytest.mark.parametrize("scenario", [*SCENARIOS, *EFFECTS])
def test_a_scenario_says_what_the_federation_will_have(scenario: str) -> None:
    config = load_config(["federation.dataset=wine", "federation.num_clients=4", f"federation.scenario={scenario}"])
    federation = build_federation(config.federation, config.model)
    assert config.federation.has_clock == cohort_of(config, 4).has_clock == bool(federation.devices)


def test_a_plain_round_is_no_longer_than_its_bound() -> None:
    """Three clients with exponential times of mean 2 beside 1 s at most: 1 + 2 (1 + 1/2 + 1/3)."""
    devices = {client: Device(shift_seconds=client / 2, mean_seconds=2.0) for client in range(3)}
    federation = replace(uneven_federation(sizes=(20, 20, 20)), devices=devices)
    assert plain_seconds(config(None), federation) == pytest.approx(1 + 11 / 3)
    assert plain_seconds(config(3.0), federation) == 3.0


# Models whose layers fail in bfloat16 are refused before anything starts.


NARROW = LocalTraining(precision="bfloat16")


class Copying(nn.Linear):
    """Copies what it says into a place of float32."""

    def forward(self, rows: Tensor) -> Tensor:
        said = super().forward(rows)
        return torch.zeros(len(rows), NUM_CLASSES).index_copy_(0, torch.arange(len(rows)), said)


def copying() -> nn.Module:
    """A model that is such a layer."""
    return Copying(NUM_FEATURES, NUM_CLASSES)


@pytest.mark.parametrize("model", [dense, normalised])
def test_layers_that_take_it_pass_and_draw_nothing(model: type[nn.Module]) -> None:
    before = torch.random.get_rng_state()
    check_precision(NARROW, uneven_federation(model))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_layers_that_fail_are_told() -> None:
    check_precision(LocalTraining(), uneven_federation(copying))
    with refused(ConfigurationError, key="training.precision"):
        check_precision(NARROW, uneven_federation(copying))


# The folder of a study: for one process, for one configuration, and never half-written.


def refusal(path: Path, config: StudyConfig = CONFIG, data: str | None = None) -> Fault:
    with pytest.raises(LogError) as caught, open_run_folder(path, config, data):
        pytest.fail("the folder was opened")
    (fault,) = caught.value.faults
    return fault


def content(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_new_folder_says_whose_it_is_and_opens_again(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with open_run_folder(out, CONFIG) as folder:
        assert folder.path == out
        stored = json.loads((out / "config.json").read_text())
    assert stored == {"config_hash": CONFIG.digest(), "config": CONFIG.identity(), "versions": versions()}
    with open_run_folder(out, load_config(["engine.grid=local", "engine.num_hosts=3"])):
        assert json.loads((out / "config.json").read_text()) == stored


@pytest.mark.parametrize("dataset", ["../mine.csv", "..", "a/" * 200 + "t.csv", "hf:owner/name"])
def test_the_default_folder_lies_below_runs_wherever_the_data_are(dataset: str) -> None:
    folder = default_folder(CONFIG.model_copy(update={"federation": FederationConfig(dataset=dataset)}))
    assert folder.parts[:-1] == ("runs",)
    assert len(folder.name) < 100
    assert not folder.name.startswith(".")


@pytest.mark.parametrize("name", ["trials", "checkpoints", "quarantine", ".lock", "config.json", "result.json"])
@pytest.mark.parametrize("has_study", [True, False])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str, has_study: bool) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    if has_study:
        with open_run_folder(out, CONFIG):
            pass
    out.mkdir(exist_ok=True)
    (out / name).unlink(missing_ok=True)
    elsewhere.mkdir()
    (out / name).symlink_to(elsewhere if "." not in name else elsewhere / "file")
    refusal(out)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_was_moved_away_is_not_written_to(tmp_path: Path, again: bool) -> None:
    """Be another one in its place or none: what comes next would lie apart from what is there."""
    out = tmp_path / "out"
    with open_run_folder(out, CONFIG) as folder:
        log = TrialLog(out)
        out.rename(tmp_path / "moved")
        if again:
            out.mkdir()
        with pytest.raises(EngineError):
            folder.write_json("result.json", {})
        with pytest.raises(EngineError):
            log.append(Trial(study="s", key="k"))
        assert not out.exists() or not list(out.iterdir())


def test_another_configuration_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
    with open_run_folder(tmp_path, CONFIG):
        pass
    before = content(tmp_path)
    fault = refusal(tmp_path, load_config(["seed=3", "federation.dataset=wine"]))
    assert fault.subject == str(tmp_path)
    assert "federation.dataset: 'digits' before, 'wine' now; seed: 0 before, 3 now" in fault
    # the default stands for a key that only one side has; nothing where there is none
    old, new = {"a": 1, "b": {"c": 2, "d": 3}, "gone": 4}, {"a": 1, "b": {"c": 2, "d": 5}, "new": 6}
    assert differences(old, new) == ["b.d: 3 before, 5 now", "gone: 4 before, None now", "new: None before, 6 now"]
    assert content(tmp_path) == before
    with open_run_folder(tmp_path, CONFIG):
        pass


@pytest.mark.parametrize("name", ["notes.txt", "trials", "config.json"])
def test_what_holds_anything_else_or_is_no_folder_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    for path in (tmp_path, tmp_path / name, tmp_path / name / "below", Path("/proc/fedscout-test")):
        fault = refusal(path)
        assert fault.startswith("--out ")
        assert str(path) in fault
    assert content(tmp_path) == {name}
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("there", [(), ("empty",), ("runs",)])
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("error", [DataError("no such file"), RuntimeError(), KeyboardInterrupt()], ids=repr)
def test_a_mistake_leaves_nothing_and_other_ends_or_results_keep_the_folder(
    tmp_path: Path, there: Sequence[str], written: bool, error: BaseException
) -> None:
    for name in there:
        (tmp_path / name).mkdir()
    out = tmp_path.joinpath(*there) if there == ("empty",) else tmp_path.joinpath(*there, "deep", "out")

    def run() -> None:
        with open_run_folder(out, CONFIG) as folder:
            if written:
                folder.write_json("report.json", {"a": 1})
            raise error

    with pytest.raises(type(error)):
        run()
    if written or not isinstance(error, UserError):
        assert {"config.json", *(["report.json"] if written else [])} <= content(out)
        with open_run_folder(out, CONFIG):
            pass
    else:
        assert content(tmp_path) == {*there}


def test_other_data_are_refused(tmp_path: Path) -> None:
    for data in (None, "a", None, "a"):  # the digest is kept as soon as it is known
        with open_run_folder(tmp_path, CONFIG, data):
            pass
    assert refusal(tmp_path, data="b").subject == str(tmp_path)


def test_other_versions_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_run_folder(tmp_path, CONFIG):
        stored = json.loads((tmp_path / "config.json").read_text())
    stored["versions"]["torch"] = "1.0"
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with caplog.at_level(logging.WARNING, "fedscout"), open_run_folder(tmp_path, CONFIG):
        pass
    (message,) = {record.getMessage() for record in caplog.records}
    assert "torch: '1.0' before" in message


# Every pair of features runs, or is refused with a key before anything is written.


BASE = (
    *("federation.dataset=digits", "federation.max_rows=300", "federation.num_clients=5"),
    *("federation.partition.alpha=1", "training.num_rounds=2", "model.hidden=[8]", "engine.grid=local"),
    *("search.budget=2", "search.generation_size=2", "search.confirmation_seeds=0"),
    *("detection.outlier_repetitions=1", "detection.outlier_min_flags=1", "detection.outlier_rounds=1"),
)

KINDS = "fedprox fedadam krum qfedavg scaffold fednova ditto fedrep communities dp_fedavg fedmedian krum+fedprox"

FEATURES: Mapping[str, Sequence[str]] = {
    "regression": ("federation.dataset=diabetes", "model.hidden=[8]"),
    "convolutions": ("model.kind=lenet", "model.hidden"),
    "batch norm": ("model.norm=batch",),
    "dropout": ("model.dropout=0.2",),
    "shards": ("federation.partition.kind=shard", "federation.partition.alpha"),
    "label poisoning": ("federation.scenario=[{kind: poisoning, clients: [1]}]",),
    "noisy features": ("federation.scenario=[{kind: feature_noise, clients: [1], std: 1}]",),
    "absent clients": ("federation.scenario=[{kind: dropout, clients: all, probability: 0.3}]",),
    "slow devices": ("federation.scenario=[{kind: devices, clients: all, seconds_per_step: 0.01}]",),
    "unseen clients": ("federation.unseen_clients=1",),
    "server rows": ("federation.server_rows=40",),
    "server labels": ("federation.server_rows=40", "federation.server_labels=true"),
    "time-ordered split": ("federation.split=last",),
    "large release": ("federation.min_release=8",),
    "abstaining clients": ("federation.min_release=8", "federation.small_clients=abstain"),
    "auroc": ("training.metric=auroc",),
    "participation": ("training.fraction_train=0.6",),
    "repetitions": ("training.repetitions=3",),
    "adam": ("training.optimizer=adam",),
    "bfloat16": ("training.precision=bfloat16",),
    "pseudo labels": ("training.pseudo_label_weight=0.5",),
    "scored clients": ("training.scored_clients=2",),
    "simulated deadline": ("training.simulated_deadline_seconds=1",),
    "loop": ("training.backend=loop",),
    "epsilon": ("detection.epsilon=5",),
    "random policy": ("selection.kind=random", "training.fraction_train=0.6"),
    "flash": ("selection.kind=flash", "training.fraction_train=0.6"),
    "oort": ("selection.kind=oort", "training.fraction_train=0.6"),
    "worst clients": ("search.objective=worst_clients",),
    "rounds to target": ("search.objective=rounds_to_target", "search.target=0.3"),
    "clean view": ("search.view=clean",),
    "validation rows": ("search.validation_fraction=0.25",),
    "client ranges": ("search.client_ranges.learning_rate={low: 0.05, high: 0.5, log: true}",),
    "confirmation": ("search.confirmation_seeds=2", "search.tuning_factors=[2]"),
    **{f"search {kind}": (f"search.kind={kind}",) for kind in ("tpe", "gp", "random", "grid", "racing", "one_shot")},
    "cmaes": ("search.kind=cmaes", "search.strategies=[fedadam]"),
    "published": ("search.published=true",),
    "fedbn": ("search.strategies=[fedbn]", "model.norm=batch"),
    "feddf": ("search.strategies=[feddf]", "federation.server_rows=40"),
    **{kind: (f"search.strategies=[{kind}]",) for kind in KINDS.split()},
}


def test_rows_held_back_for_the_search_do_not_score_a_training() -> None:
    config, federation = built_study(load_config(["search.validation_fraction=0.5", "federation.max_rows=200"]))
    facts = study_facts(config, federation)
    scored = {
        phase: facts.trial(phase, FedAvgSpec()).session.evaluate_on for phase in ("search", "confirmation", "train")
    }
    assert scored == {"search": "validation", "confirmation": "test", "train": "test"}


def test_the_users_own_code_of_a_strategy_and_of_a_policy_is_digested() -> None:
    own = [f"strategy.path={__name__}:OwnTimed", "strategy.kind=custom"]
    policy = ["selection.kind=custom", f"selection.path={__name__}:OwnTimed", "training.fraction_train=0.5"]
    assert (
        [*strategy_code(load_config(own))] == [*strategy_code(load_config(policy))] == [f"strategy {__name__}:OwnTimed"]
    )


def test_a_users_own_strategy_that_is_advised_can_be_built() -> None:
    spec = CustomSpec(path=f"{__name__}:OwnTimed")
    trial = SimpleNamespace(strategy=spec.path, parameters=spec.parameters(), learning_rate=0.1)
    advice = advised(None, trial, 0.1)  # type: ignore[arg-type]
    assert advice is not None
    assert parse_strategy(advice) == spec


def settings_of(*names: str) -> dict[str, str] | None:
    """Return the settings of features together, by key; None if they set a key differently."""
    settings = dict(argument.split("=", 1) for argument in BASE)
    chosen: dict[str, str] = {}
    for name in names:
        for argument in FEATURES[name]:
            key, _, value = argument.partition("=")
            if chosen.setdefault(key, value) != value:
                return None
    return {key: value for key, value in (settings | chosen).items() if value}


def pairs() -> Iterator[tuple[str, ...]]:
    """Yield the features alone and every pair of them that can be configured together."""
    yield from ((name,) for name in FEATURES)
    yield from (pair for pair in combinations(FEATURES, 2) if settings_of(*pair) is not None)


PAIRS = tuple(pairs())


def defect(names: Sequence[str], folder: Path) -> str | None:
    """Run a study with features; return what is wrong with its end, None if nothing is."""
    settings = settings_of(*names)
    try:
        outcome = run_workflow(load_config([f"{key}={value}" for key, value in settings.items()]), folder).outcome
    except UserError as error:
        if None in error.keys:
            return f"no key: {error}"
        return f"{folder} was left behind" if folder.exists() else None
    failed = [trial.error for trial in (outcome.baseline, *outcome.trials) if trial.status == "failed"]
    return f"failed: {failed[0]}" if failed else None


@pytest.mark.parametrize("names", PAIRS[::67], ids=" and ".join)
def test_features_run_together_or_are_refused(names: Sequence[str], tmp_path: Path) -> None:
    assert defect(names, tmp_path / "out") is None


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_all_pairs(tmp_path: Path) -> None:
    found = {names: defect(names, tmp_path / str(place)) for place, names in enumerate(PAIRS)}
    assert {names: text for names, text in found.items() if text is not None} == {}
