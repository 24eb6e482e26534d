"""Selection policies and tables of client settings on the whole road: configured, searched, logged, and refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscout
from fedscout.engine.contracts.client_table import SettingsCell, SettingsTable
from fedscout.engine.errors import ConfigurationError, LogError, StrategyError, UserError
from fedscout.engine.trials.log import read_trials
from fedscout.experiments.config import load_config
from fedscout.experiments.deployment.driver import winner_of
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.studies.checks import check_proxy_rows, searched_policies, selection_of
from fedscout.experiments.studies.result import read_claim, read_study
from fedscout.experiments.studies.workflow import cohort_of, run_training, run_workflow
from fedscout.search.client_settings import write_settings_table
from fedscout.search.ledger import StudyFacts
from fedscout.search.study import planned_space
from fedscout.strategies import FedAvgSpec, parse_strategy
from fedscout.strategies.selection.bandits import FlashSpec
from fedscout.strategies.selection.policies import RandomSpec
from tests.kits.refusals import refused

SOME = ("federation.num_clients=20", "training.fraction_train=0.2", "training.num_rounds=30")


BRIEF = ("federation.num_clients=10", "training.fraction_train=0.3", "training.num_rounds=6")
OWN_POLICY = "fedscout.strategies.selection.policies:RandomSelection"
TOO_MANY = "training.fraction_train that selects 10 of 10"


@pytest.mark.parametrize(
    ("arguments", "key", "given"),
    [
        (["selection.kind=oort"], "selection.kind", TOO_MANY),
        (["strategy={kind: fedavg, selection: oort}"], "selection.kind", TOO_MANY),
        ([*SOME, "selection.kind=nix"], "kind of a selection", "'nix'"),
        ([*SOME, "selection.kind=oort", "selection.exploration=2"], "exploration of selection.kind=oort", "2"),
        ([*SOME, "selection.kind=fedcor", "training.num_rounds=5"], "warm_up", "15"),
        ([*SOME, "selection.kind=custom", "selection.path=nix:Da"], "nix:Da", None),
        ([*BRIEF, "strategy={kind: fedavg, selection: custom}"], "path of selection.kind=custom", None),
        ([*SOME, "selection.kind=oort", "selection.worth=1"], "worth", "1"),
        ([*SOME, "selection.kind=flash", "federation.dataset=diabetes"], "selection.kind", None),
        ([*SOME, "selection.kind=flash", "federation.dataset=cartpole"], "selection.kind", None),
    ],
)
def test_what_can_t_choose_is_refused_before_anything_trains(arguments: list[str], key: str, given: str | None) -> None:
    config = load_config(arguments)
    with refused(StrategyError, key=key, given=given):
        selection_of(config, cohort_of(config, config.federation.num_seen or 0))


IID = ("federation.partition.kind=iid", "federation.small_clients=abstain", "training.num_rounds=2")
SMALL_PARTS = ("federation.num_clients=60", "federation.min_release=28", "training.fraction_train=0.9")
SLOW_DEVICES = (
    *("federation.num_clients=4", "federation.scenario={kind: devices, clients: [0, 2, 3], seconds_per_step: 9}"),
    *("training.simulated_deadline_seconds=8", "training.fraction_train=0.5"),
)
SEARCHED = ("federation.num_clients=20", "federation.min_release=70", "search.selection=[random,flash]")


@pytest.mark.parametrize(
    ("run", "settings"),
    [
        (run_training, (*SMALL_PARTS, "selection.kind=random")),
        (run_training, (*SLOW_DEVICES, "strategy={kind: fedavg, selection: oort}")),
        (partial(run_workflow, detection=False), (*SEARCHED, "training.fraction_train=0.2")),
        (partial(run_workflow, detection=False), (*SEARCHED, "training.fraction_train=0.6")),
    ],
)
def test_too_few_who_can_train_are_refused(run: Callable[..., Any], settings: Sequence[str], tmp_path: Path) -> None:
    """A digit in 60 parts is 29 or 30 rows; and of 449 rows 359 make twelve steps of nine seconds.

    Of 90 rows a client 72 train, and 65 where a policy measures on a tenth: with 70 these all abstain.
    """
    with refused(UserError, key="selection.kind"):
        run(load_config([*IID, *settings]), tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_searched_policy_joins_every_strategy() -> None:
    config = load_config([*SOME, "search.selection=[random, oort, flash]"])
    space = planned_space(config.search, cohort_of(config, 20), config.training.local())
    drawn = [space.random(np.random.default_rng(seed)) for seed in range(60)]
    assert {spec.selection for spec in drawn} == {"random", "oort", "flash"}
    assert all(space.contains(spec) for spec in drawn)
    assert not space.contains(FedAvgSpec())
    assert len({space.digest(drawn[0].with_values({"selection": kind})) for kind in ("oort", "flash")}) == 2


def test_a_named_policy_has_the_study_s_parameters_if_it_is_the_study_s() -> None:
    config = load_config([*SOME, "selection={kind: flash, alpha: 0.7}"])
    cohort = cohort_of(config, 20)
    facts = StudyFacts("x", 30, cohort, config.training.session(0), selection=selection_of(config, cohort))
    own = FlashSpec(alpha=0.7)
    assert facts.trial("train", FedAvgSpec()).selection == own
    assert facts.trial("train", parse_strategy({"kind": "fedavg", "selection": "flash"})).selection == own
    named = facts.trial("train", FedAvgSpec(selection="oort"))
    assert (named.selection is not None, named.key != facts.trial("train", FedAvgSpec()).key) == (True, True)


@pytest.mark.parametrize(
    ("own", "kind", "lacking"),
    [
        (["selection.kind=fedcor", "selection.warm_up=3", "selection.dimension=5"], "fedcor", "dimension of"),
        (["selection.kind=custom", f"selection.path={OWN_POLICY}"], "custom", "path of"),
    ],
)
def test_a_searched_policy_has_the_studys_parameters(own: list[str], kind: str, lacking: str) -> None:
    """By themselves these kinds could not choose here: FedCor's warm-up is too long, and one's own has no path."""
    config = load_config([*BRIEF, *own, f"search.selection=[random,{kind}]"])
    cohort = cohort_of(config, 10)
    study_s = selection_of(config, cohort)
    assert [*searched_policies(config, cohort)] == [RandomSpec(), study_s]
    space = planned_space(config.search, cohort, config.training.local(), study_s)
    assert {space.random(np.random.default_rng(seed)).selection for seed in range(20)} == {"random", kind}
    facts = StudyFacts("x", 6, cohort, config.training.session(0), selection=study_s)
    assert facts.trial("search", parse_strategy({"kind": "fedavg", "selection": kind})).selection == study_s
    alone = load_config([*BRIEF, f"search.selection=[random,{kind}]"])
    with refused(StrategyError, key=f"{lacking} selection.kind={kind}"):
        planned_space(alone.search, cohort)


def test_validation_rows_come_from_the_training_rows_only_for_who_measures_on_them() -> None:
    config = load_config(SOME)
    facts = StudyFacts("x", 30, cohort_of(config, 20), config.training.session(0))
    fractions = {
        kind: facts.trial("train", FedAvgSpec(selection=kind)).session.validation_fraction
        for kind in ("random", "oort", "flash")
    }
    assert fractions == {"random": 0.0, "oort": 0.0, "flash": 0.1}


SEARCH = {"budget": 4, "generation_size": 4, "confirmation_seeds": 2, "tuned_baseline": False}


def study(folder: Path, **more: Any) -> fedscout.Study:
    federation = fedscout.Federation("digits", num_clients=8, scenario="flash_both")
    asked: dict[str, Any] = {
        "training": {"num_rounds": 4, "fraction_train": 0.4},
        "search": {"selection": ["random", "oort", "flash"], **SEARCH},
        "engine": {"grid": "local"},
    }
    return fedscout.study(federation, out=folder, detection_first=False, **{**asked, **more})


@pytest.mark.slow
def test_a_study_searches_a_policy_of_one_s_own_and_goes_on(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "selection": {"kind": "custom", "path": OWN_POLICY},
        "search": {"selection": ["custom", "oort"], **SEARCH},
    }
    first = study(tmp_path / "one", **more)
    rows = read_trials(tmp_path / "one").to_dict("records")
    assert all(sum(row["client_rounds"]) >= 4 * 3 for row in rows if row["phase"] == "search")
    assert {row["selection"] for row in rows if row["phase"] == "search"} == {OWN_POLICY, "oort"}
    assert {row["selection"] for row in rows if row["phase"] == "baseline"} == {OWN_POLICY}
    for trial in sorted((tmp_path / "one" / "trials").iterdir())[::2]:
        trial.unlink()
    again = study(tmp_path / "one", **more)
    for name in ("best", "confirmation"):
        assert again.document[name] == first.document[name]


# A study whose clients take their settings from a table: what is one study, what is refused, and that it runs.


SMALL = [
    *("federation.dataset=digits", "federation.num_clients=4", "federation.max_rows=200"),
    *("federation.partition.alpha=1", "training.num_rounds=2", "engine.grid=local"),
    *("search.budget=2", "search.confirmation_seeds=0"),
]
PROVENANCE = {"dataset": "digits", "model": "auto", "num_classes": 10}
TABLE = SettingsTable(tuple(SettingsCell(h, q, 0.1 + h / 2, 8, 1 + q // 40) for h in (0.2, 0.8) for q in (20, 80)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    write_settings_table(path, TABLE, PROVENANCE)
    return path


def with_table(path: Path, *more: str) -> list[str]:
    return [*SMALL, "client_settings.kind=table", f"client_settings.path={path}", *more]


def test_a_policy_and_what_a_table_holds_are_part_of_the_study_but_not_its_place(path: Path, tmp_path: Path) -> None:
    moved, other = tmp_path / "moved.json", tmp_path / "other.json"
    moved.write_bytes(path.read_bytes())
    write_settings_table(other, SettingsTable(tuple(replace(cell, batch_size=9) for cell in TABLE.cells)), PROVENANCE)
    digest = load_config(with_table(path)).digest()
    assert load_config(with_table(moved)).digest() == digest
    others = [
        load_config(with_table(other)),
        load_config(with_table(path, "client_settings.threshold=1")),
        load_config(with_table(path, "client_settings.threshold=1", "client_settings.epsilon=1")),
        *(load_config([*SMALL, *more]) for more in ([], ["selection.kind=oort"], ["selection.kind=flash"])),
    ]
    assert len({digest, *(config.digest() for config in others)}) == 7
    assert "client_settings" not in load_config(SMALL).identity()


def test_clients_train_by_the_table(path: Path, tmp_path: Path) -> None:
    """Not as without one, and what else is said of rates, batches and epochs is overridden."""
    told = ("training.learning_rate=0.9", "training.batch_size=3", "training.local_epochs=5")
    trials = {
        name: run_training(load_config(settings), tmp_path / name)[1]
        for name, settings in {"a": with_table(path), "b": with_table(path, *told), "c": SMALL}.items()
    }
    assert {trial.status for trial in trials.values()} == {"completed"}
    assert trials["a"].rounds["loss"] == trials["b"].rounds["loss"] != trials["c"].rounds["loss"]


def test_a_search_has_every_trial_s_clients_train_by_the_table(path: Path, tmp_path: Path) -> None:
    finished = run_workflow(
        load_config(with_table(path, "client_settings.threshold=0")), tmp_path / "out", detection=False
    )
    assert not load_config(with_table(path)).search.tuned_baseline
    assert all(any("farther than 0" in note for note in trial.notes) for trial in finished.outcome.trials)


def test_an_app_of_a_study_has_its_table_wherever_it_is_and_no_other_one(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(with_table(Path(path.name), "client_settings.threshold=1"))
    folder = run_workflow(config, tmp_path / "out", detection=False).folder
    monkeypatch.chdir("/")
    found, _ = winner_of(folder)
    assert found.client_settings == config.client_settings.model_copy(update={"path": str(path)})
    assert found.digest() == read_claim(folder)[0]["config_hash"]
    write_settings_table(path, SettingsTable(TABLE.cells[:2]), PROVENANCE)
    with refused(LogError, key=path.name):
        winner_of(folder)
    path.unlink()
    with refused(ConfigurationError, key=path.name):
        winner_of(folder)
    assert read_study(folder).faults == ()


WRONG = {
    "client_settings.kind=null": ("client_settings ", "kind=table"),
    "client_settings.path=null": ("client_settings ", "path"),
    "client_settings.epsilon=1": ("client_settings.epsilon ", "client_settings.threshold"),
    "client_settings.metric=spread": ("client_settings.metric ", "got 'spread'"),
    "client_settings.metric=entropy": ("client_settings.metric ", "got entropy"),
    "client_settings.path=/no/such.json": ("/no/such.json ", ""),
    "strategy={kind: fedavg, client_learning_rate: 0.1}": ("client_settings.kind=table ", " client_learning_rate"),
    "search.client_ranges.learning_rate={low: 0.1, high: 1}": ("client_settings.kind=table ", "learning_rate"),
    "strategy.kind=fedex": ("fedex ", "got client_settings.kind=table"),
    "search.tuned_baseline=true": ("", "search.tuned_baseline "),
    "federation.dataset=diabetes": ("client_settings.kind=table ", "regression"),
    "federation.dataset=breast_cancer": ("client_settings.path ", "2 classes"),
}


@pytest.mark.parametrize("more", WRONG)
def test_what_is_refused(path: Path, tmp_path: Path, more: str) -> None:
    subject, names = WRONG[more]
    with pytest.raises(UserError) as caught:
        run_training(load_config(with_table(path, more)), tmp_path / "out")
    (fault,) = caught.value.faults
    assert fault.startswith(subject)
    assert names in fault
    assert not (tmp_path / "out").exists()


def test_a_metric_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_metrics_of_clients.py").write_text(
        "def largest(counts, rows):\n    return counts.max() / rows\n\n\ndef nothing(counts, rows):\n    return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path, wrong = tmp_path / "table.json", tmp_path / "wrong.json"
    for name, file in (("largest", path), ("nothing", wrong)):
        write_settings_table(file, TABLE, {**PROVENANCE, "metric": f"own_metrics_of_clients:{name}"})
    config = load_config(with_table(path, "client_settings.metric=own_metrics_of_clients:largest"))
    assert run_training(config, tmp_path / "out")[1].status == "completed"
    assert [*config.identity()["client_settings"]["code"]] == ["own_metrics_of_clients.py"]
    config = load_config(with_table(wrong, "client_settings.metric=own_metrics_of_clients:nothing"))
    with refused(ConfigurationError, key="client_settings.metric"):
        run_training(config, tmp_path / "other")


# Clients that could hold a row that a table was tuned on are refused, others are not.


def tuned_on(**federation: Any) -> dict[str, Any]:
    """Return the provenance of a table tuned on a federation's server rows."""
    config = FederationConfig(**federation, server_labels=True)
    proxy = {"dataset": config.server_dataset or config.dataset, "synthetic": None}
    return {"dataset": config.dataset, "proxy": proxy, "config": {"federation": config.model_dump(mode="json")}}


