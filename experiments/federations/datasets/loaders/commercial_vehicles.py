"""Commercial vehicles: readings of two dumpers' sensors, and in which of five states the vehicle was.

A. Mreish et al., "MFedBN: tackling data heterogeneity with gradient-based aggregation and advanced distribution skew
modeling", Sensors 25(23), 7314, 2025, describe the "Commercial Vehicles Sensor" data of Smartilizer Scandinavia:
1,699,983 rows with a timestamp, speed, gyroscope and accelerometer, of which `gFz` has the largest variance; the states
are idle, driving, loading, dumping and engine off. The data are not published, and of the columns the paper names `gFz`
alone. So what is read is one CSV file with a header: a column of states (`label` unless another is named), and columns
of readings under any names, which are read as those of one's own data are.

When a row was taken is never a feature: neither the columns called as `TIMES` are, nor any in which every cell is a
date or a time of day. Rows taken one after the other would be told apart by it, and a partition by the column of
largest variance (`fds_vop`) would sort by seconds since 1970.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.publication import Layout, Publication, locate_layout
from fedscout.experiments.federations.datasets.tables.own_table import dataset_from_own_table
from fedscout.experiments.federations.datasets.tables.parts_of_time import date_order
from fedscout.experiments.federations.datasets.tables.table_file import read_csv

if TYPE_CHECKING:
    import pyarrow as pa

COMMERCIAL_VEHICLES = Publication(
    "Commercial Vehicles Sensor data of Smartilizer Scandinavia, described by Mreish et al., MFedBN, Sensors 25(23), "
    "2025, and not published",
    "https://www.mdpi.com/1424-8220/25/23/7314",
    derivation="any CSV of readings with a column of the five states is read in its place",
)
LAYOUTS = (
    Layout("CSV", ("commercial_vehicles/*.csv",)),
    Layout("packed CSV", ("commercial_vehicles/*.csv.gz",)),
)
LABEL = "label"
STATES = ("idle", "driving", "loading", "dumping", "engine off")
TIMES = ("timestamp", "time stamp", "time", "date", "datetime")
SERIES = "readings of vehicles"


def load_commercial_vehicles(request: DatasetRequest) -> Dataset:
    """Load the readings; the usual label is `label`, and any column may name natural clients, such as the vehicle."""
    _, paths = locate_layout(request.name, LAYOUTS, COMMERCIAL_VEHICLES, request.folder)
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise DataError(f"data set {request.name!r} must have one CSV file in its folder, got {len(paths)}: {names}")
    rows = read_csv(paths[0], nameless_index=True, limits=request.limits)
    label = request.label or LABEL
    times = [column for column in _times(rows) if column not in {label, request.client_column, *request.drop_columns}]
    without_times = request.model_copy(update={"drop_columns": (*request.drop_columns, *times)})
    dataset = dataset_from_own_table(request.name, rows, without_times, label, str(COMMERCIAL_VEHICLES))
    return replace(_with_states(dataset, label), series=SERIES)


def _times(rows: pa.Table) -> list[str]:
    """Return the columns that say when a row was taken."""
    return [name for name in rows.column_names if _plain(name) in TIMES or date_order(rows[name]) is not None]


def _with_states(dataset: Dataset, label: str) -> Dataset:
    """Return the data set with its classes called as the states are.

    Raises:
        DataError: If a class is none of them, or a state is written in two ways.
    """
    states = tuple(map(_plain, dataset.class_names))
    foreign = [name for name, state in zip(dataset.class_names, states, strict=True) if state not in STATES]
    if foreign or len(set(states)) < len(states):
        raise DataError(
            Fault(
                f"column {label!r} of data set {dataset.name!r}",
                f"hold the states {', '.join(STATES)}, each written in one way",
                ", ".join(map(repr, foreign or dataset.class_names)),
                ("a table of other classes is one's own data, which federation.dataset names by its path"),
            )
        )
    return replace(dataset, class_names=states)


def _plain(name: str) -> str:
    """Return a name in small letters, with spaces for underscores."""
    return name.lower().replace("_", " ")
