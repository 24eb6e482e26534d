"""Raw snapshots: what one must be, which folder is read in which order, and where degradation begins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.data.columns import as_numbers
from fedscout.experiments.data.dataset import Dataset
from fedscout.experiments.data.loaders import bearing as bearing_raw
from fedscout.experiments.data.loaders.bearing import (
    FEATURES,
    NUM_SAMPLES,
    ZA_2115,
    list_snapshots,
    main,
    read_snapshot,
    vibration_features,
)
from fedscout.experiments.data.table_files import read_csv
from tests.experiments.data.loading import assert_refused, load_dataset
from tests.kits.refusals import refused

FIRST = datetime(2004, 2, 12, 10, 32, 39)


def times(number: int) -> list[str]:
    """Names of snapshots taken every ten minutes, the first as in test 2."""
    return [(FIRST + timedelta(minutes=10 * index)).strftime("%Y.%m.%d.%H.%M.%S") for index in range(number)]


def vibration(seed: int, num_channels: int = 4) -> npt.NDArray[np.float64]:
    """Noise in thousandths of g, as the files have it, shape `(num_channels, 20480)`."""
    return np.random.default_rng(seed).normal(0, 0.1, (num_channels, NUM_SAMPLES)).round(3)


def lines_of(values: npt.NDArray[np.float64]) -> list[str]:
    return ["\t".join(map(str, row)) for row in values.T.tolist()]


def write(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\r\n".join(lines) + "\r\n")  # as published
    return path


@pytest.fixture(scope="module")
def test_2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with four snapshots of test 2."""
    root = tmp_path_factory.mktemp("data")
    for number, name in enumerate(times(4)):
        write(root / "bearing/2nd_test" / name, lines_of(vibration(number)))
    return root


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Dataset]:
    """Load a test of many snapshots whose content is made up: 64 values a channel."""

    def made_up(path: Path, num_channels: int) -> npt.NDArray[np.float64]:
        seed = int(path.name.replace(".", ""))
        return np.random.default_rng(seed).normal(size=(num_channels, 64))

    def load(name: str, folder: str, number: int, degraded_from: int | None = None) -> Dataset:
        monkeypatch.setattr(bearing_raw, "read_snapshot", made_up)
        (tmp_path / folder).mkdir(parents=True)
        for time in times(number):
            (tmp_path / folder / time).touch()
        return load_dataset(name, folder=tmp_path, degraded_from=degraded_from)

    return load


# One file.


def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path) -> None:
    values = vibration(0)
    np.testing.assert_array_equal(read_snapshot(write(tmp_path / "snapshot", lines_of(values)), 4), values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "text", "named"),
    [
        (2, "0.1\t0.2\t0.3", "3 in line 3"),
        (2, "0.1\t0.2\t0.3\t0.4\t0.5", "5 in line 3"),
        (2, "0.1 0.2 0.3 0.4", "1 in line 3"),
        (2, "", "1 in line 3"),
        (2, "0.1\t0.2\tfault\t0.4", "'fault' in line 3, column 3"),
        (2, "0.1\t0.2\t\t0.4", "'nothing' in line 3, column 3"),
        (2, "0.1\t0.2\tnan\t0.4", "'nan' in line 3, column 3"),
        (2, "0.1\t0.2\t0,3\t0.4", "'0,3' in line 3, column 3"),
        (20_479, "inf\t0.2\t0.3\t0.4", "'inf' in line 20480, column 1"),
        (2, "0.1\t0.2\t0.3\t0.4µ", "ASCII"),
    ],
)
def test_malformed_line(tmp_path: Path, line: int, text: str, named: str) -> None:
    lines = lines_of(vibration(0))
    lines[line] = text
    with pytest.raises(DataError, match=named) as caught:
        read_snapshot(write(tmp_path / "2004.02.12.10.32.39", lines), 4)
    assert "2004.02.12.10.32.39" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [0, 20_479, 20_481])
def test_wrong_number_of_lines(tmp_path: Path, number: int) -> None:
    path = tmp_path / "snapshot"
    path.write_text("0.1\t0.2\t0.3\t0.4\n" * number)
    with refused(DataError, key="snapshot"):
        read_snapshot(path, 4)


def test_a_channel_that_never_changes(tmp_path: Path) -> None:
    values = vibration(0)
    values[2] = -0.005
    with refused(DataError, key="every channel of snapshot"):
        read_snapshot(write(tmp_path / "snapshot", lines_of(values)), 4)


# A folder of them.


def test_snapshots_come_in_the_order_of_time_and_hidden_files_are_passed_over(tmp_path: Path) -> None:
    for name in [*reversed(times(30)), ".DS_Store"]:
        (tmp_path / name).touch()
    assert [path.name for path in list_snapshots(tmp_path)] == times(30)


@pytest.mark.parametrize("stranger", ["readme.txt", "2004.02.12.10.32", "2004.02.12.10.32.39.txt", times(2)[1]])
def test_anything_else_in_the_folder_is_refused(tmp_path: Path, stranger: str) -> None:
    """A folder that is called as a snapshot is, too."""
    (tmp_path / times(1)[0]).touch()
    if stranger in times(2):
        (tmp_path / stranger).mkdir()
    else:
        (tmp_path / stranger).touch()
    with refused(DataError, key=tmp_path.name, given=repr(stranger)):
        list_snapshots(tmp_path)


