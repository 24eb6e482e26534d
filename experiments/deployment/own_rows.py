"""The rows of one real client: a file or folder of its owner's, arrays from its owner's code, or a simulated share.

| given | what it is | how it becomes rows |
| --- | --- | --- |
| `data` of the node's configuration | a CSV or Parquet table | by the agreement's encoding of columns and classes |
| | a folder of pictures | as `federation.dataset` reads one, at the agreement's size |
| a function | `(features, labels)` of the model's shape, a DataFrame, or a path | likewise |
| neither, but `partition-id` | the study's own data | what the simulated client of that number holds |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client_data import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import listed, shown
from fedscout.experiments.deployment.agreement import Agreement
from fedscout.experiments.federations.datasets.images.image_folder import client_pictures
from fedscout.experiments.federations.datasets.tables.agreed_encoding import encoded_rows
from fedscout.experiments.federations.datasets.tables.column_kinds import with_missing
from fedscout.experiments.federations.datasets.tables.column_roles import ColumnRoles, discrete, groups_of
from fedscout.experiments.federations.datasets.tables.labelled_rows import labelled_rows
from fedscout.experiments.federations.datasets.tables.table_formats import read_table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from flwr.app import Context

Arrays = tuple[npt.ArrayLike, npt.ArrayLike]
RowsOf = Callable[["Context"], "Arrays | pd.DataFrame | str | Path"]
"""Told Flower's context, a client's rows: features and labels, a table, or where one lies."""


def client_federation(agreement: Agreement, number: int, context: Context, rows_of: RowsOf | None) -> Federation:
    """Return the federation of a client that knows of no other.

    Args:
        agreement: With all others.
        number: Of the client, from which its random streams derive.
        context: Flower's; its `node_config` may say `data` or `partition-id`.
        rows_of: Of its owner's code.

    Raises:
        DataError: If its rows can't be read or are not as was agreed on.
    """
    node = context.node_config
    if rows_of is not None:
        return _of_rows(agreement, number, rows_of(context), node)
    if "data" in node:
        return _of_rows(agreement, number, str(node["data"]), node)
    share = node.get("partition-id")
    if not isinstance(share, int) or isinstance(share, bool):
        raise DataError(
            Fault(
                "a client",
                (
                    "have rows: data=PATH in --node-config, a function given to client_app, or "
                    "partition-id=N for the rows of a simulated client"
                ),
                shown(dict(node)),
            )
        )
    from fedscout.experiments.federations.assembly.build_federation import build_federation  # all that a study loads

    config = agreement.config
    simulated = build_federation(config.federation, config.model)
    if not 0 <= share < simulated.num_clients:
        raise DataError(Fault("partition-id", f"be one of the study's {simulated.num_clients} clients", share))
    return simulated.alone(share, number)


def _of_rows(agreement: Agreement, number: int, rows: Any, node: Any) -> Federation:
    if isinstance(rows, str | Path) and Path(rows).expanduser().is_dir():
        features, labels, groups = _pictures(agreement, Path(rows).expanduser())
    elif isinstance(rows, tuple):
        features, labels, groups = *_arrays(agreement, *rows), None
    else:
        features, labels, groups = _table(agreement, rows, node)
    if not len(labels):
        raise DataError(Fault("a client", "hold at least one row", "none"))
    return replace(
        agreement.without_clients(),
        features=features,
        labels=labels,
        groups=groups,
        partition=Partition.from_lists([*[[]] * number, np.arange(len(labels))]),
    )


def _table(agreement: Agreement, rows: Any, node: Any) -> tuple[FloatArray, IntArray, IntArray | None]:
    """Return the rows of a table, by the encoding that was agreed on."""
    request = agreement.rows
    name = str(rows) if isinstance(rows, str | Path) else "DataFrame"
    if agreement.encoding is None:
        raise DataError(
            f"the study's data set {request.dataset!r} says of no column how it becomes a feature, so a client's rows "
            f"must be arrays of the model's shape {agreement.feature_shape}, got the table {name}"
        )
    table = read_table(Path(name), request).rows if name != "DataFrame" else _of_frame(rows)
    table = with_missing(table, request.missing_values, {request.client_column, request.group_column})
    label = str(node.get("label", request.label))
    if label not in table.column_names:
        raise DataError(
            Fault("label", f"name a column of {name}", repr(label), f"its columns: {listed(table.column_names)}")
        )
    group = request.group_column if request.group_column in table.column_names else None
    if request.unlabelled_rows == "drop":
        table = labelled_rows(name, table, ColumnRoles(label, group=group)).rows
    labels = _numbered(agreement, discrete(name, table, label).tolist())
    groups = groups_of(name, table, group)
    return encoded_rows(name, table, agreement.encoding), labels, groups


def _of_frame(frame: Any) -> pa.Table:
    from fedscout.experiments.federations.datasets.tables.table_file import read_frame

    return read_frame(frame, ())


def _arrays(agreement: Agreement, features: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[FloatArray, IntArray]:
    """Return rows that are features already."""
    values, said = agreement.checked_features(features), np.asarray(labels)
    if said.shape != values.shape[:1]:
        raise DataError(Fault("a client's labels", f"have the shape ({len(values)},) of its rows", said.shape))
    return values, _numbered(agreement, said.tolist())


def _pictures(agreement: Agreement, folder: Path) -> tuple[FloatArray, IntArray, None]:
    """Return the pictures of a folder."""
    if agreement.kind != "image":
        raise DataError(Fault("a client's rows", f"be of the kind {agreement.kind}", f"the folder {folder}"))
    features, labels = client_pictures(folder, agreement.rows, agreement.feature_shape[0] == 1)
    if features.shape[1:] != agreement.feature_shape:
        raise DataError(Fault("pictures", f"have the shape {agreement.feature_shape} agreed on", features.shape[1:]))
    return features, _numbered(agreement, labels), None


def _numbered(agreement: Agreement, labels: list[Any]) -> IntArray:
    """Return the number of each row's class."""
    known = {name: number for number, name in enumerate(agreement.class_names)}
    unknown = {str(label) for label in labels} - known.keys()
    if unknown:
        raise DataError(
            Fault("a client's rows", f"be of the classes {listed([*known])} that were agreed on", listed([*unknown]))
        )
    return np.array([known[str(label)] for label in labels], dtype=np.int64)
