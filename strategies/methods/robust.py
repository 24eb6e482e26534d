"""Byzantine-robust strategies: median, trimmed mean, Krum, Bulyan, geometric median, centered clipping.

With n models y_i in a round, at most f of them malicious:

- FedMedian: the coordinatewise median (Yin et al. 2018, Option I).
- FedTrimmedAvg: the coordinatewise mean without the ⌊βn⌋ smallest and ⌊βn⌋ largest values (Option II).
- Krum: the model with the smallest sum of squared distances to its n − f − 2 nearest (Blanchard et al. 2017,
  sec. 4).
- MultiKrum: the mean, weighted by examples, of the m models with the best Krum scores.
- Bulyan: of the n − 2f models with the best Krum scores, the coordinatewise mean of the n − 4f values nearest
  to the median (El Mhamdi et al. 2018, section 4).

These are Flower's classes with the same aggregates in less time:

**Krum scores** (Blanchard et al. 2017) follow Flower's formula in the precision of the models. With ‖x − y‖²
= ‖x‖² + ‖y‖² − 2xy in float32, near ties are decided by rounding, so every operation is Flower's, in the same
order; rows are sorted and summed together instead of one by one. Doubling is exact, so products are doubled
instead of models.

**Coordinatewise statistics**: median, trimmed mean and mean around the median. NumPy computes statistics
along the first axis column by column, with strided access. Here slabs of coordinates are transposed first,
so that the values of a coordinate are contiguous. float32 sums depend on the order of their terms, and
Flower's means sum in the order in which a partition leaves the values; so the same partitions and sums are
computed. NaN and infinite values are treated as by NumPy, without its warnings.

Krum is proved for 2f + 2 < n. Flower computes it up to f = n − 3 (one neighbour is left), which small
federations need: four clients of which one is malicious are outside the proof. This is allowed, with a
warning in `notes`. Bulyan needs n ≥ 4f + 3; below that Flower's returns no model. Flower's Bulyan deviates
from the paper: it scores once and takes the best n − 2f, the paper scores again after each selection.

Equivalents: MultiKrum with m = 1 is Krum, and with m = n (then f = 0) FedAvg. A trimmed mean depends on β
only through ⌊βn⌋; with ⌊βn⌋ = 0 it is the uniform mean, with the largest value, ⌊(n − 1)/2⌋, the median. The
median of one or two models is the uniform mean. Bulyan with f = 0 uses all values of all models: the uniform
mean.

**RFA.** The new model approximates the weighted geometric median of the clients' models, which a minority can
move only to a limited extent. With x the global model, y_k client k's model after local training and p_k its
weight (Σ p_k = 1), the minimiser v of Σ p_k ‖v − y_k‖ is approximated by a few steps of the smoothed
Weiszfeld algorithm (Pillutla et al. 2022):

- β_k = p_k / max(ν, ‖v − y_k‖)
- v ← Σ β_k y_k / Σ β_k

p_k is n_k/Σn by default, so a client's weight follows the number of rows that it reports;
`sample_scaling="uniform"` uses 1/clients instead. The steps start from x. The authors' code starts from the
mean, where three steps leave an unbounded share of a client's error: with one of three clients at distance R,
v is about R/17 away. From x, a client at distance R has weight 1/R immediately. A client at infinite distance
has no weight, and NaN makes the model NaN, as with FedMedian. Equivalent: the geometric median of one client
is its model.

**Centered clipping.** No client can move the model by more than τ/n from the last round's change. With Δ_i =
y_i − x, n clients in the round and v the last round's change of the model, 0 at first (Karimireddy et al.
2021, one clipping step per round):

- v ← v + (1/n) Σ min(1, τ/‖Δ_i − v‖) (Δ_i − v)
- x ← x + v

A suitable τ depends on the length of the clients' updates: a larger τ clips no client, a small one stalls
training. The default is not from the paper. Clients have equal weights, otherwise the bound would not be τ/n.
Deviation from the paper: clients send the change of a whole round of local training instead of a momentum. A
client at infinite distance adds nothing, and NaN makes the model NaN, as with FedMedian.

References:
    Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning: towards optimal statistical
        rates. ICML 2018. arXiv:1803.01498
    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine learning with adversaries: Byzantine tolerant gradient
        descent. NeurIPS 2017. arXiv:1703.02757
    El Mhamdi, Guerraoui, Rouault: The hidden vulnerability of distributed learning in Byzantium. ICML 2018.
        arXiv:1802.07927
    Pillutla, Kakade, Harchaoui: Robust aggregation for federated learning. IEEE Transactions on Signal
        Processing 70, 2022. arXiv:1912.13445
    Karimireddy, He, Jaggi: Learning from history for Byzantine robust optimization. ICML 2021.
        arXiv:2012.10333
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import view_record
from fedscout.engine.messages.keys import FLAT_KEY
from fedscout.strategies.aggregation import rules
from fedscout.strategies.aggregation.rules import ClientModel, Messages, Vector, array_record, flat
from fedscout.strategies.methods.averaging import FedAvgSpec, FlowerSpec, SampleScaling
from fedscout.strategies.specification import IntegerRange, RealRange, StrategySpec, clients_text, parameter


def squared_distances(models: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the squared distances between models `(clients, params)`, shape `(clients, clients)`."""
    from scipy.linalg import get_blas_funcs  # not where no trial compares models

    norms = np.array([np.square(model).sum() for model in models])  # of large models no second matrix is made
    twice_products = get_blas_funcs("gemm", (models,))(2, models.T, models.T, trans_a=True)  # nor for 2x
    distances: npt.NDArray[Any] = norms[:, None] + norms[None, :] - twice_products.T
    return distances


