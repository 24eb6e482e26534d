"""One's own data by path: tables of every format, texts, natural clients, and where a path leads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.data.columns import MOST_CLASSES, ROWS_AT_ONCE
from fedscout.experiments.data.files import FOLDER_VARIABLE, START_VARIABLE
from fedscout.experiments.data.loaders.table import is_own_data
from fedscout.experiments.federation_config import FederationConfig, PartitionConfig
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset

NUM_ROWS = 24
TABLE = pd.DataFrame(
    {
        "site": [("north", "south", "west")[row % 3] for row in range(NUM_ROWS)],
        "age": [20.0 + row if row % 8 else None for row in range(NUM_ROWS)],
        "color": [("red", "blue", None)[row // 8] for row in range(NUM_ROWS)],
        "smoker": [row % 2 == 0 for row in range(NUM_ROWS)],
        "note": [f"Good day number {row}!" if row % 2 else "bad BAD luck" for row in range(NUM_ROWS)],
        "grade": [("well", "ill")[row % 2] for row in range(NUM_ROWS)],
    }
)
PLAIN = TABLE.drop(columns="note")


def save(table: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    else:
        separator = {".tsv": "\t", ".txt": "|", ".gz": ";"}.get(path.suffix, ",")
        table.to_csv(path, index=False, sep=separator)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.txt", "t.csv.gz", "t.parquet", "t.CSV"])
def test_every_format_gives_the_same_data(tmp_path: Path, name: str) -> None:
    dataset = load_dataset(str(save(PLAIN, tmp_path / name)), label="grade", client_column="site", min_release=2)
    assert dataset.name == name
    assert dataset.class_names == ("ill", "well")
    assert dataset.labels.tolist() == [1, 0] * 12
    assert clients_of(dataset) == PLAIN["site"].tolist()
    assert dataset.kind == "table"
    assert dataset.feature_names == ("age", "age missing", "color=blue", "color=red", "color missing", "smoker")
    # Half smoke: mean 0.5, deviation 0.5. Of the ages 20 + row every eighth is missing; the others have mean 32.
    np.testing.assert_array_equal(dataset.features[:, 5], [1, -1] * 12)
    assert (np.flatnonzero(dataset.features[:, 1]) == [0, 8, 16]).all()
    np.testing.assert_array_equal(dataset.features[[0, 8, 12, 16], 0], 0)
    assert dataset.facts["num_missing_cells"] == 3 + 8
    assert dataset.facts["columns_of_categories"] == ("color",)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_days_name_clients_in_every_format(tmp_path: Path, name: str) -> None:
    noon = pd.Timestamp("2024-01-31 12:00")
    days = [noon + pd.Timedelta(days=row % 3) for row in range(NUM_ROWS)]
    path = save(PLAIN.assign(site=days), tmp_path / name)
    dataset = load_dataset(str(path), label="grade", client_column="site", min_release=2)
    assert clients_of(dataset) == [str(day) for day in days]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize("gap", [None, "", "  ", float("nan")])
def test_a_missing_label_is_nothing_in_every_format(tmp_path: Path, name: str, gap: object) -> None:
    path = save(PLAIN.assign(grade=[*PLAIN["grade"][1:], gap]), tmp_path / name)
    roles = {"label": "grade", "client_column": "site"}
    key, row = f"column 'grade' of data set '{name}'", f"'nothing' in row {NUM_ROWS}"
    assert_refused(str(path), key=key, names=row, unlabelled_rows="fail", **roles)
    assert load_dataset(str(path), **roles).num_rows == NUM_ROWS - 1


def test_rare_categories_and_identifiers_are_told_apart(tmp_path: Path) -> None:
    # A site holds eight rows, of a color two or three: enough to repeat, too few to be told at five.
    names = [f"c{row}" for row in range(NUM_ROWS)]
    for table, kind in ((PLAIN, "category"), (PLAIN.assign(color=names), "identifier")):
        path, roles = str(save(table, tmp_path / "t.csv")), {"label": "grade", "client_column": "site"}
        (told,) = [told for told in load_dataset(path, **roles).facts["columns"] if told["name"] == "color"]
        assert told["kind"] == kind
        assert told["became"].startswith("left out")
        assert_refused(path, key="column 'color' of data set 't.csv'", columns={"color": "category"}, **roles)


def test_the_number_of_categories_is_bounded(tmp_path: Path) -> None:
    table = pd.DataFrame({"code": [f"c{row // 2}" for row in range(514)], "grade": ["a", "b"] * 257})
    path = str(save(table, tmp_path / "t.csv"))
    assert_refused(path, label="grade", min_release=2, key="data set 't.csv'")
    assert load_dataset(str(save(table.head(512), tmp_path / "t.csv")), label="grade", min_release=2).num_rows == 512


def test_without_clients_the_table_is_one_site(tmp_path: Path) -> None:
    dataset = load_dataset(str(save(PLAIN.drop(columns="site"), tmp_path / "t.csv")), label="grade")
    assert dataset.client_ids is None
    assert dataset.feature_names == ("age", "age missing", "color=blue", "color=red", "color missing", "smoker")
    complete = ~PLAIN["age"].isna().to_numpy()
    expected = PLAIN["age"][complete]
    np.testing.assert_allclose(
        dataset.features[complete, 0], (expected - expected.mean()) / expected.std(ddof=0), rtol=1e-5, atol=1e-6
    )
    assert not dataset.features[~complete, 0].any()


def test_columns_that_are_left_out(tmp_path: Path) -> None:
    path = str(save(TABLE, tmp_path / "t.csv"))
    dataset = load_dataset(path, label="grade", drop_columns=("note", "site", "color"))
    assert dataset.feature_names == ("age", "age missing", "smoker")
    assert dataset.facts["columns_left_out"] == ("note", "site", "color")


def test_a_column_that_names_rows_is_no_feature(tmp_path: Path) -> None:
    table = PLAIN.assign(ID=[f"p{row}" for row in range(NUM_ROWS)])
    dataset = load_dataset(str(save(table, tmp_path / "t.csv")), label="grade", drop_columns=("site",))
    assert "ID" in dataset.facts["columns_left_out"]
    assert not any(name.startswith("ID") for name in dataset.feature_names)


def test_a_column_that_names_rows_may_name_clients(tmp_path: Path) -> None:
    table = PLAIN.rename(columns={"site": "id"})
    dataset = load_dataset(str(save(table, tmp_path / "t.csv")), label="grade", client_column="id", min_release=2)
    assert {*clients_of(dataset)} == {"north", "south", "west"}


def test_an_index_that_pandas_saved_is_no_feature(tmp_path: Path) -> None:
    PLAIN.drop(columns="site").to_csv(tmp_path / "t.csv")
    dataset = load_dataset(str(tmp_path / "t.csv"), label="grade")
    assert dataset.feature_names[0] == "age"


def test_texts(tmp_path: Path) -> None:
    path = str(save(TABLE, tmp_path / "t.csv"))
    dataset = load_dataset(path, label="grade", client_column="site", text_column="note")
    assert dataset.kind == "tokens"
    assert dataset.feature_names == ()
    # In 12 texts each: bad, luck, good, day, number, any number, and the sign "!", numbered from 2.
    assert dataset.vocabulary_size == 9
    np.testing.assert_array_equal(dataset.features[0], dataset.features[2])
    bad = dataset.features[0]
    assert bad[0] == bad[1]
    assert (bad[:3] >= 2).all()
    assert not bad[3:].any()
    assert dataset.facts["columns_left_out"] == ("age", "color", "smoker")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["10", "9", "9", "10"] * 6, ("9", "10")),
        (["1E2", "10E1", "2E1", "20"] * 6, ("20", "10E1", "1E2", "2E1")),
        (["007", "7", "07", "A9"] * 6, ("007", "07", "7", "A9")),
        (["5", "4.5", "10.0", "1e5f"] * 6, ("4.5", "5", "10.0", "1e5f")),
        (["9223372036854775807", "9223372036854775806"] * 12, ("9223372036854775806", "9223372036854775807")),
        (["true", "false"] * 12, ("false", "true")),
        (["b", "a", "c", "c"] * 6, ("a", "b", "c")),
    ],
)
def test_a_name_is_its_text(tmp_path: Path, labels: list[str], names: tuple[str, ...]) -> None:
    """Of classes, clients and groups, in each format that stores texts."""
    table = PLAIN.assign(grade=labels, ward=labels)
    for file in ("t.csv", "t.parquet"):
        path = str(save(table.drop(columns="site"), tmp_path / file))
        dataset = load_dataset(path, label="grade", client_column="ward", min_release=2)
        assert dataset.class_names == names
        assert clients_of(dataset) == labels
        grouped = load_dataset(path, label="smoker", group_column="grade", drop_columns=("ward",))
        assert grouped.groups is not None
        assert len(np.unique(grouped.groups)) == len(names)


@pytest.mark.parametrize(("column", "names"), [([1.0, 2.0], ("1", "2")), ([0.5, 1.0], ("0.5", "1.0"))])
def test_a_typed_number_is_a_name_however_gaps_store_it(
    tmp_path: Path, column: list[float], names: tuple[str, ...]
) -> None:
    path = save(PLAIN.assign(grade=column * 12), tmp_path / "t.parquet")
    assert load_dataset(str(path), label="grade", client_column="site", min_release=2).class_names == names


def test_whole_numbers_that_hardly_repeat_are_a_quantity(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": np.arange(600) / 4, "price": [row // 3 for row in range(600)]})
    path = str(save(table, tmp_path / "t.csv"))
    assert load_dataset(path, label="price").targets is not None
    named = table.assign(price=[f"p{row}" for row in table["price"]])
    assert load_dataset(str(save(named, tmp_path / "t.csv")), label="price").num_classes == 200


@pytest.mark.slow
@pytest.mark.parametrize("times", [2, 11])
def test_a_label_of_more_values_than_classes_can_be_is_refused(tmp_path: Path, times: int) -> None:
    """Of eleven rows of a class in a run, no block of rows holds too many."""
    assert ROWS_AT_ONCE < 11 * MOST_CLASSES
    names = pa.DictionaryArray.from_arrays(
        np.repeat(np.arange(MOST_CLASSES + 1), times), [f"u{number}" for number in range(MOST_CLASSES + 1)]
    )
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": pa.nulls(len(names), pa.float64()), "own": names}), path)
    assert_refused(str(path), label="own", key="column 'own' of data set 't.parquet'")


# Where a path leads.


def test_what_is_a_path_and_what_is_a_name() -> None:
    assert all(map(is_own_data, ["a.csv", "./a", "folder/", "~/a.parquet", "a.pkl", "x\\y", "hf:owner/name"]))
    assert not any(map(is_own_data, ["digits", "unsw_nb15", "nonsense"]))


def test_a_folder_without_a_slash_is_a_path_unless_a_data_set_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not is_own_data("pics")
    (tmp_path / "pics").mkdir()
    (tmp_path / "digits").mkdir()
    assert is_own_data("pics")
    assert not is_own_data("digits")
    assert FederationConfig(dataset="pics").dataset == "pics"


def test_a_relative_path_is_looked_for_here_and_then_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, data = tmp_path / "here", tmp_path / "data"
    here.mkdir()
    data.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv(FOLDER_VARIABLE, str(data))
    assert_refused("t.csv", label="grade", key="federation.dataset", given="'t.csv'")
    save(PLAIN.drop(columns="site"), data / "t.csv")
    assert load_dataset("t.csv", label="grade").num_rows == NUM_ROWS
    save(PLAIN.drop(columns="site").head(20), here / "t.csv")
    assert load_dataset("t.csv", label="grade").num_rows == 20


def test_a_process_started_elsewhere_looks_where_its_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(PLAIN.drop(columns="site"), tmp_path / "t.csv")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv(START_VARIABLE, str(tmp_path))
    assert load_dataset("t.csv", label="grade").num_rows == NUM_ROWS


@pytest.mark.parametrize("name", ["t.pkl", "t.npy", "t.joblib", "t.pt", "t.ods"])
def test_formats_that_can_carry_code_and_others_are_not_opened(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"PK" if name == "t.ods" else b"\x80\x05boom")
    assert_refused(str(path), label="grade", key="the file of a table")


# Keys that a data set does not read.


@pytest.mark.parametrize("choice", [{"drop_columns": ("x",)}, {"text_column": "x"}])
def test_choices_of_tables_are_refused_where_nobody_reads_them(tmp_path: Path, choice: dict[str, object]) -> None:
    key = f"federation.{next(iter(choice))}"
    assert_refused("digits", key=key, names="'x'", kind=ConfigurationError, **choice)
    assert_refused(str(tmp_path), key=key, names="folder", **choice)


def test_a_client_column_means_natural_clients() -> None:
    assert FederationConfig(dataset="a.csv", client_column="site").partition.kind == "natural"
    assert FederationConfig(dataset="a.csv", client_column="site").num_clients is None
    assert FederationConfig(dataset="a.csv").partition.kind == "dirichlet"
    dealt = FederationConfig(dataset="a.csv", client_column="site", partition=PartitionConfig(alpha=0.5))
    assert dealt.partition.kind == "dirichlet"
