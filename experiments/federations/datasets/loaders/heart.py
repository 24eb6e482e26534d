"""Heart disease: 920 patients of four hospitals, 13 features with gaps; the natural client is the hospital.

A. Janosi, W. Steinbrunn, M. Pfisterer and R. Detrano, "Heart Disease", UCI Machine Learning Repository, 1989; the four
`processed` files, which have no header.

The label is `disease` (`num` above 0) or `num` (0 to 4, the vessels that are narrowed). Missing values are written `?`,
or NaN in some copies. A cholesterol or a blood pressure of 0 is no measurement either and counts as missing: one
hospital wrote 0 throughout. Chest pain, electrocardiogram, slope and thallium scan are categories. Means, deviations
and categories come from the four hospitals, each of which gives its own, whether or not patients are dealt by hospital.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.column_choice import choose_label
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.publication import Publication, locate
from fedscout.experiments.federations.datasets.tables.column_kinds import as_numbers
from fedscout.experiments.federations.datasets.tables.column_roles import ColumnRoles
from fedscout.experiments.federations.datasets.tables.mixed_table import dataset_from_mixed_table
from fedscout.experiments.federations.datasets.tables.table_file import read_csv

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from fedscout.experiments.federations.datasets.read_limits import ReadLimits

HEART = Publication(
    "Janosi, Steinbrunn, Pfisterer and Detrano, Heart Disease, UCI Machine Learning Repository, 1989",
    "https://archive.ics.uci.edu/dataset/45",
)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
CATEGORIES = ("cp", "restecg", "slope", "thal")
NEVER_ZERO = ("trestbps", "chol")
MARKS = ("0", "1", "2", "3", "4")
DISEASE = "disease"
HOSPITAL = "hospital"


def load_heart(request: DatasetRequest) -> Dataset:
    """Load all four hospitals; the usual label is `disease`, `num` is the other."""
    import pyarrow as pa
    import pyarrow.compute as pc

    label = choose_label(request, (DISEASE, "num"), client=HOSPITAL)
    names = tuple(f"heart/processed.{hospital}.data" for hospital in HOSPITALS)
    paths = locate(request.name, names, HEART, request.folder)
    tables = [_patients(path, hospital, request.limits) for hospital, path in zip(HOSPITALS, paths, strict=True)]
    table = pa.concat_tables(tables)
    num_zeros = 0
    for column in NEVER_ZERO:
        zero = as_numbers(table[column]) == 0
        cells = pc.if_else(pa.array(zero), None, table[column])
        table = table.set_column(table.column_names.index(column), column, cells)
        num_zeros += int(zero.sum())
    roles = ColumnRoles(
        label=label,
        client=HOSPITAL,
        never_features=("num" if label == DISEASE else DISEASE,),
        categories=CATEGORIES,
        dropped=request.drop_columns,
    )
    facts = {"num_zeros_taken_as_missing": num_zeros}
    dataset = dataset_from_mixed_table(request.name, table, roles, request.min_release, source=str(HEART), facts=facts)
    return replace(dataset, class_names=("absent", "present")) if label == DISEASE else dataset


def _patients(path: Path, hospital: str, limits: ReadLimits) -> pa.Table:
    import pyarrow as pa

    rows = read_csv(path, delimiter=",", columns=COLUMNS, limits=limits)
    marks = rows["num"].to_pylist()
    wrong = [row for row, mark in enumerate(marks, start=1) if mark not in MARKS]
    if wrong:
        raise DataError(
            Fault(
                f"column 'num', the last of {path},",
                "hold a mark from 0 to 4",
                f"{marks[wrong[0] - 1] or 'nothing'!r} in row {wrong[0]}",
            )
        )
    for column in CATEGORIES:  # 6 at one hospital and 6.0 at another
        codes = pa.array(as_numbers(rows[column]), from_pandas=True)
        rows = rows.set_column(rows.column_names.index(column), column, codes)
    diseases = ["0" if mark == "0" else "1" for mark in marks]
    return rows.append_column(DISEASE, [diseases]).append_column(HOSPITAL, pa.repeat(hospital, len(rows)))
