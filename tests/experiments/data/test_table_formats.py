"""Tables of every format: the same rows, the same data; limits hold; what can carry code is not opened."""

from __future__ import annotations

import gzip
import http.server
import json
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedscout.engine.errors import ConfigurationError, DataError, UserError
from fedscout.experiments.data.dataset import ReadLimits
from fedscout.experiments.federation_config import FederationConfig
from tests.experiments.data.awkward_tables import patients
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.kits.refusals import refused

ROLES = {"label": "outcome", "client_column": "hospital"}
FORMATS = ("t.csv", "t.parquet", "t.feather", "t.arrow", "t.jsonl", "t.ndjson.gz", "t.xlsx", "t.sqlite", "t.duckdb")


def save(table: pd.DataFrame, path: Path) -> Path:
    """Write a table in the format that the name asks for."""
    match path.suffixes:
        case [".csv" | ".CSV" | ".tsv" | ".txt"] | [".csv", ".gz"]:
            separator = {".tsv": "\t", ".txt": "|", ".gz": ";"}.get(path.suffix, ",")
            table.to_csv(path, index=False, sep=separator)
        case [".parquet"]:
            table.to_parquet(path, index=False)
        case [".feather"]:
            table.to_feather(path)
        case [".arrow"]:
            rows = pa.Table.from_pandas(table, preserve_index=False)
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
                stream.write_table(rows, max_chunksize=64)
        case [".jsonl"]:
            path.write_text(table.to_json(orient="records", lines=True))
        case [".ndjson", ".gz"]:
            path.write_bytes(gzip.compress(table.to_json(orient="records", lines=True).encode()))
        case [".xlsx"]:
            table.to_excel(path, index=False)
        case [".sqlite"]:
            with sqlite3.connect(path) as connection:
                table.to_sql("visits", connection, index=False)
            connection.close()
        case [".duckdb"]:
            import duckdb

            with duckdb.connect(str(path)) as base:
                base.from_df(table).create("visits")
    return path


@pytest.mark.parametrize("name", [*FORMATS, "t.tsv", "t.txt", "t.csv.gz", "t.CSV"])
def test_every_format_gives_the_same_data(tmp_path: Path, name: str) -> None:
    wanted = load_dataset(str(save(patients(), tmp_path / "wanted.csv")), **ROLES)
    dataset = load_dataset(str(save(patients(), tmp_path / name)), **ROLES)
    assert dataset.feature_names == wanted.feature_names
    np.testing.assert_array_equal(dataset.labels, wanted.labels)
    np.testing.assert_allclose(dataset.features, wanted.features, atol=1e-6)
    assert dataset.facts["columns"] == wanted.facts["columns"]


@pytest.mark.parametrize("name", FORMATS)
def test_limits_hold_in_every_format(tmp_path: Path, name: str) -> None:
    path = str(save(patients(), tmp_path / name))
    assert_refused(path, names=(name, "federation.max_file_rows=199"), limits=ReadLimits(max_rows=199), **ROLES)
    assert load_dataset(path, ReadLimits(max_rows=200), **ROLES).num_rows == 200
    assert_refused(path, key=name, names="federation.max_file_bytes=2000", limits=ReadLimits(max_bytes=2000), **ROLES)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_any_damage_is_one_clear_fault(tmp_path: Path, name: str) -> None:
    """A byte turned, an end cut off: a data set, or an error that is the user's."""
    content = save(patients(), tmp_path / name).read_bytes()
    generator = np.random.default_rng(0)
    path = tmp_path / f"damaged{''.join(Path(name).suffixes)}"
    for trial in range(25):
        place = int(generator.integers(len(content)))
        damaged = content[:place] + (bytes([content[place] ^ 0xFF]) + content[place + 1 :] if trial % 2 else b"")
        path.write_bytes(damaged)
        with suppress(UserError):
            load_dataset(str(path), **ROLES)


# Databases.


def test_a_query_chooses_the_rows(tmp_path: Path) -> None:
    path = save(patients(), tmp_path / "t.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    assert_refused(str(path), names=("federation.query", "t.sqlite", "other, visits"), **ROLES)
    query = "SELECT age, outcome, hospital FROM visits WHERE age > 40;"
    for place in (str(path), f"sqlite:///{path}"):
        dataset = load_dataset(place, query=query, **ROLES)
        assert dataset.num_rows == int((patients()["age"] > 40).sum())
        assert dataset.feature_names == ("age",)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["t.sqlite", "t.duckdb"])
