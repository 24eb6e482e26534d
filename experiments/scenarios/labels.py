"""Effects on labels: random label noise, label poisoning, label skew, class skew and concept shift.

`label_flip`, `poisoning` and `corrupted`: wrong labels at random, by an attack, and by an attack with noise on the
features. With two classes there is only one wrong label, and random flips at rate 1 equal poisoning. With more, a
random flip picks any other class; an attacker is assumed to be consistent, y → (y + 1) mod C, as in fixed
source-to-target label flipping (V. Tolpegin, S. Truex, M. E. Gursoy and L. Liu, "Data Poisoning Attacks Against
Federated Learning Systems", ESORICS 2020). That is the harder case: a client with consistent labels fits a wrong model
well and pulls the average towards it in every round, whereas uniformly wrong labels have hardly any direction. The
shift is preferred to the equally common y → C − 1 − y because it leaves no class unchanged, even for odd C. Random
flips have one rate, or client-specific rates drawn from a Beta distribution, with mean a/100 for Beta(a, 100 − a) in X.
Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024. A client's rate
does not depend on the other affected clients.

`label_skew`: clients of equal size, with 90, 70, 50 and 10 % of rows in one class. Published for four clients and a
binary label. Generalised:

- The class of the first four clients is the most frequent one. Its share follows the published list; the rest of
  a client's rows has the other classes in their overall proportions. With two classes that is the published
  scenario.
- Further clients repeat the list, four at a time, each four with a class of their own: the next most frequent
  one, and the first again after the r most frequent ones. r is the smallest number that maximises the rows per
  client: it is large if classes are balanced and 1 if all but one are rare.
- Clients have equal sizes, the largest that the class counts allow; the remaining rows are not used, and counted.
- A client is affected if its label distribution differs from that of all partitioned rows by more than 0.1 in
  total variation distance (½ Σ|p − g|: the share of its rows that would have to change class). With four clients
  the shares average 55 %, so the clients with 90, 70 and 10 % are affected, and the one with 50 % is not.

`class_skew`: on top of any partition, some clients exchange rows until most of theirs are of one class. In X. Chang et
al. (above), 80 % of a skewed client's rows are of one class and the rest uniform, and a fraction sets the number of
skewed clients. The effect preserves everything else about a partition:

- Every client keeps its number of rows, and every row belongs to one client: a skewed client gives away rows and
  receives as many of its class, and the clients that gave those receive the rows given away.
- A client keeps its rows of its class, up to the requested share. Its other rows are also a random sample of its
  former ones: on IID partitions they have the overall distribution of the other classes, which for balanced
  classes is the uniform one of the source, and on skewed partitions the client's own.
- Classes are drawn client by client, in proportion to the rows not yet claimed by a skewed client, among the
  classes with enough rows left; the source does not specify this. So no class is requested beyond its rows.
- Rows come from all clients at random, including other skewed ones as far as these do not claim them. If hardly
  any client is not skewed, rows of other classes may run out, and a client gets slightly more of its class than
  its share.

The labels are those before any corruption: rows are exchanged before labels are flipped, regardless of the order of the
effects.

`concept_shift`: at some clients the same features have other labels, as classes are permuted. This is the "same
features, different labels" of P. Kairouz et al., "Advances and Open Problems in Federated Learning", Foundations and
Trends in Machine Learning 14 (1–2), 2021, section 3.1, produced by a permutation of the labels of a group of clients as
in F. Sattler, K.-R. Müller and W. Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization Under Privacy Constraints", IEEE Transactions on Neural Networks and Learning Systems 32 (8), 2021. A
random permutation is one cycle through the selected classes, so none of them is unchanged. The clients of an effect
share it, and so form a group. Several groups are several effects. The uncorrupted data of such a client has the
original labels, on which all other clients would evaluate the model.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client import Partition
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.partitions.labels import PartitionRequest, PartitionResult
from fedscout.experiments.scenarios.effects import EffectRequest, FeatureNoise, ScenarioEffect, ScenarioPlan


class LabelTransform:
    """Changes the labels of a client's rows and keeps their features."""

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return the same features and changed labels."""
        return features.copy(), self.changed(labels, num_classes, generator)

    @abstractmethod
    def changed(self, labels: IntArray, num_classes: int, generator: np.random.Generator) -> IntArray:
        """Return new labels in `[0, num_classes)`."""


@dataclass(frozen=True)
class RandomLabelFlip(LabelTransform):
    """Replaces the labels of a share of the rows by wrong classes, drawn uniformly.

    Attributes:
        rate: Share of the rows, in `[0, 1]`: exactly `round(rate * num_rows)` of them, drawn without replacement.
    """

    rate: float

    def changed(self, labels: IntArray, num_classes: int, generator: np.random.Generator) -> IntArray:
        """Return partly wrong labels."""
        rows = generator.permutation(len(labels))[: round(self.rate * len(labels))]
        flipped = labels.copy()
        flipped[rows] = (labels[rows] + generator.integers(1, num_classes, size=len(rows))) % num_classes
        return flipped


@dataclass(frozen=True)
class ShiftLabels(LabelTransform):
    """Replaces every label by the next class; the last class becomes the first."""

    def changed(self, labels: IntArray, num_classes: int, generator: np.random.Generator) -> IntArray:
        """Return labels that are all wrong."""
        return (labels + 1) % num_classes


class LabelFlipEffect(ScenarioEffect):
    """Random label noise: wrong labels drawn from the other classes."""

    needs: ClassVar[frozenset[str]] = frozenset({"classes"})

    kind: Literal["label_flip"] = "label_flip"
    rate: float | None = Field(default=None, ge=0, le=1, description="fraction of a client's rows")
    alpha: float | None = Field(default=None, gt=0, description="with beta, instead of rate: a rate per client")
    beta: float | None = Field(
        default=None, gt=0, description="drawn from a Beta distribution with mean alpha / (alpha + beta)"
    )

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> LabelFlipEffect:
        shape = {name: value for name, value in (("alpha", self.alpha), ("beta", self.beta)) if value is not None}
        if (self.rate is not None and shape) or (self.rate is None and len(shape) != 2):
            settings = {**({} if self.rate is None else {"rate": self.rate}), **shape}
            shown = ", ".join(f"{name}={value:g}" for name, value in settings.items()) or "neither"
            raise ValueError(f"must have rate, or alpha and beta for rates that differ between clients, got {shown}")
        return self

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the label flips of each client."""
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
        rates_by_client = request.stream("label_flip rates").beta(self.alpha, self.beta, size=request.num_clients)
        return [float(rate) for rate in rates_by_client[np.asarray(clients)]]


