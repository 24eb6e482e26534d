"""Twelve federations that are diagnosed, the other data sets that stand in for theirs, and the two halves of the rows.

The clients of the original hold one half of their data set, the look-alike of the same data is dealt from the other:
of each class in proportion, drawn by the federation's seed. So no row is on both sides, but for rows that the data set
holds twice. The look-alike of other data is dealt from all of that data set, or from a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.seeds import stream
from fedscout.experiments.benchmarks.choice.choice_battery import DEFAULTS, FederationCase, ReadyCase
from fedscout.experiments.benchmarks.choice.joint_battery import SPACE
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.federations.assembly.build_federation import build_federation
from fedscout.experiments.federations.assembly.federation_config import FederationConfig
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.loaders.dataset_table import load_dataset
from fedscout.experiments.federations.datasets.row_sample import sample_rows, taken
from fedscout.experiments.federations.datasets.server_rows import stratified

TRAINING = ("training.num_rounds=15", "training.learning_rate=0.1", "model.kind=dense", "model.hidden=[32]")

DATA: Mapping[str, tuple[str, ...]] = {
    "digits": ("federation.dataset=digits",),
    "breast_cancer": ("federation.dataset=breast_cancer",),
    "wine": ("federation.dataset=wine",),
    "wine_quality": ("federation.dataset=wine_quality", "federation.max_rows=2400"),
    "heart": ("federation.dataset=heart",),
    "fashion_mnist": ("federation.dataset=fashion_mnist", "federation.max_rows=2400"),
    "unsw_nb15": ("federation.dataset=unsw_nb15", "federation.max_rows=1500"),
}
WITH_FILES = ("wine_quality", "heart", "fashion_mnist", "unsw_nb15")


@dataclass(frozen=True)
class LookAlikeCase:
    """A federation, and the other data set that stands in for its own.

    Attributes:
        case: The original, without its data set.
        data: Its data set, a key of `DATA`.
        other: The other one, likewise.
    """

    case: FederationCase
    data: str
    other: str

    @property
    def name(self) -> str:
        """For people."""
        return self.case.name


def _case(data: str, other: str, told: str, clients: int, *dealt: str) -> LookAlikeCase:
    arguments = (*TRAINING, f"federation.num_clients={clients}", *(f"federation.{each}" for each in dealt))
    files = data in WITH_FILES or other in WITH_FILES
    return LookAlikeCase(FederationCase(f"{data}, {told}, {clients} clients", arguments, files), data, other)


def _scaled(clients: int) -> str:
    effects = ", ".join(
        f"{{kind: feature_scale, clients: {[*range(place, clients, 5)]}, factor: {factor}}}"
        for place, factor in enumerate((0.2, 0.5, 1, 2, 5))
    )
    return f"scenario=[{effects}]"


CLASS_PAIRS = (
    "partition.kind=pathological",
    "partition.classes_per_client=1",
    "partition.class_assignment=deterministic",
)
NOISY = "scenario={kind: feature_noise, clients: 0.3, mean: 1, std: 0.5}"
FLIPPED = "scenario={kind: label_flip, clients: 0.3, rate: 0.8}"

BATTERY: tuple[LookAlikeCase, ...] = (
    _case("digits", "fashion_mnist", "Dirichlet 0.1", 10, "partition.alpha=0.1"),
    _case("digits", "fashion_mnist", "Dirichlet 0.5", 20, "partition.alpha=0.5"),
    _case("digits", "fashion_mnist", "one class a client", 10, *CLASS_PAIRS),
    _case("digits", "fashion_mnist", "features scaled", 10, "partition.kind=iid", _scaled(10)),
    _case("digits", "fashion_mnist", "wrong labels", 10, "partition.kind=iid", FLIPPED),
    _case("digits", "fashion_mnist", "other amounts", 10, "partition.kind=quantity_skew", "partition.alpha=0.5"),
    _case("breast_cancer", "heart", "Dirichlet 0.1", 10, "partition.alpha=0.1"),
    _case("breast_cancer", "heart", "wrong labels", 6, "partition.kind=iid", FLIPPED),
    _case("wine", "digits", "Dirichlet 0.1", 6, "partition.alpha=0.1"),
    _case("wine_quality", "digits", "Dirichlet 0.1", 10, "partition.alpha=0.1"),
    _case("heart", "breast_cancer", "Dirichlet 0.5, noisy features", 8, "partition.alpha=0.5", NOISY),
    _case("fashion_mnist", "digits", "Dirichlet 0.3", 10, "partition.alpha=0.3"),
)


def cases_of(names: Sequence[str] | None) -> tuple[LookAlikeCase, ...]:
    """Return the federations of some names, or all.

    Raises:
        ConfigurationError: If there is no such federation.
    """
    known = {case.name: case for case in BATTERY}
    if unknown := [name for name in names or () if name not in known]:
        raise ConfigurationError(f"--federation must be one of {'; '.join(known)}, got {unknown[0]!r}")
    return tuple(case for case in BATTERY if names is None or case.name in names)


def original(case: LookAlikeCase, settings: Sequence[str]) -> tuple[ReadyCase, Dataset]:
    """Return the federation that is diagnosed, and the half of its data that no client holds.

    Raises:
        UserError: If an argument is wrong, or the data can't be read or dealt so.
    """
    arguments = (*DEFAULTS, *DATA[case.data], *case.case.arguments, *SPACE, *settings)
    config = load_config(arguments)
    dataset = _rows(config.federation)
    order = stratified(dataset.labels, dataset.num_rows, stream(config.federation.seed, "look-alike halves"))
    half = dataset.num_rows // 2
    proxy, own = (taken(dataset, np.sort(rows)) for rows in (order[:half], order[half:]))
    return ReadyCase(
        case.case, arguments, config, build_federation(config.federation, config.model, dataset=own)
    ), proxy


def look_alike(case: LookAlikeCase, report: str, proxy: Dataset | None, settings: Sequence[str]) -> ReadyCase:
    """Return the look-alike of a diagnosed federation.

    Args:
        case: The original.
        report: File of the report.
        proxy: Rows of the original's own data set; None takes the other data set.
        settings: Arguments that hold everywhere.

    Raises:
        UserError: If it can't be built.
    """
    data = DATA[case.data if proxy is not None else case.other]
    arguments = (*DEFAULTS, *data, *TRAINING, f"federation.like={report}", *SPACE, *settings)
    config = load_config(arguments)
    name = f"{case.name}: like it, of {'the same' if proxy is not None else case.other}"
    federation = build_federation(config.federation, config.model, dataset=proxy)
    return ReadyCase(FederationCase(name, arguments), arguments, config, federation)


def _rows(federation: FederationConfig) -> Dataset:
    return sample_rows(load_dataset(federation), federation.max_rows, stream(federation.seed, "rows"))
