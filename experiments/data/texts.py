"""Texts as rows of token numbers: words with a vocabulary, and next-character prediction.

Vocabulary. Each client reports for every token only the number of its own rows that hold it; the counts are summed over
clients; tokens in fewer than `min_release` rows altogether are dropped; of the others the most frequent are kept.
Numbers are assigned by descending count, then by token, so that the order of clients and rows does not matter. 0 is
padding, 1 is any token outside the vocabulary. The sums are computed here over all rows when a data set is loaded,
which gives the same numbers, as they do not depend on the partition. In a real federation only the sum should be
visible (by secure aggregation), as a single client's count of a rare word can reveal its text.

Words. The text normalisation is that of A. Go, R. Bhayani and L. Huang, "Twitter sentiment classification using distant
supervision", Stanford, 2009: a user name after @ becomes one token, a URL another, and a letter repeated more than
twice is reduced to two. In addition, entities such as `&amp;` are resolved, letters are lower-cased, a number is one
token, `!` and `?` are words, and other signs are separators.

Next-character prediction. Rows are windows of text, the class is the next character. S. Caldas et al., "LEAF: a
benchmark for federated settings", arXiv:1812.01097, 2018, whose windows hold 80 characters. Characters are numbered
from the counts of windows that hold them. A window whose next character is not in the vocabulary has no class and is
dropped; inside a window such a character is unknown.
"""

from __future__ import annotations

import html
import re
import unicodedata
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.errors import DataError
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, TextArray, blocks, present_classes, usual_facts

PADDING = 0
UNKNOWN = 1
NUM_SPECIAL = 2


def token_numbers(tokens: Sequence[str], row_counts: IntArray, min_release: int, vocabulary_size: int) -> IntArray:
    """Return each token's number: 2 and up in the vocabulary, 1 outside, shape `(num_tokens,)`.

    Args:
        tokens: Distinct tokens.
        row_counts: Number of rows, over all clients, that hold each token, shape `(num_tokens,)`.
        min_release: Minimum number of rows of a token in the vocabulary.
        vocabulary_size: Maximum number of token numbers, including padding and unknown.
    """
    order = sorted(range(len(tokens)), key=lambda index: (-int(row_counts[index]), tokens[index]))
    kept = [index for index in order if row_counts[index] >= min_release][: vocabulary_size - NUM_SPECIAL]
    numbers = np.full(len(tokens), UNKNOWN, np.int64)
    numbers[kept] = np.arange(NUM_SPECIAL, NUM_SPECIAL + len(kept))
    return numbers


NUM_CODE_POINTS = 0x110000
LABEL = "next character"
SHOWN = {"\n": "newline", " ": "space", "\t": "tab"}

CodeArray = npt.NDArray[np.uint32]


def code_points(text: str) -> CodeArray:
    """Return the code points of a text, shape `(num_characters,)`."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), np.dtype("<u4")).astype(
        np.uint32, copy=False
    )


def windows(text: str, length: int, stride: int) -> CodeArray:
    """Return each window of a text with its next character, shape `(num_windows, length + 1)`, as a view.

    Args:
        text: One client's text.
        length: Characters per window.
        stride: Characters between the starts of consecutive windows.
    """
    codes = code_points(text)
    if len(codes) <= length:
        return np.empty((0, length + 1), np.uint32)
    return np.lib.stride_tricks.sliding_window_view(codes, length + 1)[::stride]


def rows_with_character(client_windows: CodeArray) -> IntArray:
    """Return the number of a client's windows that hold each code point, shape `(NUM_CODE_POINTS,)`."""
    counts = np.zeros(NUM_CODE_POINTS, np.int64)
    for rows in blocks(len(client_windows)):
        block = np.sort(client_windows[rows], axis=1)
        is_first = np.ones(block.shape, bool)
        is_first[:, 1:] = block[:, 1:] != block[:, :-1]
        characters, occurrences = np.unique(block[is_first], return_counts=True)
        counts[characters] += occurrences
    return counts