class PoisoningEffect(ScenarioEffect):
    """Label poisoning of all rows: each class becomes the next one, the last the first."""

    needs: ClassVar[frozenset[str]] = frozenset({"classes"})

    kind: Literal["poisoning"] = "poisoning"

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the shift of all labels."""
        return self.same_for_all(clients, request, {}, transforms=(ShiftLabels(),))


class CorruptedEffect(ScenarioEffect):
    """Gaussian noise on every feature, and all labels shifted as by poisoning."""

    needs: ClassVar[frozenset[str]] = frozenset({"measurements", "classes"})

    kind: Literal["corrupted"] = "corrupted"
    mean: float = Field(default=1.0, description="mean of the noise in standard deviations of a feature")
    std: float = Field(default=0.5, ge=0, description="standard deviation of the noise, in the same unit")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the noise, followed by the shift of all labels."""
        noise = FeatureNoise(self.mean * request.feature_unit, self.std * request.feature_unit)
        facts = {"mean": self.mean, "std": self.std, "feature_unit": request.feature_unit}
        return self.same_for_all(clients, request, facts, transforms=(noise, ShiftLabels()))


SHARES = (0.9, 0.7, 0.5, 0.1)
MIN_SIZE = 10
AFFECTED_DISTANCE = 0.1


def label_skew(request: PartitionRequest) -> PartitionResult:
    """Partition rows in the published shares.

    Raises:
        DataError: If the class counts do not allow ten rows per client, the fewest for which all shares are whole rows.
    """
    assert request.num_clients is not None
    counts = _largest_partition(request.class_counts, request.num_clients)
    distributions = counts / counts.sum(axis=1, keepdims=True)
    distances = 0.5 * np.abs(distributions - counts.sum(axis=0) / counts.sum()).sum(axis=1)
    affected = tuple(np.flatnonzero(distances > AFFECTED_DISTANCE).tolist())
    return replace(request.by_class_counts(counts), affected_clients=affected)


