"""A study whose clients take their settings from a table: what is one study, what is refused, and that it runs."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscout.engine.contracts.client_table import SettingsCell, SettingsTable
from fedscout.engine.errors import ConfigurationError, UserError
from fedscout.experiments.config import load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.studies.client_settings import check_proxy_rows
from fedscout.experiments.studies.workflow import run_training, run_workflow
from fedscout.search.settings_table_file import write_settings_table
from tests.kits.refusals import refused

SMALL = [
    "engine.grid=local",
    "federation.dataset=digits",
    "federation.num_clients=4",
    "federation.max_rows=200",
    "federation.partition.alpha=1",
    "training.num_rounds=2",
    "search.budget=2",
    "search.confirmation_seeds=0",
]
PROVENANCE = {"dataset": "digits", "model": "auto", "num_classes": 10}
TABLE = SettingsTable(tuple(SettingsCell(h, q, 0.1 + h / 2, 8, 1 + q // 40) for h in (0.2, 0.8) for q in (20, 80)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "table.parquet"
    write_settings_table(path, TABLE, PROVENANCE)
    return path


def with_table(path: Path, *more: str) -> list[str]:
    return [*SMALL, "client_settings.kind=table", f"client_settings.path={path}", *more]


def test_what_the_table_holds_is_part_of_the_study_and_where_it_lies_is_not(path: Path, tmp_path: Path) -> None:
    moved, other = tmp_path / "moved.parquet", tmp_path / "other.parquet"
    moved.write_bytes(path.read_bytes())
    write_settings_table(other, SettingsTable(tuple(replace(cell, batch_size=9) for cell in TABLE.cells)), PROVENANCE)
    digest = load_config(with_table(path)).digest()
    assert load_config(with_table(moved)).digest() == digest
    others = [
        load_config(with_table(other)),
        load_config(with_table(path, "client_settings.threshold=1")),
        load_config(with_table(path, "client_settings.threshold=1", "client_settings.epsilon=1")),
        load_config(SMALL),
    ]
    assert len({digest, *(config.digest() for config in others)}) == 5
    assert "client_settings" not in load_config(SMALL).identity()


def test_clients_train_by_the_table(path: Path, tmp_path: Path) -> None:
    """Not as without one, and what else is said of rates, batches and epochs is overridden."""
    told = ("training.learning_rate=0.9", "training.batch_size=3", "training.local_epochs=5")
    trials = {
        name: run_training(load_config(settings), tmp_path / name)[1]
        for name, settings in {"a": with_table(path), "b": with_table(path, *told), "c": SMALL}.items()
    }
    assert {trial.status for trial in trials.values()} == {"completed"}
    assert trials["a"].round_loss == trials["b"].round_loss != trials["c"].round_loss


def test_a_search_has_every_trial_s_clients_train_by_the_table(path: Path, tmp_path: Path) -> None:
    finished = run_workflow(
        load_config(with_table(path, "client_settings.threshold=0")), tmp_path / "out", detection=False
    )
    assert not load_config(with_table(path)).search.tuned_baseline
    assert all(any("farther than 0" in note for note in trial.notes) for trial in finished.outcome.trials)


@pytest.mark.parametrize(
    ("more", "subject", "names"),
    [
        ("client_settings.kind=null", "client_settings ", "kind=table"),
        ("client_settings.path=null", "client_settings ", "path"),
        ("client_settings.threshold=-1", "client_settings.threshold ", "got -1"),
        ("client_settings.epsilon=0", "client_settings.epsilon ", "got 0"),
        ("client_settings.epsilon=1", "client_settings.epsilon ", "client_settings.threshold"),
        ("client_settings.metric=spread", "client_settings.metric ", "got 'spread'"),
        ("client_settings.metric=entropy", "client_settings.metric ", "got entropy"),
        ("client_settings.path=/no/such.parquet", "/no/such.parquet ", ""),
        (
            "strategy={kind: fedavg, client_learning_rate: 0.1}",
            "client_settings.kind=table ",
            " client_learning_rate",
        ),
        (
            "search.client_ranges.learning_rate={low: 0.1, high: 1}",
            "client_settings.kind=table ",
            "got search.client_ranges.learning_rate",
        ),
        ("strategy.kind=fedex", "fedex ", "got client_settings.kind=table"),
        ("search.tuned_baseline=true", "", "search.tuned_baseline "),
        ("federation.dataset=diabetes", "client_settings.kind=table ", "regression"),
        ("federation.dataset=breast_cancer", "client_settings.path ", "2 classes"),
    ],
)
def test_what_is_refused(path: Path, tmp_path: Path, more: str, subject: str, names: str) -> None:
    with pytest.raises(UserError) as caught:
        run_training(load_config(with_table(path, more)), tmp_path / "out")
    (fault,) = caught.value.faults
    assert fault.startswith(subject)
    assert names in fault
    assert "\n" not in fault
    assert not (tmp_path / "out").exists()


def told_of(message: str) -> tuple[str, ...]:
    """Return the table of a warning, what it was tuned for, and what the study has instead."""
    found = re.fullmatch(r"(\S+) was tuned for (.*); this study has (.*)", message)
    assert found is not None, message
    return found.groups()


TUNED = {
    **PROVENANCE,
    "trained_model": "dense 64-64-32-10",
    "tuned": {"training": {"optimizer": "sgd", "momentum": 0.0}},
}


@pytest.mark.parametrize(
    ("tuned", "study", "said"),
    [
        ({}, [], None),
        ({}, ["model.kind=dense", "model.hidden=[64,32]"], None),
        ({}, ["strategy.kind=fedadagrad"], None),
        ({"strategy": "fedadagrad"}, ["strategy.kind=fedadagrad"], None),
        (
            {},
            ["model.hidden=[8]", "training.optimizer=adam", "strategy.kind=fedadagrad"],
            ("model dense 64-64-32-10, optimizer sgd", "model dense 64-8-10, optimizer adam"),
        ),
        ({}, ["training.momentum=0.9"], ("momentum 0.0", "momentum 0.9")),
        ({"strategy": "fedadagrad"}, ["strategy.kind=fedprox"], ("strategy fedadagrad", "strategy fedprox")),
        ({"dataset": "wine"}, [], ("dataset wine", "dataset digits")),
        ({"tuned": "?", "trained_model": 3}, [], ("model 3", "model dense 64-64-32-10")),
    ],
)
def test_what_a_table_was_tuned_for_is_said_where_the_study_has_something_else(
    tmp_path: Path, caplog: Any, tuned: dict[str, Any], study: list[str], said: tuple[str, str] | None
) -> None:
    """In one line, before anything trains; a table of FedAvg's serves every strategy."""
    path = tmp_path / "table.parquet"
    write_settings_table(path, TABLE, {**TUNED, **tuned})
    with caplog.at_level(logging.WARNING, logger="fedscout"):
        run_training(load_config(with_table(path, "training.num_rounds=1", *study)), tmp_path / "out")
    expected = [] if said is None else [(str(path), *said)]
    assert [told_of(message) for message in caplog.messages if " tuned " in message] == expected


