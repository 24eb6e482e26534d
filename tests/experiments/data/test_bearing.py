"""Bearings: the label rests on the row number, so the rows must be the 984 snapshots in order."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.errors import DataError
from fedscout.experiments.data.loaders.bearing import DROPPED, FAULT_FILES, KEPT
from tests.experiments.data.loading import assert_refused, load_dataset
from tests.kits.refusals import refused

FILE, MEAN = "test2_features_from_raw.csv.gz", "column 'B1_mean' of data set 'bearing'"


def snapshots(num_rows: int = 984) -> list[str]:
    return ["file,B1_mean,B1_std", *(f"2004.02.12.{row:04d},{row},{row % 7}" for row in range(num_rows))]


def write(folder: Path, lines: list[str]) -> Path:
    path = folder / "bearing" / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_last_two_rows_go_and_row_530_is_the_first_degraded(tmp_path: Path) -> None:
    write(tmp_path, snapshots())
    dataset = load_dataset("bearing", folder=tmp_path)

    assert dataset.num_rows == 982
    assert dataset.labels[:530].tolist() == [0] * 530
    assert dataset.labels[530:].tolist() == [1] * 452
    assert dataset.class_names == ("healthy", "degraded")
    assert dataset.feature_names == ("B1_mean", "B1_std")
    # 0 … 981 has population variance (982² − 1)/12: the dropped rows had no part in it.
    np.testing.assert_allclose(dataset.features[-1, 0], 490.5 / np.sqrt((982**2 - 1) / 12), rtol=1e-6)
    assert dataset.facts["num_dropped_rows"] == 2


@pytest.mark.parametrize(
    ("lines", "key", "names"),
    [
        (snapshots(983), FILE, "got 983 rows"),
        (snapshots(985), FILE, "got 985 rows"),
        (
            [*snapshots()[:10], snapshots()[11], snapshots()[10], *snapshots()[12:]],
            f"column 'file' of {FILE}",
            "row 11",
        ),
        ([line.replace("file", "time") for line in snapshots()], FILE, "columns file,"),
        ([line.replace(",3", ",x") for line in snapshots()], MEAN, "'x' in row 4"),
        ([line.split(",")[0] + ",,1" if "0005" in line else line for line in snapshots()], MEAN, "'nothing' in row 6"),
    ],
    ids=["a row short", "a row more", "order", "no time", "text", "gap"],
)
def test_malformed(tmp_path: Path, lines: list[str], key: str, names: str) -> None:
    write(tmp_path, lines)
    with refused(DataError, key=key, names=names):
        load_dataset("bearing", folder=tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "not packed", "corrupt"])
def test_damaged_archive(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path, snapshots())
    packed = path.read_bytes()
    middle = len(packed) // 2
    content = {
        "truncated": packed[:middle],
        "not packed": "\n".join(snapshots()).encode(),
        "corrupt": packed[:middle] + bytes(20) + packed[middle + 20 :],
    }
    path.write_bytes(content[damage])
    assert_refused("bearing", folder=tmp_path, key=FILE)


def test_missing_file_names_the_publisher(tmp_path: Path) -> None:
    assert_refused("bearing", folder=tmp_path, key=FILE)


def write_faults(folder: Path) -> None:
    (folder / "bearing").mkdir()
    columns = (*KEPT, *DROPPED, "Fault")
    for number, name in enumerate(FAULT_FILES):
        fault = ("Normal", "Outer", "Outer", "Inner", "Roller")[number]
        rows = [",".join([*(str(number * 10 + row + column) for column in range(9)), fault]) for row in range(3)]
        (folder / name).write_text("\n".join([",".join(columns), *rows]))


def test_faults_of_all_files_without_the_columns_that_tell_the_rig(tmp_path: Path) -> None:
    write_faults(tmp_path)
    dataset = load_dataset("bearing_faults", folder=tmp_path)
    assert dataset.class_names == ("Inner", "Normal", "Outer", "Roller")
    assert np.bincount(dataset.labels).tolist() == [3, 3, 6, 3]
    assert dataset.feature_names == KEPT
    assert dataset.facts["dropped_columns"] == DROPPED


def test_each_missing_fault_file_is_named(tmp_path: Path) -> None:
    write_faults(tmp_path)
    for name in FAULT_FILES[1:3]:
        (tmp_path / name).unlink()
    with pytest.raises(DataError) as caught:
        load_dataset("bearing_faults", folder=tmp_path)
    assert [name in fault for name, fault in zip(FAULT_FILES[1:3], caught.value.faults, strict=True)] == [True, True]


def test_faults_with_all_columns(tmp_path: Path) -> None:
    write_faults(tmp_path)
    dataset = load_dataset("bearing_faults_all", folder=tmp_path)
    assert dataset.feature_names == (*KEPT, *DROPPED)
    assert dataset.facts["dropped_columns"] == ()


@pytest.mark.parametrize("name", ["bearing", "bearing_faults", "bearing_faults_all"])
def test_no_other_label_and_no_natural_clients(tmp_path: Path, name: str) -> None:
    with refused(DataError, key="federation.client_column", given="'rig'", names="federation.label"):
        load_dataset(name, label="rpm", client_column="rig", folder=tmp_path)


@pytest.mark.data
def test_published_run_to_failure_test(data_folder: Path) -> None:
    dataset = load_dataset("bearing", folder=data_folder)
    assert dataset.features.shape == (982, 244)
    assert np.bincount(dataset.labels).tolist() == [530, 452]
    for bearing in range(1, 5):
        assert sum(name.startswith(f"B{bearing}_") for name in dataset.feature_names) == 61


@pytest.mark.data
def test_published_faults(data_folder: Path) -> None:
    dataset = load_dataset("bearing_faults", folder=data_folder)
    assert dataset.class_names == ("Inner Race", "Normal", "Outer Race", "Roller Element")
    assert np.bincount(dataset.labels).tolist() == [465, 768, 580, 465]
