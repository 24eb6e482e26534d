"""One's own data by path or of the hub: texts, natural clients, groups, and where a path leads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import DataError
from fedscout.experiments.data.columns import MOST_CLASSES
from fedscout.experiments.data.dataset import FOLDER_VARIABLE, START_VARIABLE
from fedscout.experiments.data.loaders.table import is_own_data
from fedscout.experiments.data.own import client_names
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.experiments.data.test_table_files import FORMATS, save
from tests.kits.refusals import refused

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


def test_a_table_is_read(tmp_path: Path) -> None:
    dataset = load_dataset(str(save(PLAIN, tmp_path / "t.csv")), label="grade", client_column="site", min_release=2)
    assert (dataset.name, dataset.kind, dataset.class_names) == ("t.csv", "table", ("ill", "well"))
    assert dataset.labels.tolist() == [1, 0] * 12
    assert clients_of(dataset) == PLAIN["site"].tolist()
    assert dataset.feature_names == ("age", "age missing", "color=blue", "color=red", "color missing", "smoker")
    # Half smoke: mean 0.5, deviation 0.5. Of the ages 20 + row every eighth is missing; the others have mean 32.
    np.testing.assert_array_equal(dataset.features[:, 5], [1, -1] * 12)
    assert (np.flatnonzero(dataset.features[:, 1]) == [0, 8, 16]).all()
    np.testing.assert_array_equal(dataset.features[[0, 8, 12, 16], 0], 0)
    assert dataset.facts["num_missing_cells"] == 3 + 8
    assert dataset.facts["columns_of_categories"] == ("color",)


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
        assert len(np.unique(grouped.groups)) == len(names)


@pytest.mark.slow
def test_a_label_of_more_values_than_classes_can_be_is_refused(tmp_path: Path) -> None:
    names = pa.array(np.repeat([f"u{number}" for number in range(MOST_CLASSES + 1)], 2))
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": pa.nulls(len(names), pa.float64()), "own": names}), path)
    assert_refused(str(path), label="own", key="column 'own' of data set 't.parquet'")


# Where a path leads.


def test_what_is_a_path_and_what_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is a path without a slash, too, but for one that is called as a data set is."""
    assert all(map(is_own_data, ["a.csv", "./a", "folder/", "~/a.parquet", "a.pkl", "x\\y", "hf:owner/name"]))
    assert not any(map(is_own_data, ["digits", "unsw_nb15", "nonsense", "pics"]))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pics").mkdir()
    (tmp_path / "digits").mkdir()
    assert [is_own_data(name) for name in ("pics", "digits")] == [True, False]
    assert FederationConfig(dataset="pics").dataset == "pics"


def test_a_relative_path_is_here_or_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setenv(START_VARIABLE, str(data))  # where the command was given
    assert load_dataset("t.csv", label="grade").num_rows == NUM_ROWS


@pytest.mark.parametrize("name", ["t.pkl", "t.npy", "t.joblib", "t.pt", "t.ods"])
def test_formats_that_can_carry_code_and_others_are_not_opened(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"PK" if name == "t.ods" else b"\x80\x05boom")
    assert_refused(str(path), label="grade", key="the file of a table")


# `federation.group_column` and `federation.split=last`: from an own table to what clients train and are tested on.


SUBJECT = np.repeat(np.arange(24), 5)
VISITS = pd.DataFrame(
    {
        "time": np.arange(120.0),
        "pulse": np.random.default_rng(0).normal(size=120),
        "subject": [f"s{number:02}" for number in SUBJECT],
        "grade": np.where(SUBJECT % 2, "well", "ill"),
        "ward": np.where(SUBJECT < 12, "east", "west"),
    }
)
ROLES = {"label": "grade", "client_column": "ward"}


def build(folder: Path, **settings: Any) -> Federation:
    visits = save(VISITS, folder / "visits.csv")
    return build_federation(
        FederationConfig.model_validate({"dataset": str(visits), **ROLES, **settings}), ModelConfig()
    )


