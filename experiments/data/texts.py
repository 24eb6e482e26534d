"""Texts as tokens: words with a vocabulary, and next-character prediction.

Next-character prediction: rows are windows of text, the class is the character that follows.

S. Caldas et al., "LEAF: a benchmark for federated settings", arXiv:1812.01097, 2018, whose windows hold 80 characters.
Characters are numbered by `texts.py` from the counts of windows that hold them. A window whose next character is
not in the vocabulary has no class and is left out; inside a window such a character is unknown.

Which tokens a federation knows, found without looking at anybody's texts.

Each client counts for every token how many of its own rows hold it (that is all it gives); the counts are summed over
clients; tokens that fewer than `min_release` rows hold altogether are dropped; of the others the most frequent stay.
Numbers are given by descending count, and by the token where counts are equal, so that neither the order of clients nor
that of rows matters. 0 is padding, 1 stands for every token that is not in the vocabulary.

The sums are computed here over all rows when a data set is loaded, which gives the same numbers, as sums do not depend
on who holds what. In a real federation the sum alone should be seen (by secure aggregation), as a single client's count
of a rare word can tell its text.

Words of short informal texts, and texts as rows of word numbers.

The reductions are those of A. Go, R. Bhayani and L. Huang, "Twitter sentiment classification using distant
supervision", Stanford, 2009: a name after @ becomes one token, an address another, and a letter that is repeated more
than twice is written twice. Beyond the paper: entities such as `&amp;` are resolved, capitals become small, a number is
one token, `!` and `?` are words, other signs separate.
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
from pydantic import Field

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.data.dataset import (
    Dataset,
    DatasetRequest,
    TextArray,
    TextSettings,
    present_classes,
    usual_facts,
)

PADDING = 0
UNKNOWN = 1
NUM_SPECIAL = 2


def token_numbers(tokens: Sequence[str], row_counts: IntArray, min_release: int, vocabulary_size: int) -> IntArray:
    """Return each token's number: 2 and up in the vocabulary, 1 outside, shape `(num_tokens,)`.

    Args:
        tokens: All different.
        row_counts: In how many rows of all clients each occurs, shape `(num_tokens,)`.
        min_release: Fewest rows of a token that stays.
        vocabulary_size: Most numbers in use, padding and unknown included.
    """
    order = sorted(range(len(tokens)), key=lambda index: (-int(row_counts[index]), tokens[index]))
    kept = [index for index in order if row_counts[index] >= min_release][: vocabulary_size - NUM_SPECIAL]
    numbers = np.full(len(tokens), UNKNOWN, np.int64)
    numbers[kept] = np.arange(NUM_SPECIAL, NUM_SPECIAL + len(kept))
    return numbers


USUAL_CHARACTERS = 80
NUM_CODE_POINTS = 0x110000
BLOCK_ROWS = 4096
LABEL = "next character"
SHOWN = {"\n": "newline", " ": "space", "\t": "tab"}

CodeArray = npt.NDArray[np.uint32]


def code_points(text: str) -> CodeArray:
    """Return the code points of a text, shape `(num_characters,)`."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), np.dtype("<u4")).astype(
        np.uint32, copy=False
    )


def windows(text: str, length: int, stride: int) -> CodeArray:
    """Return each window of a text with the character behind it, shape `(num_windows, length + 1)`, as a view.

    Args:
        text: One client's text.
        length: Characters a window.
        stride: Characters from the start of one window to that of the next.
    """
    codes = code_points(text)
    if len(codes) <= length:
        return np.empty((0, length + 1), np.uint32)
    return np.lib.stride_tricks.sliding_window_view(codes, length + 1)[::stride]


