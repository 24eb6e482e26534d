"""Client parameters in a search: configured, applied to local training, logged, confirmed; the reference stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from fedscout.engine.contracts.client_table import SettingsCell, SettingsTable
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.record import TrialSettings
from fedscout.experiments.config import load_config
from fedscout.search.config import ClientRanges, SearchConfig
from fedscout.search.settings_table_file import COLUMNS, FORMAT, read_settings_table, write_settings_table
from fedscout.strategies import FedAvgSpec, IntegerRange, RealRange
from fedscout.strategies.methods.averaging import QFedAvgSpec
from tests.kits.refusals import refused
from tests.search.studies import (
    FACTS,
    Measured,
    ScriptedRunner,
    completed,
    open_ledger,
    study,
)

RANGES = {
    "learning_rate": {"low": 0.05, "high": 0.8, "log": True},
    "local_epochs": {"low": 1, "high": 3},
    "batch_size": {"low": 4, "high": 16},
}


def test_ranges_have_the_names_of_a_specification() -> None:
    assert ClientRanges.model_validate(RANGES).ranges() == {
        "client_learning_rate": RealRange(0.05, 0.8, log=True),
        "client_local_epochs": IntegerRange(1, 3),
        "client_batch_size": IntegerRange(4, 16),
    }
    assert ClientRanges().ranges() == {}


@pytest.mark.parametrize(
    ("name", "low", "high", "key", "named"),
    [
        ("learning_rate", 1, 0.1, "learning_rate", "[1.0, 0.1]"),
        ("learning_rate", 0, 1, "learning_rate.low", "got 0.0"),
        ("local_epochs", 1, 9999, "local_epochs.high", "got 9999"),
        ("batch_size", 1.5, 4, "batch_size.low", "got 1.5"),
        ("momentum", 0, 1, "momentum", "training.momentum"),
    ],
)
def test_ranges_that_cannot_be_trained_with_are_refused(
    name: str, low: float, high: float, key: str, named: str
) -> None:
    with refused(ConfigurationError, key=f"search.client_ranges.{key}", names=named):
        load_config([f"search.client_ranges={{{name}: {{low: {low}, high: {high}}}}}"])


def by_rate(spec: TrialSettings) -> Measured:
    return completed(1 - abs(spec.session.training.learning_rate - 0.4))


def test_a_study_trains_logs_and_confirms_with_them_and_fedavg_stays(tmp_path: Path) -> None:
    runner = ScriptedRunner(by_rate)
    config = SearchConfig(
        client_ranges=ClientRanges.model_validate(RANGES),
        strategies=("fedavg", "fedadam"),
        confirmation_seeds=2,
        tuned_baseline=False,
    )
    outcome = study(tmp_path, runner, config)

    assert outcome.baseline.learning_rate == FACTS.session.training.learning_rate
    assert runner.ran[0].session.training == FACTS.session.training
    table = read_trials(tmp_path).sort_values("trial").reset_index(drop=True)
    searched = table[table["phase"] == "search"]
    for spec, (_, row) in zip(runner.ran[1:9], searched.iterrows(), strict=True):
        assert spec.session.training.learning_rate == row["learning_rate"] == row["param_client_learning_rate"]
        assert spec.session.training.local_epochs == row["param_client_local_epochs"]
        assert spec.session.training.batch_size == row["param_client_batch_size"]
    assert searched["param_client_local_epochs"].isin([1, 2, 3]).all()
    assert table["param_client_learning_rate"].isna()[0]
    assert "fedavg" in set(searched["strategy"])  # at other client parameters it is a candidate
    challenger, fedavg = outcome.confirmation.contestants
    assert challenger.learning_rate == min(searched["learning_rate"], key=lambda rate: abs(rate - 0.4))
    assert fedavg.learning_rate == FACTS.session.training.learning_rate


def test_a_candidate_at_the_study_s_own_values_is_the_reference(tmp_path: Path) -> None:
    ranges = {"local_epochs": {"low": 1, "high": 2}}
    config = SearchConfig(
        client_ranges=ClientRanges.model_validate(ranges), strategies=("fedavg",), confirmation_seeds=0
    )
    outcome = study(tmp_path, ScriptedRunner(by_rate), config)
    assert FACTS.session.training.local_epochs == 1
    assert [entry.spec for entry in outcome.trials] == [FedAvgSpec(client_local_epochs=2)]


def test_a_plan_s_own_rate_comes_first_and_the_strategy_s_reaches_flower(tmp_path: Path) -> None:
    runner = ScriptedRunner(by_rate)
    spec = QFedAvgSpec(q=1.0, client_learning_rate=0.05)
    own, planned = open_ledger(tmp_path, runner).run(
        [FACTS.trial("search", spec), FACTS.trial("search", spec, learning_rate=0.6)]
    )
    assert (own.learning_rate, planned.learning_rate) == (0.05, 0.6)
    assert own.key != planned.key


# -- A table of client settings comes back as it was written, and what is none is told in one line ---------------------


TABLE = SettingsTable(
    tuple(SettingsCell(h, q, 1e-5 * q / (1 + h), 8, 1 + q // 100) for h in (0.2, 0.8) for q in (100, 1000)), 0.5
)
PROVENANCE = {"dataset": "digits", "model": "dense", "num_classes": 10, "metric": "heterogeneity"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.parquet"
    beside = [{"score": 0.1 * number, "trials": number} for number in range(4)]

    write_settings_table(path, TABLE, {**PROVENANCE, "cells": beside})

    assert read_settings_table(path) == (TABLE, {**PROVENANCE, "cells": beside})
    assert list(pd.read_parquet(path).columns) == [*COLUMNS, "score", "trials"]
    assert list(path.parent.iterdir()) == [path]


def changed(path: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Change the cells of a file and leave its metadata."""
    content = pq.read_table(path)
    frame = change(content.to_pandas())
    pq.write_table(
        type(content).from_pydict(frame.to_dict("list")).replace_schema_metadata(content.schema.metadata), path
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda rows: rows.drop(columns=["batch_size", "local_epochs"]), ["lacks batch_size, local_epochs"]),
        (lambda rows: rows.iloc[:3], ["2 x 2", "heterogeneity 0.8, quantity 1000"]),
        (lambda rows: pd.concat([rows, rows.iloc[:1]]), ["heterogeneity 0.2, quantity 100 2 times"]),
        (lambda rows: rows.iloc[:0], ["cells", "none"]),
        (lambda rows: rows.assign(learning_rate=float("nan")), ["cell 1: learning_rate", "got nan"]),
        (lambda rows: rows.assign(learning_rate="0.1"), ["cell 1: learning_rate", "got '0.1'"]),
        (lambda rows: rows.assign(learning_rate=[0.1, 0.1, 0.0, 0.1]), ["cell 3: learning_rate", "got 0.0"]),
        (lambda rows: rows.assign(local_epochs=1001), ["cell 1: local_epochs", "got 1001"]),
        (lambda rows: rows.assign(batch_size=2.5), ["cell 1: batch_size", "got 2.5"]),
        (lambda rows: rows.assign(quantity=[0, 1000, 0, 1000]), ["cell 1: quantity", "got 0"]),
        (lambda rows: rows.assign(heterogeneity=[0.2, 0.2, 1.5, 1.5]), ["heterogeneity", "[0, 1]", "got 1.5"]),
    ],
)
def test_a_table_that_cannot_serve_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], named: list[str]
) -> None:
    path = tmp_path / "table.parquet"
    write_settings_table(path, TABLE, PROVENANCE)
    changed(path, change)

    with refused(ConfigurationError, key=path.name) as caught:
        read_settings_table(path)

    (fault,) = caught.value.faults
    assert [name for name in [*named, str(path)] if name not in fault] == []
    assert "\n" not in fault


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    damaged, other = tmp_path / "damaged.parquet", tmp_path / "other.parquet"
    damaged.write_bytes(b"PAR1 and then nothing")
    pd.DataFrame({"a": [1]}).to_parquet(other)

    for path, named in [(tmp_path / "none", "no such"), (damaged, "Parquet"), (other, FORMAT)]:
        with refused(ConfigurationError, key=path.name, names=named):
            read_settings_table(path)


@pytest.mark.parametrize(
    "cells", [(), TABLE.cells[:3], TABLE.cells + TABLE.cells[:1], (replace(TABLE.cells[0], quantity=0),)]
)
def test_nothing_is_written_that_could_not_be_read(tmp_path: Path, cells: Any) -> None:
    with pytest.raises(ConfigurationError):
        write_settings_table(tmp_path / "table.parquet", SettingsTable(cells), PROVENANCE)

    assert list(tmp_path.iterdir()) == []


def test_a_metric_of_ones_own_may_have_any_values(tmp_path: Path) -> None:
    path, table = tmp_path / "table.parquet", SettingsTable((replace(TABLE.cells[0], heterogeneity=-7.0),))

    write_settings_table(path, table, {**PROVENANCE, "metric": "mine:spread"})

    assert read_settings_table(path)[0] == table
