"""Effects on labels: noise, poisoning, skew and concept shift.

Effects that make labels wrong: by accident, on purpose, and on purpose beside noise on the features.

With two classes there is only one wrong label, and accident at rate 1 equals purpose. With more, an accident picks any
other class; an attacker is assumed to be consistent, y → (y + 1) mod C, as in fixed source-to-target label flipping
(V. Tolpegin, S. Truex, M. E. Gursoy and L. Liu, "Data Poisoning Attacks Against Federated Learning Systems", ESORICS
2020). That is the harder case: a client with consistent labels learns a wrong model well and pulls the average towards
it in every round, whereas uniformly wrong labels hardly have a direction. The shift is chosen over the likewise common
y → C − 1 − y because it leaves no class in place, also for odd C.

Accidents have one rate, or rates that differ between clients, drawn from a Beta distribution, as of mean a/100 for
Beta(a, 100 − a) in X. Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769,
2024. A client's rate does not depend on who else is affected.

Label skew: clients of equal size, of whose rows 90, 70, 50 and 10 % belong to one class.

Published for four clients and a binary label. Generalised:

- The class of the first four clients is the most frequent one. Its share follows the published list, the rest of a
  client mirrors the other classes in their overall proportions; with two classes that is the published scenario.
- Further clients repeat the list, four at a time, each four with a class of their own: the next most frequent one, and
  the first again once the r most frequent have had their turn. r is chosen so that clients get as many rows as possible
  (the smallest such r): it is large where classes are balanced and 1 where all but one are rare.
- Clients have equal sizes, the largest that the class counts allow; the rows that are left are not used, and counted.
- A client is affected if its label distribution differs from that of all dealt rows by more than 0.1 in total variation
  distance (½ Σ|p − g|: the part of its rows that would have to change class). With four clients the shares average
  55 %, so the clients with 90, 70 and 10 % are affected, and the one with 50 % is not.

Class skew of some clients, on top of any partition: most of their rows are of one class, as rows change hands.

X. Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024: of a skewed
client's own rows 80 % are of one class and the rest uniform; the fraction says how many clients are skewed. The
partition `dominant_class` deals such clients from scratch; this effect leaves all else about a partition as it is:

- Every client keeps its number of rows, and every row stays in one client's hands: a skewed client gives rows away and
  gets as many of its class, and whoever gave those gets what the first one gave.
- A client keeps what it has of its class, as far as that is wanted. The others of its rows, too, are some that it had,
  drawn at random: on rows dealt IID they have the overall distribution of the other classes, which for equal classes is
  the source's uniform one, and on skewed rows the client's own.
- Classes are drawn one client after the other, in proportion to the rows that no skewed client claims yet, among
  classes of which enough are left; the source is silent. So no class is asked for more than there is.
- Rows come from all clients at random, from other skewed ones as far as these do not claim them. Where hardly anybody
  is not skewed, no rows of other classes may be left, and a client has a few more of its class than its share.

The labels are those before any corruption: rows change hands before labels are flipped, wherever the effect stands.

Concept shift: the same features mean other labels. At some clients classes have changed places.

This is the "same features, different labels" of P. Kairouz et al., "Advances and Open Problems in Federated Learning",
Foundations and Trends in Machine Learning 14 (1–2), 2021, section 3.1, produced by a permutation of the labels of a
group of clients as in F. Sattler, K.-R. Müller and W. Samek, "Clustered Federated Learning: Model-Agnostic Distributed
Multi-Task Optimization Under Privacy Constraints", IEEE Transactions on Neural Networks and Learning Systems 32 (8),
2021.

A drawn permutation is one cycle through the classes that take part, so none of them stays where it is. The clients of
an effect share it, and so form a group; or each has its own. Several groups are several effects.

The clean view of such a client has the labels as they were: what the model would be asked by all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client import Partition
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.partitions.base import PartitionRequest, PartitionResult
from fedscout.experiments.scenarios.base import EffectRequest, ScenarioEffect, ScenarioPlan, with_rows
from fedscout.experiments.scenarios.features import FeatureNoise


@dataclass(frozen=True)
class RandomLabelFlip:
    """Gives a part of the rows another class, drawn uniformly from the wrong ones.

    Attributes:
        rate: The part of the rows, in `[0, 1]`: exactly `round(rate * num_rows)` of them, drawn without replacement.
    """

    rate: float

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return the same features and partly wrong labels."""
        rows = generator.permutation(len(labels))[: round(self.rate * len(labels))]
        flipped = labels.copy()
        flipped[rows] = (labels[rows] + generator.integers(1, num_classes, size=len(rows))) % num_classes
        return features.copy(), flipped


