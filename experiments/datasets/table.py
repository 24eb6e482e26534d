"""The table of data sets: a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.errors import ConfigurationError
from experiments.datasets.bearing import load_bearing
from experiments.datasets.bearing_faults import load_bearing_faults
from experiments.datasets.breast_cancer import load_breast_cancer
from experiments.datasets.dataset import Dataset
from experiments.datasets.digits import load_digits
from experiments.datasets.request import DatasetLoader, DatasetRequest
from experiments.datasets.wine import load_wine
from experiments.datasets.wine_quality import load_wine_quality, load_wine_quality_red, load_wine_quality_white

DATASETS: Mapping[str, DatasetLoader] = {
    "digits": load_digits,
    "breast_cancer": load_breast_cancer,
    "wine": load_wine,
    "wine_quality": load_wine_quality,
    "wine_quality_red": load_wine_quality_red,
    "wine_quality_white": load_wine_quality_white,
    "bearing": load_bearing,
    "bearing_faults": load_bearing_faults,
}


OWN_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".parquet")


def is_own_data(name: str) -> bool:
    """Whether a user's `federation.dataset` is a path or an address rather than a name of the table."""
    return name.startswith("hf:") or "/" in name or "\\" in name or name.endswith(OWN_SUFFIXES)


def load_dataset(
    name: str,
    label: str | None = None,
    client_column: str | None = None,
    folder: Path | None = None,
    text_column: str | None = None,
    min_release: int = 5,
) -> Dataset:
    """Load a data set by name.

    Args:
        name: A key of `DATASETS`.
        label: The column to predict, where the files have several candidates; None for the usual one.
        client_column: The column that names each row's natural client; None for no natural clients.
        folder: Where the files are; None for the folder that the environment variable `FEDSCOUT_DATA` names.

        text_column: The column that holds texts; None for the usual one, or none.
        min_release: Fewest rows over which a client gives an aggregate.

    Raises:
        ConfigurationError: If there is no such data set.
        DataError: If its files are missing or malformed, or it has no such column.
    """
    loader = DATASETS.get(name)
    if loader is None:
        raise ConfigurationError(f"federation.dataset must be one of {', '.join(DATASETS)}, got {name!r}")
    return loader(DatasetRequest(name, label, client_column, folder, text_column, min_release))
