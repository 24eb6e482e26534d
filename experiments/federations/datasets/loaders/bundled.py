"""Data sets whose files come with scikit-learn: nothing to fetch.

`digits`, the demo: handwritten digits, 1,797 images of 8 × 8 pixels in ten classes. E. Alpaydin and C. Kaynak, "Optical
Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998, the test part. Pixels (0 to 16) are divided
by 16, the usual scale of images, and not standardised one by one: pixels at the rim are ink in a handful of rows, so a
column-wise division by their standard deviation would make values of up to 42 of them and hand the gradient to three
images. A scenario's noise is given in units of one standard deviation, here that of the whole image: the root of the
mean variance of a pixel.

`breast_cancer`: 569 rows, 30 measurements of cell nuclei, malignant or benign. W. Wolberg, O. Mangasarian, N. Street
and W. Street, "Breast Cancer Wisconsin (Diagnostic)", UCI Machine Learning Repository, 1995. Columns are standardised.

`wine`: 178 rows, 13 chemical measurements, three cultivars. S. Aeberhard and M. Forina, UCI Machine Learning
Repository, 1992. Columns are standardised. Not the Wine Quality data, see `wine_quality.py`.

`diabetes`: 442 patients, ten measurements, and the progression of the disease a year later, 25 to 346, which is a
quantity. B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, "Least Angle Regression", Annals of Statistics 32(2),
2004. Columns are standardised.
"""

from __future__ import annotations

import gzip
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.publication import Publication
from fedscout.experiments.federations.datasets.tables.complete_table import dataset_of_numbers
from fedscout.experiments.federations.datasets.tables.quantity_target import quantity_target

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
DIABETES = Publication(
    "Efron, Hastie, Johnstone and Tibshirani, Least Angle Regression, Annals of Statistics 32(2), 2004",
    "https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html",
)
LARGEST_PIXEL = 16
SIDE = 8
FILE = "datasets/data/digits.csv.gz"


def load_digits(request: DatasetRequest) -> Dataset:
    """Load the digits; the label is `digit`.

    Importing scikit-learn for its own loader would take longer than everything else between the demo's command and
    Ray's start, so the file is read here.
    """
    request.require_fixed_columns("digits", "digit")
    package = find_spec("sklearn")
    path = Path(package.origin or "").parent / FILE if package else None
    if path is None or not path.is_file():
        raise DataError(f"data set 'digits' is read from scikit-learn's file {FILE}, which its installation lacks")
    table = np.loadtxt(gzip.decompress(path.read_bytes()).decode("ascii").splitlines(), delimiter=",")
    pixels, labels = table[:, :-1], table[:, -1].astype(np.int64)
    names = [f"pixel_{row}_{column}" for row in range(SIDE) for column in range(SIDE)]
    dataset = dataset_of_numbers("digits", pixels, labels, [*map(str, range(10))], names, "digit", str(DIGITS))
    features = pixels / LARGEST_PIXEL
    unit = float(np.sqrt(features.var(axis=0).mean()))
    return replace(dataset, features=features.astype(np.float32), feature_unit=unit)


def load_breast_cancer(request: DatasetRequest) -> Dataset:
    """Load the data set; the label is `diagnosis`."""
    from sklearn import datasets

    request.require_fixed_columns("breast_cancer", "diagnosis")
    return _bunch("breast_cancer", datasets.load_breast_cancer(), "diagnosis", BREAST_CANCER)


def load_wine(request: DatasetRequest) -> Dataset:
    """Load the data set; the label is `cultivar`."""
    from sklearn import datasets

    request.require_fixed_columns("wine", "cultivar")
    return _bunch("wine", datasets.load_wine(), "cultivar", WINE)


def load_diabetes(request: DatasetRequest) -> Dataset:
    """Load the data set; the label is `progression`, a quantity.

    Raises:
        DataError: If classes are asked for.
    """
    from sklearn import datasets

    request.require_fixed_columns("diabetes", "progression")
    if not request.predicts_quantity:
        raise DataError(Fault("federation.task of data set 'diabetes'", "be regression or left out", "classification"))
    bunch = datasets.load_diabetes(scaled=False)
    target = quantity_target("diabetes", "progression", bunch.target)
    columns = [str(feature) for feature in bunch.feature_names]
    dataset = dataset_of_numbers(
        "diabetes", bunch.data, target.labels, target.class_names, columns, "progression", str(DIABETES)
    )
    return replace(dataset, targets=target.numbers)


def _bunch(name: str, bunch: Any, label: str, publication: Publication) -> Dataset:
    class_names = [str(target) for target in bunch.target_names]
    columns = [str(feature) for feature in bunch.feature_names]
    labels = bunch.target.astype(np.int64)
    return dataset_of_numbers(name, bunch.data, labels, class_names, columns, label, str(publication))
