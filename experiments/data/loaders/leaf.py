"""LEAF's FEMNIST and Shakespeare, tiny Shakespeare, and Sentiment140.

`leaf_femnist` and `leaf_shakespeare`: S. Caldas et al., "LEAF: a benchmark for federated settings", arXiv:1812.01097,
2018. The format is that of its scripts, `data/femnist/preprocess/data_to_json.py` and `data/shakespeare/preprocess/` of
https://github.com/TalwalkarLab/leaf: a file is an object with `users` (names), `num_samples` (one number per user) and
`user_data` (by name: an object with the lists `x` and `y`). A data set is a folder of such files for training and one
for testing, as written by LEAF's scripts, or files that are not split yet.

`leaf_femnist`: digits and letters by writer, 28 × 28 pixels, 62 classes: digits, capital letters, small letters. Pixels
are numbers in `[0, 1]` already, with paper 1 and ink 0, and are not changed.

`leaf_shakespeare`: windows of 80 characters by speaking role. The files hold the windows, which overlap, each with its
next character, so length and stride cannot be set.

`shakespeare`: tiny Shakespeare, 1.1 million characters of plays by A. Karpathy, "The unreasonable effectiveness of
recurrent neural networks", 2015; the natural client is the speaker. A speech is a line `NAME:` and the following lines
up to an empty one. Each speaker's speeches, in order, are one text, which is cut into windows, as LEAF does for all
plays. LEAF's windows have a stride of one character; here they do not overlap unless `federation.text.stride` is set,
as overlapping windows put the same lines into a client's training and test rows. A speaker whose text is not longer
than a window has no row.

`sentiment140`: 1.6 million tweets, negative or positive; the natural client is the user. A. Go, R. Bhayani and L.
Huang, "Twitter sentiment classification using distant supervision", Stanford, 2009. The file has six columns: polarity
(0 negative, 2 neutral, 4 positive), id, date, query, user, text. As published it has no header and is latin-1; copies
with a header, or in UTF-8, are read as well. Words are numbered by `texts.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Annotated, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from fedscout.engine.errors import DataError
from fedscout.engine.text import shown
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, Layout, Publication, present_classes
from fedscout.experiments.data.images import image_dataset
from fedscout.experiments.data.table_files import read_csv, read_text
from fedscout.experiments.data.texts import LABEL, code_points, next_character_dataset, text_dataset, text_rows, windows

ADDRESS = "https://github.com/TalwalkarLab/leaf"
FEMNIST = Publication(
    "Caldas et al., LEAF: FEMNIST, 2018",
    ADDRESS,
    derivation="its script preprocess.sh in data/femnist writes data/train and data/test; put them there",
)
LEAF_SHAKESPEARE = Publication(
    "Caldas et al., LEAF: Shakespeare, 2018",
    ADDRESS,
    derivation="its script preprocess.sh in data/shakespeare writes data/train and data/test; put them there",
)
SIDE = 28
CHARACTERS = digits + ascii_uppercase + ascii_lowercase


Pixel = Annotated[float, Field(ge=0, le=1)]
Image = Annotated[list[Pixel], Field(min_length=SIDE * SIDE, max_length=SIDE * SIDE)]


class _Images(BaseModel):
    x: list[Image]
    y: list[Annotated[int, Field(strict=True, ge=0, lt=len(CHARACTERS))]]


class _Windows(BaseModel):
    x: list[Annotated[str, Field(min_length=1)]]
    y: list[Annotated[str, Field(min_length=1, max_length=1)]]


Samples = TypeVar("Samples", _Images, _Windows)


class _LeafFile(BaseModel, Generic[Samples]):
    """A file as LEAF writes it."""

    users: list[str]
    num_samples: list[int]
    user_data: dict[str, Samples]


def load_leaf_femnist(request: DatasetRequest) -> Dataset:
    """Load the images; the label is `character`, the natural client `writer`."""
    label = request.choose_label(("character",), client="writer")
    images, labels, writers = [np.empty((0, 1, SIDE, SIDE), np.float32)], [], []
    for _, writer, samples in _users(request, FEMNIST, _LeafFile[_Images]):
        images.append(np.array(samples.x, np.float32).reshape(-1, 1, SIDE, SIDE))
        labels += samples.y
        writers += [writer] * len(samples.y)
    facts = {"num_natural_clients": len(set(writers))}
    numbers = np.array(labels, np.int64)
    return image_dataset(
        request.dataset, np.concatenate(images), numbers, CHARACTERS, label, str(FEMNIST), facts, np.array(writers)
    )


def load_leaf_shakespeare(request: DatasetRequest) -> Dataset:
    """Load the windows; the label is the next character, the natural client `role`."""
    request.choose_label((LABEL,), client="role")
    if (request.text.length, request.text.stride) != (None, None):
        raise DataError.of(
            f"federation.text.length and federation.text.stride of data set {request.dataset!r}",
            "be left out, as its files already hold windows",
            f"{request.text.length} and {request.text.stride}",
        )
    texts: dict[str, str] = {}
    lengths: set[int] = set()
    for subject, role, samples in _users(request, LEAF_SHAKESPEARE, _LeafFile[_Windows]):
        lengths |= {len(window) for window in samples.x}
        if len(lengths) > 1:
            raise DataError.of(subject, "have windows of the length of all others", sorted(lengths))
        texts[role] = texts.get(role, "") + "".join(map("".join, zip(samples.x, samples.y, strict=True)))
    clients = {role: code_points(text).reshape(-1, min(lengths) + 1) for role, text in texts.items()}
    return next_character_dataset(request, clients, str(LEAF_SHAKESPEARE))


def _users(
    request: DatasetRequest, publication: Publication, form: type[_LeafFile[Samples]]
) -> Iterator[tuple[str, str, Samples]]:
    """Yield each user with samples, file by file, in file order: subject of messages, name and samples.

    A user may occur once per file.
    """
    parts = request.choose_parts()
    layouts = [Layout("divided files", tuple(f"{request.dataset}/{part}/*.json" for part in parts))]
    if parts == ("train", "test"):
        layouts.append(Layout("files not divided", (f"{request.dataset}/all_data/*.json",)))
    _, paths = publication.locate(request, *layouts)
    for path in paths:
        request.limits.check_file(path)
        try:
            file = form.model_validate_json(path.read_bytes())
        except OSError as error:
            raise DataError.of(path, problem=f"can't be read: {error}") from None
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = ".".join(map(str, fault["loc"])) or "the whole"
            must = f"be JSON with users, num_samples and user_data, as LEAF writes it: {place}: {fault['msg']}"
            raise DataError.of(path, must, shown(fault["input"])) from None
        counts = dict(zip(file.users, file.num_samples, strict=False))
        if len({len(file.users), len(file.num_samples), len(counts)}) > 1 or counts.keys() != file.user_data.keys():
            raise DataError.of(path, "name each user once in users and user_data, with one of num_samples")
        for name, count in counts.items():
            subject, samples = f"user {name!r} of {path}", file.user_data[name]
            if not count == len(samples.x) == len(samples.y):
                sizes = f"{count}, {len(samples.x)}, {len(samples.y)}"
                raise DataError.of(subject, "have num_samples, x and y of one length", sizes)
            if count:
                yield subject, name, samples


TINY_SHAKESPEARE = Publication(
    "Karpathy, tiny Shakespeare, 2015",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
)
SHAKESPEARE_LAYOUTS = tuple(
    Layout("text", (f"shakespeare/{name}",))
    for name in ("input.txt", "tinyshakespeare_input.txt", "tinyshakespeare.txt")
)
USUAL_CHARACTERS = 80
BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


def load_shakespeare(request: DatasetRequest) -> Dataset:
    """Load the windows; the label is the next character, the natural client `speaker`."""
    request.choose_label((LABEL,), client="speaker")
    _, (path,) = TINY_SHAKESPEARE.locate(request, *SHAKESPEARE_LAYOUTS)
    speakers = read_speakers(path, request)
    length = request.text.length or USUAL_CHARACTERS
    stride = request.text.stride or length
    clients = {name: part for name, text in speakers.items() if len(part := windows(text, length, stride))}
    if not clients:
        longest = max(map(len, speakers.values()))
        raise DataError.of(
            f"federation.text.length of data set {request.dataset!r}",
            f"be below the {longest} characters of the longest speaker",
            length,
        )
    facts = {"num_speakers": len(speakers), "num_speakers_without_rows": len(speakers) - len(clients)}
    return next_character_dataset(request, clients, str(TINY_SHAKESPEARE), facts)


def read_speakers(path: Path, request: DatasetRequest) -> dict[str, str]:
    """Return the text of each speaker, speeches joined by newlines, in order of first appearance.

    Args:
        path: An existing file.
        request: Maximum size.

    Raises:
        DataError: If it can't be read, is too large, empty or not UTF-8, or a speech does not start with its speaker.
    """
    text = read_text(path, limits=request.limits).replace("\r\n", "\n")
    speeches: dict[str, list[str]] = {}
    for number, block in enumerate(BLANK_LINES.split(text.strip()), start=1):
        speaker, _, speech = block.strip("\n").partition("\n")
        name = speaker.strip()
        if len(name) < 2 or not name.endswith(":"):
            raise DataError.of(
                f"every speech of {path}",
                "start with a line that names its speaker and ends with a colon",
                f"{speaker[:60] or 'nothing'!r} in speech {number}",
            )
        speeches.setdefault(name[:-1], []).append(speech)
    return {name: "\n".join(texts) for name, texts in speeches.items()}


SENTIMENT140 = Publication("Go, Bhayani and Huang, Sentiment140, 2009", "http://help.sentiment140.com/for-students")
SENTIMENT140_LAYOUTS = (
    Layout("published file", ("sentiment140/training.1600000.processed.noemoticon.csv",)),
    Layout("part of it", ("sentiment140/training*.csv",)),
)
COLUMNS = ("polarity", "id", "date", "query", "user", "text")
POLARITIES = {"0": 0, "2": 1, "4": 2}
CLASS_NAMES = ("negative", "neutral", "positive")


def load_sentiment140(request: DatasetRequest) -> Dataset:
    """Load the tweets; the label is `polarity`, the natural client `user`."""
    label = request.choose_label(("polarity",), client="user")
    _, paths = SENTIMENT140.locate(request, *SENTIMENT140_LAYOUTS)
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise DataError.of(f"data set {request.dataset!r}", "have one file training*.csv", f"{len(paths)}: {names}")
    path = paths[0]
    request.limits.check_file(path)  # before its encoding is looked at
    rows = read_csv(path, ",", COLUMNS, request.limits, _encoding(path))
    if rows["polarity"][0].as_py() not in POLARITIES or rows["text"][0].as_py() == str(len(COLUMNS) - 1):
        rows = rows.slice(1)  # a header of names or of column numbers
    polarities, users = rows["polarity"].to_pylist(), rows["user"].to_pylist()
    pairs = zip(polarities, users, strict=True)
    for row, (polarity, user) in enumerate(pairs, start=1):
        if polarity not in POLARITIES or user is None:
            must = f"hold a polarity of {', '.join(POLARITIES)} and a user in every row"
            raise DataError.of(path, must, f"{shown(f'{polarity}, {user}')} in row {row}")
    labels, class_names = present_classes(
        request.dataset, np.array([POLARITIES[polarity] for polarity in polarities]), CLASS_NAMES
    )
    texts = text_rows((text or "" for text in rows["text"].to_pylist()), request)
    return text_dataset(request.dataset, texts, labels, class_names, label, str(SENTIMENT140), np.array(users))


def _encoding(path: Path) -> str:
    """Return the encoding of a file: UTF-8 if all of it can be decoded, else latin-1, as published."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"
