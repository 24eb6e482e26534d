"""Tabular data sets: scikit-learn, heart disease, network flows, wine quality.

`digits`, the demo: handwritten digits, 1,797 images of 8 × 8 pixels in ten classes. E. Alpaydin and C. Kaynak, "Optical
Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998, the test part. Pixels (0 to 16) are divided
by 16, the usual scale of images, and not standardised individually: pixels at the edge are non-zero in a handful of
rows, so dividing by their standard deviation would create values of up to 42, and three images would dominate the
gradient. A scenario's noise is given in units of one standard deviation, here that of the whole image: the root of the
mean variance of a pixel. The files of this and the next three data sets come with scikit-learn.

`breast_cancer`: 569 rows, 30 measurements of cell nuclei, malignant or benign. W. Wolberg, O. Mangasarian, N. Street
and W. Street, "Breast Cancer Wisconsin (Diagnostic)", UCI Machine Learning Repository, 1995. Columns are standardised.

`wine`: 178 rows, 13 chemical measurements, three cultivars. S. Aeberhard and M. Forina, UCI Machine Learning
Repository, 1992. Columns are standardised. Not the Wine Quality data (below).

`diabetes`: 442 patients, ten measurements, and the progression of the disease a year later, 25 to 346, a regression
target. B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, "Least Angle Regression", Annals of Statistics 32(2), 2004.
Columns are standardised.

`heart`: 920 patients of four hospitals, 13 features with missing values; the natural client is the hospital. A. Janosi,
W. Steinbrunn, M. Pfisterer and R. Detrano, "Heart Disease", UCI Machine Learning Repository, 1989; the four `processed`
files, which have no header. The label is `disease` (`num` above 0) or `num` (0 to 4, the number of narrowed vessels).
Missing values are written `?`, or NaN in some copies. A cholesterol or blood pressure of 0 is not a measurement and
counts as missing: one hospital wrote 0 throughout. Chest pain, electrocardiogram, slope and thallium scan are
categories. Means, deviations and categories are aggregated from the four hospitals, regardless of the partition.

`unsw_nb15`: 82,332 network flows with 42 features, normal or attack, or ten classes of attack kinds. N. Moustafa and J.
Slay, "UNSW-NB15: a comprehensive data set for network intrusion detection systems", MilCIS 2015. The file is
`UNSW_NB15_training-set`. `id` only numbers rows. Protocol, service and state are categories; `-` in `service` is a
category of its own, as published.

`nf_unsw_nb15`: the same flows as NetFlow records. M. Sarhan, S. Layeghy, N. Moustafa and M. Portmann, "NetFlow datasets
for machine learning-based network intrusion detection systems", Big Data Technologies and Applications (BDTA 2020),
Springer, 2021, arXiv:2011.09144: 1,623,118 flows, with the twelve columns listed in the paper and the two labels. The
default label is `Attack`, with ten classes; `federation.label=Label` has two. Addresses and ports are never features:
attacks came from a few machines, so they would reveal the label. Protocols (layer 4 and layer 7) are categories.
Additional columns of later versions are features, too, except times and identifiers.

Flow files are CSV, plain, gzip-compressed or in a zip archive. Of the two labels (0 normal or benign, 1 attack; the
attack kind) the one that is not predicted would reveal the other, so neither is a feature. Any column may define
natural clients.

`wine_quality`: 1,599 red and 4,898 white wines, 11 measurements, quality grades 3 to 9. P. Cortez, A. Cerdeira, F.
Almeida, T. Matos and J. Reis, "Modeling wine preferences by data mining from physicochemical properties", Decision
Support Systems 47(4), 2009; UCI Machine Learning Repository. The files hold no colour; the loader adds the column
`color` (`red` or `white`), which is never a feature. It is the natural client (`federation.client_column=color`), or a
two-class label (`federation.label=color`; the quality grade is then a feature). Duplicate rows (240 red, 937 white, and
two white ones that repeat a red one) are kept and counted.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedscout.engine.errors import DataError
from fedscout.experiments.data.columns import ColumnRoles, as_numbers
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, Layout, Publication, ReadLimits
from fedscout.experiments.data.table_files import read_csv
from fedscout.experiments.data.tables import (
    dataset_from_mixed_table,
    dataset_from_table,
    dataset_of_numbers,
    quantity_target,
)

DIGITS = Publication(
    "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998",
    "https://archive.ics.uci.edu/dataset/80",
)
BREAST_CANCER = Publication(
    "Wolberg et al., Breast Cancer Wisconsin (Diagnostic), UCI Machine Learning Repository, 1995",
    "https://archive.ics.uci.edu/dataset/17",
)
WINE = Publication(
    "Aeberhard and Forina, Wine, UCI Machine Learning Repository, 1992", "https://archive.ics.uci.edu/dataset/109"
)
BUNCHES = {"breast_cancer": ("diagnosis", BREAST_CANCER), "wine": ("cultivar", WINE)}
DIABETES = Publication(
    "Efron, Hastie, Johnstone and Tibshirani, Least Angle Regression, Annals of Statistics 32(2), 2004",
    "https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html",
)
LARGEST_PIXEL = 16
SIDE = 8
FILE = "datasets/data/digits.csv.gz"


def load_digits(request: DatasetRequest) -> Dataset:
    """Load the digits; the label is `digit`.

    The file is read directly, as importing scikit-learn for its loader would take longer than everything else between
    the demo's command and Ray's start.
    """
    request.choose_label(("digit",))
    package = find_spec("sklearn")
    path = Path(package.origin or "").parent / FILE if package else None
    if path is None or not path.is_file():
        raise DataError.of(
            FILE, problem="is missing from the installation of scikit-learn, from which data set 'digits' is read"
        )
    table = np.loadtxt(gzip.decompress(path.read_bytes()).decode("ascii").splitlines(), delimiter=",")
    pixels, labels = table[:, :-1], table[:, -1].astype(np.int64)
    names = [f"pixel_{row}_{column}" for row in range(SIDE) for column in range(SIDE)]
    dataset = dataset_of_numbers("digits", pixels, labels, [*map(str, range(10))], names, "digit", str(DIGITS))
    features = pixels / LARGEST_PIXEL
    unit = float(np.sqrt(features.var(axis=0).mean()))
    return replace(dataset, features=features.astype(np.float32), feature_unit=unit)


def load_diabetes(request: DatasetRequest) -> Dataset:
    """Load the data set; the label is `progression`, a regression target.

    Raises:
        DataError: If the task is classification.
    """
    from sklearn import datasets

    request.choose_label(("progression",))
    if not request.predicts_quantity:
        raise DataError.of("federation.task of data set 'diabetes'", "be regression or left out", "classification")
    bunch = datasets.load_diabetes(scaled=False)
    target = quantity_target("diabetes", "progression", bunch.target)
    columns = [str(feature) for feature in bunch.feature_names]
    dataset = dataset_of_numbers(
        "diabetes", bunch.data, target.labels, target.class_names, columns, "progression", str(DIABETES)
    )
    return replace(dataset, targets=target.targets)


def load_bunch(request: DatasetRequest) -> Dataset:
    """Load a data set that scikit-learn's loader of the same name returns."""
    from sklearn import datasets

    label, publication = BUNCHES[request.dataset]
    request.choose_label((label,))
    bunch = getattr(datasets, f"load_{request.dataset}")()
    class_names = [str(target) for target in bunch.target_names]
    columns = [str(feature) for feature in bunch.feature_names]
    labels = bunch.target.astype(np.int64)
    return dataset_of_numbers(request.dataset, bunch.data, labels, class_names, columns, label, str(publication))


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
    """Load all four hospitals; the default label is `disease`, the other is `num`."""
    label = request.choose_label((DISEASE, "num"), client=HOSPITAL)
    paths = HEART.files(request, *(f"heart/processed.{hospital}.data" for hospital in HOSPITALS))
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
    dataset = dataset_from_mixed_table(
        request.dataset, table, roles, request.min_release, source=str(HEART), facts=facts
    )
    return replace(dataset, class_names=("absent", "present")) if label == DISEASE else dataset


