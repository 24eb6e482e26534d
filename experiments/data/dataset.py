"""Data sets, their files, the user's request for one, and the settings of text files.

`Publication` and `Layout` say where files come from and lie. Sizes are limited when unpacked (`ReadLimits`), because a
small compressed file can expand beyond any machine's memory.

`Dataset` is the in-memory form used by the rest of the program: features, labels, classes and their source.
`DatasetRequest` is the part of the configuration passed to every loader; its `choose_label` and `choose_parts` check it
for data sets whose files define the label, the natural clients and the official splits. Arguments that messages propose
are quoted where the shell or YAML requires it.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.federation import SplitKind
from fedscout.engine.errors import DataError, Fault, UserError, first_line
from fedscout.engine.text import did_you_mean

FOLDER_VARIABLE = "FEDSCOUT_DATA"
START_VARIABLE = "FEDSCOUT_START"
NUM_NAMES_SHOWN = 2


@dataclass(frozen=True)
class Publication:
    """Publication of a data set.

    Attributes:
        citation: Authors, title, publisher, year.
        address: URL of the publisher.
        derivation: How to derive the files from the published ones; empty if they are the published ones.
    """

    citation: str
    address: str
    derivation: str = ""

    def __str__(self) -> str:
        return f"{self.citation}, {self.address}"

    @property
    def origin(self) -> str:
        """Where to get the files, as the end of a sentence."""
        text = f"{self.citation} is published at {self.address}"
        return f"{text}; {self.derivation}" if self.derivation else text

    def folder(self, request: DatasetRequest, wanted: str) -> Path:
        """Return the configured data folder, or the one in the environment variable `FEDSCOUT_DATA`.

        Args:
            request: User settings.
            wanted: Required files, for messages.

        Raises:
            DataError: If no folder is configured.
        """
        root = request.folder or os.environ.get(FOLDER_VARIABLE)
        if not root:
            raise DataError.of(
                "federation.folder",
                f"name the folder that data set {request.dataset!r} is read from",
                "nothing",
                f"put {wanted} in place and set {FOLDER_VARIABLE} or federation.folder to that folder; {self.origin}",
            )
        return Path(root).expanduser()

    def files(self, request: DatasetRequest, *names: str) -> list[Path]:
        """Return the paths of files, given relative to the data folder.

        Raises:
            DataError: As `locate`.
        """
        return self.locate(request, Layout("files", names))[1]

    def locate(self, request: DatasetRequest, *layouts: Layout) -> tuple[Layout, list[Path]]:
        """Return the first complete layout, of those in order of preference, and the paths of its files.

        Raises:
            DataError: If no folder is configured, or no layout is complete; lists the missing files of a partially
                present one.
        """
        wanted = " or ".join(map(str, layouts))
        root = self.folder(request, wanted)
        partial = ""
        for layout in layouts:
            paths_by_file = layout.find(root)
            if all(paths_by_file):
                return layout, [path for paths in paths_by_file for path in paths]
            if any(paths_by_file) and not partial:
                missing = [file for file, paths in zip(layout.files, paths_by_file, strict=True) if not paths]
                partial = f"; the {layout.name} lacks {', '.join(missing)}"
        must = f"hold {wanted} for data set {request.dataset!r}"
        raise DataError.of(root, must, f"none of them completely{partial}", self.origin)


@dataclass(frozen=True)
class Layout:
    """One file layout in which a data set is distributed.

    Attributes:
        name: Name of the layout, for messages.
        files: Files relative to the data folder; `*` in a name matches any text, and several files.
        packed: Whether a file name may end in `.gz`.
    """

    name: str
    files: tuple[str, ...]
    packed: bool = False

    def find(self, root: Path) -> list[list[Path]]:
        """Return the paths of each file in a data folder, in alphabetical order; empty if it is missing."""
        return [
            sorted(path for path in root.glob(file) if path.is_file())
            or [path for path in [root / f"{file}.gz"] if self.packed and path.is_file()]
            for file in self.files
        ]

    def __str__(self) -> str:
        shown = [f"${FOLDER_VARIABLE}/{file}" for file in self.files[:NUM_NAMES_SHOWN]]
        if len(self.files) > NUM_NAMES_SHOWN:
            shown += ["…", self.files[-1].rpartition("/")[2]]
        return f"the {self.name} ({', '.join(shown)}{', each also as .gz' if self.packed else ''})"


MAX_FILE_BYTES = 2_000_000_000
MAX_FILE_ROWS = 10_000_000
MAX_CELL_LENGTH = 131_072
MAX_QUERY_SECONDS = 15.0


@dataclass(frozen=True)
class ReadLimits:
    """Maximum size of a data file.

    Attributes:
        max_bytes: Its size, unpacked (`federation.max_file_bytes`).
        max_rows: Rows of a table (`federation.max_file_rows`).
    """

    max_bytes: int = MAX_FILE_BYTES
    max_rows: int = MAX_FILE_ROWS

    def check_bytes(self, path: Path | str, num_bytes: int) -> None:
        """Check the size of a file, or the number of bytes unpacked so far.

        Raises:
            DataError: If it is too large; the message names the key that raises the limit.
        """
        if num_bytes > self.max_bytes:
            raise DataError.of(
                path, f"hold at most federation.max_file_bytes={self.max_bytes} bytes when unpacked", "more"
            )

    def check_rows(self, path: Path | str, num_rows: int) -> None:
        """Check the number of rows of a table, or of rows read so far.

        Raises:
            DataError: If there are too many; the message names the key that raises the limit.
        """
        if num_rows > self.max_rows:
            raise DataError.of(path, f"hold at most federation.max_file_rows={self.max_rows} rows", "more")

    def check_file(self, path: Path) -> None:
        """Check that a path is a regular file, as reading a pipe or a device may never end, and not too large.

        Raises:
            DataError: If it is neither, or its metadata can't be read.
        """
        with reading(path, OSError):
            if not path.is_file():
                raise DataError.of(path, "be a file, but it is a pipe, a device or a folder")
            self.check_bytes(path, path.stat().st_size)


@contextmanager
def reading(source: Path | str, *errors: type[Exception], kind: str = "") -> Iterator[None]:
    """Raise errors of these classes as a `DataError` of what is read; lack of memory is raised as it is.

    Args:
        source: The file or folder.
        errors: Classes of errors.
        kind: What it is to be, such as `an Arrow file`; empty if that is open.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except errors as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
        raise DataError.of(source, problem=f"can't be read{kind and f' as {kind}'}: {reason}") from None


