"""Commercial vehicles: five states by speed, gyroscope and accelerometer, and never by the time."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.errors import DataError
from fedscout.experiments.data.loaders.tabular import STATES
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig, PartitionConfig
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.kits.refusals import refused

READINGS = ("speed", "wx", "wy", "wz", "gFx", "gFy", "gFz")
START = 1_700_000_000_000  # milliseconds since 1970, whose variance is far beyond that of any reading
NUM_ROWS = 200


def readings(num_rows: int = NUM_ROWS) -> dict[str, list[object]]:
    """Return columns as the paper describes them: seven readings of two dumpers, `gFz` of the largest variance."""
    generator = np.random.default_rng(0)
    columns: dict[str, list[object]] = {"timestamp": [START + 100 * row for row in range(num_rows)]}
    columns |= {name: generator.normal(0, 9 if name == "gFz" else 2, num_rows).tolist() for name in READINGS}
    columns["vehicle"] = [f"dumper {1 + row % 2}" for row in range(num_rows)]
    columns["label"] = [STATES[row // 7 % 5] for row in range(num_rows)]
    return columns


def write(folder: Path, columns: dict[str, list[object]], name: str = "any_name.csv") -> Path:
    (folder / "commercial_vehicles").mkdir(exist_ok=True)
    with (folder / "commercial_vehicles" / name).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return folder


def test_the_time_is_no_feature_and_the_states_have_names(tmp_path: Path) -> None:
    dataset = load_dataset("commercial_vehicles", client_column="vehicle", folder=write(tmp_path, readings()))
    assert dataset.feature_names == READINGS
    assert set(dataset.class_names) == set(STATES)
    assert [dataset.class_names[label] for label in dataset.labels[:14]] == ["idle"] * 7 + ["driving"] * 7
    assert {*clients_of(dataset)} == {"dumper 1", "dumper 2"}
    assert "Smartilizer Scandinavia" in dataset.source
    assert dataset.series


def test_rows_sorted_by_the_column_of_largest_variance_are_sorted_by_g_force(tmp_path: Path) -> None:
    config = FederationConfig(
        dataset="commercial_vehicles",
        folder=write(tmp_path, readings()),
        num_clients=4,
        drop_columns=("vehicle",),
        partition=PartitionConfig(kind="fds_vop"),
    )
    federation = build_federation(config, ModelConfig(kind="linear"))
    force = load_dataset("commercial_vehicles", folder=tmp_path, drop_columns=["vehicle"]).features[
        :, READINGS.index("gFz")
    ]
    blocks = [force[federation.partition.client(client)] for client in range(4)]
    assert all(lower.max() <= upper.min() for lower, upper in pairwise(blocks))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Time_Stamp", "{row}"),
        ("time", "{row}.5"),
        ("taken", "2024-05-0{day} 12:00:{second:02}"),
        ("clock", "12:00:{second:02}"),
    ],
)
def test_whatever_says_when_a_row_was_taken_is_no_feature(tmp_path: Path, name: str, value: str) -> None:
    columns = readings()
    del columns["timestamp"], columns["vehicle"]
    columns[name] = [value.format(row=row % 90, day=1 + row // 60, second=row % 60) for row in range(NUM_ROWS)]
    dataset = load_dataset("commercial_vehicles", folder=write(tmp_path, columns))
    assert dataset.feature_names == READINGS
    assert name in dataset.facts["columns_left_out"]


def test_the_label_may_be_called_otherwise_and_states_written_otherwise(tmp_path: Path) -> None:
    columns = readings()
    columns["state"] = [str(name).upper().replace(" ", "_") for name in columns.pop("label")]
    dataset = load_dataset("commercial_vehicles", label="state", folder=write(tmp_path, columns))
    assert set(dataset.class_names) == set(STATES)
    assert_refused("commercial_vehicles", folder=tmp_path, key="federation.label", given="'label'")


def test_other_classes_are_ones_own_data(tmp_path: Path) -> None:
    columns = readings()
    columns["label"] = ["parked" if state == "idle" else state for state in columns["label"]]
    with refused(DataError, key="column 'label' of data set 'commercial_vehicles'", given="'parked'"):
        load_dataset("commercial_vehicles", folder=write(tmp_path, columns))


def test_one_file(tmp_path: Path) -> None:
    assert_refused("commercial_vehicles", folder=tmp_path, names="Smartilizer Scandinavia")
    write(tmp_path, readings())
    with refused(DataError, key="data set 'commercial_vehicles'", given="2: any_name.csv, other.csv"):
        load_dataset("commercial_vehicles", folder=write(tmp_path, readings(), name="other.csv"))
