"""Handwritten digits, 1,797 images of 8 × 8 pixels in ten classes: the demo.

E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998; the test
part, as it comes with scikit-learn.

Pixels (0 to 16) are divided by 16, the usual scale of images, and not standardised one by one: pixels at the rim are
ink in a handful of rows, so a column-wise division by their standard deviation would make values of up to 42 of them
and hand the gradient to three images. A scenario's noise is given in units of one standard deviation, here that of the
whole image: the root of the mean variance of a pixel.
"""

from __future__ import annotations

import numpy as np

from experiments.datasets.bundled import bundled_dataset
from experiments.datasets.dataset import Dataset
from experiments.datasets.publication import Publication
from experiments.datasets.request import DatasetRequest

DIGITS = Publication(
    "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998",
    "https://archive.ics.uci.edu/dataset/80",
)
LARGEST_PIXEL = 16


def load_digits(request: DatasetRequest) -> Dataset:
    """Load the digits; the label is `digit`."""
    from sklearn import datasets

    request.require_fixed_columns("digits", "digit")
    bunch = datasets.load_digits()
    features = bunch.data / LARGEST_PIXEL
    return bundled_dataset(
        "digits",
        bunch,
        features.astype(np.float32),
        label="digit",
        source=str(DIGITS),
        feature_unit=float(np.sqrt(features.var(axis=0).mean())),
    )
