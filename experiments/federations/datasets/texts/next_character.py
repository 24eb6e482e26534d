"""Next-character prediction: rows are windows of text, the class is the character that follows.

S. Caldas et al., "LEAF: a benchmark for federated settings", arXiv:1812.01097, 2018, whose windows hold 80 characters.
Characters are numbered by `vocabulary.py` from the counts of windows that hold them. A window whose next character is
not in the vocabulary has no class and is left out; inside a window such a character is unknown.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.dataset import Dataset, present_classes, usual_facts
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.texts.vocabulary import NUM_SPECIAL, UNKNOWN, token_numbers

USUAL_LENGTH = 80
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
    numbers, characters = _numbered(clients, request)
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


def _numbered(clients: Mapping[str, CodeArray], request: DatasetRequest) -> tuple[IntArray, dict[int, str]]:
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