def next_character_dataset(
    request: DatasetRequest, clients: Mapping[str, CodeArray], source: str, facts: Mapping[str, Any] | None = None
) -> Dataset:
    """Return the data set of the clients' windows, client by client.

    Args:
        request: User settings.
        clients: Windows of each client with their next characters, of equal shape `(num_windows, length + 1)`.
        source: Citation.
        facts: Additional facts to record.

    Raises:
        DataError: If no windows remain, or all have the same next character.
    """
    numbers, characters = _numbered_characters(clients, request)
    sizes = np.array([np.count_nonzero(numbers[part[:, -1]] != UNKNOWN) for part in clients.values()], np.int64)
    if not sizes.sum():
        raise DataError.of(
            f"data set {request.dataset!r}",
            f"hold windows followed by a character that at least {request.min_release} windows hold",
            "none",
        )
    features, following = _rows_with_class(list(clients.values()), numbers, int(sizes.sum()))
    class_of_number, class_names = _classes(characters)
    labels, names = present_classes(request.dataset, class_of_number[following], class_names)
    return Dataset(
        name=request.dataset,
        features=features,
        labels=labels,
        class_names=names,
        feature_names=(),
        source=source,
        client_ids=np.repeat(np.array(list(clients)), sizes),
        facts={
            **usual_facts(LABEL, features, labels),
            "num_rows_without_class": sum(len(part) for part in clients.values()) - len(labels),
            "num_natural_clients": int(np.count_nonzero(sizes)),
            **(facts or {}),
        },
        kind="tokens",
        vocabulary_size=NUM_SPECIAL + len(characters),
    )


def _numbered_characters(clients: Mapping[str, CodeArray], request: DatasetRequest) -> tuple[IntArray, dict[int, str]]:
    """Return the number of each code point, shape `(NUM_CODE_POINTS,)`, and the character of each number."""
    counts = np.zeros(NUM_CODE_POINTS, np.int64)
    for part in clients.values():
        counts += rows_with_character(part)
    codes = np.flatnonzero(counts)
    names = [chr(code) for code in codes]
    numbers = np.full(NUM_CODE_POINTS, UNKNOWN, np.int64)
    numbers[codes] = token_numbers(names, counts[codes], request.min_release, request.text.vocabulary_size)
    return numbers, {int(numbers[ord(name)]): name for name in names if numbers[ord(name)] != UNKNOWN}


def _rows_with_class(parts: list[CodeArray], numbers: IntArray, num_rows: int) -> tuple[FloatArray, IntArray]:
    """Return the windows that have a class, and the numbers of their next characters."""
    features = np.empty((num_rows, parts[0].shape[1] - 1), np.float32)
    following = np.empty(num_rows, np.int64)
    end = 0
    for part in parts:
        for rows in blocks(len(part)):
            block = numbers[part[rows]]
            block = block[block[:, -1] != UNKNOWN]
            end += len(block)
            features[end - len(block) : end] = block[:, :-1]
            following[end - len(block) : end] = block[:, -1]
    return features, following


def _classes(characters: Mapping[int, str]) -> tuple[IntArray, list[str]]:
    """Return the class of each token number, ordered by the characters' code points, and the class names."""
    ordered = sorted(characters, key=lambda number: characters[number])
    class_of_number = np.zeros(max(ordered) + 1, np.int64)
    class_of_number[ordered] = np.arange(len(ordered))
    return class_of_number, [_shown(characters[number]) for number in ordered]


def _shown(character: str) -> str:
    if character in SHOWN:
        return SHOWN[character]
    return f"U+{ord(character):04X}" if unicodedata.category(character)[0] in "CZ" else character


USUAL_WORDS = 32
USER, ADDRESS, NUMBER = "<user>", "<url>", "<number>"
REPEATED = re.compile(r"([^\W\d_])\1{2,}")
TOKEN = re.compile(
    r"(?P<address>(?:https?://|www\.)\S+)"
    r"|(?P<user>@\w+)"
    r"|(?P<word>[^\W\d_]+(?:'[^\W\d_]+)*)"
    r"|(?P<number>\d+)"
    r"|(?P<sign>[!?])"
)
SPECIAL = {"address": ADDRESS, "user": USER, "number": NUMBER}


def words_of(text: str) -> list[str]:
    """Return the words of a text in order."""
    plain = html.unescape(text).lower().replace("\u2019", "'")
    return [
        SPECIAL.get(match.lastgroup or "") or REPEATED.sub(r"\1\1", match.group()) for match in TOKEN.finditer(plain)
    ]


@dataclass(frozen=True)
class CountedTexts:
    """Texts as indices into a list of words, with the number of texts per word: what a client counts.

    Attributes:
        words: Words in order of first occurrence.
        row_counts: Number of texts that hold each word, shape `(num_words,)`.
        positions: Word indices of all texts, each truncated to the requested length, concatenated.
        lengths: Number of words kept of each text, shape `(num_texts,)`.
        num_cut: Number of truncated texts.
    """

    words: list[str]
    row_counts: IntArray
    positions: IntArray
    lengths: IntArray
    num_cut: int


