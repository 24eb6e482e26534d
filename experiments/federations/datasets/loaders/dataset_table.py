"""The table of data sets: a new one is one file and one line here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.experiments.federations.datasets.bearings.bearing import (
    load_bearing,
    load_bearing_faults,
    load_bearing_faults_all,
)
from fedscout.experiments.federations.datasets.bearings.bearing_raw import (
    load_bearing_raw,
    load_bearing_raw_1,
    load_bearing_raw_3,
)
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import QUANTITIES, DatasetLoader, DatasetRequest
from fedscout.experiments.federations.datasets.loaders.bundled import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_wine,
)
from fedscout.experiments.federations.datasets.loaders.cifar import load_cifar10, load_cifar100
from fedscout.experiments.federations.datasets.loaders.commercial_vehicles import load_commercial_vehicles
from fedscout.experiments.federations.datasets.loaders.heart import load_heart
from fedscout.experiments.federations.datasets.loaders.hugging_face import is_hugging_face, load_hugging_face
from fedscout.experiments.federations.datasets.loaders.leaf import load_leaf_femnist, load_leaf_shakespeare
from fedscout.experiments.federations.datasets.loaders.mnist import load_emnist, load_fashion_mnist, load_mnist
from fedscout.experiments.federations.datasets.loaders.network_flows import load_nf_unsw_nb15, load_unsw_nb15
from fedscout.experiments.federations.datasets.loaders.own_data import load_own_data
from fedscout.experiments.federations.datasets.loaders.retinal import load_retinal
from fedscout.experiments.federations.datasets.loaders.retinal_grades import load_retinal_grades
from fedscout.experiments.federations.datasets.loaders.sentiment140 import load_sentiment140
from fedscout.experiments.federations.datasets.loaders.shakespeare import load_shakespeare
from fedscout.experiments.federations.datasets.loaders.wine_quality import (
    load_wine_quality,
    load_wine_quality_red,
    load_wine_quality_white,
)
from fedscout.experiments.federations.datasets.publication import START_VARIABLE

DATASETS: Mapping[str, DatasetLoader] = {
    "digits": load_digits,
    "breast_cancer": load_breast_cancer,
    "wine": load_wine,
    "diabetes": load_diabetes,
    "wine_quality": load_wine_quality,
    "wine_quality_red": load_wine_quality_red,
    "wine_quality_white": load_wine_quality_white,
    "bearing": load_bearing,
    "bearing_faults": load_bearing_faults,
    "bearing_faults_all": load_bearing_faults_all,
    "bearing_raw": load_bearing_raw,
    "bearing_raw_1": load_bearing_raw_1,
    "bearing_raw_3": load_bearing_raw_3,
    "retinal": load_retinal,
    "retinal_grades": load_retinal_grades,
    "unsw_nb15": load_unsw_nb15,
    "nf_unsw_nb15": load_nf_unsw_nb15,
    "heart": load_heart,
    "commercial_vehicles": load_commercial_vehicles,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "mnist": load_mnist,
    "fashion_mnist": load_fashion_mnist,
    "emnist": load_emnist,
    "emnist_balanced": load_emnist,
    "emnist_byclass": load_emnist,
    "emnist_bymerge": load_emnist,
    "emnist_digits": load_emnist,
    "emnist_letters": load_emnist,
    "emnist_mnist": load_emnist,
    "sentiment140": load_sentiment140,
    "shakespeare": load_shakespeare,
    "leaf_femnist": load_leaf_femnist,
    "leaf_shakespeare": load_leaf_shakespeare,
}

DIVIDED = (
    *("cifar10", "cifar100", "mnist", "fashion_mnist"),
    *(name for name in DATASETS if name.startswith(("emnist", "leaf_"))),
)
RAW_BEARING_TESTS = ("bearing_raw", "bearing_raw_1", "bearing_raw_3")

DROPS_COLUMNS = ("unsw_nb15", "nf_unsw_nb15", "heart", "commercial_vehicles")
READS_TEXT_COLUMNS = ("commercial_vehicles",)


def is_own_data(name: str) -> bool:
    """Whether a user's `federation.dataset` is a path or an address rather than a name of the table."""
    return name.startswith("hf:") or any(sign in name for sign in "./\\") or (name not in DATASETS and _is_folder(name))


def _is_folder(name: str) -> bool:
    """Whether a word is a folder where the command was given."""
    with suppress(OSError, ValueError):
        return (Path(os.environ.get(START_VARIABLE, "")) / name).is_dir()
    return False


def load_dataset(request: DatasetRequest) -> Dataset:
    """Load the data set that a request names: a key of `DATASETS`, the path of one's own data, or `hf:owner/name`.

    Raises:
        ConfigurationError: If there is no such data set.
        DataError: If its files are missing, malformed or too large, also for the memory that there is, or it has no
            such column.
    """
    name = request.name
    loader = load_hugging_face if is_hugging_face(name) else DATASETS.get(name)
    if loader is None and is_own_data(name):
        loader = load_own_data
    if loader is None:
        raise ConfigurationError(Fault("federation.dataset", f"be one of {', '.join(DATASETS)}", repr(name)))
    if request.part is not None and name not in DIVIDED and not is_hugging_face(name):
        raise ConfigurationError(
            Fault(
                "federation.split",
                f"be left out or be last, but for {', '.join(DIVIDED)} and hf:owner/name",
                f"{request.part!r} for {name!r}",
            )
        )
    if request.degraded_from is not None and name not in RAW_BEARING_TESTS:
        raise ConfigurationError(
            Fault(
                "federation.degraded_from",
                f"be left out but for {', '.join(RAW_BEARING_TESTS)}",
                f"{request.degraded_from} for {name!r}",
            )
        )
    if request.group_column is not None and (not is_own_data(name) or is_hugging_face(name)):
        raise ConfigurationError(
            Fault(
                "federation.group_column",
                "be left out but for one's own tables",
                f"{request.group_column!r} for {name!r}",
            )
        )
    if request.task == "regression" and name not in QUANTITIES and (not is_own_data(name) or is_hugging_face(name)):
        raise ConfigurationError(
            Fault(
                "federation.task",
                f"be classification or left out but for {', '.join(QUANTITIES)} and one's own tables",
                f"regression for {name!r}",
            )
        )
    faults = [
        Fault(
            f"federation.{key}",
            f"be left out but for {', '.join(readers)} and one's own tables",
            f"{value!r} for {name!r}",
        )
        for key, value, readers in (
            ("text_column", request.text_column, READS_TEXT_COLUMNS),
            ("drop_columns", list(request.drop_columns), DROPS_COLUMNS),
            ("columns", dict(request.columns), READS_TEXT_COLUMNS),
            ("missing_values", list(request.missing_values), READS_TEXT_COLUMNS),
            ("query", request.query, ("databases",)),
        )
        if value and name not in readers and (not is_own_data(name) or (key != "text_column" and is_hugging_face(name)))
    ]
    if faults:
        raise ConfigurationError(faults)
    try:
        return loader(request)
    except MemoryError:
        raise DataError(
            Fault(f"data set {name!r}", "fit into memory, but there is not enough of it to read all rows")
        ) from None
