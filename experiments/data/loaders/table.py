"""Registry of data sets: to add one, write its loader and add one line here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from string import digits

from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.experiments.data.dataset import QUANTITIES, START_VARIABLE, Dataset, DatasetLoader, DatasetRequest
from fedscout.experiments.data.loaders import bearing, leaf, pictures, tabular
from fedscout.experiments.data.own import is_hugging_face, load_hugging_face, load_own_data

DATASETS: Mapping[str, DatasetLoader] = {
    "digits": tabular.load_digits,
    "breast_cancer": partial(tabular.load_bunch, "diagnosis", tabular.BREAST_CANCER),
    "wine": partial(tabular.load_bunch, "cultivar", tabular.WINE),
    "diabetes": tabular.load_diabetes,
    "wine_quality": partial(tabular.load_wines, ("red", "white")),
    "wine_quality_red": partial(tabular.load_wines, ("red",)),
    "wine_quality_white": partial(tabular.load_wines, ("white",)),
    "bearing": bearing.load_bearing,
    "bearing_faults": partial(bearing.load_faults, bearing.KEPT),  # without those that identify the rig
    "bearing_faults_all": partial(bearing.load_faults, (*bearing.KEPT, *bearing.DROPPED)),
    "bearing_raw": bearing.load_bearing_raw,
    "retinal": pictures.load_retinal,
    "unsw_nb15": partial(tabular.load_flows, tabular.UNSW_NB15),
    "nf_unsw_nb15": partial(tabular.load_flows, tabular.NF_UNSW_NB15),
    "heart": tabular.load_heart,
    "cifar10": partial(pictures.load_cifar, pictures.CIFAR10),
    "cifar100": partial(pictures.load_cifar, pictures.CIFAR100),
    "mnist": partial(pictures.load_mnist, pictures.MNIST, "digit", digits),
    "fashion_mnist": partial(pictures.load_mnist, pictures.FASHION_MNIST, "article", pictures.FASHION_CLASSES),
    "emnist": pictures.load_emnist,
    **{f"emnist_{variant}": pictures.load_emnist for variant in sorted(pictures.CLASSES)},
    "sentiment140": leaf.load_sentiment140,
    "shakespeare": leaf.load_shakespeare,
    "leaf_femnist": leaf.load_leaf_femnist,
    "leaf_shakespeare": leaf.load_leaf_shakespeare,
}

DIVIDED = (
    *("cifar10", "cifar100", "mnist", "fashion_mnist"),
    *(name for name in DATASETS if name.startswith(("emnist", "leaf_"))),
)

DROPS_COLUMNS = ("unsw_nb15", "nf_unsw_nb15", "heart")


def is_own_data(name: str) -> bool:
    """Return whether `federation.dataset` is a path or an address rather than a registered name."""
    return name.startswith("hf:") or any(sign in name for sign in "./\\") or (name not in DATASETS and _is_folder(name))


def _is_folder(name: str) -> bool:
    """Return whether a word is a folder in the working directory of the command."""
    with suppress(OSError, ValueError):
        return (Path(os.environ.get(START_VARIABLE, "")) / name).is_dir()
    return False


def load_dataset(request: DatasetRequest) -> Dataset:
    """Load the requested data set: a key of `DATASETS`, the path of the user's own data, or `hf:owner/name`.

    Raises:
        ConfigurationError: If there is no such data set.
        DataError: If its files are missing, malformed or too large, or do not fit into memory, or it has no such
            column.
    """
    name = request.dataset
    loader = load_hugging_face if is_hugging_face(name) else DATASETS.get(name)
    if loader is None and is_own_data(name):
        loader = load_own_data
    if loader is None:
        raise ConfigurationError.of("federation.dataset", f"be one of {', '.join(DATASETS)}", repr(name))
    faults = list(_unread_settings(request))
    if faults:
        raise ConfigurationError(faults)
    try:
        return loader(request)
    except MemoryError:
        raise DataError.of(
            f"data set {name!r}", "fit into memory, but there is not enough of it to read all rows"
        ) from None


def _unread_settings(request: DatasetRequest) -> Iterator[Fault]:
    """Yield a fault for each setting that the data set does not read."""
    name, is_hub = request.dataset, is_hugging_face(request.dataset)
    is_own, own_tables = is_own_data(name), "your own tables"
    for key, value, applies, readers in (
        ("split", request.part, is_hub, (*DIVIDED, "hf:owner/name")),
        ("group_column", request.group_column, is_own, (own_tables,)),
        ("task", request.task == "regression" and request.task, is_own, (*QUANTITIES, own_tables)),
        ("text_column", request.text_column, is_own, (own_tables,)),
        ("drop_columns", list(request.drop_columns), is_own, (*DROPS_COLUMNS, own_tables)),
        ("columns", dict(request.columns), is_own, (own_tables,)),
        ("missing_values", list(request.missing_values), is_own, (own_tables,)),
        ("query", request.query, is_own and not is_hub, ("databases",)),
    ):
        if value and not applies and name not in readers:
            yield Fault(f"federation.{key}", f"only be given for {', '.join(readers)}", f"{value!r} for {name!r}")