@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE visits",
        "SELECT 1; DROP TABLE visits",
        "WITH gone AS (SELECT 1) DELETE FROM visits",
        "INSERT INTO visits SELECT * FROM visits",
        "ATTACH 'x.db' AS y",
        "SELECT * INTO copy FROM visits",
        "SELECT * FROM nowhere",
        "SELECT * FROM read_csv('secret.csv')",
    ],
)
def test_nothing_but_one_select_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, query: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret.csv").write_text("outcome,hospital,x\na,b,1\nc,b,2\n")
    path = save(patients(), tmp_path / name)
    with pytest.raises(UserError):
        load_dataset(str(path), query=query, **ROLES)
    assert load_dataset(str(path), **ROLES).num_rows == 200


def test_an_address_of_a_database_holds_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (
        "postgresql://user:secret@host/name",
        "mysql://host/name?password=secret",
        "https://user:secret@host/t.csv",
    ):
        with refused(ConfigurationError, key="federation.dataset") as caught:
            load_dataset(address, query=None if address.startswith("https") else "SELECT 1", label="y")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("encoding", "cp1252"), ("separator", "tab"), ("header", "false")])
def test_how_a_text_is_written_is_for_text_files_alone(tmp_path: Path, name: str, value: str) -> None:
    path = str(save(patients(), tmp_path / "t.parquet"))
    assert_refused(path, key=f"federation.{name}", kind=ConfigurationError, **{name: value}, **ROLES)


# One file a client.


def test_a_file_a_client(tmp_path: Path) -> None:
    table = patients()
    for name, rows in table.groupby("hospital"):
        save(rows.drop(columns="hospital"), tmp_path / f"{name}.csv")
    config = FederationConfig(dataset=f"{tmp_path}/*.csv", label="outcome")
    assert config.partition.kind == "natural"
    dataset = load_dataset(f"{tmp_path}/*.csv", label="outcome")
    assert clients_of(dataset) == sorted(table["hospital"])
    whole = load_dataset(str(save(table.sort_values("hospital", kind="stable"), tmp_path / "t.parquet")), **ROLES)
    np.testing.assert_array_equal(dataset.features, whole.features)
    with refused(DataError, key="*.csv", names="max_file_rows"):
        load_dataset(f"{tmp_path}/*.csv", ReadLimits(max_rows=150), label="outcome")
    (tmp_path / "h3.csv").write_text("age,outcome\n1,died\n")
    assert_refused(f"{tmp_path}/*.csv", label="outcome", key="h3.csv")
    assert_refused(f"{tmp_path}/*.tsv", label="outcome", key="federation.dataset")


# Arrays.


def save_arrays(path: Path, **arrays: Any) -> str:
    np.savez_compressed(path, **arrays)
    return str(path)


def test_arrays_of_numbers_are_a_table(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 3)), generator.integers(0, 2, 60)
    clients = np.array(["a", "b", "c"] * 20)
    path = save_arrays(tmp_path / "t.npz", x=x, y=y, client=clients)
    dataset = load_dataset(path, client_column="client")
    assert dataset.feature_names == ("x0", "x1", "x2")
    np.testing.assert_array_equal(dataset.labels, y)
    np.testing.assert_allclose(dataset.features, (x - x.mean(axis=0)) / x.std(axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3), (1, 8, 8)])
