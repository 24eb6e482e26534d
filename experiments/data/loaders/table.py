"""Registry of data sets: to add one, write its loader and add one line here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.experiments.data.dataset import HUB, QUANTITIES, START_VARIABLE, Dataset, DatasetRequest

EMNIST_VARIANTS = ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")
EMNIST = ("emnist", *(f"emnist_{variant}" for variant in EMNIST_VARIANTS))
DATASETS: Mapping[str, str] = {
    "digits": "loaders.tabular:load_digits",
    "breast_cancer": "loaders.tabular:load_bunch",
    "wine": "loaders.tabular:load_bunch",
    "diabetes": "loaders.tabular:load_diabetes",
    "wine_quality": "loaders.tabular:load_wines",
    "wine_quality_red": "loaders.tabular:load_wines",
    "wine_quality_white": "loaders.tabular:load_wines",
    "bearing": "loaders.bearing:load_bearing",
    "bearing_faults": "loaders.bearing:load_faults",
    "bearing_faults_all": "loaders.bearing:load_faults",
    "bearing_raw": "loaders.bearing:load_bearing_raw",
    "retinal": "loaders.pictures:load_retinal",
    "unsw_nb15": "loaders.tabular:load_flows",
    "nf_unsw_nb15": "loaders.tabular:load_flows",
    "heart": "loaders.tabular:load_heart",
    "cifar10": "loaders.pictures:load_cifar",
    "cifar100": "loaders.pictures:load_cifar",
    "mnist": "loaders.pictures:load_mnist",
    "fashion_mnist": "loaders.pictures:load_mnist",
    **dict.fromkeys(EMNIST, "loaders.pictures:load_emnist"),
    "sentiment140": "loaders.leaf:load_sentiment140",
    "shakespeare": "loaders.leaf:load_shakespeare",
    "leaf_femnist": "loaders.leaf:load_leaf_femnist",
    "leaf_shakespeare": "loaders.leaf:load_leaf_shakespeare",
}
"""Module of `experiments.data` and loader by name: a configuration knows the names without importing the readers."""

DIVIDED = ("cifar10", "cifar100", "mnist", "fashion_mnist", *EMNIST, "leaf_femnist", "leaf_shakespeare")

DROPS_COLUMNS = ("unsw_nb15", "nf_unsw_nb15", "heart")


def is_own_data(name: str) -> bool:
    """Return whether `federation.dataset` is a path or an address rather than a registered name."""
    return name.startswith(HUB) or any(sign in name for sign in "./\\") or (name not in DATASETS and _is_folder(name))


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
    if name not in DATASETS and not is_own_data(name):
        raise ConfigurationError.of("federation.dataset", f"be one of {', '.join(DATASETS)}", repr(name))
    faults = list(_unread_settings(request))
    if faults:
        raise ConfigurationError(faults)
    path = DATASETS.get(name, "own:load_hugging_face" if name.startswith(HUB) else "own:load_own_data")
    module, _, loader = path.partition(":")
    try:
        dataset: Dataset = getattr(import_module(f"fedscout.experiments.data.{module}"), loader)(request)
    except MemoryError:
        raise DataError.of(
            f"data set {name!r}", "fit into memory, but there is not enough of it to read all rows"
        ) from None
    return dataset


def _unread_settings(request: DatasetRequest) -> Iterator[Fault]:
    """Yield a fault for each setting that the data set does not read."""
    name, is_hub = request.dataset, request.dataset.startswith(HUB)
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
        ("encoding", request.encoding, is_own and not is_hub, ("your own text files",)),
        ("separator", request.separator, is_own and not is_hub, ("your own text files",)),
        (
            "header",
            None if request.header is None else str(request.header),
            is_own and not is_hub,
            ("your own text files",),
        ),
    ):
        if value and not applies and name not in readers:
            yield Fault(f"federation.{key}", f"only be given for {', '.join(readers)}", f"{value!r} for {name!r}")
