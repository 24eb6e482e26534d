"""Rows without a label, a client or a group are left out of every format; messages name the rows of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedscout
from fedscout.engine.errors import DataError
from fedscout.experiments.data.own import client_names
from fedscout.experiments.federation_config import FederationConfig
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.experiments.data.test_table_formats import FORMATS, save

NUM_ROWS = 60
TABLE = pd.DataFrame(
    {
        "site": [("north", "south", "west")[row % 3] for row in range(NUM_ROWS)],
        "age": np.arange(NUM_ROWS) / 8,
        "person": [f"p{row // 2}" for row in range(NUM_ROWS)],
        "grade": [("well", "ill")[row % 2] for row in range(NUM_ROWS)],
        "size": np.arange(NUM_ROWS) / 4,
    }
)
ROLES = {"client_column": "site", "group_column": "person"}


def with_gaps(column: str, rows: list[int], gap: object = None) -> pd.DataFrame:
    table = TABLE.astype({column: object})
    table.loc[rows, column] = gap
    return table


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("column", ["grade", "site", "person"])
def test_rows_that_lack_what_their_roles_ask_for_are_left_out(
    tmp_path: Path, name: str, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(with_gaps(column, [4, 7, 30]), tmp_path / name)
    roles = {"label": "grade", "drop_columns": ("size",), **ROLES}
    dataset = load_dataset(str(path), **roles)
    assert (dataset.num_rows, dataset.facts["num_rows_unlabelled"]) == (NUM_ROWS - 3, 3)
    wanted = load_dataset(str(save(TABLE.drop(index=[4, 7, 30]), tmp_path / "wanted.csv")), **roles)
    np.testing.assert_array_equal(dataset.labels, wanted.labels)
    np.testing.assert_allclose(dataset.features, wanted.features, atol=1e-6)
    assert len(caplog.records) == 1
    key, names = f"column '{column}' of data set '{name}'", "'nothing' in row 5; federation.unlabelled_rows=drop"
    assert_refused(str(path), key=key, names=names, unlabelled_rows="fail", **roles)


@pytest.mark.parametrize("word", ["NA", "?", "null", "", "  "])
def test_words_for_nothing_name_no_class(tmp_path: Path, word: str) -> None:
    path = save(with_gaps("grade", [0, 1], word), tmp_path / "t.csv")
    assert load_dataset(str(path), label="grade", **ROLES).num_rows == NUM_ROWS - 2
    path = save(with_gaps("grade", list(range(0, 60, 2)), "none"), tmp_path / "t.csv")
    assert load_dataset(str(path), label="grade", **ROLES).class_names == ("ill", "none")


def test_a_quantity_that_is_missing(tmp_path: Path) -> None:
    path = str(save(with_gaps("size", [3, 4]), tmp_path / "t.csv"))
    dataset = load_dataset(path, label="size", client_column="site", drop_columns=("person",))
    assert dataset.targets is not None
    np.testing.assert_array_equal(dataset.targets, TABLE["size"].drop(index=[3, 4]))


def test_clients_are_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save(with_gaps("grade", [0, *range(1, NUM_ROWS, 3)]), tmp_path / "t.csv")
    dataset = load_dataset(str(path), label="grade", **ROLES)
    assert dataset.facts["rows_unlabelled_by_client"] == {"north": 1, "south": 20}
    assert dataset.facts["clients_without_labelled_rows"] == ["south"]
    assert "south (20), north (1)" in caplog.text


def test_no_row_with_a_label_is_a_last_word(tmp_path: Path) -> None:
    path = save(with_gaps("grade", list(range(NUM_ROWS))), tmp_path / "t.csv")
    assert_refused(str(path), label="grade", key="data set 't.csv'", **ROLES)


def test_a_later_fault_names_the_row_of_the_file(tmp_path: Path) -> None:
    table = with_gaps("grade", [4, 7])
    table["age"] = table["age"].astype(object)
    table.loc[20, "age"] = "old"
    path = save(table, tmp_path / "t.csv")
    assert_refused(str(path), label="grade", names=("'age'", "'old' in row 21"), **ROLES)


def test_a_data_frame(caplog: pytest.LogCaptureFixture) -> None:
    frame = with_gaps("grade", [4, 7]).drop(columns="person")
    federation = fedscout.Federation(frame, label="grade", client_column="site")
    assert sum(federation.client_rows) == NUM_ROWS - 2
    assert len(caplog.records) == 1


# Files of clients.


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["d/a.csv", "d/b.csv"], ["a", "b"]),
        (["d/St. Mary.csv", "d/St. John.csv"], ["St. Mary", "St. John"]),
        (["2024.01.csv", "2024.02.csv.gz"], ["2024.01", "2024.02"]),
        (["d/a/train.tsv", "d/b/train.tsv"], ["a", "b"]),
        (["d/a/x/train.tsv", "d/b/x/train.tsv"], ["a", "b"]),
        (["d/a/1.csv", "d/a/2.csv", "d/b/1.csv"], ["a/1", "a/2", "b/1"]),
        (["d/x.csv", "d/x.tsv"], ["x.csv", "x.tsv"]),
        (["d/e/a.CSV", "d/f/b.CSV"], ["a", "b"]),
        (["/train.csv", "/d/train.csv"], ["train", "d"]),
    ],
)
def test_names_of_clients(paths: list[str], names: list[str]) -> None:
    assert client_names([Path(path) for path in paths]) == names


def test_one_name_in_several_folders(tmp_path: Path) -> None:
    for site, rows in TABLE.groupby("site"):
        (tmp_path / str(site)).mkdir()
        save(rows.drop(columns=["site", "person", "size"]), tmp_path / str(site) / "train.csv")
    dataset = load_dataset(f"{tmp_path}/*/train.csv", label="grade")
    assert clients_of(dataset) == sorted(TABLE["site"])


@pytest.mark.parametrize("column", ["grade", "age"])
def test_a_refusal_names_the_file_and_its_row(tmp_path: Path, column: str) -> None:
    for site, rows in TABLE.groupby("site"):
        cells = rows.reset_index(drop=True).drop(columns=["site", "person", "size"]).astype({column: object})
        if site == "south":
            cells.loc[6, column] = "?" if column == "grade" else "old"
        save(cells, tmp_path / f"{site}.csv")
    named = (f"'{column}'", f"in row 7 of {tmp_path}/south.csv")
    assert_refused(f"{tmp_path}/*.csv", label="grade", unlabelled_rows="fail", names=named)


def test_files_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = with_gaps("grade", [0, 3, 6, 7])
    for site, rows in table.groupby("site"):
        save(rows, tmp_path / f"{site}.csv")
    load_dataset(f"{tmp_path}/*.csv", label="grade", client_column="person", drop_columns=("site",), min_release=1)
    assert "north.csv (3)" in caplog.text
    assert "south.csv (1)" in caplog.text


ZONE = pa.timestamp("us", "Europe/Berlin")
DAY = 1_700_000_000_000_000
LARGE = 2**53 + 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array(["x", "y"] * 10), pa.array([1, 2] * 10)),
        (pa.array(["x", "y"] * 10), pa.array([0.5, 2] * 10)),
        (pa.array(["1", "2"] * 10), pa.array([1, 2] * 10)),
        (pa.array([True, False] * 10), pa.array([1, 0] * 10)),
        (pa.array([DAY, DAY * 2] * 10, ZONE), pa.array([DAY, DAY * 2] * 10, pa.timestamp("us", "UTC"))),
        (pa.array([DAY, DAY * 2] * 10, ZONE), pa.array([DAY // 10**6, DAY // 10**5] * 10, pa.timestamp("s"))),
        (pa.array([DAY, DAY * 2] * 10, pa.timestamp("us")), pa.array(["2024-01-31", "2024-02-01"] * 10)),
        (pa.array([LARGE + 1, LARGE] * 10), pa.array([0.5, None] * 10)),
        (pa.array([LARGE + 1, None] * 10), pa.array([0.5, 1] * 10, pa.float32())),
        (pa.array([1, 2] * 10, pa.int8()), pa.array([2**63, 7] * 10, pa.uint64())),
        (pa.array([1, 2] * 10), pa.nulls(20)),
        (pa.nulls(20), pa.array(["x", "y"] * 10).dictionary_encode()),
    ],
    ids=lambda cells: str(cells.type),
)
def test_files_that_disagree_on_a_type_read_as_csv_files_do(tmp_path: Path, first: pa.Array, second: pa.Array) -> None:
    def told(ending: str) -> object:
        try:
            dataset = load_dataset(f"{tmp_path}/*.{ending}", label="grade", min_release=1)
        except DataError as error:
            return str(error).count("\n")
        return dataset.feature_names

    for name, cells in (("a", first), ("b", second)):
        table = pa.table({"x": cells, "age": pa.array(np.arange(20) / 8), "grade": pa.array(["well", "ill"] * 10)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        frame = table.set_column(0, "x", cells.cast(pa.string()) if cells.type != pa.null() else cells).to_pandas()
        save(frame, tmp_path / f"{name}.csv")
    assert told("parquet") == told("csv")


def test_the_default_leaves_rows_out() -> None:
    assert FederationConfig().unlabelled_rows == "drop"