def krum_scores(distances: npt.NDArray[Any], num_malicious: int) -> npt.NDArray[Any]:
    """Return each model's sum of squared distances to its n − f − 2 nearest, at least one, shape `(clients,)`."""
    num_closest = max(1, len(distances) - num_malicious - 2)
    closest = np.argsort(distances, axis=1)[:, 1 : num_closest + 1]
    scores: npt.NDArray[Any] = np.take_along_axis(distances, closest, axis=1).sum(axis=1)
    return scores


def select_multikrum(
    contents: list[RecordDict], num_malicious_nodes: int, num_nodes_to_select: int
) -> list[RecordDict]:
    """Return the replies with the lowest scores, best first.

    Args:
        contents: Contents of the replies.
        num_malicious_nodes: f.
        num_nodes_to_select: Number of replies to return.
    """
    models = np.stack([flat(array_record(content)) for content in contents])
    scores = krum_scores(squared_distances(models), num_malicious_nodes)
    return [contents[index] for index in np.argsort(scores)[:num_nodes_to_select]]


SLAB = 2**16
"""Coordinates that are gathered from all clients at a time: of a hundred clients 26 MB."""

Values = Sequence[npt.NDArray[Any]] | npt.NDArray[Any]
"""One array a client, all of a shape."""


def median(values: Values) -> npt.NDArray[Any]:
    """Return `np.median(values, axis=0)`; a coordinate with a NaN gives NaN."""
    return _in_slabs(values, _medians)


def trimmed_mean(values: Values, num_trimmed: int) -> npt.NDArray[Any]:
    """Return the coordinatewise mean over clients without the smallest and the largest values.

    Args:
        values: One array per client.
        num_trimmed: Values trimmed at either end, less than half of the clients.
    """
    first, last = num_trimmed, len(values) - num_trimmed - 1
    return _in_slabs(values, lambda slab: _means(np.partition(slab, (first, last), axis=1)[:, first : last + 1]))