USUAL_LIMITS = ReadLimits()
NO_LIMITS = ReadLimits(sys.maxsize, sys.maxsize)


TextArray = npt.NDArray[np.str_]
PixelArray = npt.NDArray[np.uint8]
DataKind = Literal["table", "image", "tokens"]
"""What a row is: a line of columns; `(channels, height, width)`; `(length,)` token numbers."""

BLOCK_ROWS = 1024
DIGEST_BYTES = 16


def blocks(num_rows: int, block_rows: int = BLOCK_ROWS) -> Iterator[slice]:
    """Yield consecutive slices of all rows, which bound the memory of what is computed of each."""
    for start in range(0, num_rows, block_rows):
        yield slice(start, start + block_rows)


@dataclass(frozen=True)
class Dataset:
    """All rows of one data set, before partitioning.

    Attributes:
        name: Name by which it is selected.
        features: float32, finite, shape `(num_rows, *feature_shape)`.
        labels: int64 in `[0, len(class_names))`, every class present, shape `(num_rows,)`.
        class_names: One name per class, in label order.
        feature_names: One name per column for tabular data, else empty.
        source: Citation: who published the data, and where.
        feature_unit: One standard deviation of a feature, in the stored scale; the unit of a scenario's noise.
        client_ids: Natural client of each row, shape `(num_rows,)`, or None.
        groups: Group of each row, such as a subject, in `[0, num_groups)`, int64, shape `(num_rows,)`; None if rows are
            independent.
        series: Description of the time series that the rows form, in time order, or empty; neighbouring rows of a
            series are not independent.
        facts: Counts to record: rows, duplicates, dropped rows.
        kind: Type of a row; models and detectors depend on it.
        vocabulary_size: For tokens: integers in `[0, vocabulary_size)`, stored as float32; 0 is padding.
        deviations: For standardised tables: each column's standard deviation before, shape `(num_columns,)`.
        targets: Regression target, float64, shape `(num_rows,)`; None for classification. Labels are then its deciles.
        encoding: Encoding of table columns as features (`tables.py`); None if no further tables can be encoded.
    """

    name: str
    features: FloatArray
    labels: IntArray
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    source: str
    feature_unit: float = 1.0
    client_ids: TextArray | None = None
    groups: IntArray | None = None
    series: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    kind: DataKind = "table"
    vocabulary_size: int = 0
    deviations: npt.NDArray[np.float64] | None = None
    targets: npt.NDArray[np.float64] | None = None
    encoding: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        assert self.features.dtype == np.float32
        assert self.labels.dtype == np.int64
        assert len(self.features) == len(self.labels)
        # a mask of all rows would be a quarter of the features' memory
        assert all(np.isfinite(self.features[rows]).all() for rows in blocks(len(self.features)))
        assert (np.bincount(self.labels, minlength=len(self.class_names)) > 0).all()
        assert not self.feature_names or self.features.shape[1:] == (len(self.feature_names),)
        assert self.client_ids is None or len(self.client_ids) == len(self.labels)
        assert self.targets is None or self.targets.shape == self.labels.shape
        assert self.groups is None or self.groups.shape == self.labels.shape
        assert self.deviations is None or self.deviations.shape == self.features.shape[1:]
        assert (self.vocabulary_size > 0) == (self.kind == "tokens")

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


