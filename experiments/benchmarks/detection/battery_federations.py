"""On which federations detection is judged, and what is true of them.

Thresholds and rules are set on the `DEVELOPMENT` data sets; what is reported is the `HELD_OUT` ones, on which nothing
was set. Both are printed, and whoever sets something after a look at a held-out data set moves it to the others.

| case | label skew | feature skew | outliers |
| --- | --- | --- | --- |
| `iid` | no | no | none |
| `label_skew`, `dirichlet` (α = 0.3) | yes | no | none |
| `rare_client`: the first client holds one class, the others all | yes | open | none |
| `feature_skew` | no | yes | none |
| `noisy_labels`, `label_poisoning` | open | open | the third client |
| `corrupted_client` | open | yes | the third client |
| `two_poisoners`, `three_poisoners`, of five and of seven clients or more | open | open | the first ones |
| `sign_flip` (factor 4), `scaled_update`, `gaussian_update` (0.1) | no | no | the third client |

*Open*: wrong labels change what a client's label counts and classes look like, so whoever says so of that client is
neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from fedscout.detectors.report import DetectorName

Truth = Mapping[DetectorName, bool | None]
"""Whether there is label skew, feature skew, and whether the affected clients are outliers; None is open."""

Half = Literal["development", "held out", "other"]


class DataSource(NamedTuple):
    """A data set of a battery.

    Attributes:
        name: In `federation.dataset`.
        max_rows: Of a random sample; None for all.
        client_rows: The sample is larger where that would be fewer rows a client.
    """

    name: str
    max_rows: int | None = None
    client_rows: int = 0

    def sampled(self, num_clients: int) -> int | None:
        """Return the rows of the sample that so many clients share; None for all."""
        return None if self.max_rows is None else max(self.max_rows, self.client_rows * num_clients)


MANY_CLIENTS_ROWS: Final = 100
"""Rows a client of the data sets that are large enough for 100 clients."""


DEVELOPMENT: Final = (
    DataSource("breast_cancer"),
    DataSource("digits"),
    DataSource("bearing"),
    DataSource("wine_quality", 3000),
    DataSource("fashion_mnist", 2000, MANY_CLIENTS_ROWS),
    DataSource("sentiment140", 2000, MANY_CLIENTS_ROWS),
)
HELD_OUT: Final = (
    DataSource("wine"),
    DataSource("heart"),
    DataSource("unsw_nb15", 2000, MANY_CLIENTS_ROWS),
    DataSource("cifar10", 2000, MANY_CLIENTS_ROWS),
)
BUNDLED: Final = (*DEVELOPMENT[:2], *HELD_OUT[:1])
"""Come with the program; the others are read from FEDSCOUT_DATA."""


def half_of(dataset: str) -> Half:
    """Return to which half of the battery a data set belongs."""
    if dataset in {source.name for source in DEVELOPMENT}:
        return "development"
    return "held out" if dataset in {source.name for source in HELD_OUT} else "other"


@dataclass(frozen=True)
class Case:
    """One kind of federation.

    Attributes:
        truth: Of it.
        arguments: That make it.
        min_clients: Fewer and affected clients would be half of all.
    """

    truth: Truth
    arguments: tuple[str, ...]
    min_clients: int = 3


def _case(truth: tuple[bool | None, bool | None, bool], *arguments: str, min_clients: int = 3) -> Case:
    label_skew, feature_skew, outliers = truth
    names: Truth = {"label_skew": label_skew, "feature_skew": feature_skew, "outliers": outliers}
    return Case(names, tuple(f"federation.{argument}" for argument in arguments), min_clients)


def _poisoners(num_attackers: int) -> Case:
    effect = f"scenario={{kind: poisoning, clients: {list(range(num_attackers))}}}"
    return _case((None, None, True), "partition.kind=iid", effect, min_clients=2 * num_attackers + 1)


def _attack(effect: str) -> Case:
    return _case((False, False, True), "partition.kind=iid", f"scenario={{kind: {effect}, clients: [2]}}")


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "iid": _case((False, False, False), "scenario=iid"),
        "label_skew": _case((True, False, False), "scenario=label_skew"),
        "dirichlet": _case((True, False, False), "partition.kind=dirichlet", "partition.alpha=0.3"),
        "feature_skew": _case((False, True, False), "scenario=feature_skew"),
        "noisy_labels": _case((None, None, True), "scenario=noisy_labels"),
        "label_poisoning": _case((None, None, True), "scenario=label_poisoning"),
        "corrupted_client": _case((None, True, True), "scenario=corrupted_client"),
        "rare_client": _case((True, None, False), "partition.kind=heterogeneity_index", "partition.levels={levels}"),
        "two_poisoners": _poisoners(2),
        "three_poisoners": _poisoners(3),
        "sign_flip": _attack("sign_flip, factor: 4"),
        "scaled_update": _attack("scaled_update"),
        "gaussian_update": _attack("gaussian_update, std: 0.1"),
    }
)
"""In an order that decides their seeds: new ones come last."""


def case_arguments(name: str, num_clients: int) -> list[str]:
    """Return the settings that make a federation of a case."""
    levels = [1, *[0] * (num_clients - 1)]
    return [argument.replace("{levels}", str(levels)) for argument in CASES[name].arguments]