def _patients(path: Path, hospital: str, limits: ReadLimits) -> pa.Table:

    rows = read_csv(path, delimiter=",", columns=COLUMNS, limits=limits)
    marks = rows["num"].to_pylist()
    invalid_rows = [row for row, mark in enumerate(marks, start=1) if mark not in MARKS]
    if invalid_rows:
        raise DataError.of(
            f"column 'num', the last of {path},",
            "hold a mark from 0 to 4",
            f"{marks[invalid_rows[0] - 1] or 'nothing'!r} in row {invalid_rows[0]}",
        )
    for column in CATEGORIES:  # 6 at one hospital and 6.0 at another
        codes = pa.array(as_numbers(rows[column]), from_pandas=True)
        rows = rows.set_column(rows.column_names.index(column), column, codes)
    diseases = ["0" if mark == "0" else "1" for mark in marks]
    return rows.append_column(DISEASE, [diseases]).append_column(HOSPITAL, pa.repeat(hospital, len(rows)))


@dataclass(frozen=True)
class FlowFiles:
    """File layout of one of the network flow data sets.

    Attributes:
        publication: Publication of the data set.
        file: File relative to the data folder, without its suffix.
        labels: Default label, then the other.
        binary: The label with two classes.
        class_names: Class names of the binary label.
        categories: Categorical columns.
        never_features: Columns that are not features, in addition to the labels; not every version of a file has all of
            them.
        required: Columns of the published version, in addition to the labels and the categories.
    """

    publication: Publication
    file: str
    labels: tuple[str, str]
    binary: str
    class_names: tuple[str, str]
    categories: tuple[str, ...]
    never_features: tuple[str, ...]
    required: tuple[str, ...] = ()


