"""Tiny Shakespeare: speeches, windows, and the character behind each."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.errors import DataError
from fedscout.experiments.data.dataset import Dataset, TextSettings
from fedscout.experiments.data.texts import windows
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig, PartitionConfig
from tests.experiments.data import image_files
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.kits.refusals import refused

PLAY = "ANNA:\nabcab\ncab\n\nBEN:\nbca\n\nANNA:\nabc:\n"


def write(folder: Path, content: str | bytes, name: str = "input.txt") -> None:
    encoded = content.encode() if isinstance(content, str) else content
    image_files.write(folder / "shakespeare" / name, encoded)


def load(folder: Path, length: int = 2, stride: int | None = 1, min_release: int = 1) -> Dataset:
    text = TextSettings(length=length, stride=stride)
    return load_dataset("shakespeare", folder=folder, min_release=min_release, text=text)


def decoded(dataset: Dataset) -> list[str]:
    """Rows as text, by the names of the classes, which follow the characters' numbers only through the rows."""
    names = {"newline": "\n", "space": " "}
    number_of: dict[int, str] = {}
    for row in range(1, dataset.num_rows):  # the last token of a window is the character behind the one before it
        if dataset.client_ids is not None and dataset.client_ids[row] == dataset.client_ids[row - 1]:
            name = dataset.class_names[dataset.labels[row - 1]]
            number_of[int(dataset.features[row, -1])] = names.get(name, name)
    return ["".join(number_of.get(int(token), "?") for token in row) for row in dataset.features]


def test_windows_and_what_follows(tmp_path: Path) -> None:
    write(tmp_path, PLAY)
    dataset = load(tmp_path)
    # ANNA speaks "abcab\ncab\nabc:", BEN "bca".
    text = "abcab\ncab\nabc:"
    expected = [text[start : start + 2] for start in range(len(text) - 2)] + ["bc"]
    following = [*text[2:], "a"]
    assert decoded(dataset) == expected
    shown = [{"\n": "newline"}.get(character, character) for character in following]
    assert [dataset.class_names[label] for label in dataset.labels] == shown
    assert dataset.class_names == ("newline", ":", "a", "b", "c")
    assert clients_of(dataset) == ["ANNA"] * 12 + ["BEN"]
    assert (dataset.kind, dataset.vocabulary_size) == ("tokens", 7)
    assert set(np.unique(dataset.features)) <= set(range(1, 7))


@given(st.text(max_size=40), st.integers(1, 9), st.integers(1, 9))
def test_windows_are_what_slices_are(text: str, length: int, stride: int) -> None:
    expected = [text[start : start + length + 1] for start in range(0, len(text) - length, stride)]
    assert ["".join(map(chr, row)) for row in windows(text, length, stride)] == expected


def test_windows_do_not_overlap_unless_asked(tmp_path: Path) -> None:
    write(tmp_path, PLAY)
    assert load(tmp_path, length=3, stride=None).num_rows == load(tmp_path, length=3, stride=3).num_rows
    # 14 and 3 characters: windows of 3 with one behind them start at 0, 3, 6, 9, and nowhere.
    assert load(tmp_path, length=3, stride=None).facts["num_speakers_without_rows"] == 1


def test_rare_characters_are_unknown_and_no_class(tmp_path: Path) -> None:
    write(tmp_path, "A:\n" + "ab" * 30 + "$" + "ab" * 30 + "\n")
    dataset = load(tmp_path, length=2, stride=1, min_release=5)
    # "$" is in the three windows (of two and one behind) that reach it: fewer than five.
    assert dataset.class_names == ("a", "b")
    assert dataset.facts["num_rows_without_class"] == 1
    assert dataset.num_rows == 121 - 2 - 1
    assert np.count_nonzero(dataset.features == 1) == 2
    assert load(tmp_path, length=2, stride=1, min_release=3).num_classes == 3


@pytest.mark.parametrize(
    "content",
    [PLAY.replace("\n", "\r\n"), "\ufeff" + PLAY, "\n\n" + PLAY, PLAY.replace("\n\n", "\n\n\n"), PLAY.rstrip("\n")],
    ids=["windows", "byte order mark", "blank start", "two blank lines", "no last newline"],
)
def test_harmless_variants_read_the_same(tmp_path: Path, content: str) -> None:
    write(tmp_path / "plain", PLAY)
    write(tmp_path / "variant", content, "tinyshakespeare_input.txt")
    expected, dataset = load(tmp_path / "plain"), load(tmp_path / "variant")
    np.testing.assert_array_equal(dataset.features, expected.features)
    np.testing.assert_array_equal(dataset.labels, expected.labels)


SPEECH = "every speech of input.txt"
MALFORMED: dict[str, tuple[str | bytes, str, str]] = {
    "empty": ("", SPEECH, "'nothing' in speech 1"),
    "no speaker": ("ANNA:\nabcabcabc\n\nonce upon a time\n", SPEECH, "'once upon a time' in speech 2"),
    "a colon alone": (":\nabcabcabc\n", SPEECH, "':' in speech 1"),
    "latin-1": ("ANNA:\nd\u00e9j\u00e0 vu\n".encode("latin-1"), "input.txt", "UTF-8"),
    "binary": (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "input.txt", "UTF-8"),
    "one character": ("ANNA:\naaaaaaaaaaa\n", "data set 'shakespeare'", "got 1: a"),
    "short": ("ANNA:\nab\n", "federation.text.length", "got 2"),
}


@pytest.mark.parametrize(("content", "key", "names"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_files_are_one_clear_error(tmp_path: Path, content: str | bytes, key: str, names: str) -> None:
    write(tmp_path, content)
    with refused(DataError, key=key, names=names) as caught:
        load(tmp_path)
    assert len(caught.value.faults) == 1


def test_nothing_but_rare_characters(tmp_path: Path) -> None:
    write(tmp_path, PLAY)
    with refused(DataError, key="data set 'shakespeare'", given="none"):
        load(tmp_path, min_release=100)


def test_missing_file_and_other_columns(tmp_path: Path) -> None:
    assert_refused("shakespeare", folder=tmp_path, names=("$FEDSCOUT_DATA/shakespeare/input.txt", "https://raw"))
    assert_refused("shakespeare", client_column="play", folder=tmp_path, key="federation.client_column", given="'play'")


@pytest.mark.data
def test_the_whole_text_by_speaker(data_folder: Path) -> None:
    config = FederationConfig(dataset="shakespeare", folder=data_folder, partition=PartitionConfig(kind="natural"))
    federation = build_federation(config, ModelConfig())
    text = (data_folder / "shakespeare" / "tinyshakespeare_input.txt").read_text()
    lengths: dict[str, int] = {}
    for speaker, speech in re.findall(r"(?:^|\n\n)\n*([^\n]+):\n?((?:[^\n]+\n?)*?)(?=\n\n|\n*\Z)", text):
        lengths[speaker] = lengths.get(speaker, -1) + 1 + len(speech)
    # Windows of 80 with one behind them, none overlapping.
    sizes = {name: -(-(length - 80) // 80) for name, length in lengths.items() if length > 80}
    assert federation.num_clients == len(sizes)
    assert federation.partition.sizes.tolist() == [sizes[name] for name in sorted(sizes)]
    assert federation.num_classes > 50