def test_the_group_column_is_no_feature_and_its_groups_are_not_divided(tmp_path: Path) -> None:
    federation = build(tmp_path, group_column="subject")
    assert federation.feature_names == ("time", "pulse")
    assert json.loads(json.dumps(federation.facts))["num_groups"] == 24
    for client in range(2):
        rows = federation.partition.client(client)
        for seed in range(5):
            split = federation.split_rows(client, federation.labels[rows], seed, 0.2, 0.0)
            assert not set(SUBJECT[rows[split.train]]) & set(SUBJECT[rows[split.test]])
            assert len(split.test) in {10, 15}  # 20 % of 12 subjects is 2.4
    sample = build(tmp_path, group_column="subject", max_rows=60)
    assert (sample.groups % 2 == sample.labels).all()  # as in the table: names ascend with the numbers


@pytest.mark.parametrize(
    ("settings", "key", "names"),
    [
        ({"group_column": "subjct"}, "group_column", "'subjct'"),
        ({"group_column": "grade"}, "label", "federation.group_column"),
        ({"group_column": "ward"}, "client_column", "federation.group_column"),
        ({"group_column": "subject", "drop_columns": ("subject",)}, "drop_columns", "group_column"),
        ({"columns": {"pulze": "number"}}, "columns", "'pulze'"),
        ({"columns": {"grade": "number"}}, "columns", "federation.label"),
        ({"columns": {"ward": "category"}}, "columns", "federation.client_column"),
    ],
)
def test_a_column_of_a_wrong_role_is_refused(tmp_path: Path, settings: dict[str, Any], key: str, names: str) -> None:
    with refused(DataError, key=f"federation.{key}", names=names):
        build(tmp_path, **settings)


# Rows without a label, a client or a group are left out of every format; messages name the rows of files.


def with_gaps(column: str, rows: list[int], gap: object = None) -> pd.DataFrame:
    table = VISITS.astype({column: object})
    table.loc[rows, column] = gap
    return table


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("column", ["grade", "ward", "subject"])
def test_rows_without_role_are_left_out(
    tmp_path: Path, name: str, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(with_gaps(column, [4, 7, 30]), tmp_path / name)
    dataset = load_dataset(str(path), group_column="subject", **ROLES)
    assert (dataset.num_rows, dataset.facts["num_rows_unlabelled"]) == (117, 3)
    path = save(VISITS.drop(index=[4, 7, 30]), tmp_path / "wanted.csv")
    wanted = load_dataset(str(path), group_column="subject", **ROLES)
    np.testing.assert_array_equal(dataset.labels, wanted.labels)
    np.testing.assert_allclose(dataset.features, wanted.features, atol=1e-6)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("word", ["NA", "?", "null", "", "  "])
def test_words_for_nothing_name_no_class(tmp_path: Path, word: str) -> None:
    path = save(with_gaps("grade", [0, 1], word), tmp_path / "t.csv")
    assert load_dataset(str(path), **ROLES).num_rows == 118
    path = save(VISITS.replace({"grade": {"ill": "none"}}), tmp_path / "t.csv")
    assert load_dataset(str(path), **ROLES).class_names == ("none", "well")


def test_clients_without_rows_are_named_and_no_rows_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(with_gaps("grade", [*range(60), 100]), tmp_path / "t.csv")
    load_dataset(str(path), **ROLES)
    assert "east" in caplog.text
    path = save(with_gaps("grade", list(range(120))), tmp_path / "t.csv")
    assert_refused(str(path), key="data set 't.csv'", **ROLES)


# Files of clients.


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["d/a.csv", "d/b.csv"], ["a", "b"]),
        (["2024.01.csv", "2024.02.csv.gz"], ["2024.01", "2024.02"]),
        (["d/a/train.tsv", "d/b/train.tsv"], ["a", "b"]),
        (["d/a/1.csv", "d/a/2.csv", "d/b/1.csv"], ["a/1", "a/2", "b/1"]),
        (["d/x.csv", "d/x.tsv"], ["x.csv", "x.tsv"]),
        (["d/e/a.CSV", "d/f/b.CSV"], ["a", "b"]),
    ],
)
def test_names_of_clients(paths: list[str], names: list[str]) -> None:
    assert client_names([Path(path) for path in paths]) == names


