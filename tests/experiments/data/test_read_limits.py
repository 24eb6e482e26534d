"""Files larger than what is to be read, and what only looks like a file: one fault, after little time and memory."""

from __future__ import annotations

import gzip
import os
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.config import load_config
from fedscout.experiments.data.files import MAX_CELL_LENGTH, MAX_NAME_LENGTH, ReadLimits
from fedscout.experiments.data.table_files import read_csv, read_parquet
from fedscout.experiments.federation import build_federation
from tests.experiments.data.image_files import random_images, write, write_idx
from tests.experiments.data.loading import assert_refused, load_dataset
from tests.kits.refusals import refused

ROWS = "x,y\n" + "1,a\n2,b\n" * 50
FORMATS = ("t.csv", "t.csv.gz", "t.csv.zip", "t.parquet")


def save(path: Path) -> Path:
    """Write the hundred rows in the format that the name asks for."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"x": [1.0, 2.0] * 50, "y": ["a", "b"] * 50}), path)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("t.csv", ROWS)
    else:
        path.write_bytes(gzip.compress(ROWS.encode()) if path.suffix == ".gz" else ROWS.encode())
    return path


def load(path: Path, *settings: str) -> Federation:
    config = load_config([f"federation.dataset={path}", "federation.label=y", "federation.num_clients=2", *settings])
    return build_federation(config.federation, config.model)


@pytest.mark.parametrize("name", FORMATS)
def test_as_many_rows_as_the_key_allows_and_no_more(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name)
    assert load(path, "federation.max_file_rows=100").partition.sizes.sum() == 100
    with refused(DataError, key=name, names="federation.max_file_rows=99"):
        load(path, "federation.max_file_rows=99")


@pytest.mark.parametrize("name", FORMATS[:3])
def test_bytes_are_counted_as_they_are_unpacked(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name)
    size = len(ROWS)
    assert name != "t.csv.gz" or path.stat().st_size < size // 2
    limit = max(size, path.stat().st_size)
    assert load(path, f"federation.max_file_bytes={limit}").partition.sizes.sum() == 100
    with refused(DataError, key=name, names=f"federation.max_file_bytes={size - 1}"):
        load(path, f"federation.max_file_bytes={size - 1}")


def test_a_zip_archive_with_a_password(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("t.csv", ROWS)
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag "encrypted" of the file and its entry
        content[content.index(mark) + offset] |= 1
    path.write_bytes(content)
    with refused(DataError, key="t.csv.zip"):
        load(path)


def test_unpacking_ends_where_the_limit_is_passed(tmp_path: Path) -> None:
    """A gigabyte of packed zeros is refused after the first ten kilobytes: what follows is damaged and never seen."""
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"x,y\n" + b"1,a\n" * 500_000)[:-1000])
    with refused(DataError, key="t.csv.gz"):
        read_csv(path, ",", limits=ReadLimits(max_bytes=10_000))
    with refused(DataError, key="t.csv.gz"):
        read_csv(path, ",")


@pytest.mark.parametrize("name", FORMATS)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with refused(DataError, key=name, names="pipe"):
        load(tmp_path / name)


def test_a_pipe_of_class_counts_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "counts.csv")
    pipe = f"federation.partition.counts={tmp_path / 'counts.csv'}"
    with refused(ConfigurationError, key="federation.partition.counts"):
        load(save(tmp_path / "t.csv"), "federation.partition.kind=counts", "federation.num_clients=null", pipe)


def test_a_name_that_no_file_system_takes(tmp_path: Path) -> None:
    with refused(DataError, key="federation.dataset"):
        load(tmp_path / f"{'n' * 300}.csv")


@pytest.mark.parametrize("row", [1, 60])
def test_a_cell_of_ten_megabytes(tmp_path: Path, row: int) -> None:
    lines = ROWS.splitlines()
    path = tmp_path / "t.csv"
    for length, fits in ((MAX_CELL_LENGTH, True), (MAX_CELL_LENGTH + 1, False), (10_000_000, False)):
        lines[row] = f"{'z' * length},a"
        path.write_text("\n".join(lines))
        if fits:
            assert len(read_csv(path)) == 100
            continue
        with refused(DataError, key="every cell of t.csv"):
            read_csv(path)


def test_a_long_text_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": ["z" * (MAX_CELL_LENGTH + 1), "a"]}), path)
    with refused(DataError, key="every cell of t.parquet"):
        read_parquet(path)


@pytest.mark.slow
@pytest.mark.parametrize("length", [MAX_NAME_LENGTH + 1, 10_000_000])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_name_without_end(tmp_path: Path, suffix: str, length: int) -> None:
    path, name = tmp_path / f"t.{suffix}", "n" * length
    if suffix == "csv":
        path.write_text(f"x,{name}\n1,a\n2,b\n")
    else:
        pq.write_table(pa.table({"x": [1, 2], name: ["a", "b"]}), path)
    with pytest.raises(DataError, match=r"first line of .*t\.|column names of .*t\.") as caught:
        load(path)
    assert len(str(caught.value)) < 400


def test_a_header_of_many_columns_is_read_though_no_other_delimiter_fits_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    names = [f"column_{number:043}" for number in range(3000)]
    path.write_text("\n".join((",".join(names), ",".join("1" * 3000), ",".join("2" * 3000))))
    assert len(names[0]) * len(names) > MAX_CELL_LENGTH
    rows = read_csv(path)
    assert rows.column_names == names
    assert [column[1].as_py() for column in rows.columns] == ["2"] * 3000


def test_a_class_name_of_a_thousand_letters_is_cut_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(ROWS + f"1,{'q' * 1000}\n")
    with refused(DataError, key="column 'y' of data set 't.csv'") as caught:
        load(path)
    assert len(str(caught.value)) < 400


def test_a_zero_byte_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(ROWS.encode() * 2000 + b"1,\0\n")
    with refused(DataError, key="t.csv"):
        read_csv(path)


# Files of published data sets obey the same keys.


def test_images_in_arrays(tmp_path: Path) -> None:
    labels = np.arange(20, dtype=np.uint8) % 10
    write_idx(tmp_path / "mnist", random_images(20, 28, 28), labels, packed=True)
    assert load_dataset("mnist", folder=tmp_path, limits=ReadLimits(max_bytes=20 * 28 * 28)).num_rows == 20
    with refused(DataError, key="train-images-idx3-ubyte.gz", names="max_file_bytes"):
        load_dataset("mnist", folder=tmp_path, limits=ReadLimits(max_bytes=20 * 28 * 28 - 1))
    (tmp_path / "cifar10").mkdir()
    np.savez_compressed(tmp_path / "cifar10" / "train.npz", x=np.zeros((20, 32, 32, 3), np.uint8), y=labels)
    assert load_dataset("cifar10", folder=tmp_path).num_rows == 20
    with refused(DataError, key="train.npz", names="max_file_bytes"):
        load_dataset("cifar10", folder=tmp_path, limits=ReadLimits(max_bytes=60_000))


def test_texts(tmp_path: Path) -> None:
    tweets = "".join(f'"{row % 2 * 4}","{row}","d","q","user","some words"\n' for row in range(20))
    path = write(tmp_path / "sentiment140" / "training.csv", tweets.encode())
    assert load_dataset("sentiment140", folder=tmp_path, limits=ReadLimits(max_rows=20)).num_rows == 20
    for limits, reason in (
        (ReadLimits(max_rows=19), "max_file_rows=19"),
        (ReadLimits(max_bytes=path.stat().st_size - 1), "max_file_bytes="),
    ):
        assert_refused("sentiment140", folder=tmp_path, limits=limits, key="training.csv", names=reason)