TUNED_TABLE = tuned_on(dataset="wine", server_rows=0.3, seed=4)


def test_the_same_keys_keep_the_proxy_rows_from_the_clients() -> None:
    check_proxy_rows(TUNED_TABLE, FederationConfig(dataset="wine", server_rows=0.3, seed=4, num_clients=3), "hrt.json")
    own = build_federation(FederationConfig(dataset="wine", server_rows=0.3, seed=4), ModelConfig()).server
    again = build_federation(FederationConfig(dataset="wine", server_rows=0.3, seed=4, num_clients=3), ModelConfig())
    assert np.array_equal(own.features, again.server.features)


@pytest.mark.parametrize("given", [{"seed": 4}, {"server_rows": 0.3}, {"server_rows": 0.3, "seed": 4, "max_rows": 100}])
def test_other_keys_are_refused_with_those_that_would_do(given: dict[str, Any]) -> None:
    with refused(ConfigurationError, key="clients"):
        check_proxy_rows(TUNED_TABLE, FederationConfig(dataset="wine", **given), "hrt.json")


def test_clients_of_the_proxy_data_set_are_refused_and_others_are_not() -> None:
    table = tuned_on(dataset="wine", server_dataset="breast_cancer")
    with refused(ConfigurationError, key="clients"):
        check_proxy_rows(table, FederationConfig(dataset="breast_cancer"), "hrt.json")
    check_proxy_rows(table, FederationConfig(dataset="wine"), "hrt.json")
    check_proxy_rows(TUNED_TABLE, FederationConfig(dataset="digits"), "hrt.json")
    check_proxy_rows(
        {**TUNED_TABLE, "proxy": {**TUNED_TABLE["proxy"], "synthetic": 50}}, FederationConfig(dataset="wine"), "t"
    )
    check_proxy_rows({"dataset": "wine"}, FederationConfig(dataset="wine"), "made by hand")
