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
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.errors import DataError
from fedscout.engine.text import listed, shown
from fedscout.experiments.data.dataset import (
    Dataset,
    DatasetRequest,
    Layout,
    Publication,
    choose_label,
    choose_parts,
    locate_layout,
    present_classes,
    usual_facts,
)
from fedscout.experiments.data.images import value_deviation
from fedscout.experiments.data.table_files import read_csv
from fedscout.experiments.data.texts import (
    LABEL,
    USUAL_CHARACTERS,
    CodeArray,
    code_points,
    next_character_dataset,
    text_dataset,
    text_rows,
    windows,
)

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


@dataclass(frozen=True)
class LeafUser:
    """One user's samples.

    Attributes:
        path: Source file.
        name: Name of the user.
        inputs: One per sample.
        targets: One per sample.
    """

    path: Path
    name: str
    inputs: list[Any]
    targets: list[Any]

    def fault(self, text: str) -> DataError:
        """Return an error that names the user and the file."""
        return DataError.of(f"{self.path}, user {self.name!r}:", problem=text)


def load_leaf_femnist(request: DatasetRequest) -> Dataset:
    """Load the images; the label is `character`, the natural client `writer`."""
    label = choose_label(request, ("character",), client="writer")
    images, labels, writers = [], [], []
    for user in _users(request, FEMNIST):
        images.append(_images(user))
        labels.append(_labels(user))
        writers += [user.name] * len(user.targets)
    features = np.concatenate(images) if images else np.empty((0, 1, SIDE, SIDE), np.float32)
    numbers, class_names = present_classes(
        request.name, np.concatenate(labels) if labels else np.empty(0, np.int64), CHARACTERS
    )
    return Dataset(
        name=request.name,
        features=features,
        labels=numbers,
        class_names=class_names,
        feature_names=(),
        source=str(FEMNIST),
        feature_unit=value_deviation(features) or 1.0,
        client_ids=np.array(writers),
        facts={**usual_facts(label, features, numbers), "num_natural_clients": len(set(writers))},
        kind="image",
    )


def load_leaf_shakespeare(request: DatasetRequest) -> Dataset:
    """Load the windows; the label is the next character, the natural client `role`."""
    choose_label(request, (LABEL,), client="role")
    if (request.text.length, request.text.stride) != (None, None):
        raise DataError.of(
            f"federation.text.length and federation.text.stride of data set {request.name!r}",
            "be left out, as its files already hold windows",
            f"{request.text.length} and {request.text.stride}",
        )
    clients: dict[str, CodeArray] = {}
    for user in _users(request, LEAF_SHAKESPEARE):
        part = _windows(user)
        previous = clients.get(user.name)
        lengths = {other.shape[1] for other in clients.values()} | {part.shape[1]}
        if len(lengths) > 1:
            raise user.fault(
                f"all windows must be of one length, got {' and '.join(str(n - 1) for n in sorted(lengths))}"
            )
        clients[user.name] = part if previous is None else np.concatenate([previous, part])
    return next_character_dataset(request, clients, str(LEAF_SHAKESPEARE))


def _images(user: LeafUser) -> FloatArray:
    try:
        pixels = np.array(user.inputs, np.float32)
    except (ValueError, TypeError, OverflowError):
        pixels = np.empty(0, np.float32)
    if pixels.shape != (len(user.inputs), SIDE * SIDE) or not ((pixels >= 0) & (pixels <= 1)).all():
        raise user.fault(f"every image must be a list of {SIDE * SIDE} numbers between 0 and 1")
    return pixels.reshape(-1, 1, SIDE, SIDE)


def _labels(user: LeafUser) -> IntArray:
    for target in user.targets:
        if type(target) is not int or not 0 <= target < len(CHARACTERS):
            raise user.fault(f"labels must be whole numbers from 0 to {len(CHARACTERS) - 1}, got {target!r}")
    return np.array(user.targets, np.int64)


def _windows(user: LeafUser) -> CodeArray:
    if not all(isinstance(text, str) for text in (*user.inputs, *user.targets)):
        raise user.fault("x and y must hold texts")
    lengths = sorted({len(text) for text in user.inputs})
    if len(lengths) > 1 or not lengths[0] or any(len(target) != 1 for target in user.targets):
        raise user.fault(f"all x must be of one length, at least 1, and all y of 1, got x of {lengths}")
    joined = "".join(text + target for text, target in zip(user.inputs, user.targets, strict=True))
    return code_points(joined).reshape(-1, lengths[0] + 1)