def _largest_partition(class_counts: IntArray, num_clients: int) -> IntArray:
    """Return the rows of each client by class, shape `(num_clients, num_classes)`, with the largest client size."""
    by_frequency = np.argsort(-class_counts, kind="stable")[: np.count_nonzero(class_counts)]
    num_turns = min(len(by_frequency), -(-num_clients // len(SHARES)))
    size, mixtures = 0, np.empty((1, len(class_counts)))
    for num_in_turn in range(1, num_turns + 1):
        candidate = _mixtures(class_counts, by_frequency[:num_in_turn])
        candidate_size = _largest_size(candidate, class_counts, num_clients, size)
        if candidate_size > size:
            size, mixtures = candidate_size, candidate
    if size < MIN_SIZE:
        raise DataError.of(
            "federation.scenario=label_skew",
            f"be able to give every client {MIN_SIZE} rows, the minimum to represent its shares",
            f"{num_clients} clients for classes of {class_counts.tolist()} rows",
        )
    return _whole_rows(mixtures, size)[np.arange(num_clients) % len(mixtures)]


def _mixtures(class_counts: IntArray, in_turn: IntArray) -> npt.NDArray[np.float64]:
    """Return the label distributions that clients cycle through, shape `(4 r, num_classes)`."""
    dominant = np.repeat(in_turn, len(SHARES))
    shares = np.tile(SHARES, len(in_turn))
    turns = np.arange(len(dominant))
    mixtures = np.tile(class_counts.astype(np.float64), (len(dominant), 1))
    mixtures[turns, dominant] = 0
    mixtures *= ((1 - shares) / mixtures.sum(axis=1))[:, None]
    mixtures[turns, dominant] = shares
    return mixtures


def _largest_size(
    mixtures: npt.NDArray[np.float64], class_counts: IntArray, num_clients: int, size_to_beat: int
) -> int:
    """Return the largest client size that the class counts allow, with all clients of equal size.

    A size that does not exceed `size_to_beat` is not computed: any number up to it may be returned.
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
    """Round each client's expected rows to integers that sum to `size`, by the largest-remainder method."""
    expected = mixtures * size
    # The tolerance keeps a product such as 0.7 * 10 = 6.999… from losing a row.
    whole = np.floor(expected + 1e-9).astype(np.int64)
    missing = size - whole.sum(axis=1)
    order = np.argsort(-(expected - whole), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    whole += rank < missing[:, None]
    return whole


class ClassSkewEffect(ScenarioEffect):
    """Class skew: clients exchange rows until most of their rows are of one class."""

    needs: ClassVar[frozenset[str]] = frozenset({"classes"})
    changes_partition: ClassVar[bool] = True

    kind: Literal["class_skew"] = "class_skew"
    share: float = Field(default=0.8, gt=0, le=1, description="fraction of the client's rows that have its class")

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the partition after the exchange.

        Raises:
            DataError: If no class has enough rows for a client.
        """
        skewed, sizes = request.with_rows(clients), request.partition.sizes
        generator = request.stream("class_skew")
        wanted = {client: round(self.share * int(sizes[client])) for client in skewed}
        labels = request.labels[request.partition.rows]
        classes = _draw_classes_by_client(wanted, np.bincount(labels, minlength=request.num_classes), generator)
        rows = _exchanged(request.partition, labels, wanted, classes, generator)
        after = Partition(rows, request.partition.offsets)
        return ScenarioPlan(
            partition=after,
            affected_clients=skewed,
            facts={
                "classes": [classes[client] for client in skewed],
                "rows_of_class": [
                    int(np.count_nonzero(request.labels[after.client(client)] == classes[client])) for client in skewed
                ],
                "rows_exchanged": int(np.count_nonzero(rows != request.partition.rows)),
            },
        )


def _draw_classes_by_client(
    wanted: dict[int, int], class_counts: IntArray, generator: np.random.Generator
) -> dict[int, int]:
    """Return the class of each client, drawn in proportion to the unclaimed rows."""
    num_unclaimed, classes = class_counts.copy(), {}
    for client, count in wanted.items():
        weights = np.where(num_unclaimed >= count, num_unclaimed, 0).astype(np.float64)
        if not weights.any():
            raise DataError.of(
                "federation.scenario: class_skew",
                f"find a class with {count} rows left for client {client}",
                f"classes of {class_counts.tolist()} rows and {len(wanted)} skewed clients",
                "use fewer clients or a smaller share",
            )
        classes[client] = int(generator.choice(len(num_unclaimed), p=weights / weights.sum()))
        num_unclaimed[classes[client]] -= count
    return classes


def _exchanged(
    partition: Partition,
    labels: IntArray,
    wanted: dict[int, int],
    classes: dict[int, int],
    generator: np.random.Generator,
) -> IntArray:
    """Return the rows of all clients after the exchange, in partition order, shape `(total_rows,)`.

    Args:
        partition: The partition before the exchange; positions index its rows.
        labels: Labels of the rows, in partition order.
        wanted: For each skewed client, the number of rows of its class.
        classes: For each skewed client, its class.
        generator: Random generator.
    """
    is_free = np.ones(len(labels), np.bool_)
    places = {client: np.arange(partition.offsets[client], partition.offsets[client + 1]) for client in wanted}
    held = {client: np.empty(0, np.int64) for client in wanted}

    def claim(client: int, candidates: IntArray, size: int) -> None:
        """Give a client random free positions among the candidates, until it holds `size` or none is left."""
        free = candidates[is_free[candidates]]
        claimed = generator.permutation(free)[: size - len(held[client])]
        is_free[claimed] = False
        held[client] = np.concatenate([held[client], claimed])

    for client, own in places.items():
        claim(client, own[labels[own] == classes[client]], wanted[client])
    for client in places:
        if len(held[client]) < wanted[client]:
            claim(client, np.flatnonzero(labels == classes[client]), wanted[client])
    for client, own in places.items():
        claim(client, own[labels[own] != classes[client]], len(own))
    for others_only in (True, False):
        for client, own in places.items():
            if len(held[client]) < len(own):
                allowed = np.flatnonzero(labels != classes[client]) if others_only else np.arange(len(labels))
                claim(client, allowed, len(own))
    rows, is_skewed = partition.rows.copy(), np.zeros(len(labels), np.bool_)
    for client, own in places.items():
        rows[own[~np.isin(own, held[client])]] = partition.rows[held[client][~np.isin(held[client], own)]]
        is_skewed[own] = True
    # rows given away replace those received from other clients
    emptied, given = np.flatnonzero(~is_skewed & ~is_free), np.flatnonzero(is_skewed & is_free)
    rows[emptied] = partition.rows[generator.permutation(given)]
    return rows


@dataclass(frozen=True)
class RenameLabels(LabelTransform):
    """Permutes the classes of all rows.

    Attributes:
        names: New class of each old class, shape `(num_classes,)`; a permutation.
    """

    names: tuple[int, ...]

    def changed(self, labels: IntArray, num_classes: int, generator: np.random.Generator) -> IntArray:
        """Return permuted labels."""
        return np.asarray(self.names, dtype=np.int64)[labels]


class ConceptShiftEffect(ScenarioEffect):
    """Concept shift: the same features, but permuted classes."""

    needs: ClassVar[frozenset[str]] = frozenset({"classes"})

    kind: Literal["concept_shift"] = "concept_shift"
    share: float = Field(default=1.0, gt=0, le=1, description="fraction of the classes that are permuted; at least two")
    permutation: tuple[int, ...] | None = Field(
        default=None, description="instead of a random one: the new class of each old one, such as [1, 0, 2]"
    )

    @field_validator("permutation")
    @classmethod
    def _is_permutation(cls, given: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if given is not None and sorted(given) != list(range(len(given))):
            raise ValueError(f"must hold each class from 0 on once, such as [1, 0, 2], got {list(given)}")
        return given

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> ConceptShiftEffect:
        if self.permutation is not None and self.share != 1:
            raise ValueError(f"must leave share out where permutation is given, got {self.share:g}")
        return self

    def faults(self, request: EffectRequest) -> list[Fault]:
        """Return what is incompatible with the federation, by the effect's keys."""
        faults = super().faults(request)
        if self.permutation is not None and len(self.permutation) != request.num_classes:
            must = f"have one entry for each of the {request.num_classes} classes"
            faults.append(Fault("permutation", must, len(self.permutation)))
        return faults

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the permutation, the same for all clients."""
        names = self.permutation or self._draw(request.num_classes, request.stream("concept_shift group"))
        moved = {}
        for client in clients:
            labels = request.labels[request.partition.client(client)]
            moved[client] = int((np.asarray(names)[labels] != labels).sum())
        return ScenarioPlan(
            transforms=dict.fromkeys(clients, (RenameLabels(names),)),
            affected_clients=tuple(client for client in clients if moved[client]),
            facts={"permutation": list(names), "moved_rows": list(moved.values())},
        )

    def _draw(self, num_classes: int, generator: np.random.Generator) -> tuple[int, ...]:
        """Return a random cycle through a random subset of the classes."""
        names = np.arange(num_classes)
        cycle = generator.permutation(num_classes)[: max(2, round(self.share * num_classes))]
        names[cycle] = np.roll(cycle, -1)
        return tuple(names.tolist())