def mean_around_median(values: Values, num_kept: int) -> npt.NDArray[Any]:
    """Return the coordinatewise mean over clients of the values nearest to the median.

    Args:
        values: One array per client.
        num_kept: Values in the mean, in `[1, clients]`.
    """

    def of_slab(slab: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        distances = np.abs(slab - _medians(slab)[:, None])
        nearest = np.argpartition(distances, num_kept - 1, axis=1)[:, :num_kept]
        return _means(np.take_along_axis(slab, nearest, axis=1))

    return _in_slabs(values, of_slab)


@np.errstate(over="ignore", invalid="ignore")
def _in_slabs(
    values: Values, statistic: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
) -> npt.NDArray[np.float32]:
    """Return a coordinatewise statistic; it gets the values of some coordinates, shape `(coordinates, clients)`."""
    rows = [value.reshape(-1) for value in values]
    size = rows[0].size
    result = np.empty(size, np.float32)
    for start in range(0, size, SLAB):
        part = slice(min(start, max(0, size - 2)), start + SLAB)  # NumPy sums a single coordinate in another order
        result[part] = statistic(np.ascontiguousarray(np.stack([row[part] for row in rows]).T))
    return result.reshape(values[0].shape)


def _means(chosen: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the mean of every row, summed sequentially as NumPy does along the first axis."""
    means: npt.NDArray[np.float32] = np.mean(np.ascontiguousarray(chosen.T), axis=0)
    return means


def _medians(slab: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the median of every row; that of rows with a NaN is NaN. Of few values a sort is faster than np.median."""
    ordered = np.sort(slab, axis=1)
    num_values = ordered.shape[1]
    lower, upper, largest = ordered[:, (num_values - 1) // 2], ordered[:, num_values // 2], ordered[:, -1]
    medians: npt.NDArray[np.float32] = upper.copy() if num_values % 2 else (lower + upper) / np.float32(2)
    np.copyto(medians, largest, where=np.isnan(largest))  # NaN sorts last
    return medians


def _aggregated(contents: list[RecordDict], statistic: Callable[[Values], npt.NDArray[Any]]) -> ArrayRecord:
    return view_record({FLAT_KEY: statistic([flat(array_record(content)) for content in contents])})


class ComparedReplies(rules.QuickMessages):
    """Base class of strategies whose new model is a function of all replies."""

    @abstractmethod
    def _model(self, contents: list[RecordDict]) -> tuple[ArrayRecord, list[RecordDict]]:
        """Return the new model, and the replies whose metrics are averaged, given at least one reply."""

    def aggregate_train(self, server_round: int, replies: Messages) -> rules.Aggregate:
        """Return the new model and the mean metrics; nothing without a reply."""
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        contents = [reply.content for reply in valid_replies]
        if not contents:
            return None, None
        arrays, selected = self._model(contents)
        return arrays, self._train_metrics(selected)


class FedMedian(ComparedReplies, flower.FedMedian):
    """Flower's FedMedian: the median of every parameter."""

    def _model(self, contents: list[RecordDict]) -> tuple[ArrayRecord, list[RecordDict]]:
        return _aggregated(contents, median), contents


class FedTrimmedAvg(ComparedReplies, flower.FedTrimmedAvg):
    """Flower's FedTrimmedAvg: the trimmed mean of every parameter."""

    def _model(self, contents: list[RecordDict]) -> tuple[ArrayRecord, list[RecordDict]]:
        num_trimmed = int(self.beta * len(contents))
        return _aggregated(contents, lambda values: trimmed_mean(values, num_trimmed)), contents


class MultiKrum(ComparedReplies, flower.MultiKrum):
    """Flower's MultiKrum: the weighted mean of the replies with the best scores."""

    def _model(self, contents: list[RecordDict]) -> tuple[ArrayRecord, list[RecordDict]]:
        selected = select_multikrum(contents, self.num_malicious_nodes, self.num_nodes_to_select)
        return aggregate_arrayrecords(selected, self.weighted_by_key), selected


class Krum(MultiKrum, flower.Krum):
    """Flower's Krum."""


class Bulyan(rules.QuickMessages, flower.Bulyan):
    """Flower's Bulyan."""

    def aggregate_train(self, server_round: int, replies: Messages) -> rules.Aggregate:
        """Return the mean around the median of the replies with the best scores, and their mean metrics."""
        valid_replies, _ = self._check_and_log_replies(replies, is_train=True)
        malicious, contents = self.num_malicious_nodes, [reply.content for reply in valid_replies]
        if len(contents) < 4 * malicious + 3:
            return super().aggregate_train(server_round, valid_replies)  # a warning and no model
        selected = select_multikrum(contents, malicious, len(contents) - 2 * malicious)
        num_kept = len(contents) - 4 * malicious
        arrays = _aggregated(selected, lambda values: mean_around_median(values, num_kept))
        return arrays, self._train_metrics(selected)


NUM_MALICIOUS = "num_malicious_nodes"


class FedMedianSpec(FlowerSpec):
    """FedMedian: the coordinatewise median; clients have equal weights."""

    paper: ClassVar[str] = "Yin et al. 2018, arXiv:1803.01498"

    kind: Literal["fedmedian"] = "fedmedian"
    flower_class = FedMedian

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: the median of one or two models is their mean."""
        return FedAvgSpec(sample_scaling="uniform") if cohort.num_sampled <= 2 else self


class FedTrimmedAvgSpec(FlowerSpec):
    """FedTrimmedAvg: the coordinatewise mean without extreme values; clients have equal weights."""

    paper: ClassVar[str] = "Yin et al. 2018, arXiv:1803.01498"

    kind: Literal["fedtrimmedavg"] = "fedtrimmedavg"
    flower_class = FedTrimmedAvg
    beta: float = parameter(
        0.2, "β, fraction of the values trimmed at either end; ⌊βn⌋ clients", RealRange(0.0, 0.49), ge=0, lt=0.5
    )

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: the uniform mean, the median, or the middle β of those that trim equally.

        The middle, (⌊βn⌋ + ½)/n, is safe from rounding of β·n: `int(0.29 * 100)` is 28.
        """
        clients = cohort.num_sampled
        trimmed = int(self.beta * clients)  # rounded as Flower does
        if trimmed == 0:
            return FedAvgSpec(sample_scaling="uniform")
        if trimmed == (clients - 1) // 2:
            return FedMedianSpec()
        return FedTrimmedAvgSpec(beta=(trimmed + 0.5) / clients)


class KrumFamilySpec(FlowerSpec):
    """Base class of Krum and MultiKrum."""

    paper: ClassVar[str] = "Blanchard et al. 2017, arXiv:1703.02757"
    requires = ("3 clients",)

    num_malicious_nodes: int = parameter(
        0,
        "f, number of clients assumed malicious: 0 to n − 3 of n per round, with proof up to ⌊(n − 3)/2⌋",
        lambda cohort, _: IntegerRange(0, cohort.num_sampled - 3),
        ge=0,
    )

    def notes(self, cohort: Cohort) -> list[str]:
        """Return warnings: equivalents, and parameters outside the proof."""
        notes = super().notes(cohort)
        proved = (cohort.num_sampled - 3) // 2
        if self.num_malicious_nodes > proved:
            notes.append(
                f"{self.kind} is proved for {NUM_MALICIOUS} up to {proved} with {clients_text(cohort.num_sampled)}; "
                f"with {self.num_malicious_nodes} it runs, but the proof no longer holds"
            )
        return notes


class KrumSpec(KrumFamilySpec):
    """Krum: the model that is nearest to its neighbours."""

    kind: Literal["krum"] = "krum"
    flower_class = Krum


class MultiKrumSpec(KrumFamilySpec):
    """MultiKrum: the mean of the models that are nearest to their neighbours."""

    kind: Literal["multikrum"] = "multikrum"
    flower_class = MultiKrum
    num_nodes_to_select: int = parameter(
        2,
        "m, number of averaged models: 1 (Krum) to n − f of n per round",
        lambda cohort, chosen: IntegerRange(1, max(1, cohort.num_sampled - int(chosen.get(NUM_MALICIOUS, 0)))),
        ge=1,
    )

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: one model is Krum, all models are FedAvg."""
        if self.num_nodes_to_select == 1:
            return KrumSpec(num_malicious_nodes=self.num_malicious_nodes)
        if self.num_nodes_to_select == cohort.num_sampled:
            return FedAvgSpec()
        return self


class BulyanSpec(FlowerSpec):
    """Bulyan: models selected by Krum, then the coordinatewise mean of the values nearest to the median."""

    paper: ClassVar[str] = "El Mhamdi et al. 2018, arXiv:1802.07927"
    requires = ("3 clients",)

    kind: Literal["bulyan"] = "bulyan"
    flower_class = Bulyan
    num_malicious_nodes: int = parameter(
        0,
        "f, number of clients assumed malicious; needs n ≥ 4f + 3 clients per round",
        lambda cohort, _: IntegerRange(0, (cohort.num_sampled - 3) // 4),
        ge=0,
    )

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: without malicious clients it is the uniform mean."""
        return FedAvgSpec(sample_scaling="uniform") if self.num_malicious_nodes == 0 else self


def geometric_median(
    models: Sequence[ClientModel], weights: Vector, start: Vector, num_iterations: int, smoothing: float
) -> Vector:
    """Return the result of some steps of the smoothed Weiszfeld algorithm, shape `(params,)`.

    Args:
        models: y_k, at least one, each of shape `(params,)`.
        weights: p_k, shape `(clients,)`, positive.
        start: Initial v, shape `(params,)`.
        num_iterations: Number of steps, >= 1.
        smoothing: ν, > 0.
    """
    median = start.copy()
    offset = np.empty_like(median)
    for _ in range(num_iterations):
        step = np.zeros_like(median)
        total = 0.0
        for model, weight in zip(models, weights.tolist(), strict=True):
            np.subtract(model, median, out=offset)
            distance = math.sqrt(np.dot(offset, offset))
            if math.isinf(distance):
                continue
            beta = weight / max(smoothing, distance)  # β_k
            offset *= beta
            step += offset
            total += beta
        median += step / total  # v + Σ β_k (y_k − v) / Σ β_k
    return median


class RFA(rules.ServerRule):
    """Server rule of RFA.

    Args:
        num_iterations: Steps per round.
        smoothing: ν.
        settings: Arguments of Flower's FedAvg.
    """

    def __init__(self, num_iterations: int, smoothing: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.num_iterations = num_iterations
        self.smoothing = smoothing

    def aggregate_models(self, received: Vector, models: Sequence[ClientModel], weights: Vector) -> Vector:
        """Return the approximate geometric median."""
        return geometric_median(models, weights, received, self.num_iterations, self.smoothing)


class RfaSpec(FlowerSpec):
    """RFA: the geometric median of the clients' models."""

    paper: ClassVar[str] = "Pillutla et al. 2022, arXiv:1912.13445"

    kind: Literal["rfa"] = "rfa"
    flower_class = RFA
    num_iterations: int = parameter(3, "number of Weiszfeld iterations per round", IntegerRange(1, 10), ge=1, le=1000)
    smoothing: float = parameter(1e-6, "ν, smoothing: smallest distance in the weights", gt=0)
    sample_scaling: SampleScaling = parameter(
        "num-examples", "p_k, a client's weight: by its number of examples, or equal"
    )

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: with one client it is FedAvg."""
        return FedAvgSpec() if cohort.num_sampled == 1 else self


def clipped_mean(models: Sequence[ClientModel], center: Vector, clipping_radius: float) -> Vector:
    """Return the mean over clients of the clipped differences between their models and a center, shape `(params,)`.

    Args:
        models: y_i, at least one, each of shape `(params,)`.
        center: x + v, shape `(params,)`; so y_i − center = Δ_i − v.
        clipping_radius: τ, > 0.
    """
    total = np.zeros_like(center)
    offset = np.empty_like(center)
    for model in models:
        np.subtract(model, center, out=offset)
        distance = math.sqrt(np.dot(offset, offset))
        if math.isinf(distance):
            continue
        if distance > clipping_radius:
            offset *= clipping_radius / distance
        total += offset
    return total / len(models)


class CenteredClipping(rules.ServerRule):
    """Server rule of centered clipping.

    Args:
        clipping_radius: τ.
        settings: Arguments of Flower's FedAvg.

    Attributes:
        change: v, shape `(params,)`; None before the first model.
    """

    def __init__(self, clipping_radius: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.clipping_radius = clipping_radius
        self.change: Vector | None = None

    def aggregate_models(self, received: Vector, models: Sequence[ClientModel], weights: Vector) -> Vector:
        """Return the model after the clipped change, and store that change."""
        change = np.zeros_like(received) if self.change is None else self.change
        self.change = change + clipped_mean(models, received + change, self.clipping_radius)
        return received + self.change


class CenteredClippingSpec(FlowerSpec):
    """Centered clipping: the mean of changes, each clipped around the last round's; equal client weights."""

    paper: ClassVar[str] = "Karimireddy et al. 2021, arXiv:2012.10333"

    kind: Literal["centered_clipping"] = "centered_clipping"
    flower_class = CenteredClipping
    clipping_radius: float = parameter(
        1.0,
        "τ, radius of centered clipping; a very large one is FedAvg with equal weights",
        RealRange(0.1, 100.0, log=True),
        gt=0,
    )
