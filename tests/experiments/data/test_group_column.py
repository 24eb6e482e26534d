"""`federation.group_column` and `federation.split=last`: from an own table to what clients train and are tested on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedscout
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.data.dataset import DatasetRequest
from fedscout.experiments.data.loaders.table import load_dataset
from fedscout.experiments.federation import build_federation, data_digest
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from tests.kits.refusals import refused

SUBJECTS = 24
ROWS_EACH = 5


def table() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    subject = np.repeat(np.arange(SUBJECTS), ROWS_EACH)
    return pd.DataFrame(
        {
            "time": np.arange(len(subject), dtype=float),
            "pulse": generator.normal(size=len(subject)),
            "subject": [f"s{number:02}" for number in subject],
            "ill": subject % 2,
            "ward": np.where(subject < 12, "east", "west"),
        }
    )


def save(folder: Path) -> str:
    path = folder / "visits.csv"
    table().to_csv(path, index=False)
    return str(path)


def build(folder: Path, **settings: Any) -> Federation:
    given = {"dataset": save(folder), "label": "ill", "client_column": "ward", **settings}
    return build_federation(FederationConfig(**given), ModelConfig())


def parts(federation: Federation, client: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers on which a client trains and is tested."""
    rows = federation.partition.client(client)
    split = federation.split_rows(client, federation.labels[rows], seed, 0.2, 0.0)
    return rows[split.train], rows[split.test]


def test_the_group_column_is_no_feature_and_its_groups_are_not_divided(tmp_path: Path) -> None:
    federation = build(tmp_path, group_column="subject")
    assert federation.feature_names == ("time", "pulse")
    assert json.loads(json.dumps(federation.facts))["num_groups"] == SUBJECTS
    for client in range(2):
        for seed in range(5):
            train, test = parts(federation, client, seed)
            assert not set(train // ROWS_EACH) & set(test // ROWS_EACH)
            assert len(test) in {10, 15}  # 20 % of 12 subjects is 2.4


def test_the_last_rows_of_each_client_are_tested_on(tmp_path: Path) -> None:
    federation = build(tmp_path, split="last", partition={"kind": "iid"}, client_column=None, num_clients=3)
    for client in range(3):
        train, test = parts(federation, client, seed=1)
        assert train.max() < test.min()
        assert len(test) == 8


def test_groups_are_part_of_what_a_study_rests_on(tmp_path: Path) -> None:
    plain, grouped = build(tmp_path, drop_columns=("subject",)), build(tmp_path, group_column="subject")
    np.testing.assert_array_equal(plain.features, grouped.features)
    assert data_digest(plain) != data_digest(grouped)


def test_a_sample_of_rows_keeps_their_groups(tmp_path: Path) -> None:
    federation = build(tmp_path, group_column="subject", max_rows=60)
    assert federation.groups is not None
    assert (federation.groups % 2 == federation.labels).all()  # as in the table: names ascend with the numbers


@pytest.mark.slow
def test_a_study_of_grouped_rows_ends_with_a_result(tmp_path: Path) -> None:
    federation = fedscout.Federation(table(), label="ill", client_column="ward", group_column="subject")
    found = fedscout.study(
        federation,
        training={"num_rounds": 2},
        search={"budget": 1, "confirmation_seeds": 2, "tuned_baseline": False},
        engine={"grid": "local"},
        out=tmp_path / "out",
    )
    document = json.loads((tmp_path / "out" / "result.json").read_text())
    assert document["federation"]["num_groups"] == SUBJECTS
    assert found.confirmation is not None
    assert document["confirmation"]["sentence"] == found.confirmation.sentence


def test_a_data_frame_has_groups_too() -> None:
    federation = fedscout.Federation(table(), label="ill", client_column="ward", group_column="subject")
    assert federation._built.facts["num_groups"] == SUBJECTS


@pytest.mark.parametrize(
    ("settings", "key", "names"),
    [
        ({"group_column": "subjct"}, "federation.group_column", "'subjct'; its columns are: time, pulse, subject,"),
        ({"group_column": "ill"}, "federation.label", "federation.group_column"),
        ({"group_column": "ward"}, "federation.client_column", "federation.group_column"),
        ({"group_column": "subject", "drop_columns": ("subject",)}, "federation.drop_columns", "group_column"),
    ],
)
def test_a_wrong_group_column_is_one_clear_line(tmp_path: Path, settings: dict[str, Any], key: str, names: str) -> None:
    with refused(DataError, key=key, names=names):
        build(tmp_path, **settings)


def test_named_data_sets_have_no_group_column() -> None:
    with refused(ConfigurationError, key="federation.group_column", given="'x' for 'digits'"):
        load_dataset(DatasetRequest(dataset="digits", group_column="x"))
    assert load_dataset(DatasetRequest(dataset="digits", split="last")).num_rows == 1797
    with refused(ConfigurationError, key="federation.split"):
        load_dataset(DatasetRequest(dataset="digits", split="test"))