def test_a_table_of_one_strategy_is_not_for_a_search_of_all(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "table.parquet"
    write_settings_table(path, TABLE, {**TUNED, "strategy": "fedadam"})
    with caplog.at_level(logging.WARNING, logger="fedscout"):
        for number, strategies in enumerate(["[fedadam]", "[fedadam,fedprox]"]):
            config = load_config(with_table(path, f"search.strategies={strategies}"))
            run_workflow(config, tmp_path / str(number), detection=False)
    (told,) = [told_of(message) for message in caplog.messages if " tuned " in message]
    assert told == (str(path), "strategy fedadam", "strategy fedadam or fedprox")


def test_a_metric_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_metrics_of_clients.py").write_text(
        "def largest(counts, rows):\n    return counts.max() / rows\n\n\ndef nothing(counts, rows):\n    return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path, wrong = tmp_path / "table.parquet", tmp_path / "wrong.parquet"
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
    check_proxy_rows(
        TUNED_TABLE, FederationConfig(dataset="wine", server_rows=0.3, seed=4, num_clients=3), "hrt.parquet"
    )
    own = build_federation(FederationConfig(dataset="wine", server_rows=0.3, seed=4), ModelConfig()).server
    again = build_federation(FederationConfig(dataset="wine", server_rows=0.3, seed=4, num_clients=3), ModelConfig())
    assert own is not None
    assert again.server is not None
    assert np.array_equal(own.features, again.server.features)


@pytest.mark.parametrize("given", [{"seed": 4}, {"server_rows": 0.3}, {"server_rows": 0.3, "seed": 4, "max_rows": 100}])
def test_other_keys_are_refused_with_those_that_would_do(given: dict[str, Any]) -> None:
    with refused(ConfigurationError, key="clients"):
        check_proxy_rows(TUNED_TABLE, FederationConfig(dataset="wine", **given), "hrt.parquet")


def test_clients_of_the_proxy_data_set_are_refused_and_others_are_not() -> None:
    table = tuned_on(dataset="wine", server_dataset="breast_cancer")
    with refused(ConfigurationError, key="clients"):
        check_proxy_rows(table, FederationConfig(dataset="breast_cancer"), "hrt.parquet")
    check_proxy_rows(table, FederationConfig(dataset="wine"), "hrt.parquet")
    check_proxy_rows(TUNED_TABLE, FederationConfig(dataset="digits"), "hrt.parquet")
    check_proxy_rows(
        {**TUNED_TABLE, "proxy": {**TUNED_TABLE["proxy"], "synthetic": 50}},
        FederationConfig(dataset="wine"),
        "t",
    )
    check_proxy_rows({"dataset": "wine"}, FederationConfig(dataset="wine"), "made by hand")
