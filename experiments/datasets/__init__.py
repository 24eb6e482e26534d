"""Data sets by name: those that come with scikit-learn, and those read from files that the user has."""

from experiments.datasets.dataset import Dataset
from experiments.datasets.table import DATASETS, load_dataset

__all__ = ["DATASETS", "Dataset", "load_dataset"]
