"""Which studies are held beside other programs: the demo's digits, and the same digits as pictures for LeNet.

Nothing has to be fetched for either. The pictures are the 8 x 8 digits with every pixel drawn as 4 x 4, so that LeNet-5
has the 32 x 32 that it was made for. That is an easy task of few rows (1,797); what is measured is time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.loaders.dataset_table import load_dataset

WorkName = Literal["digits", "lenet"]

PICTURES_FILE = "digit_pictures.npz"
PIXELS = 8
ENLARGED = 4
"""Pixels a side for one."""


def _digits(_: Path) -> list[str]:
    return ["federation.dataset=digits"]


def _lenet(folder: Path) -> list[str]:
    path = folder / PICTURES_FILE
    if not path.exists():
        digits = load_dataset(DatasetRequest(dataset="digits"))
        pictures = digits.features.reshape(-1, PIXELS, PIXELS).repeat(ENLARGED, axis=1).repeat(ENLARGED, axis=2)
        np.savez(path, x=pictures, y=digits.labels)
    return [f"federation.dataset={path}", "model.kind=lenet"]


_WORKS: Mapping[WorkName, Callable[[Path], list[str]]] = {"digits": _digits, "lenet": _lenet}


def work_settings(name: WorkName, folder: Path) -> list[str]:
    """Return the settings of a work's study, all others being the defaults; what it reads lies in the folder."""
    return _WORKS[name](folder)
