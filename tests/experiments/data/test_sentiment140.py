"""Sentiment140: the published form, its usual copies, and what is wrong with others."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.errors import DataError
from fedscout.experiments.data.dataset import TextSettings
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig, PartitionConfig
from tests.experiments.data import image_files
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.kits.refusals import refused

FILE = "training.1600000.processed.noemoticon.csv"
HEADER = '"target","ids","date","flag","user","text"\n'


def line(polarity: object, user: str, text: str) -> str:
    return f'"{polarity}","17","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","{user}","{text}"\n'


GOOD = "".join(line(4 * (row % 2), f"u{row % 3}", f"the text {'good' if row % 2 else 'bad'}, ok") for row in range(12))


def write(folder: Path, content: str | bytes, name: str = FILE) -> Path:
    return image_files.write(folder / "sentiment140" / name, content.encode() if isinstance(content, str) else content)


def test_rows_of_the_published_form(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    dataset = load_dataset("sentiment140", folder=tmp_path)

    assert (dataset.kind, dataset.features.shape, dataset.vocabulary_size) == ("tokens", (12, 32), 7)
    assert dataset.class_names == ("negative", "positive")
    assert dataset.labels.tolist() == [0, 1] * 6
    assert clients_of(dataset) == ["u0", "u1", "u2"] * 4
    # In 12 texts: ok, text, the; in 6: bad, good.
    assert dataset.features[0, :5].tolist() == [4, 3, 5, 2, 0]
    assert dataset.features[1, :5].tolist() == [4, 3, 6, 2, 0]
    assert dataset.facts["num_duplicate_rows"] == 10


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (GOOD, "training_part.csv"),
        ("0,1,2,3,4,5\n" + GOOD, FILE),
        (HEADER + GOOD, FILE),
        ("polarity,id,date,query,user,text\n" + GOOD, FILE),
        ("\ufeff" + HEADER + GOOD, FILE),
        (GOOD.replace("\n", "\r\n"), FILE),
        (GOOD.replace('"', "").replace(", ok", " ok"), FILE),
        (GOOD.rstrip("\n"), FILE),
        (GOOD + "\n\n", FILE),
    ],
    ids=["part", "numbers as header", "header", "other header", "byte order mark", "windows", "bare", "end", "blank"],
)
def test_harmless_variants_read_the_same(tmp_path: Path, content: str, name: str) -> None:
    write(tmp_path / "", GOOD)
    expected = load_dataset("sentiment140", folder=tmp_path)
    (tmp_path / "sentiment140" / FILE).unlink()
    write(tmp_path, content, name)
    dataset = load_dataset("sentiment140", folder=tmp_path)
    np.testing.assert_array_equal(dataset.features, expected.features)
    np.testing.assert_array_equal(dataset.labels, expected.labels)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_both_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    write(tmp_path, GOOD.replace("text", "ca\u00f1\u00f3n").encode(encoding))
    # 'text' was one word in 12 texts; the Spanish one is, too, if it is read as it was written.
    dataset = load_dataset("sentiment140", folder=tmp_path)
    assert dataset.facts["num_words_in_vocabulary"] == 5
    assert dataset.facts["num_words"] == 5


def test_settings_bound_length_and_vocabulary(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    short = load_dataset("sentiment140", folder=tmp_path, text=TextSettings(length=2, vocabulary_size=4))
    assert short.features.shape == (12, 2)
    assert short.vocabulary_size == 4
    assert short.facts["num_texts_cut"] == 12
    strict = load_dataset("sentiment140", folder=tmp_path, min_release=12)
    assert strict.facts["num_words_in_vocabulary"] == 3


FILE = "training.1600000.processed.noemoticon.csv"
ROWS, POLARITY = f"every row of {FILE}", f"the polarity in {FILE}"
MALFORMED: dict[str, tuple[str | bytes, str, str]] = {
    "empty": ("", FILE, "none"),
    "header alone": (HEADER, FILE, "none"),
    "five columns": ("".join(row.partition(',"the')[0] + "\n" for row in GOOD.splitlines()), ROWS, "got 5 in row 1"),
    "seventh column": (GOOD.replace('ok"', 'ok","x"'), ROWS, "got 7 in row 1"),
    "semicolons": (GOOD.replace('","', '";"'), FILE, "',' expected"),
    "two columns": ("text,sentiment\nhello,1\n", FILE, "text, sentiment"),
    "columns in another order": ("text,user,date,query,ids,target\n" + GOOD, FILE, "text, user, date"),
    "polarity 1": (GOOD + line(1, "u", "hm"), POLARITY, "0, 2, 4, got '1' in row 13"),
    "no polarity": (GOOD + line("", "u", "hm"), POLARITY, "got '' in row 13"),
    "no user": (GOOD + line(4, "", "hm"), ROWS, "user, got nothing in row 13"),
    "one class": (GOOD.replace('"4"', '"0"'), "data set 'sentiment140'", "got 1: negative"),
    "open quote": (GOOD + '"0","1', FILE, "near row 13"),
    "text behind a quote": (GOOD + '"0"x,1,2,3,4,5\n', FILE, "',' expected"),
    "binary": (b"\x89PNG\r\n\x1a\n\x00\xff\xfe" * 20, FILE, "PNG"),
    "endless field": (GOOD + '"0","' + "x" * 200_000, FILE, "field limit"),
}


@pytest.mark.parametrize(("content", "key", "names"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_files_are_one_clear_error(tmp_path: Path, content: str | bytes, key: str, names: str) -> None:
    write(tmp_path, content)
    assert_refused("sentiment140", folder=tmp_path, key=key, names=names)


def test_two_parts_are_one_too_many(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "training_a.csv")
    write(tmp_path, GOOD, "training_b.csv")
    with refused(DataError, key="data set 'sentiment140'", given="2: training_a.csv, training_b.csv"):
        load_dataset("sentiment140", folder=tmp_path)
    write(tmp_path, GOOD)  # beside the published file they do not count
    assert load_dataset("sentiment140", folder=tmp_path).num_rows == 12


def test_other_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    assert load_dataset("sentiment140", label="polarity", client_column="user", folder=tmp_path).num_rows == 12
    assert_refused("sentiment140", client_column="id", folder=tmp_path, key="federation.client_column", given="'id'")


def test_users_are_natural_clients(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    config = FederationConfig(
        dataset="sentiment140", folder=tmp_path, partition=PartitionConfig(kind="natural"), min_release=1
    )
    federation = build_federation(config, ModelConfig())
    assert federation.partition.sizes.tolist() == [4, 4, 4]


@pytest.mark.data
def test_part_of_the_published_file(data_folder: Path) -> None:
    dataset = load_dataset("sentiment140", folder=data_folder)
    (path,) = (data_folder / "sentiment140").glob("*.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert dataset.num_rows == len(rows) == 10_000
    assert np.count_nonzero(dataset.labels) == sum(row[0] == "4" for row in rows)
    assert clients_of(dataset) == [row[4] for row in rows]
    assert 1000 < dataset.vocabulary_size <= 10_000