@dataclass(frozen=True)
class ShiftLabels:
    """Gives every row the class after its own; the last class becomes the first."""

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return the same features and wrong labels throughout."""
        return features.copy(), (labels + 1) % num_classes


class LabelFlipEffect(ScenarioEffect):
    """Wrong labels by accident, each drawn from the other classes."""

    needs_classes: ClassVar[bool] = True

    kind: Literal["label_flip"] = "label_flip"
    rate: float | None = Field(default=None, ge=0, le=1, description="part of a client's rows")
    alpha: float | None = Field(default=None, gt=0, description="with beta, in place of rate: each client's own rate")
    beta: float | None = Field(default=None, gt=0, description="of a Beta distribution of mean alpha / (alpha + beta)")

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> LabelFlipEffect:
        shape = {name: value for name, value in (("alpha", self.alpha), ("beta", self.beta)) if value is not None}
        if (self.rate is not None and shape) or (self.rate is None and len(shape) != 2):
            given = {**({} if self.rate is None else {"rate": self.rate}), **shape}
            shown = ", ".join(f"{name}={value:g}" for name, value in given.items()) or "neither"
            raise ValueError(f"must have rate, or alpha and beta for rates that differ between clients, got {shown}")
        return self

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return each client's flips."""
        sizes = request.partition.sizes
        rates = dict(zip(clients, self._rates(clients, request), strict=True))
        flipped = {client: round(rate * int(sizes[client])) for client, rate in rates.items()}
        return ScenarioPlan(
            transforms={client: (RandomLabelFlip(rate),) for client, rate in rates.items()},
            affected_clients=tuple(client for client in clients if flipped[client]),
            facts={"rates": list(rates.values()), "flipped_rows": list(flipped.values())},
        )

    def _rates(self, clients: tuple[int, ...], request: EffectRequest) -> list[float]:
        if self.alpha is None or self.beta is None:
            assert self.rate is not None
            return [self.rate] * len(clients)
        drawn = request.stream("label_flip rates").beta(self.alpha, self.beta, size=request.num_clients)
        return [float(rate) for rate in drawn[np.asarray(clients)]]


class PoisoningEffect(ScenarioEffect):
    """All labels wrong on purpose: each class becomes the next one, the last the first."""

    needs_classes: ClassVar[bool] = True

    kind: Literal["poisoning"] = "poisoning"

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the shift of all labels."""
        return ScenarioPlan(
            transforms=dict.fromkeys(clients, (ShiftLabels(),)), affected_clients=with_rows(clients, request)
        )


class CorruptedEffect(ScenarioEffect):
    """Gaussian noise on every feature, and all labels wrong as by poisoning."""

    needs_measurements: ClassVar[bool] = True

    needs_classes: ClassVar[bool] = True

    kind: Literal["corrupted"] = "corrupted"
    mean: float = Field(default=1.0, description="of the noise, in standard deviations of a feature")
    std: float = Field(default=0.5, ge=0, description="standard deviation, in the same unit")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return noise, then the shift of all labels."""
        noise = FeatureNoise(self.mean * request.feature_unit, self.std * request.feature_unit)
        return ScenarioPlan(
            transforms=dict.fromkeys(clients, (noise, ShiftLabels())),
            affected_clients=with_rows(clients, request),
            facts={"mean": self.mean, "std": self.std, "feature_unit": request.feature_unit},
        )