def distinct_texts(texts: TextArray) -> tuple[TextArray, IntArray]:
    """Return the distinct texts in alphabetical order, and the index of each text in them, shape `(num_texts,)`.

    Equivalent to `np.unique` with inverse, but only the distinct texts are sorted.
    """
    import pandas as pd

    positions, names = pd.factorize(texts.astype(object), sort=True)
    return names.astype(np.str_), positions.astype(np.int64)


LARGEST_PIXEL = 255


def unit_pixels(pixels: npt.NDArray[Any]) -> FloatArray:
    """Return pixels in `[0, 1]`, float32, of the same shape."""
    features = np.empty(pixels.shape, np.float32)
    for block in blocks(len(pixels)):
        np.divide(pixels[block], np.float32(LARGEST_PIXEL), out=features[block])
    return features


def usual_facts(
    label: str, rows: npt.NDArray[np.number] | Iterator[npt.NDArray[np.number]], labels: IntArray
) -> dict[str, Any]:
    """Return the facts recorded for every data set: the label and the numbers of rows and of duplicate rows.

    Args:
        label: Name of the label.
        rows: Rows to compare, as for `duplicate_rows`.
        labels: Shape `(num_rows,)`.
    """
    return {"label": label, "num_rows": len(labels), "num_duplicate_rows": duplicate_rows(rows, labels)}


def duplicate_rows(rows: npt.NDArray[np.number] | Iterator[npt.NDArray[np.number]], labels: IntArray) -> int:
    """Return the number of rows that repeat an earlier row, label included.

    They are kept, as published, but the count is recorded: copies of a row can end up on both sides of a client's train
    and test split. Rows are compared by 128-bit digests, block by block, as sorting whole rows takes minutes for 60,000
    images.

    Args:
        rows: Shape `(num_rows, *row_shape)`, finite; or consecutive blocks of such rows.
        labels: Shape `(num_rows,)`.
    """
    return len(labels) - len({*row_digests(rows, labels)})


def row_digests(rows: npt.NDArray[np.number] | Iterator[npt.NDArray[np.number]], labels: IntArray) -> Iterator[bytes]:
    """Yield the digest of each row with its label; arguments as for `duplicate_rows`."""
    parts = (rows[block] for block in blocks(len(rows))) if isinstance(rows, np.ndarray) else rows
    end = 0
    for part in parts:
        block = np.ascontiguousarray(part)
        if block.dtype.kind == "f":
            block = block + 0.0  # a negative zero equals zero, but not bit for bit
        end += len(block)
        for row, label in zip(block, labels[end - len(block) : end].tolist(), strict=True):
            digest = hashlib.blake2b(row.data, digest_size=DIGEST_BYTES)
            digest.update(label.to_bytes(8, "little", signed=True))
            yield digest.digest()


def present_classes(
    name: str, labels: npt.NDArray[np.integer], class_names: Sequence[str]
) -> tuple[IntArray, tuple[str, ...]]:
    """Return labels renumbered over the classes that occur, in the original order, and their names.

    A part of the files, or a sample of rows, may lack some classes.

    Args:
        name: Name of the data set, for messages.
        labels: In `[0, len(class_names))`, shape `(num_rows,)`.
        class_names: One name per class.

    Raises:
        DataError: If there are fewer than two.
    """
    numbers = labels.astype(np.int64)
    occurs = np.bincount(numbers, minlength=len(class_names)) > 0
    names = tuple(class_names[index] for index in np.flatnonzero(occurs).tolist())
    if len(names) < 2:
        raise DataError.of(f"data set {name!r}", "hold at least two classes", f"{len(names)}: {', '.join(names)}")
    return (np.cumsum(occurs) - 1)[numbers].astype(np.int64), names


