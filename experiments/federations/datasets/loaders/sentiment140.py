"""Sentiment140: 1.6 million tweets, negative or positive; the natural client is the user.

A. Go, R. Bhayani and L. Huang, "Twitter sentiment classification using distant supervision", Stanford, 2009.

The file has six columns: polarity (0 negative, 2 neutral, 4 positive), id, date, query, user, text. As published it has
no header and is latin-1; copies with a header, or in UTF-8, are read as well. Words are numbered by `vocabulary.py`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.column_choice import choose_label
from fedscout.experiments.federations.datasets.dataset import Dataset, present_classes
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.publication import Layout, Publication, locate_layout
from fedscout.experiments.federations.datasets.read_limits import ReadLimits
from fedscout.experiments.federations.datasets.texts.words import text_dataset, text_rows

SENTIMENT140 = Publication("Go, Bhayani and Huang, Sentiment140, 2009", "http://help.sentiment140.com/for-students")
LAYOUTS = (
    Layout("published file", ("sentiment140/training.1600000.processed.noemoticon.csv",)),
    Layout("part of it", ("sentiment140/training*.csv",)),
)
COLUMNS = (
    ("polarity", "target", "sentiment", "label", "0"),
    ("id", "ids", "1"),
    ("date", "2"),
    ("query", "flag", "3"),
    ("user", "4"),
    ("text", "5"),
)
POLARITIES = {"0": 0, "2": 1, "4": 2}
CLASS_NAMES = ("negative", "neutral", "positive")
PROBE_BYTES = 2**20


def load_sentiment140(request: DatasetRequest) -> Dataset:
    """Load the tweets; the label is `polarity`, the natural client `user`."""
    label = choose_label(request, ("polarity",), client="user")
    _, paths = locate_layout(request.name, LAYOUTS, SENTIMENT140, request.folder)
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise DataError(f"data set {request.name!r} must have one file training*.csv, got {len(paths)}: {names}")
    polarities: list[int] = []
    users: list[str] = []
    rows = text_rows(_texts(paths[0], polarities, users, request.limits), request)
    if not polarities:
        raise DataError(Fault(paths[0], "hold rows, but it has none"))
    labels, class_names = present_classes(request.name, np.array(polarities), CLASS_NAMES)
    return text_dataset(request.name, rows, labels, class_names, label, str(SENTIMENT140), np.array(users))


def _texts(path: Path, polarities: list[int], users: list[str], limits: ReadLimits) -> Iterator[str]:
    """Yield the texts of a file, and append polarity and user of each."""
    limits.check_file(path)
    number = 0
    try:
        with path.open(encoding=_encoding(path), newline="") as file:
            for number, fields in enumerate(csv.reader(file, strict=True), start=1):
                if not fields or (number == 1 and _is_header(path, fields)):
                    continue
                polarity, user, text = _checked(path, number, fields)
                limits.check_rows(path, number)
                polarities.append(polarity)
                users.append(user)
                yield text
    except csv.Error as error:
        raise DataError(
            Fault(path, f"be comma-separated text with quoted fields: {error} near row {number + 1}")
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(Fault(path, f"be UTF-8 or latin-1 text throughout: {error.reason}")) from None
    except OSError as error:
        raise DataError(f"{path} can't be read: {error}") from None


def _encoding(path: Path) -> str:
    """Return how a file is encoded: UTF-8 if all of it can be read so, else latin-1, as published."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while block := file.read(PROBE_BYTES):
                decoder.decode(block)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "latin-1"
    except OSError as error:
        raise DataError(f"{path} can't be read: {error}") from None
    return "utf-8-sig"


def _is_header(path: Path, fields: list[str]) -> bool:
    names = [field.strip().lower() for field in fields]
    if names[0] in POLARITIES and names != [allowed[-1] for allowed in COLUMNS]:
        return False
    if len(names) != len(COLUMNS) or any(name not in allowed for name, allowed in zip(names, COLUMNS, strict=True)):
        expected = ", ".join(allowed[0] for allowed in COLUMNS)
        raise DataError(
            Fault(
                path,
                (f"have the {len(COLUMNS)} columns {expected}, separated by commas, with or without a header"),
                hint=f"its first line is: {', '.join(fields)[:200]}",
            )
        )
    return True


def _checked(path: Path, number: int, fields: list[str]) -> tuple[int, str, str]:
    if len(fields) != len(COLUMNS):
        raise DataError(Fault(f"every row of {path}", f"have {len(COLUMNS)} fields", f"{len(fields)} in row {number}"))
    polarity = POLARITIES.get(fields[0].strip())
    if polarity is None:
        raise DataError(
            Fault(
                f"the polarity in {path}", f"be one of {', '.join(POLARITIES)}", f"{fields[0][:50]!r} in row {number}"
            )
        )
    user = fields[4].strip()
    if not user:
        raise DataError(Fault(f"every row of {path}", "name a user", f"nothing in row {number}"))
    return polarity, user, fields[5]