ZONE = pa.timestamp("us", "Europe/Berlin")
DAY = 1_700_000_000_000_000
LARGE = 2**53 + 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array(["x", "y"] * 10), pa.array([1, 2] * 10)),
        (pa.array(["1", "2"] * 10), pa.array([1, 2] * 10)),
        (pa.array([True, False] * 10), pa.array([1, 0] * 10)),
        (pa.array([DAY, DAY * 2] * 10, ZONE), pa.array([DAY, DAY * 2] * 10, pa.timestamp("us", "UTC"))),
        (pa.array([DAY, DAY * 2] * 10, pa.timestamp("us")), pa.array(["2024-01-31", "2024-02-01"] * 10)),
        (pa.array([LARGE + 1, LARGE] * 10), pa.array([0.5, None] * 10)),
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


# Data sets of the Hugging Face hub, of which small ones, made here, take the place.


Hub = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Return what makes some columns the answer of the hub; it returns the requests made since."""

    def serve(columns: dict[str, list[Any]], **kinds: Any) -> list[tuple[Any, ...]]:
        rows = datasets.Dataset.from_dict(columns)
        for name, kind in kinds.items():
            rows = rows.cast_column(name, kind)
        asked: list[tuple[Any, ...]] = []

        def load(path: str, name: str | None, *, split: str) -> datasets.Dataset:
            asked.append((path, name, split))
            return rows

        monkeypatch.setattr(datasets, "load_dataset", load)
        return asked

    return serve


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 3)).astype(np.uint8)
THREE = datasets.ClassLabel(names=["cat", "dog", "eel"])


def images() -> list[Image.Image]:
    return [Image.fromarray(pixels) for pixels in PIXELS]


@pytest.mark.parametrize("kind", ["image", "table"])
def test_rows_without_a_label_or_a_client_are_left_out(hub: Hub, kind: str) -> None:
    features: dict[str, list[Any]] = {"image": [*images(), *images()], "table": [row / 8 for row in range(12)]}
    columns = {
        "x": features[kind],
        "label": [0, 2, -1, 2, None, 0, 2, 0, 2, 0, 2, 0],
        "who": [*"ababab", None, *"babab"],
    }
    kinds = {"x": datasets.Image()} if kind == "image" else {}
    hub(columns, label=THREE, **kinds)
    dataset = load_dataset("hf:owner/name", client_column="who", min_release=1)
    assert dataset.labels.tolist() == [0, 1, 1, 0, 0, 1, 0, 1, 0]
    assert dataset.class_names == ("cat", "eel")
    assert clients_of(dataset) == [*"abbbbabab"]
    assert dataset.facts["num_rows_unlabelled"] == 3


def test_images_and_their_clients(hub: Hub) -> None:
    columns = {"img": images(), "label": [0, 2, 0, 2, 0, 2], "device": ["a", "b"] * 3}
    asked = hub(columns, img=datasets.Image(), label=THREE)
    dataset = load_dataset("hf:owner/name", client_column="device")
    assert asked == [("owner/name", None, "train")]
    assert (dataset.kind, dataset.features.shape) == ("image", (6, 3, 8, 9))
    np.testing.assert_array_equal(np.rint(dataset.features * 255), PIXELS.transpose(0, 3, 1, 2))
    assert dataset.class_names == ("cat", "eel")  # no dog among the rows
    assert dataset.labels.tolist() == [0, 1] * 3
    assert clients_of(dataset) == ["a", "b"] * 3
    assert dataset.source.endswith("https://huggingface.co/datasets/owner/name")


def wide(first: int, last: int) -> Image.Image:
    """Return 16-bit grey: two pixels of a brightness each."""
    return Image.fromarray(np.array([[first, last]], np.uint16))


def with_alpha(mode: str, *pixels: Any) -> Image.Image:
    image = Image.new(mode, (2, 1))
    image.putdata(pixels)
    return image


def palette() -> Image.Image:
    """Return a picture of colours by number: red and blue."""
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    return image


GREY = Image.fromarray(np.array([[0, 200]], np.uint8))
COLOUR = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))


@pytest.mark.parametrize(
    ("pictures", "expected"),
    [
        ([wide(0, 65_535), wide(257, 514)], [[[0, 255]], [[1, 2]]]),
        ([wide(0, 65_535), GREY], [[[0, 255]], [[0, 200]]]),
        ([with_alpha("LA", (100, 255), (100, 0)), GREY], [[[100, 0]], [[0, 200]]]),
        ([with_alpha("RGBA", (9, 8, 7, 255), (9, 8, 7, 0)), GREY], [[[9, 0], [8, 0], [7, 0]], [[0, 200]] * 3]),
        ([GREY, COLOUR], [[[0, 200]] * 3, [[1, 4], [2, 5], [3, 6]]]),
        ([palette(), GREY], [[[255, 0], [0, 0], [0, 255]], [[0, 200]] * 3]),
    ],
)
def test_pictures_are_decoded_as_those_of_a_folder(hub: Hub, pictures: list[Image.Image], expected: Any) -> None:
    """Channels are those of all pictures; what is transparent is black."""
    hub({"img": pictures * 2, "label": [0, 1] * 2}, img=datasets.Image())
    features = load_dataset("hf:owner/name").features
    np.testing.assert_array_equal(np.rint(features[:2, :, 0] * 255), np.array(expected).reshape(2, -1, 2))


def test_pictures_of_no_known_scale_are_refused(hub: Hub) -> None:
    hub({"img": [Image.fromarray(np.ones((2, 2), np.float32))] * 4, "label": [0, 1] * 2}, img=datasets.Image())
    assert_refused("hf:owner/name", key="an image of data set 'hf:owner/name'")


TEXTS, LABELS, PICTURE = ["a", "b"] * 3, [0, 1] * 3, {"img": datasets.Image()}
NAME = "data set 'hf:owner/name'"
IMG = f"column 'img' of {NAME}"
UNEVEN = [*images()[:5], images()[5].resize((4, 4))]
ROWS: dict[str, tuple[dict[str, list[Any]], dict[str, Any], dict[str, str], str]] = {
    "no rows": ({"text": [], "label": []}, {}, {}, f"{NAME}, split 'train',"),
    "no label": ({"text": TEXTS, "mark": LABELS}, {}, {}, "federation.label"),
    "secret labels": ({"img": images(), "label": [-1] * 6}, {"label": THREE, **PICTURE}, {}, NAME),
    "no label at all": ({"text": TEXTS, "label": [-1] * 6}, {"label": THREE}, {}, NAME),
    "another label": ({"img": images(), "label": LABELS}, PICTURE, {"label": "x"}, "federation.label"),
    "texts": ({"img": images(), "label": LABELS}, PICTURE, {"text_column": "label"}, "federation.text_column"),
    "lists": ({"a": [[1, 2]] * 6, "label": LABELS}, {}, {}, "column 'a' of the Dataset"),
    "images of two sizes": ({"img": UNEVEN, "label": LABELS}, PICTURE, {}, f"the images of {NAME}"),
    "an image missing": ({"img": [*images()[:5], None], "label": LABELS}, PICTURE, {}, IMG),
}


@pytest.mark.parametrize(("columns", "kinds", "asked", "key"), ROWS.values(), ids=ROWS)
def test_rows_that_make_no_data_set(
    hub: Hub, columns: dict[str, list[Any]], kinds: dict[str, Any], asked: dict[str, str], key: str
) -> None:
    hub(columns, **kinds)
    assert_refused("hf:owner/name", key=key, **asked)


def test_an_address_names_owner_data_set_and_subset(hub: Hub) -> None:
    asked = hub({"text": ["good", "bad"] * 5, "label": [1, 0] * 5})
    for name in ("hf:", "hf:name", "hf:/name", "hf:owner/", "hf:a/b/c", "hf:../secrets", "hf:./x"):
        assert_refused(name, key="federation.dataset")
    load_dataset("hf:owner/name:part", split="train+test")
    assert asked == [("owner/name", "part", "train+test")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionError("Couldn't reach the Hub"), "local cache"),
        (FileNotFoundError("Dataset 'owner/name'\ndoesn't exist on the Hub"), "Dataset 'owner/name' doesn't exist on"),
        (KeyError(), "KeyError"),
    ],
)
def test_what_the_library_cannot_do_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    assert_refused("hf:owner/name", key=f"{NAME}, split 'train',", names=reason)