def test_an_empty_folder(tmp_path: Path) -> None:
    with refused(DataError, key=tmp_path.name, names="empty"):
        list_snapshots(tmp_path)


# The data set.


def test_one_row_a_snapshot_and_61_columns_a_channel(test_2: Path) -> None:
    dataset = load_dataset("bearing_raw", folder=test_2, degraded_from=1)
    assert dataset.features.shape == (4, 244)
    assert dataset.labels.tolist() == [0, 1, 1, 1]
    assert dataset.class_names == ("healthy", "degraded")
    assert dataset.feature_names == tuple(f"B{bearing}_{name}" for bearing in range(1, 5) for name in FEATURES)
    expected = np.stack([vibration_features(vibration(seed), 20_000, ZA_2115).ravel() for seed in range(4)])
    np.testing.assert_allclose(
        dataset.features, (expected - expected.mean(axis=0)) / expected.std(axis=0), rtol=1e-3, atol=1e-4
    )


def test_nothing_is_left_on_disk(test_2: Path) -> None:
    before = sorted(test_2.rglob("*"))
    load_dataset("bearing_raw", folder=test_2, degraded_from=2)
    assert sorted(test_2.rglob("*")) == before


@pytest.mark.slow
def test_the_usual_label_of_test_2_is_that_of_its_table_of_features(many: Callable[..., Dataset]) -> None:
    dataset = many("bearing_raw", "bearing/2nd_test", 984)
    # 984 snapshots ten minutes apart end at 2004.02.19.06.22.39, the second of the two after the shutdown.
    assert dataset.num_rows == 982
    assert dataset.labels.tolist() == [0] * 530 + [1] * 452
    assert (dataset.facts["num_dropped_rows"], dataset.facts["degraded_from"]) == (2, 530)


def test_the_usual_label_needs_all_snapshots(many: Callable[..., Dataset]) -> None:
    with refused(DataError, key="2nd_test", given="40 snapshots", names="federation.degraded_from"):
        many("bearing_raw", "bearing/2nd_test", 40)


@pytest.mark.parametrize("degraded_from", [40, 41, 1000])
def test_both_states_must_occur(many: Callable[..., Dataset], degraded_from: int) -> None:
    with refused(DataError, key="federation.degraded_from"):
        many("bearing_raw", "bearing/2nd_test", 40, degraded_from)


def test_test_1_has_two_channels_a_bearing(many: Callable[..., Dataset]) -> None:
    dataset = many("bearing_raw_1", "bearing/1st_test", 10, degraded_from=5)
    assert dataset.features.shape == (10, 488)
    assert [name.partition("_")[0] for name in dataset.feature_names[::61]] == [
        f"B{bearing}{axis}" for bearing in range(1, 5) for axis in "xy"
    ]


@pytest.mark.parametrize("folder", ["bearing/3rd_test", "bearing/4th_test/txt", "bearing/3rd_test/4th_test/txt"])
def test_test_3_is_found_as_its_archive_unpacks(many: Callable[..., Dataset], folder: str) -> None:
    assert many("bearing_raw_3", folder, 10, degraded_from=5).features.shape == (10, 244)


@pytest.mark.parametrize(("name", "folder"), [("bearing_raw_1", "1st_test"), ("bearing_raw_3", "3rd_test")])
def test_tests_without_a_usual_label(many: Callable[..., Dataset], name: str, folder: str) -> None:
    with refused(DataError, key="federation.degraded_from"):
        many(name, f"bearing/{folder}", 10)


def test_a_missing_folder_names_the_publisher_and_the_place(tmp_path: Path) -> None:
    named = ("$FEDSCOUT_DATA/bearing/2nd_test/", "NASA", "https://www.nasa.gov/")
    assert_refused("bearing_raw", folder=tmp_path, names=named)


def test_no_other_label_and_no_natural_clients(tmp_path: Path) -> None:
    with refused(DataError, key="federation.client_column", given="'rig'", names="federation.label"):
        load_dataset("bearing_raw", label="rpm", client_column="rig", folder=tmp_path)


def test_the_first_degraded_snapshot_is_no_key_of_other_data_sets() -> None:
    with refused(ConfigurationError, key="federation.degraded_from", given="7 for 'digits'"):
        load_dataset("digits", degraded_from=7)


# The table of features, for the data set `bearing`.


def test_the_table_written_has_the_features_of_the_snapshots(
    test_2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "table.csv.gz"
    assert main([str(test_2 / "bearing/2nd_test"), str(target)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 ")
    assert str(target) in out
    table = read_csv(target, delimiter=",")
    assert table["file"].to_pylist() == times(4)
    names = [f"B{bearing}_{name}" for bearing in range(1, 5) for name in FEATURES]
    assert table.column_names == ["file", *names]
    expected = vibration_features(vibration(2), 20_000, ZA_2115).ravel()
    np.testing.assert_array_equal([as_numbers(table[name])[2] for name in names], expected)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "usage:"),
        (["{snapshots}", "{tmp}/table.parquet"], ".csv.gz"),
        (["{snapshots}", "{tmp}/there.csv"], "there.csv"),
        (["{snapshots}", "{tmp}/nowhere/table.csv"], "nowhere"),
        (["{tmp}/nowhere", "{tmp}/table.csv"], "No such file"),
    ],
)
def test_mistakes_in_writing_the_table(
    test_2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    (tmp_path / "there.csv").touch()
    places = {"snapshots": test_2 / "bearing/2nd_test", "tmp": tmp_path}
    assert main([argument.format(**places) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
