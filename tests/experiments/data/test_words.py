"""Words and vocabularies: the same numbers, however texts are dealt to clients and in whatever order they come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.experiments.data.dataset import DatasetRequest, TextSettings
from fedscout.experiments.data.texts import PADDING, UNKNOWN, count_words, text_rows, token_numbers, words_of

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


@given(st.text(max_size=60))
def test_any_text_has_words_without_spaces_or_capitals(text: str) -> None:
    for word in words_of(text):
        assert word
        assert not any(character.isspace() for character in word)
        assert word == word.lower()


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
    assert rows.facts == {
        "num_words": 3,
        "num_words_in_vocabulary": 2,
        "num_texts_cut": 2,
        "num_texts_without_words": 2,
    }


@given(TEXTS, st.integers(0, 30))
def test_counts_of_clients_sum_to_those_of_all_texts(texts: list[str], cut: int) -> None:
    whole = count_words(texts, 4)
    parts = [count_words(part, 4) for part in (texts[:cut], texts[cut:])]
    summed: dict[str, int] = {}
    for part in parts:
        for word, count in zip(part.words, part.row_counts.tolist(), strict=True):
            summed[word] = summed.get(word, 0) + count
    assert summed == dict(zip(whole.words, whole.row_counts.tolist(), strict=True))
    assert all(1 <= count <= len(texts) for count in summed.values())


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