UNSW_NB15 = FlowFiles(
    Publication("Moustafa and Slay, UNSW-NB15, MilCIS 2015", "https://research.unsw.edu.au/projects/unsw-nb15-dataset"),
    file="unsw_nb15/UNSW_NB15_training-set",
    labels=("label", "attack_cat"),
    binary="label",
    class_names=("normal", "attack"),
    categories=("proto", "service", "state"),
    never_features=("id",),
)
ENDPOINTS = ("IPV4_SRC_ADDR", "L4_SRC_PORT", "IPV4_DST_ADDR", "L4_DST_PORT")
NF_UNSW_NB15 = FlowFiles(
    Publication(
        "Sarhan, Layeghy, Moustafa and Portmann, NF-UNSW-NB15, BDTA 2020",
        "https://staff.itee.uq.edu.au/marius/NIDS_datasets/",
    ),
    file="nf_unsw_nb15/NF-UNSW-NB15",
    labels=("Attack", "Label"),
    binary="Label",
    class_names=("benign", "attack"),
    categories=("PROTOCOL", "L7_PROTO"),
    never_features=(*ENDPOINTS, "FLOW_START_MILLISECONDS", "FLOW_END_MILLISECONDS", "DNS_QUERY_ID", "Label", "Attack"),
    required=(*ENDPOINTS, "IN_BYTES", "OUT_BYTES", "IN_PKTS", "OUT_PKTS", "TCP_FLAGS", "FLOW_DURATION_MILLISECONDS"),
)
FLOWS = {"unsw_nb15": UNSW_NB15, "nf_unsw_nb15": NF_UNSW_NB15}


def load_flows(request: DatasetRequest) -> Dataset:
    """Load network flows; the label is the first of the files' labels, or the other."""
    flows = FLOWS[request.dataset]
    layouts = (Layout("CSV", (f"{flows.file}.csv",), packed=True), Layout("zip", (f"{flows.file}.zip",)))
    _, (path,) = flows.publication.locate(request, *layouts)
    required = (*flows.required, *flows.categories, *flows.labels)
    rows = read_csv(path, delimiter=",", limits=request.limits, required=required)
    label = request.label or flows.labels[0]
    excluded = {*flows.never_features, *(flows.labels if label in flows.labels else ())}
    roles = ColumnRoles(
        label=label,
        client=request.client_column,
        never_features=tuple(column for column in rows.column_names if column in excluded and column != label),
        categories=flows.categories,
        dropped=request.drop_columns,
    )
    source = str(flows.publication)
    dataset = dataset_from_mixed_table(request.dataset, rows, roles, request.min_release, source, facts={})
    return replace(dataset, class_names=flows.class_names) if label == flows.binary else dataset


WINE_QUALITY = Publication(
    "Cortez et al., Wine Quality, UCI Machine Learning Repository, 2009", "https://archive.ics.uci.edu/dataset/186"
)
COLOR = "color"
COLORS = ["red", "white"]
QUALITY = "quality"
MEASUREMENTS = (
    *("fixed acidity", "volatile acidity", "citric acid", "residual sugar", "chlorides", "free sulfur dioxide"),
    *("total sulfur dioxide", "density", "pH", "sulphates", "alcohol"),
)


def load_wines(request: DatasetRequest) -> Dataset:
    """Load the wines of the color with which the name ends, or of both; the label is `quality`."""
    colors = [color for color in COLORS if request.dataset.endswith(color)] or COLORS
    paths = WINE_QUALITY.files(request, *(f"wine/winequality-{color}.csv" for color in colors))
    tables = []
    for color, path in zip(colors, paths, strict=True):
        used = [*MEASUREMENTS, QUALITY]
        rows = read_csv(path, delimiter=";", limits=request.limits, required=used).select(used)
        tables.append(rows.append_column(COLOR, pa.repeat(color, len(rows))))
    table = pa.concat_tables(tables)
    roles = ColumnRoles(label=request.label or QUALITY, client=request.client_column, never_features=(COLOR,))
    return dataset_from_table(request.dataset, table, roles, source=str(WINE_QUALITY), facts={"num_dropped_rows": 0})
