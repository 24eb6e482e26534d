"""Words of short informal texts, and texts as rows of word numbers.

The reductions are those of A. Go, R. Bhayani and L. Huang, "Twitter sentiment classification using distant
supervision", Stanford, 2009: a name after @ becomes one token, an address another, and a letter that is repeated more
than twice is written twice. Beyond the paper: entities such as `&amp;` are resolved, capitals become small, a number is
one token, `!` and `?` are words, other signs separate.
"""

from __future__ import annotations

import html
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.experiments.federations.datasets.dataset import Dataset, TextArray, usual_facts
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.text_settings import TextSettings
from fedscout.experiments.federations.datasets.texts.vocabulary import NUM_SPECIAL, UNKNOWN, token_numbers

USUAL_LENGTH = 32
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
    length = request.text.length or USUAL_LENGTH
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