def rows_with_character(client_windows: CodeArray) -> IntArray:
    """Return in how many of a client's windows each code point occurs, shape `(NUM_CODE_POINTS,)`."""
    counts = np.zeros(NUM_CODE_POINTS, np.int64)
    for start in range(0, len(client_windows), BLOCK_ROWS):
        block = np.sort(client_windows[start : start + BLOCK_ROWS], axis=1)
        first = np.ones(block.shape, bool)
        first[:, 1:] = block[:, 1:] != block[:, :-1]
        found, times = np.unique(block[first], return_counts=True)
        counts[found] += times
    return counts


def next_character_dataset(
    request: DatasetRequest, clients: Mapping[str, CodeArray], source: str, facts: Mapping[str, Any] | None = None
) -> Dataset:
    """Return the data set of some clients' windows, client after client.

    Args:
        request: The user's choices.
        clients: Each client's windows and the character behind each, of one shape `(num_windows, length + 1)`.
        source: Citation.
        facts: Further facts for the record.

    Raises:
        DataError: If no windows are left, or all are followed by the same character.
    """
    numbers, characters = _numbered_characters(clients, request)
    sizes = np.array([np.count_nonzero(numbers[part[:, -1]] != UNKNOWN) for part in clients.values()], np.int64)
    if not sizes.sum():
        raise DataError(
            Fault(
                f"data set {request.name!r}",
                (f"hold windows followed by a character that at least {request.min_release} windows hold"),
                "none",
            )
        )
    features, following = _filled(list(clients.values()), numbers, int(sizes.sum()))
    order, class_names = _classes(characters)
    labels, names = present_classes(request.name, order[following], class_names)
    return Dataset(
        name=request.name,
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
    found = np.flatnonzero(counts)
    names = [chr(code) for code in found]
    numbers = np.full(NUM_CODE_POINTS, UNKNOWN, np.int64)
    numbers[found] = token_numbers(names, counts[found], request.min_release, request.text.vocabulary_size)
    return numbers, {int(numbers[ord(name)]): name for name in names if numbers[ord(name)] != UNKNOWN}


def _filled(parts: list[CodeArray], numbers: IntArray, num_rows: int) -> tuple[FloatArray, IntArray]:
    """Return the windows that have a class, and the numbers of the characters behind them."""
    features = np.empty((num_rows, parts[0].shape[1] - 1), np.float32)
    following = np.empty(num_rows, np.int64)
    end = 0
    for part in parts:
        for start in range(0, len(part), BLOCK_ROWS):
            block = numbers[part[start : start + BLOCK_ROWS]]
            block = block[block[:, -1] != UNKNOWN]
            end += len(block)
            features[end - len(block) : end] = block[:, :-1]
            following[end - len(block) : end] = block[:, -1]
    return features, following


def _classes(characters: Mapping[int, str]) -> tuple[IntArray, list[str]]:
    """Return the class of each number, characters in the order of their code points, and the classes' names."""
    ordered = sorted(characters, key=lambda number: characters[number])
    order = np.zeros(max(ordered) + 1, np.int64)
    order[ordered] = np.arange(len(ordered))
    return order, [_shown(characters[number]) for number in ordered]


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


def split_words(text: str) -> list[str]:
    """Return the words of a text in order."""
    plain = html.unescape(text).lower().replace("\u2019", "'")
    return [
        SPECIAL.get(match.lastgroup or "") or REPEATED.sub(r"\1\1", match.group()) for match in TOKEN.finditer(plain)
    ]


@dataclass(frozen=True)
class CountedTexts:
    """Texts as positions in a list of words, and in how many texts each word occurs: what a client counts.

    Attributes:
        words: In the order in which they first occurred.
        row_counts: Texts that hold each word, shape `(num_words,)`.
        positions: Words of all texts, each text cut to the length asked for, one after another.
        lengths: Words kept of each text, shape `(num_texts,)`.
        num_cut: Texts that were longer.
    """

    words: list[str]
    row_counts: IntArray
    positions: IntArray
    lengths: IntArray
    num_cut: int


def count_words(texts: Iterable[str], length: int) -> CountedTexts:
    """Read texts one at a time.

    Args:
        texts: May be a generator; none is kept.
        length: Most words kept of a text; all of them are counted.
    """
    known: dict[str, int] = {}
    counts = array("q")
    positions, lengths = array("i"), array("i")
    num_cut = 0
    for text in texts:
        found = [known.setdefault(word, len(known)) for word in split_words(text)]
        counts.extend([0] * (len(known) - len(counts)))
        for word in set(found):
            counts[word] += 1
        num_cut += len(found) > length
        positions.extend(found[:length])
        lengths.append(min(len(found), length))
    return CountedTexts(
        words=list(known),
        row_counts=np.array(counts, np.int64),
        positions=np.array(positions, np.int64),
        lengths=np.array(lengths, np.int64),
        num_cut=num_cut,
    )


@dataclass(frozen=True)
class TextRows:
    """Texts as rows.

    Attributes:
        features: Word numbers, 0 behind a text's last word, shape `(num_texts, length)`.
        vocabulary_size: One more than the largest number in use; 0 where texts are kept.
        facts: For the record.
        words: Of the vocabulary, in the order of their numbers.
    """

    features: FloatArray
    vocabulary_size: int
    facts: dict[str, int]
    words: tuple[str, ...] = ()


class KeptTexts(TextSettings):
    """In place of the settings: texts are wanted as they are, to be embedded by a trained network.

    Attributes:
        kept: Gets them, in the order of the rows.
    """

    kept: list[str] = Field(default_factory=list)

    def rows(self, texts: Iterable[str]) -> TextRows:
        """Keep texts; return rows of nothing in their place."""
        self.kept.extend(texts)
        num_empty = sum(not text.strip() for text in self.kept)
        return TextRows(np.zeros((len(self.kept), 1), np.float32), 0, {"num_texts_without_words": num_empty})


def text_rows(texts: Iterable[str], request: DatasetRequest) -> TextRows:
    """Turn texts into rows of word numbers. A text without a word becomes one unknown word.

    Args:
        texts: May be a generator.
        request: Says how many words a row has, longer texts being cut and shorter ones padded, how many numbers there
            are, and in how few texts a word of the vocabulary may occur.
    """
    if isinstance(request.text, KeptTexts):
        return request.text.rows(texts)
    length = request.text.length or USUAL_WORDS
    counted = count_words(texts, length)
    numbers = token_numbers(counted.words, counted.row_counts, request.min_release, request.text.vocabulary_size)
    num_known = int(np.count_nonzero(numbers != UNKNOWN))
    in_order = np.argsort(numbers, kind="stable")[len(numbers) - num_known :]
    return TextRows(
        features=_numbered(counted, numbers, length),
        vocabulary_size=NUM_SPECIAL + num_known,
        facts={
            "num_words": len(counted.words),
            "num_words_in_vocabulary": num_known,
            "num_texts_cut": counted.num_cut,
            "num_texts_without_words": int(np.count_nonzero(counted.lengths == 0)),
        },
        words=tuple(counted.words[place] for place in in_order.tolist()),
    )


def known_text_rows(texts: Iterable[str], words: Sequence[str], length: int) -> FloatArray:
    """Turn texts into rows by a vocabulary that is known, shape `(num_texts, length)`.

    Args:
        texts: May be a generator.
        words: Of the vocabulary, in the order of their numbers.
        length: Words of a row.
    """
    counted = count_words(texts, length)
    known = {word: number for number, word in enumerate(words, start=NUM_SPECIAL)}
    return _numbered(counted, np.array([known.get(word, UNKNOWN) for word in counted.words], np.int64), length)


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
    """Return the data set of some texts.

    Args:
        name: The data set's name.
        rows: The texts.
        labels: In `[0, len(class_names))`, shape `(num_texts,)`.
        class_names: One name a class.
        label: What is predicted.
        source: Citation.
        client_ids: The natural client of each text, or None.
        facts: Further facts for the record.
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
        kind="tokens" if rows.vocabulary_size else "embedding",
        vocabulary_size=rows.vocabulary_size,
    )