SHARES = (0.9, 0.7, 0.5, 0.1)
MIN_SIZE = 10
AFFECTED_DISTANCE = 0.1


def label_skew(request: PartitionRequest) -> PartitionResult:
    """Deal rows in the published shares.

    Raises:
        DataError: If the class counts do not allow ten rows a client, the fewest in which all shares are whole rows.
    """
    assert request.num_clients is not None
    counts = _largest_deal(request.class_counts, request.num_clients)
    distributions = counts / counts.sum(axis=1, keepdims=True)
    distances = 0.5 * np.abs(distributions - counts.sum(axis=0) / counts.sum()).sum(axis=1)
    affected = tuple(np.flatnonzero(distances > AFFECTED_DISTANCE).tolist())
    return replace(request.deal_counts(counts), affected_clients=affected)


def _largest_deal(class_counts: IntArray, num_clients: int) -> IntArray:
    """Return the rows of each class that each client gets, shape `(num_clients, num_classes)`."""
    by_frequency = np.argsort(-class_counts, kind="stable")[: np.count_nonzero(class_counts)]
    num_turns = min(len(by_frequency), -(-num_clients // len(SHARES)))
    size, mixtures = 0, np.empty((1, len(class_counts)))
    for num_in_turn in range(1, num_turns + 1):
        candidate = _mixtures(class_counts, by_frequency[:num_in_turn])
        candidate_size = _largest_size(candidate, class_counts, num_clients, size)
        if candidate_size > size:
            size, mixtures = candidate_size, candidate
    if size < MIN_SIZE:
        raise DataError(
            Fault(
                "federation.scenario=label_skew",
                f"be able to give every client {MIN_SIZE} rows, the fewest that show its shares",
                f"{num_clients} clients for classes of {class_counts.tolist()} rows",
            )
        )
    return _whole_rows(mixtures, size)[np.arange(num_clients) % len(mixtures)]


def _mixtures(class_counts: IntArray, in_turn: IntArray) -> npt.NDArray[np.float64]:
    """Return the label distributions that clients have in turn, shape `(4 r, num_classes)`."""
    own = np.repeat(in_turn, len(SHARES))
    shares = np.tile(SHARES, len(in_turn))
    turns = np.arange(len(own))
    mixtures = np.tile(class_counts.astype(np.float64), (len(own), 1))
    mixtures[turns, own] = 0
    mixtures *= ((1 - shares) / mixtures.sum(axis=1))[:, None]
    mixtures[turns, own] = shares
    return mixtures


def _largest_size(
    mixtures: npt.NDArray[np.float64], class_counts: IntArray, num_clients: int, size_to_beat: int
) -> int:
    """Return the most rows a client that the class counts allow, if every client gets as many.

    A size that would not exceed `size_to_beat` is not worked out: any number up to it may be returned.
    """
    num_of_each = np.bincount(np.arange(num_clients) % len(mixtures), minlength=len(mixtures))
    demand = num_of_each @ mixtures
    # The tolerance keeps a quotient such as 1100 / 2.2 = 499.999… from losing a row.
    size = int((class_counts[demand > 0] / demand[demand > 0]).min() + 1e-9)
    # Rounding to whole rows may ask for a few more of a class than there are.
    while size > size_to_beat and (num_of_each @ _whole_rows(mixtures, size) > class_counts).any():
        size -= 1
    return size


def _whole_rows(mixtures: npt.NDArray[np.float64], size: int) -> IntArray:
    """Round each client's expected rows to whole ones that add up to `size`, by the largest remainder."""
    expected = mixtures * size
    # The tolerance keeps a product such as 0.7 * 10 = 6.999… from losing a row.
    whole = np.floor(expected + 1e-9).astype(np.int64)
    missing = size - whole.sum(axis=1)
    order = np.argsort(-(expected - whole), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    whole += rank < missing[:, None]
    return whole


class ClassSkewEffect(ScenarioEffect):
    """Most of a client's rows are of one class: it exchanges rows with the others until they are."""

    needs_classes: ClassVar[bool] = True
    moves_rows: ClassVar[bool] = True

    kind: Literal["class_skew"] = "class_skew"
    share: float = Field(default=0.8, gt=0, le=1, description="part of the client's rows that are of its class")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return who holds which rows.

        Raises:
            DataError: If no class has enough rows for a client.
        """
        skewed, sizes = with_rows(clients, request), request.partition.sizes
        generator = request.stream("class_skew")
        wanted = {client: round(self.share * int(sizes[client])) for client in skewed}
        labels = request.labels[request.partition.rows]
        classes = _drawn_classes(wanted, np.bincount(labels, minlength=request.num_classes), generator)
        exchange = _Exchange(request.partition, labels, generator)
        rows = exchange.rows_after(wanted, classes)
        return ScenarioPlan(
            partition=Partition(rows, request.partition.offsets),
            affected_clients=skewed,
            facts={
                "classes": [classes[client] for client in skewed],
                "rows_of_class": [_count(request, rows, client, classes[client]) for client in skewed],
                "rows_exchanged": int(np.count_nonzero(rows != request.partition.rows)),
            },
        )


def _count(request: EffectRequest, rows: IntArray, client: int, label: int) -> int:
    own = rows[request.partition.offsets[client] : request.partition.offsets[client + 1]]
    return int(np.count_nonzero(request.labels[own] == label))


def _drawn_classes(wanted: dict[int, int], class_counts: IntArray, generator: np.random.Generator) -> dict[int, int]:
    """Return the class of each client, in proportion to the rows that nobody claims yet."""
    left, classes = class_counts.copy(), {}
    for client, count in wanted.items():
        weights = np.where(left >= count, left, 0).astype(np.float64)
        if not weights.any():
            raise DataError(
                Fault(
                    "federation.scenario: class_skew",
                    f"find a class with {count} rows left for client {client}",
                    f"classes of {class_counts.tolist()} rows and {len(wanted)} skewed clients",
                    "fewer clients or a smaller share need fewer",
                )
            )
        classes[client] = int(generator.choice(len(left), p=weights / weights.sum()))
        left[classes[client]] -= count
    return classes


class _Exchange:
    """Rows on their way between the places of a partition.

    Args:
        partition: Who holds which rows.
        labels: Of the rows in its order.
        generator: Draws.
    """

    def __init__(self, partition: Partition, labels: IntArray, generator: np.random.Generator) -> None:
        self._partition = partition
        self._labels = labels
        self._generator = generator
        self._free = np.ones(len(labels), np.bool_)

    def rows_after(self, wanted: dict[int, int], classes: dict[int, int]) -> IntArray:
        """Return the rows of all clients in the order of the partition, shape `(total_rows,)`.

        Args:
            wanted: Rows of its class of each skewed client.
            classes: Which that is.
        """
        offsets, labels = self._partition.offsets, self._labels
        places = {client: np.arange(offsets[client], offsets[client + 1]) for client in wanted}
        held = {c: self._claim(places[c][labels[places[c]] == classes[c]], wanted[c]) for c in wanted}
        for client, own in held.items():
            if missing := wanted[client] - len(own):
                alike = np.flatnonzero(labels == classes[client])
                held[client] = np.concatenate([own, self._claim(alike, missing)])
        for client, own in held.items():
            others = places[client][labels[places[client]] != classes[client]]
            held[client] = np.concatenate([own, self._claim(others, len(places[client]) - len(own))])
        for others_only in (True, False):
            for client, own in held.items():
                if missing := len(places[client]) - len(own):
                    allowed = np.flatnonzero(labels != classes[client]) if others_only else np.arange(len(labels))
                    held[client] = np.concatenate([own, self._claim(allowed, missing)])
        return self._settled(places, held)

    def _claim(self, candidates: IntArray, count: int) -> IntArray:
        """Return the places of up to so many rows among candidates that nobody claims, and claim them."""
        free = candidates[self._free[candidates]]
        claimed: IntArray = self._generator.permutation(free)[:count]
        self._free[claimed] = False
        return claimed

    def _settled(self, places: dict[int, IntArray], held: dict[int, IntArray]) -> IntArray:
        """Return the rows, what skewed clients gave away in the places of what they got from others."""
        rows, skewed = self._partition.rows.copy(), np.zeros(len(self._free), np.bool_)
        for client, own in held.items():
            come = ~np.isin(places[client], own)
            rows[places[client][come]] = self._partition.rows[own[~np.isin(own, places[client])]]
            skewed[places[client]] = True
        emptied, given = np.flatnonzero(~skewed & ~self._free), np.flatnonzero(skewed & self._free)
        rows[emptied] = self._partition.rows[self._generator.permutation(given)]
        return rows


@dataclass(frozen=True)
class RenameLabels:
    """Gives every row another name for its class.

    Attributes:
        names: The new class of each old one, shape `(num_classes,)`; a permutation.
    """

    names: tuple[int, ...]

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return the same features and renamed labels."""
        return features.copy(), np.asarray(self.names, dtype=np.int64)[labels]


class ConceptShiftEffect(ScenarioEffect):
    """The same features, other labels: classes change places."""

    needs_classes: ClassVar[bool] = True

    kind: Literal["concept_shift"] = "concept_shift"
    shared: bool = Field(default=True, description="whether the clients share a permutation, or each draws its own")
    share: float = Field(default=1.0, gt=0, le=1, description="part of the classes that change places; at least two")
    permutation: tuple[int, ...] | None = Field(
        default=None, description="in place of a drawn one: the new class of each old one, such as [1, 0, 2]"
    )

    @field_validator("permutation")
    @classmethod
    def _is_permutation(cls, given: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if given is not None and sorted(given) != list(range(len(given))):
            raise ValueError(f"must hold each class from 0 on once, such as [1, 0, 2], got {list(given)}")
        return given

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> ConceptShiftEffect:
        if self.permutation is not None and not (self.shared and self.share == 1):
            raise ValueError(
                f"must leave shared and share out where permutation is given, got shared={str(self.shared).lower()}, "
                f"share={self.share:g}"
            )
        return self

    def faults(self, request: EffectRequest) -> list[str]:
        """Return what does not fit the federation; each fault begins with the key."""
        found = super().faults(request)
        if self.permutation is not None and len(self.permutation) != request.num_classes:
            found.append(
                f"permutation must have one entry for each of the {request.num_classes} classes, "
                f"got {len(self.permutation)}"
            )
        return found

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return each client's permutation."""
        names = self._names(clients, request)
        moved = {client: _num_moved(names[client], request.client_labels(client)) for client in clients}
        permutations = [names[clients[0]]] if self.shared else [names[client] for client in clients]
        return ScenarioPlan(
            transforms={client: (RenameLabels(names[client]),) for client in clients},
            affected_clients=tuple(client for client in clients if moved[client]),
            facts={
                "shared": self.shared,
                "permutations": [list(permutation) for permutation in permutations],
                "moved_rows": list(moved.values()),
            },
        )

    def _names(self, clients: tuple[int, ...], request: EffectRequest) -> dict[int, tuple[int, ...]]:
        if self.permutation is not None:
            return dict.fromkeys(clients, self.permutation)
        if self.shared:
            return dict.fromkeys(clients, self._draw(request.num_classes, request.stream("concept_shift group")))
        return {
            client: self._draw(request.num_classes, request.stream("concept_shift client", client))
            for client in clients
        }

    def _draw(self, num_classes: int, generator: np.random.Generator) -> tuple[int, ...]:
        """Return a random cycle through a random part of the classes."""
        names = np.arange(num_classes)
        cycle = generator.permutation(num_classes)[: max(2, round(self.share * num_classes))]
        names[cycle] = np.roll(cycle, -1)
        return tuple(names.tolist())


def _num_moved(names: tuple[int, ...], labels: IntArray) -> int:
    return int((np.asarray(names)[labels] != labels).sum())