PLAIN_NAME = re.compile(r"\w[\w-]*")
PLAIN_TEXT = re.compile(r"[^\W\d][\w-]*")
WORDS_OF_YAML = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}


def text_argument(key: str, value: str) -> str:
    """Return the argument `federation.KEY=VALUE` for a text-valued key."""
    return shlex.quote(f"federation.{key}={_quoted(value)}")


def list_argument(key: str, *values: str) -> str:
    """Return the argument `federation.KEY=[VALUE, …]`; unquoted if all values are plain, as shells accept brackets."""
    argument = f"federation.{key}=[{','.join(map(_quoted, values))}]"
    return argument if all(map(_is_plain, values)) else shlex.quote(argument)


def column_key(name: str, kind: str) -> str:
    """Return the argument that sets the kind of a column."""
    if PLAIN_NAME.fullmatch(name):
        return f"federation.columns.{name}={kind}"
    return shlex.quote(f"federation.columns={{{json.dumps(name, ensure_ascii=False)}: {kind}}}")


def _quoted(value: str) -> str:
    return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)


def _is_plain(value: str) -> bool:
    return PLAIN_TEXT.fullmatch(value) is not None and value.lower() not in WORDS_OF_YAML


LARGEST_VOCABULARY = 1_000_000  # whole numbers stay exact in float32 up to 2**24


class TextSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings for converting texts to rows of tokens."""

    length: int | None = Field(
        default=None, ge=1, le=4096, description="tokens per row; 32 words or 80 characters by default"
    )
    stride: int | None = Field(
        default=None,
        ge=1,
        description="characters from one window to the next; the window's length (no overlap) by default",
    )
    vocabulary_size: int = Field(
        default=10_000, ge=3, le=LARGEST_VOCABULARY, description="largest vocabulary, including padding and unknown"
    )


SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": " "}


def known_encoding(name: str | None) -> str | None:
    """Return Python's canonical name of a text encoding.

    Raises:
        ValueError: If Python has no encoding of this name.
    """
    if name is None:
        return None
    try:
        "".encode(name)
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise ValueError(f"must name an encoding, such as utf-8, cp1252 or utf-16, got {name!r}") from None


def known_separator(name: str | None) -> str | None:
    """Return the separator character for a name, or the character itself.

    Raises:
        ValueError: If it is neither, or a character that occurs in cells.
    """
    character = name if name is None else SEPARATORS.get(name, name)
    if character is not None and (len(character) != 1 or character.isalnum() or character in "\"'.+-_\r\n"):
        raise ValueError(
            f"must be {', '.join(SEPARATORS)}, or one character other than a letter, digit, quote or sign, got {name!r}"
        )
    return character


SPLITS: Final = ("train", "test", "all")
LAST_ROWS: Final = "last"
"""The value of `federation.split` that applies to each client's rows, not to a published part."""

ColumnKind = Literal["number", "category", "date", "drop"]


def _with_names_as_text(columns: Any) -> Any:
    return {str(name): kind for name, kind in columns.items()} if isinstance(columns, Mapping) else columns


def _as_texts(values: Any) -> Any:
    if not isinstance(values, list):
        return values
    return [str(value) if isinstance(value, int | float) else value for value in values]


HUB: Final = "hf:"
"""Beginning of an address on the Hugging Face hub."""

QUANTITIES: Final = ("diabetes",)
"""Data sets of the table for regression."""


def names_files_of_clients(dataset: str) -> bool:
    """Return whether a path is a pattern for several files, such as `clients/*.csv`."""
    return not dataset.startswith(HUB) and "://" not in dataset and ("*" in dataset or "?" in dataset)


