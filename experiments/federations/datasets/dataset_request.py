"""What a data set's loader is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fedscout.engine.data.client_split import SplitKind
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.read_limits import (
    MAX_FILE_BYTES,
    MAX_FILE_ROWS,
    MAX_QUERY_SECONDS,
    ReadLimits,
)
from fedscout.experiments.federations.datasets.text_settings import TextSettings
from fedscout.experiments.federations.datasets.text_style import TextStyle, known_encoding, known_separator

LAST_ROWS: Final = "last"
"""The value of `federation.split` that is about the rows of each client, not about a published part."""

ColumnKind = Literal["number", "category", "date", "drop"]


def _with_names_as_text(columns: Any) -> Any:
    return {str(name): kind for name, kind in columns.items()} if isinstance(columns, Mapping) else columns


def _as_texts(values: Any) -> Any:
    if not isinstance(values, list):
        return values
    return [str(value) if isinstance(value, int | float) else value for value in values]


QUANTITIES: Final = ("diabetes",)
"""Data sets of the table whose label is a quantity."""


def names_files_of_clients(dataset: str) -> bool:
    """Whether a path stands for several files, such as `clients/*.csv`."""
    return not dataset.startswith("hf:") and "://" not in dataset and ("*" in dataset or "?" in dataset)


class DatasetRequest(BaseModel):
    """Which data, and which of their columns and rows: the part of a federation's configuration that loaders read."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    dataset: str = Field(default="digits", description="a name, a path of one's own data, or hf:owner/name")
    task: Literal["classification", "regression"] | None = Field(
        default=None,
        description="of one's own table: regression predicts the label as a quantity; nothing means classes, but for "
        "diabetes",
    )
    label: str | None = Field(default=None, description="column to predict, where the files have several candidates")
    client_column: str | None = Field(default=None, description="column of the natural clients")
    group_column: str | None = Field(
        default=None, description="column of what rows belong to, such as a subject: test and train share no group"
    )
    text_column: str | None = Field(default=None, description="column of texts, in one's own data")
    drop_columns: tuple[str, ...] = Field(default=(), description="columns of a table that are left out")
    columns: Annotated[Mapping[str, ColumnKind], BeforeValidator(_with_names_as_text)] = Field(
        default={},
        description="of one's own table: what a column is where what is found out is wrong, such as "
        "{zip: category, note: drop}; number, category, date or drop",
    )
    missing_values: Annotated[tuple[str, ...], BeforeValidator(_as_texts)] = Field(
        default=(),
        description="of one's own table: what stands for a missing value beside nothing, NA and the like, such as "
        "[-9999, unknown]",
    )
    query: str | None = Field(
        default=None,
        description="of one's own database: the one SELECT whose rows are the table, such as SELECT * FROM visits",
    )
    unlabelled_rows: Literal["drop", "fail"] = Field(
        default="drop",
        description="of one's own table: rows without a label, client or group are left out with a note (drop), or "
        "refused (fail)",
    )
    encoding: Annotated[str | None, AfterValidator(known_encoding)] = Field(
        default=None, description="of one's own text file: such as cp1252; nothing means UTF-8, or what is found out"
    )
    separator: Annotated[str | None, AfterValidator(known_separator)] = Field(
        default=None,
        description="of the columns of one's own text file: comma, semicolon, tab, bar, space (any white space) or one "
        "other character; nothing means what is found out",
    )
    header: bool | None = Field(
        default=None,
        description="whether the first line of one's own text file names the columns; false names them column1, "
        "column2, …; nothing means true, unless that line holds numbers",
    )
    folder: Path | None = Field(default=None, description="the data files; nothing means the folder FEDSCOUT_DATA")
    image_size: int = Field(
        default=32, ge=1, le=1024, description="width and height to which pictures of a folder are resized"
    )
    degraded_from: int | None = Field(
        default=None, ge=1, description="first degraded snapshot of a raw bearing test; nothing means the usual one"
    )
    split: str | None = Field(
        default=None,
        description="train, test or all, of data published in parts; of the hub, a part's name; last: each client's "
        "last rows are its test part",
    )
    text: TextSettings = Field(default=TextSettings(), description="how texts become rows")
    min_client_rows: int = Field(default=1, ge=1, description="natural clients with fewer rows are left out")
    max_rows: int | None = Field(
        default=None, ge=2, description="a random sample of so many rows, of those; nothing means all"
    )
    max_file_bytes: int = Field(
        default=MAX_FILE_BYTES, ge=1, description="a data file that is larger when unpacked is refused"
    )
    max_file_rows: int = Field(default=MAX_FILE_ROWS, ge=2, description="a table file of more rows is refused")
    max_query_seconds: float = Field(
        default=MAX_QUERY_SECONDS, gt=0, description="a database that takes longer to give its rows is refused"
    )
    min_release: int = Field(default=5, ge=1, description="fewest rows behind a number that answers a query")

    @property
    def name(self) -> str:
        """What the user wrote as `federation.dataset`: a name of the table, a path, or `hf:owner/name`."""
        return self.dataset

    @property
    def predicts_quantity(self) -> bool:
        """Whether a quantity is predicted, and no class."""
        return self.task == "regression" or (self.task is None and self.dataset in QUANTITIES)

    @property
    def part(self) -> str | None:
        """The part of published data that `federation.split` names; None where it names none."""
        return None if self.split == LAST_ROWS else self.split

    @property
    def split_kind(self) -> SplitKind:
        """How clients take their test rows."""
        return "last" if self.split == LAST_ROWS else "random"

    @property
    def has_file_a_client(self) -> bool:
        """Whether `federation.dataset` stands for several files, each of a client of its own."""
        return names_files_of_clients(self.dataset)

    @property
    def row_seed(self) -> int:
        """By which a sample of a table too large is drawn."""
        return 0

    @property
    def limits(self) -> ReadLimits:
        """How much of a file is read."""
        return ReadLimits(self.max_file_bytes, self.max_file_rows)

    @property
    def dropped(self) -> set[str]:
        """Columns that are left out, and may hold anything."""
        return {*self.drop_columns, *(column for column, kind in self.columns.items() if kind == "drop")}

    @property
    def text_style(self) -> TextStyle:
        """How a text file is written, as far as the user says it."""
        return TextStyle(self.encoding, self.separator, self.header)

    def require_fixed_columns(self, name: str, label: str) -> None:
        """Check that nothing else is asked of a data set that has one label and no natural clients.

        Args:
            name: The data set's name, for messages.
            label: Its label.

        Raises:
            DataError: If another label, or a client column, was given.
        """
        faults = []
        if self.label not in {None, label}:
            faults.append(Fault(f"federation.label of data set {name!r}", f"be {label!r}", repr(self.label)))
        if self.client_column is not None:
            faults.append(
                Fault(
                    "federation.client_column",
                    f"be left out, as data set {name!r} has no column of natural clients",
                    repr(self.client_column),
                )
            )
        if faults:
            raise DataError(faults)


DatasetLoader = Callable[[DatasetRequest], Dataset]
