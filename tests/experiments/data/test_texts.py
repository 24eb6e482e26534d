"""Words and vocabularies: the same numbers, however texts are dealt to clients and in whatever order; LEAF."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedscout.engine.errors import DataError
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, TextSettings
from fedscout.experiments.data.texts import PADDING, UNKNOWN, count_words, text_rows, token_numbers, windows, words_of
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig, PartitionConfig
from tests.experiments.data import image_files
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.kits.refusals import refused

TEXTS = st.lists(st.text(alphabet="ab !@7", max_size=12), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I LOVE it", ["i", "love", "it"]),
        ("@Anna_1 hello", ["<user>", "hello"]),
        ("see http://t.co/x?y=1 or www.a.org now", ["see", "<url>", "or", "<url>", "now"]),
        ("sooooo goood", ["soo", "good"]),
        ("don't, won\u2019t", ["don't", "won't"]),
        ("a &amp; b &lt;3", ["a", "b", "<number>"]),
        ("12 times 7", ["<number>", "times", "<number>"]),
        ("no!! why?", ["no", "!", "!", "why", "?"]),
        ("#happy :-)", ["happy"]),
        ("Übung macht", ["übung", "macht"]),
        ("me@home", ["me", "<user>"]),
        ("", []),
    ],
)
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_numbers_go_by_count_then_by_word() -> None:
    numbers = token_numbers(["b", "rare", "a", "often"], np.array([5, 4, 5, 9]), min_release=5, vocabulary_size=100)
    assert numbers.tolist() == [4, UNKNOWN, 3, 2]
    assert token_numbers(["b", "a"], np.array([5, 5]), min_release=5, vocabulary_size=3).tolist() == [UNKNOWN, 2]


def request(length: int, vocabulary_size: int, min_release: int) -> DatasetRequest:
    return DatasetRequest(text=TextSettings(length=length, vocabulary_size=vocabulary_size), min_release=min_release)


def test_rows_of_texts() -> None:
    # "a" is in three texts, "b" in two, "c" in one although it occurs thrice.
    rows = text_rows(["a b", "b a a a", "a c c c", "", "..."], request(length=3, vocabulary_size=100, min_release=2))
    a, b, unknown, none = 2, 3, UNKNOWN, PADDING
    assert rows.features.tolist() == [[a, b, none], [b, a, a], [a, unknown, unknown], [unknown, 0, 0], [unknown, 0, 0]]
    assert rows.features.dtype == np.float32
    assert rows.vocabulary_size == 4
    words = {"num_words": 3, "num_words_in_vocabulary": 2}
    assert rows.facts == {**words, "num_texts_cut": 2, "num_texts_without_words": 2}


@given(TEXTS, st.integers(0, 30))
def test_counts_of_clients_sum_to_those_of_all_texts(texts: list[str], cut: int) -> None:
    whole, *parts = (
        Counter(dict(zip(counted.words, counted.row_counts.tolist(), strict=True)))
        for counted in (count_words(part, 4) for part in (texts, texts[:cut], texts[cut:]))
    )
    assert parts[0] + parts[1] == whole
    assert all(1 <= count <= len(texts) for count in whole.values())


@given(TEXTS, st.randoms(use_true_random=False), st.integers(1, 4), st.integers(3, 9))
def test_the_order_of_texts_does_not_matter(texts: list[str], random: object, min_release: int, size: int) -> None:
    order = list(range(len(texts)))
    random.shuffle(order)  # type: ignore[attr-defined]
    rows = text_rows(texts, request(5, size, min_release))
    shuffled = text_rows([texts[index] for index in order], request(5, size, min_release))
    np.testing.assert_array_equal(shuffled.features, rows.features[order])
    assert shuffled.vocabulary_size == rows.vocabulary_size <= size
    assert rows.features.max() < rows.vocabulary_size
    assert (rows.features[:, 0] != PADDING).all()


# Tiny Shakespeare: speeches, windows, and the character behind each.


PLAY = "ANNA:\nabcab\ncab\n\nBEN:\nbca\n\nANNA:\nabc:\n"


def write(folder: Path, content: str | bytes, name: str = "input.txt") -> None:
    image_files.write(folder / "shakespeare" / name, content)


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
    "one character": ("ANNA:\naaaaaaaaaaa\n", "data set 'shakespeare'", "got 1: a"),
    "short": ("ANNA:\nab\n", "federation.text.length", "got 2"),
}


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


# Sentiment140: the published form, its usual copies, and what is wrong with others.


FILE = "training.1600000.processed.noemoticon.csv"
HEADER = '"target","ids","date","flag","user","text"\n'


def line(polarity: object, user: str, text: str) -> str:
    return f'"{polarity}","17","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","{user}","{text}"\n'


GOOD = "".join(line(4 * (row % 2), f"u{row % 3}", f"the text {'good' if row % 2 else 'bad'}, ok") for row in range(12))


def write_tweets(folder: Path, content: str | bytes, name: str = FILE) -> Path:
    return image_files.write(folder / "sentiment140" / name, content)


def test_rows_of_the_published_form(tmp_path: Path) -> None:
    write_tweets(tmp_path, GOOD)
    dataset = load_dataset("sentiment140", folder=tmp_path)

    assert (dataset.kind, dataset.features.shape, dataset.vocabulary_size) == ("tokens", (12, 32), 7)
    assert dataset.class_names == ("negative", "positive")
    assert dataset.labels.tolist() == [0, 1] * 6
    assert clients_of(dataset) == ["u0", "u1", "u2"] * 4
    # In 12 texts: ok, text, the; in 6: bad, good.
    assert dataset.features[0, :5].tolist() == [4, 3, 5, 2, 0]
    assert dataset.features[1, :5].tolist() == [4, 3, 6, 2, 0]
    assert dataset.facts["num_duplicate_rows"] == 10


@pytest.mark.parametrize("header", ["0,1,2,3,4,5\n", "\ufeff" + HEADER])
def test_a_header_of_numbers_or_behind_a_mark_is_no_row(tmp_path: Path, header: str) -> None:
    write_tweets(tmp_path, header + GOOD, "training_part.csv")
    dataset = load_dataset("sentiment140", folder=tmp_path)
    assert (dataset.labels.tolist(), dataset.features[0, :5].tolist()) == ([0, 1] * 6, [4, 3, 5, 2, 0])


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_both_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    write_tweets(tmp_path, GOOD.replace("text", "ca\u00f1\u00f3n").encode(encoding))
    # 'text' was one word in 12 texts; the Spanish one is, too, if it is read as it was written.
    dataset = load_dataset("sentiment140", folder=tmp_path)
    assert dataset.facts["num_words_in_vocabulary"] == dataset.facts["num_words"] == 5


MALFORMED_TWEETS: dict[str, tuple[str | bytes, str, str]] = {
    "empty": ("", FILE, "empty"),
    "header alone": (HEADER, "data set 'sentiment140'", "got 0"),
    "seventh column": (GOOD.replace('ok"', 'ok","x"'), "", "7 columns"),
    "columns in another order": ("text,user,date,query,ids,target\n" + GOOD.replace('"0"', '"7"'), FILE, "row 1"),
    "polarity 1": (GOOD + line(1, "u", "hm"), FILE, "'1, u' in row 13"),
    "no user": (GOOD + line(4, "", "hm"), FILE, "in row 13"),
    "one class": (GOOD.replace('"4"', '"0"'), "data set 'sentiment140'", "got 1: negative"),
    "endless field": (GOOD + line(0, "u", "x" * 200_000), f"every cell of {FILE}", ""),
}


def test_two_parts_are_one_too_many(tmp_path: Path) -> None:
    write_tweets(tmp_path, GOOD, "training_a.csv")
    write_tweets(tmp_path, GOOD, "training_b.csv")
    with refused(DataError, key="data set 'sentiment140'", given="2: training_a.csv, training_b.csv"):
        load_dataset("sentiment140", folder=tmp_path)
    write_tweets(tmp_path, GOOD)  # beside the published file they do not count
    assert load_dataset("sentiment140", folder=tmp_path).num_rows == 12


# FEMNIST and Shakespeare as LEAF writes them: JSON by user.


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 784)) / 255


def leaf(users: dict[str, tuple[list[Any], list[Any]]]) -> dict[str, Any]:
    return {
        "users": list(users),
        "num_samples": [len(targets) for _, targets in users.values()],
        "user_data": {name: {"x": inputs, "y": targets} for name, (inputs, targets) in users.items()},
    }


def write_leaf(folder: Path, dataset: str, content: Any, part: str = "train", name: str = "a.json") -> None:
    image_files.write(folder / dataset / part / name, json.dumps(content))


def femnist() -> dict[str, Any]:
    return leaf({"f01": (PIXELS[:4].tolist(), [0, 10, 36, 0]), "f02": (PIXELS[4:].tolist(), [61, 10])})


def test_femnist(tmp_path: Path) -> None:
    write_leaf(tmp_path, "leaf_femnist", femnist())
    dataset = load_dataset("leaf_femnist", folder=tmp_path)
    assert (dataset.kind, dataset.features.shape) == ("image", (6, 1, 28, 28))
    np.testing.assert_array_equal(dataset.features.reshape(6, 784), PIXELS.astype(np.float32))
    assert dataset.class_names == ("0", "A", "a", "z")  # digits, capitals, small letters
    assert dataset.labels.tolist() == [0, 1, 2, 0, 3, 1]
    assert clients_of(dataset) == ["f01"] * 4 + ["f02"] * 2
    variance = (dataset.features.astype(np.float64) / dataset.feature_unit).var(axis=0)
    assert variance.mean() == pytest.approx(1)


def test_files_and_parts_add_up_and_writers_are_natural_clients(tmp_path: Path) -> None:
    write_leaf(tmp_path, "leaf_femnist", femnist())
    more = leaf({"f03": (PIXELS[:2].tolist(), [5, 6]), "none": ([], [])})
    write_leaf(tmp_path, "leaf_femnist", more, name="b.json")
    write_leaf(tmp_path, "leaf_femnist", leaf({"f01": (PIXELS[:1].tolist(), [7])}), part="test")
    both = load_dataset("leaf_femnist", folder=tmp_path, split="all")
    assert Counter(clients_of(both)) == {"f01": 5, "f02": 2, "f03": 2}
    assert load_dataset("leaf_femnist", folder=tmp_path).num_rows == 8
    write_leaf(tmp_path / "whole", "leaf_femnist", femnist(), part="all_data")
    assert load_dataset("leaf_femnist", folder=tmp_path / "whole", split="all").num_rows == 6


def test_shakespeare(tmp_path: Path) -> None:
    text = "to be, or not to be"
    inputs, targets = [text[start : start + 5] for start in range(14)], list(text[5:])
    write_leaf(tmp_path, "leaf_shakespeare", leaf({"HAMLET": (inputs, targets), "GHOST": (inputs[:3], targets[:3])}))
    dataset = load_dataset("leaf_shakespeare", folder=tmp_path, min_release=1)
    assert (dataset.kind, dataset.features.shape) == ("tokens", (17, 5))
    names = {" ": "space"}
    assert [dataset.class_names[label] for label in dataset.labels[:14]] == [names.get(c, c) for c in targets]
    # One window is the next one's beginning, by one character.
    np.testing.assert_array_equal(dataset.features[:13, 1:], dataset.features[1:14, :-1])
    assert len(np.unique(dataset.features)) == len(set(text))
    assert clients_of(dataset) == ["HAMLET"] * 14 + ["GHOST"] * 3


def test_what_the_files_fix_cannot_be_set(tmp_path: Path) -> None:
    write_leaf(tmp_path, "leaf_shakespeare", leaf({"A": (["ab"] * 3, ["a", "b", "a"])}))
    with refused(DataError, key="federation.text.length", given="None and 3", names="federation.text.stride"):
        load_dataset("leaf_shakespeare", folder=tmp_path, text=TextSettings(stride=3))


GOOD_FEMNIST = femnist()


def with_user(x: Any, y: Any, count: Any) -> dict[str, Any]:
    return {"users": ["u"], "num_samples": [count], "user_data": {"u": {"x": x, "y": y}}}


USER, PLACE = "user 'u' of a.json", "user_data.u."
MALFORMED_FEMNIST: dict[str, tuple[Any, str, str | tuple[str, ...]]] = {
    "cut": (json.dumps(GOOD_FEMNIST).encode()[:-50], "a.json", "JSON"),
    "nested without end": (b"[" * 100_000, "a.json", "JSON"),
    "a list": ([1], "a.json", "JSON"),
    "no user_data": ({**GOOD_FEMNIST, "user_data": {}}, "a.json", ""),
    "a count short": ({**GOOD_FEMNIST, "num_samples": [4]}, "a.json", "num_samples"),
    "wrong counts": ({**GOOD_FEMNIST, "num_samples": [4, 3]}, "user 'f02' of a.json", "got 3, 2, 2"),
    "another user": ({**GOOD_FEMNIST, "users": ["f01", "f03"]}, "a.json", "once"),
    "a user twice": ({**GOOD_FEMNIST, "users": ["f01", "f01"]}, "a.json", "once"),
    "small image": (with_user([[0.5] * 10], [1], 1), "a.json", f"{PLACE}x.0:"),
    "pixels of bytes": (with_user([[255] * 784], [1], 1), "a.json", f"{PLACE}x.0.0:"),
    "label out of range": (with_user([[0.5] * 784], [62], 1), "a.json", f"{PLACE}y.0:"),
    "true as label": (with_user([[0.5] * 784], [True], 1), "a.json", f"{PLACE}y.0:"),
    "no samples": (leaf({"u": ([], [])}), "data set 'leaf_femnist'", "got 0"),
}


MALFORMED_TEXT: dict[str, tuple[Any, str, str]] = {
    "numbers": (with_user([1, 2], ["a", "b"], 2), "a.json", f"{PLACE}x.0:"),
    "two characters behind": (with_user(["ab"], ["ab"], 1), "a.json", f"{PLACE}y.0:"),
    "uneven": (with_user(["ab", "abc"], ["a", "b"], 2), USER, "[2, 3]"),
    "nothing": (with_user(["", ""], ["a", "b"], 2), "a.json", f"{PLACE}x.0:"),
    "uneven users": (leaf({"u": (["ab"], ["a"]), "v": (["abc"], ["a"])}), "user 'v' of a.json", "[2, 3]"),
    "no samples": (leaf({"u": ([], [])}), "data set 'leaf_shakespeare'", "windows"),
}


OF_SHAKESPEARE = {"text": TextSettings(length=2, stride=1), "min_release": 1}
FILES: dict[str, tuple[str, dict[str, Any], dict[str, tuple[Any, str, Any]]]] = {
    "shakespeare": ("shakespeare/input.txt", OF_SHAKESPEARE, MALFORMED),
    "sentiment140": (f"sentiment140/{FILE}", {}, MALFORMED_TWEETS),
    "leaf_femnist": ("leaf_femnist/train/a.json", {}, MALFORMED_FEMNIST),
    "leaf_shakespeare": ("leaf_shakespeare/train/a.json", {"min_release": 1}, MALFORMED_TEXT),
}
"""Of each data set: the file, what is asked for, and the faults that it may have."""


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, (*_, faults) in FILES.items() for fault in faults])
def test_malformed_files_are_one_clear_error(tmp_path: Path, name: str, fault: str) -> None:
    file, chosen, faults = FILES[name]
    content, key, names = faults[fault]
    image_files.write(tmp_path / file, content if isinstance(content, str | bytes) else json.dumps(content))
    assert_refused(name, folder=tmp_path, key=key or None, names=names, **chosen)