class DatasetRequest(BaseModel):
    """The data set, columns and rows to load: the part of a federation's configuration that loaders read."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    dataset: str = Field(
        default="digits", description="name of a data set, path or address of your own data, or hf:owner/name"
    )
    task: Literal["classification", "regression"] | None = Field(
        default=None,
        description="regression or classification of your own table; classification by default, except for diabetes",
    )
    label: str | None = Field(default=None, description="column to predict")
    client_column: str | None = Field(default=None, description="column that names each row's client")
    group_column: str | None = Field(
        default=None,
        description="column of groups of rows, such as subjects; no group is in both training and test data",
    )
    text_column: str | None = Field(default=None, description="column of texts in your own data")
    drop_columns: tuple[str, ...] = Field(default=(), description="columns to leave out")
    columns: Annotated[Mapping[str, ColumnKind], BeforeValidator(_with_names_as_text)] = Field(
        default={},
        description=(
            "your own table: corrects the detected kind of columns, such as {zip: category, note: "
            "drop}; number, category, date or drop"
        ),
    )
    missing_values: Annotated[tuple[str, ...], BeforeValidator(_as_texts)] = Field(
        default=(), description="your own table: additional codes of missing values, such as [-9999, unknown]"
    )
    query: str | None = Field(
        default=None, description="your own database: the SELECT whose rows are the table, such as SELECT * FROM visits"
    )
    encoding: Annotated[str | None, AfterValidator(known_encoding)] = Field(
        default=None, description="your own text file: encoding, such as cp1252; UTF-8 or the detected one by default"
    )
    separator: Annotated[str | None, AfterValidator(known_separator)] = Field(
        default=None,
        description=(
            "your own text file: column separator: comma, semicolon, tab, bar, space or one other "
            "character; detected by default, except space"
        ),
    )
    header: bool | None = Field(
        default=None,
        description=(
            "your own text file: whether the first line names the columns; false names them "
            "column1, column2, …; by default true, unless that line holds numbers"
        ),
    )
    folder: Path | None = Field(default=None, description="folder of the data files; FEDSCOUT_DATA by default")
    image_size: int = Field(
        default=32, ge=1, le=1024, description="width and height to which images of a folder are resized"
    )
    split: str | None = Field(
        default=None,
        description=(
            "for data published in parts: train, test or all; for the hub a split's name; last: "
            "each client's last rows are its test set"
        ),
    )
    text: TextSettings = Field(default=TextSettings(), description="how texts are tokenized")
    min_client_rows: int = Field(default=1, ge=1, description="natural clients with fewer rows are left out")
    max_rows: int | None = Field(
        default=None, ge=2, description="size of a random sample of the remaining rows; all by default"
    )
    max_file_bytes: int = Field(
        default=MAX_FILE_BYTES, ge=1, description="largest unpacked size of a data file in bytes"
    )
    max_file_rows: int = Field(default=MAX_FILE_ROWS, ge=2, description="largest number of rows of a table file")
    max_query_seconds: float = Field(default=MAX_QUERY_SECONDS, gt=0, description="time limit of a database query")
    min_release: int = Field(
        default=5, ge=1, description="smallest number of rows behind any number that answers a query"
    )

    @property
    def predicts_quantity(self) -> bool:
        """Whether the task is regression rather than classification."""
        return self.task == "regression" or (self.task is None and self.dataset in QUANTITIES)

    @property
    def part(self) -> str | None:
        """Part of the published data selected by `federation.split`; None if it selects none."""
        return None if self.split == LAST_ROWS else self.split

    @property
    def split_kind(self) -> SplitKind:
        """How each client's test rows are chosen."""
        return "last" if self.split == LAST_ROWS else "random"

    @property
    def limits(self) -> ReadLimits:
        """Maximum size of a file."""
        return ReadLimits(self.max_file_bytes, self.max_file_rows)

    @property
    def dropped(self) -> set[str]:
        """Columns that are left out, and may hold values of any type."""
        return {*self.drop_columns, *(column for column, kind in self.columns.items() if kind == "drop")}

    def choose_label(self, labels: tuple[str, ...], client: str | None = None) -> str:
        """Return the label to predict.

        Args:
            labels: Labels in the files, the default first.
            client: Name of the natural clients, or None. The client column may be omitted, as the files define them.

        Raises:
            DataError: If another label, or another client column, is requested.
        """
        faults, of_data_set = [], f"of data set {self.dataset!r}"
        if self.label not in {None, *labels}:
            must = f"be one of {', '.join(map(repr, labels))}"
            given = f"{self.label!r}{did_you_mean(self.label, labels)}"
            faults.append(Fault(f"federation.label {of_data_set}", must, given))
        if self.client_column not in {None, client}:
            missing = "left out, as its files have no column of natural clients and no other is known"
            must = f"be {f'{client!r} or left out' if client else missing}"
            faults.append(Fault(f"federation.client_column {of_data_set}", must, repr(self.client_column)))
        if faults:
            raise DataError(faults)
        return self.label or labels[0]

    def choose_parts(self) -> tuple[str, ...]:
        """Return the official parts to read: `("train",)`, `("test",)` or both.

        Raises:
            DataError: If `federation.split` is none of them.
        """
        split = self.part or "train"
        if split not in SPLITS:
            must = f"be one of {', '.join(SPLITS)}"
            raise DataError.of(f"federation.split of data set {self.dataset!r}", must, repr(split))
        return ("train", "test") if split == "all" else (split,)