def test_arrays_of_pictures(tmp_path: Path, shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (40, *shape), dtype=np.uint8), np.array([10, 9] * 20)
    dataset = load_dataset(save_arrays(tmp_path / "mnist.npz", x=x, y=y))
    assert (dataset.kind, dataset.features.shape[1:]) == ("image", (3 if shape[-1] == 3 else 1, 8, 8))
    assert dataset.class_names == ("9", "10")
    assert dataset.labels.tolist() == [1, 0] * 20
    floats = load_dataset(save_arrays(tmp_path / "f.npz", x=x / 255, y=y))
    np.testing.assert_allclose(floats.features, dataset.features, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "key", "names"),
    [
        ({"x": np.array([[{}]] * 4, dtype=object), "y": [0, 1, 0, 1]}, "t.npz", "Object arrays"),
        ({"x": np.ones((4, 2))}, "t.npz", "got x"),
        ({"x": np.ones(4), "y": np.ones(4)}, "t.npz", "(4,)"),
        ({"x": np.ones((4, 2)), "y": np.ones(3)}, "t.npz", "(3,)"),
        ({"x": np.ones((4, 2)), "y": np.array(["a", "b"] * 2), "client": np.ones((4, 1))}, "t.npz", "(4, 1)"),
        ({"x": np.array([["a"], ["b"]]), "y": np.ones(2)}, "t.npz", "<U1"),
        ({"x": np.ones((4, 2, 2)) * 7, "y": [0, 1, 0, 1]}, "the pictures of t.npz", "0 to 1"),
        ({"x": np.zeros((1000, 1000)), "y": np.zeros(1000)}, "t.npz", "max_file_bytes=1000000"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, arrays: dict[str, Any], key: str, names: str) -> None:
    path = save_arrays(tmp_path / "t.npz", **arrays)
    assert_refused(path, key=key, names=names, limits=ReadLimits(max_bytes=1_000_000))


# The web.


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *told: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(tmp_path))) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


@pytest.mark.slow
def test_a_table_on_the_web(tmp_path: Path, server: str) -> None:
    wanted = load_dataset(str(save(patients(), tmp_path / "t.parquet")), **ROLES)
    dataset = load_dataset(f"{server}/t.parquet", **ROLES)
    np.testing.assert_array_equal(dataset.features, wanted.features)
    assert (dataset.name, dataset.source) == ("t.parquet", f"{server}/t.parquet")
    assert_refused(f"{server}/t.parquet", names="max_file_bytes=2000", limits=ReadLimits(max_bytes=2000), **ROLES)
    assert_refused(f"{server}/none.csv", names="none.csv", **ROLES)


@pytest.mark.parametrize(
    ("place", "key", "library", "hint"),
    [
        ("s3://b/t.csv", "s3://b/t.csv", "", "s3fs"),
        ("gs://b/t.csv", "gs://b/t.csv", "", "gcsfs"),
        ("postgresql://user@host/name", "reading postgresql://user@host/name", "", "pip install psycopg"),
        ("t.xlsx", "reading t.xlsx", "openpyxl", "pip install 'fedscout[tables]'"),
        ("t.duckdb", "reading t.duckdb", "duckdb", "pip install 'fedscout[tables]'"),
    ],
)
def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, key: str, library: str, hint: str
) -> None:
    dataset, query = place, "SELECT 1" if place.startswith("postgresql") else None
    if library:
        dataset = str(save(patients(), tmp_path / place))
        monkeypatch.setitem(sys.modules, library, None)
    with refused(ConfigurationError, key=key, names=hint):
        load_dataset(dataset, query=query, **ROLES)


# JSON lines.


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("[1]", "every line of t.jsonl"),
        ('{"a": 1}\n{"a": ', "every line of t.jsonl"),
        ('{"a": 1, "y": 0}\n{"a": "b", "y": 1}', "every line of t.jsonl"),
        ('{"a": {"b": 1}, "y": 0}', "column 'a' of t.jsonl"),
        ("", "t.jsonl"),
        ("[" * 100_000, "every line of t.jsonl"),
        ('{"a": "\\ud800", "y": 1}', "every line of t.jsonl"),
    ],
    ids=["a list", "cut", "two types", "an object in an object", "empty", "nested without end", "half a character"],
)
def test_lines_that_are_no_objects_are_refused(tmp_path: Path, lines: str, key: str) -> None:
    (tmp_path / "t.jsonl").write_text(lines)
    assert_refused(str(tmp_path / "t.jsonl"), label="y", key=key)


def test_a_key_that_comes_late_is_missing_before(tmp_path: Path) -> None:
    rows = [{"x": row / 8, "y": "ab"[row % 2], **({"z": 1} if row > 9 else {})} for row in range(20)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset = load_dataset(str(tmp_path / "t.jsonl"), label="y")
    assert dataset.feature_names == ("x", "z", "z missing")
    assert dataset.features[:, 2].sum() == 10