class _Samples(BaseModel):
    x: list[Any]
    y: list[Any]


class _LeafFile(BaseModel):
    """A file as LEAF writes it."""

    users: list[str]
    num_samples: list[int]
    user_data: dict[str, _Samples]


def _users(request: DatasetRequest, publication: Publication) -> Iterator[LeafUser]:
    """Yield all users with samples, file by file, in file order; a user may occur once per file."""
    parts = choose_parts(request)
    layouts = [Layout("divided files", tuple(f"{request.name}/{part}/*.json" for part in parts))]
    if parts == ("train", "test"):
        layouts.append(Layout("files not divided", (f"{request.name}/all_data/*.json",)))
    _, paths = locate_layout(request.name, layouts, publication, request.folder)
    for path in paths:
        request.limits.check_file(path)
        try:
            file = _LeafFile.model_validate_json(path.read_bytes())
        except OSError as error:
            raise DataError.of(path, problem=f"can't be read: {error}") from None
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = ".".join(map(str, fault["loc"])) or "the whole"
            must = "be JSON with users, num_samples and user_data, as LEAF writes it"
            raise DataError.of(path, f"{must}: {place}: {fault['msg']}") from None
        counts = dict(zip(file.users, file.num_samples, strict=False))
        if len({len(file.users), len(file.num_samples), len(counts)}) > 1 or counts.keys() != file.user_data.keys():
            raise DataError.of(path, "name each user once in users and user_data, with one of num_samples")
        for name, count in counts.items():
            user = LeafUser(path, name, file.user_data[name].x, file.user_data[name].y)
            sizes = (count, len(user.inputs), len(user.targets))
            if len(set(sizes)) > 1:
                raise user.fault(f"num_samples, x and y must be of one length, got {listed(map(str, sizes))}")
            if count:
                yield user


TINY_SHAKESPEARE = Publication(
    "Karpathy, tiny Shakespeare, 2015",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
)
SHAKESPEARE_LAYOUTS = tuple(
    Layout("text", (f"shakespeare/{name}",))
    for name in ("input.txt", "tinyshakespeare_input.txt", "tinyshakespeare.txt")
)
BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


def load_shakespeare(request: DatasetRequest) -> Dataset:
    """Load the windows; the label is the next character, the natural client `speaker`."""
    choose_label(request, (LABEL,), client="speaker")
    _, (path,) = locate_layout(request.name, SHAKESPEARE_LAYOUTS, TINY_SHAKESPEARE, request.folder)
    request.limits.check_file(path)
    speakers = read_speakers(path)
    length = request.text.length or USUAL_CHARACTERS
    stride = request.text.stride or length
    clients = {name: part for name, text in speakers.items() if len(part := windows(text, length, stride))}
    if not clients:
        longest = max(map(len, speakers.values()))
        raise DataError.of(
            f"federation.text.length of data set {request.name!r}",
            f"be below the {longest} characters of the longest speaker",
            length,
        )
    facts = {"num_speakers": len(speakers), "num_speakers_without_rows": len(speakers) - len(clients)}
    return next_character_dataset(request, clients, str(TINY_SHAKESPEARE), facts)


def read_speakers(path: Path) -> dict[str, str]:
    """Return the text of each speaker, speeches joined by newlines, in order of first appearance.

    Args:
        path: An existing file.

    Raises:
        DataError: If it is empty or not UTF-8, or a speech does not start with its speaker.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError.of(path, f"be UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise DataError.of(path, problem=f"can't be read: {error}") from None
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
    label = choose_label(request, ("polarity",), client="user")
    _, paths = locate_layout(request.name, SENTIMENT140_LAYOUTS, SENTIMENT140, request.folder)
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise DataError.of(f"data set {request.name!r}", "have one file training*.csv", f"{len(paths)}: {names}")
    path = paths[0]
    request.limits.check_file(path)
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
        request.name, np.array([POLARITIES[polarity] for polarity in polarities]), CLASS_NAMES
    )
    texts = text_rows((text or "" for text in rows["text"].to_pylist()), request)
    return text_dataset(request.name, texts, labels, class_names, label, str(SENTIMENT140), np.array(users))


def _encoding(path: Path) -> str:
    """Return the encoding of a file: UTF-8 if all of it can be decoded, else latin-1, as published."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"
