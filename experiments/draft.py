"""A draft configuration for a user's table: suggestions from its first rows, and a YAML file with comments."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.data.dataset import DatasetRequest
from fedscout.experiments.data.own import own_place

if TYPE_CHECKING:
    import pyarrow as pa

Aim = Literal["accuracy", "classes", "clients"]
Time = Literal["minutes", "hour", "night"]

DEMO = "digits"
NUM_ROWS_EXAMINED = 5_000
LABEL_NAMES = (
    *("label", "target", "class", "outcome", "diagnosis", "y"),
    *("sentiment", "fault", "status", "grade", "quality"),
)
CLIENT_NAMES = (
    *("client", "site", "hospital", "machine", "device", "user", "station", "center", "centre", "region", "country"),
    *("branch", "plant", "vehicle", "sensor", "ward", "school", "airline", "store", "bank", "city"),
)
MOST_CLASSES_SUGGESTED = 20
MOST_CLIENTS_SUGGESTED = 200
FEWEST_ROWS_A_CLIENT = 5

AIMS: dict[Aim, tuple[str, str]] = {
    "accuracy": ("every row counts equally", ""),
    "classes": ("every class counts equally", "training:\n  metric: balanced_accuracy  # mean over classes\n"),
    "clients": (
        "the clients with the lowest scores count",
        "search:\n  objective: worst_clients  # mean of the worst tenth of clients\n",
    ),
}
TIMES: dict[Time, tuple[int, int, int]] = {"minutes": (10, 4, 3), "hour": (30, 8, 5), "night": (100, 32, 10)}
"""Rounds per trial, trials, and seeds of the confirmation."""


@dataclass(frozen=True)
class TableHead:
    """Suggestions from the first rows of a table.

    Attributes:
        columns: Its columns.
        label: The column that most likely is the label.
        client: The column that most likely identifies clients, or None.
    """

    columns: tuple[str, ...]
    label: str
    client: str | None


@dataclass(frozen=True)
class Draft:
    """Settings of a draft study.

    Attributes:
        dataset: A name, path or address.
        label: The label column; None for data sets with known labels.
        client: The client column; None partitions the rows.
        aim: Goal of the study.
        time: Time budget.
    """

    dataset: str
    label: str | None = None
    client: str | None = None
    aim: Aim = "accuracy"
    time: Time = "hour"

    @property
    def text(self) -> str:
        """The YAML file."""
        rounds, budget, seeds = TIMES[self.time]
        lines = [
            "# Run this study with `fedscout run study.yaml`; `fedscout keys` lists all settings.",
            "federation:",
            f"  dataset: {_quoted(self.dataset)}  # a relative path starts at the working directory",
        ]
        if self.label is not None:
            lines.append(f"  label: {_quoted(self.label)}  # the column to predict")
        if self.client is not None:
            lines.append(f"  client_column: {_quoted(self.client)}  # each of its values is a client")
        else:
            lines.append("  num_clients: 10  # rows are partitioned among them")
            lines += ["  partition:", "    kind: dirichlet", "    alpha: 0.5  # smaller: clients' classes differ more"]
        if self.label is not None:
            lines.append("  # columns: {zip: category, note: drop}  # to override `fedscout describe study.yaml`")
        training = [f"  num_rounds: {rounds}  # of each training"]
        search = [
            f"  budget: {budget}  # trainings besides FedAvg",
            f"  confirmation_seeds: {seeds}  # new trainings of the winner and of FedAvg",
        ]
        head, _, rest = AIMS[self.aim][1].partition("\n")
        {"training:": training, "search:": search}.get(head, []).append(rest.rstrip())
        return "\n".join([*lines, "training:", *training, "search:", *search, ""])


def suggested_dataset() -> str:
    """Return the newest table in the working directory, or the data set of the demo."""
    from fedscout.experiments.data.table_formats import SUFFIXES

    paths = [Path(entry) for entry in os.listdir() if entry.lower().endswith(SUFFIXES)]
    files = [path for path in paths if path.is_file()]
    return str(max(files, key=lambda path: path.stat().st_mtime)) if files else DEMO


def table_suggestions(dataset: str) -> TableHead | None:
    """Return suggestions from the first rows of a user's table; None for other data.

    Args:
        dataset: Value of `federation.dataset`.

    Raises:
        UserError: If it can't be read.
    """
    from fedscout.experiments.data.loaders.hugging_face import is_hugging_face
    from fedscout.experiments.data.loaders.table import DATASETS, is_own_data
    from fedscout.experiments.data.table_formats import read_table

    if dataset in DATASETS or is_hugging_face(dataset):
        return None
    if not is_own_data(dataset):
        raise ConfigurationError.of("the data", f"be a file, or one of {', '.join(DATASETS)}", repr(dataset))
    request = DatasetRequest(dataset=dataset)
    location = own_place(request)
    if isinstance(location, Path) and location.is_dir():
        return None
    table = read_table(location[0] if isinstance(location, list) else location, request).rows
    head = table.slice(0, NUM_ROWS_EXAMINED)
    columns = tuple(head.column_names)
    label = _label(head)
    return TableHead(columns, label, None if isinstance(location, list) else _client(head, label))


def _label(head: pa.Table) -> str:
    """Return the column named like a label, or else the last one with few values, or else the last one."""
    columns: list[str] = head.column_names
    named = [name for word in LABEL_NAMES for name in columns if word == _noun(name)]
    with_few_values = [name for name in columns if 2 <= _num_different(head[name]) <= MOST_CLASSES_SUGGESTED]
    named_with_few_values = [name for name in named if name in with_few_values]
    return [*named_with_few_values, *named, *with_few_values[-1:], columns[-1]][0]


def _client(head: pa.Table, label: str) -> str | None:
    """Return the column named like a client whose values repeat, or None."""
    most = min(MOST_CLIENTS_SUGGESTED, len(head) // FEWEST_ROWS_A_CLIENT)
    candidates = [name for name in head.column_names if name != label and 2 <= _num_different(head[name]) <= most]
    return next((name for word in CLIENT_NAMES for name in candidates if word == _noun(name)), None)


def _noun(name: str) -> str:
    """Return the last word of a name, ignoring words such as `id`."""
    words = name.lower().replace("-", "_").replace(" ", "_").split("_")
    return next((word for word in reversed(words) if word not in {"id", "name", "no", "code"}), "")


def _num_different(cells: pa.ChunkedArray) -> int:
    import pyarrow.compute as pc

    return int(pc.count_distinct(cells).as_py())


def _quoted(text: str) -> str:
    """Return a text as a quoted YAML string."""
    return json.dumps(text, ensure_ascii=False)