def count_words(texts: Iterable[str], length: int) -> CountedTexts:
    """Return the words and counts of texts, read one at a time.

    Args:
        texts: Any iterable, such as a generator; texts are not stored.
        length: Maximum number of words kept of a text; all of them are counted.
    """
    word_indices: dict[str, int] = {}
    counts = array("q")
    positions, lengths = array("i"), array("i")
    num_cut = 0
    for text in texts:
        indices = [word_indices.setdefault(word, len(word_indices)) for word in words_of(text)]
        counts.extend([0] * (len(word_indices) - len(counts)))
        for word in set(indices):
            counts[word] += 1
        num_cut += len(indices) > length
        positions.extend(indices[:length])
        lengths.append(min(len(indices), length))
    return CountedTexts(
        words=list(word_indices),
        row_counts=np.array(counts, np.int64),
        positions=np.array(positions, np.int64),
        lengths=np.array(lengths, np.int64),
        num_cut=num_cut,
    )


@dataclass(frozen=True)
class TextRows:
    """Texts as rows of token numbers.

    Attributes:
        features: Word numbers, padded with 0, shape `(num_texts, length)`.
        vocabulary_size: One more than the largest number in use.
        facts: Facts to record.
        words: Words of the vocabulary, in the order of their numbers.
    """

    features: FloatArray
    vocabulary_size: int
    facts: dict[str, int]
    words: tuple[str, ...] = ()


def text_rows(texts: Iterable[str], request: DatasetRequest) -> TextRows:
    """Return texts as rows of word numbers. A text without a word becomes one unknown word.

    Args:
        texts: Any iterable, such as a generator.
        request: Number of words per row, to which texts are truncated or padded, size of the vocabulary, and minimum
            number of texts that hold a word of the vocabulary.
    """
    length = request.text.length or USUAL_WORDS
    counted = count_words(texts, length)
    numbers = token_numbers(counted.words, counted.row_counts, request.min_release, request.text.vocabulary_size)
    num_known = int(np.count_nonzero(numbers != UNKNOWN))
    vocabulary_indices = np.argsort(numbers, kind="stable")[len(numbers) - num_known :]
    return TextRows(
        features=_numbered(counted, numbers, length),
        vocabulary_size=NUM_SPECIAL + num_known,
        facts={
            "num_words": len(counted.words),
            "num_words_in_vocabulary": num_known,
            "num_texts_cut": counted.num_cut,
            "num_texts_without_words": int(np.count_nonzero(counted.lengths == 0)),
        },
        words=tuple(counted.words[index] for index in vocabulary_indices.tolist()),
    )


def known_text_rows(texts: Iterable[str], words: Sequence[str], length: int) -> FloatArray:
    """Return texts as rows of word numbers of an existing vocabulary, shape `(num_texts, length)`.

    Args:
        texts: Any iterable, such as a generator.
        words: Words of the vocabulary, in the order of their numbers.
        length: Number of words per row.
    """
    counted = count_words(texts, length)
    word_numbers = {word: number for number, word in enumerate(words, start=NUM_SPECIAL)}
    return _numbered(counted, np.array([word_numbers.get(word, UNKNOWN) for word in counted.words], np.int64), length)


def _numbered(counted: CountedTexts, numbers: IntArray, length: int) -> FloatArray:
    features = np.zeros((len(counted.lengths), length), np.float32)
    features[np.arange(length) < counted.lengths[:, None]] = numbers[counted.positions]
    features[counted.lengths == 0, 0] = UNKNOWN
    return features


def text_dataset(
    name: str,
    rows: TextRows,
    labels: IntArray,
    class_names: tuple[str, ...],
    label: str,
    source: str,
    client_ids: TextArray | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Dataset:
    """Return the data set of texts.

    Args:
        name: Name of the data set.
        rows: The texts.
        labels: In `[0, len(class_names))`, shape `(num_texts,)`.
        class_names: One name per class.
        label: Name of the label.
        source: Citation.
        client_ids: Natural client of each text, or None.
        facts: Additional facts to record.
    """
    return Dataset(
        name=name,
        features=rows.features,
        labels=labels,
        class_names=class_names,
        feature_names=(),
        source=source,
        client_ids=client_ids,
        facts={**usual_facts(label, rows.features, labels), **(facts or {}), **rows.facts},
        kind="tokens",
        vocabulary_size=rows.vocabulary_size,
    )
