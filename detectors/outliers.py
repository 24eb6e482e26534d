"""Outlier clients: whose locally trained model, or whose labels, deviate from the others'.

**Published rule.** In each repetition FedAvg runs for two rounds from a new random initial model, and the clients'
parameters w_k after local training of round 2 are compared: round 1 is dominated by the initialisation, later rounds
homogenise the models.

    D_k = mean over j ≠ k of ‖w_k − w_j‖₂

A repetition flags client k if D_k is at least the 90th percentile of all D (linear interpolation). Client k is an
outlier if at least 4 of 5 repetitions flag it. Choices and deviations:

- At least three clients are needed; of two neither can be identified as the deviating one.
- If all D_k are equal no client is flagged, although all are "at least the percentile".
- Non-finite parameters after round 2 flag their client and are excluded from the others' distances. If the average of
  round 1 is not finite the repetition is void. Clients that a repetition could not compare are not flagged in it.
- Beyond a given number of clients parameters are first projected to fewer dimensions by a seeded count sketch
  (Weinberger et al. Feature hashing for large scale multitask learning. ICML 2009): squared distances stay unbiased,
  with a relative standard deviation of about √(2 / dimensions).
- The percentile flags one client of 3 to 10 in every repetition even if none deviates, so the rule raises false alarms
  by construction: 6.25 % of federations of four identical clients if ranks were independent, more as they are not.

**Calibrated rule.** Two tests of labels and one of models share the false-alarm rate. The label tests are those of
`fedscout.detectors.label_agreement`: whose labels agree less with the other clients', or are less informative about its
rows. Outliers are defined only relative to a majority: if clients' labels depend on different features and no two
thirds of the clients agree, or if the labels of more than a third of the clients are contradicted, the decision is "not
measured", models included, and groups of clients that agree are reported. Clients with different labels or features
train different models although nothing is wrong, so the model test decides only if both skews were tested and neither
was detected.

**Model test.** A permutation test of model distances. D_k has no known null distribution: even among identically
distributed clients its logarithm is right-skewed, more so with fewer rows. Retraining does not help, as the rows are
the same, and a client with unusual rows deviates each time. So each client's rows are randomly partitioned into up to
`MAX_PARTS` disjoint parts of one size for all clients, and the detector's rounds are run again on each part. If all
rows are independent draws of one distribution, the models of a part are exchangeable between clients, independently for
each part. With D_kr of part r,

    x_k = mean over r of log(D_kr / median of D_·r)

is compared with the largest x of all clients after the clients of each part are permuted independently (R. A. Fisher.
The Design of Experiments, 1935; the maximum statistic corrects over clients: P. H. Westfall and S. S. Young.
Resampling-Based Multiple Testing, 1993). The test is exact for any number of clients, distribution of rows and model.
With K clients and R parts the smallest p-value is about K^(1−R): three clients need six parts. Significant clients are
removed and the others are tested again, until none is significant (J. J. Goeman and A. Solari. The sequential rejection
principle of familywise error control. Annals of Statistics 38(6), 2010), so that one of several attackers does not mask
the next. The effect is exp(median-free mean of log D_k) − 1 over the published detector's repetitions, with all rows:
how much farther a model is than the median one.

- A client with fewer than `LEAST_SHARE` of the median client's rows is excluded from the parts, as their size is that
  of the smallest client; its p-value is 1.
- Reinforcement-learning clients have no rows, and repetitions are independent: they serve as the parts.
- A non-finite model counts as `FARTHEST`, a client without a model in a part as the median client.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from fedscout.detectors.conversation import Conversation
from fedscout.detectors.label_agreement import Concepts
from fedscout.detectors.report import CalibratedFinding, ClientEvidence, DetectionConfig, Finding
from fedscout.detectors.statistics import ClientTest, Values, decide
from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import UNNAMED, Names, RowPart
from fedscout.engine.messages.contents import TrainAnswers, Training, train_config
from fedscout.engine.seeds import integer, stream

NAME: Final = "outliers"
MIN_CLIENTS = 3
CHUNK_PARAMETERS = 4096
GROUP_BYTES = 2**29
"""Individual replies of several repetitions are asked for at once up to this size."""

TIE = 1e-9
"""Distances within this share of each other are equal up to rounding."""

InitialVectors = Callable[[Sequence[int]], Sequence[FloatArray]]
"""From seeds to their random initial models, each of shape `(params,)`."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of the clients' models of one repetition.

    Attributes:
        distances: D_k of each client with finite parameters.
        diverged: Clients whose parameters are not finite.
        average: Weighted average of the finite models, shape `(params,)`.
    """

    distances: Mapping[int, float]
    diverged: tuple[int, ...]
    average: FloatArray


def mean_distances(vectors: npt.NDArray[np.floating]) -> Values:
    """Return D, the mean Euclidean distance of each row to all others, shape `(clients,)`.

    Args:
        vectors: Shape `(clients >= 2, params)`.
    """
    gram = np.zeros((len(vectors), len(vectors)))
    weighted_average(vectors, np.full(len(vectors), 1 / len(vectors)), gram)
    return _mean_distances(gram)


def weighted_average(vectors: npt.NDArray[np.floating], weights: Values, gram: Values | None = None) -> Values:
    """Return the weighted average of the rows, shape `(params,)`.

    Processes blocks of parameters, so that no float64 copy of all vectors is made.

    Args:
        vectors: Shape `(clients, params)`.
        weights: Weights of the average, adding up to 1, shape `(clients,)`.
        gram: Updated in place with the Gram matrix of the centred rows, shape `(clients, clients)`. Uncentred,
            ‖a‖² + ‖b‖² − 2 aᵀb would cancel if vectors are long relative to their differences.
    """
    average = np.empty(vectors.shape[1])
    for start in range(0, vectors.shape[1], CHUNK_PARAMETERS):
        chunk = vectors[:, start : start + CHUNK_PARAMETERS].astype(np.float64)
        centre = average[start : start + CHUNK_PARAMETERS] = weights @ chunk
        if gram is not None:
            chunk -= centre
            gram += chunk @ chunk.T
    return average


def _mean_distances(gram: Values) -> Values:
    norms = np.diag(gram)
    squared = np.maximum(norms[:, None] + norms[None, :] - 2 * gram, 0.0)
    return np.asarray(np.sqrt(squared).sum(axis=1) / (len(gram) - 1))


def sketch(vectors: FloatArray, size: int, generator: np.random.Generator) -> Values:
    """Return the count sketch of each row: each parameter, with a random sign, is added to a random one of `size`."""
    entries = generator.integers(0, size, vectors.shape[1])
    signs = generator.choice(np.array([-1.0, 1.0]), vectors.shape[1])
    return np.stack([np.bincount(entries, weights=signs * vector, minlength=size) for vector in vectors])


def compare_models(
    answers: TrainAnswers, generator: np.random.Generator, settings: DetectionConfig
) -> Comparison | None:
    """Return the distances between the models of one repetition; None if fewer than three can be compared.

    Args:
        answers: Parameters after local training, and training rows, the weights of the average.
        generator: Generator of the projection.
        settings: Sizes from which models are projected.
    """
    clients, vectors, num_examples = answers.clients, answers.vectors, answers.num_examples
    finite = np.asarray(np.isfinite(vectors).all(axis=1))
    if finite.sum() < MIN_CLIENTS:
        return None
    members = [client for client, usable in zip(clients, finite, strict=True) if usable]
    usable_vectors = vectors if finite.all() else vectors[finite]
    weights = num_examples[finite] / num_examples[finite].sum()
    if len(members) > settings.max_pairwise_clients and vectors.shape[1] > settings.projection_size:
        average = weighted_average(usable_vectors, weights)
        distances = mean_distances(sketch(usable_vectors, settings.projection_size, generator))
    else:
        gram = np.zeros((len(members), len(members)))
        average = weighted_average(usable_vectors, weights, gram)
        distances = _mean_distances(gram)
    return Comparison(
        distances=dict(zip(members, distances.tolist(), strict=True)),
        diverged=tuple(client for client, usable in zip(clients, finite, strict=True) if not usable),
        average=average.astype(np.float32),
    )


def flag_outliers(comparison: Comparison, percentile: float) -> tuple[int, ...]:
    """Return the clients that one repetition flags, ascending."""
    values = np.array(list(comparison.distances.values()))
    flagged: list[int] = list(comparison.diverged)
    if values.max() - values.min() > TIE * values.max():
        limit = float(np.percentile(values, percentile, method="linear"))
        flagged += [client for client, distance in comparison.distances.items() if distance >= limit]
    return tuple(sorted(flagged))


def decide_outliers(
    comparisons: Sequence[Comparison | None], settings: DetectionConfig, names: Names = UNNAMED
) -> Finding:
    """Return the decision over all repetitions.

    Args:
        comparisons: One per repetition; None if the models could not be compared.
        settings: Percentile and the number of flags that makes an outlier.
        names: Display names of clients.
    """
    needed = settings.outlier_min_flags
    usable = [comparison for comparison in comparisons if comparison is not None]
    if len(usable) < needed:
        reason = (
            f"{len(usable)} of {len(comparisons)} repetitions gave at least "
            f"{MIN_CLIENTS} models with finite parameters, but {needed} are needed"
        )
        return Finding.unmeasured(NAME, needed, reason)
    counts = Counter(client for c in usable for client in flag_outliers(c, settings.outlier_percentile))
    flags = {client: counts[client] for client in _compared_clients(usable)}
    most = max(flags.values())
    outliers = tuple(client for client in flags if flags[client] >= needed)
    description = (
        f"In {len(usable)} repetitions with usable models a client was flagged at most {most} times for its model's "
        f"distance from the others'; an outlier is flagged at least {needed} times"
    )
    return Finding.of(NAME, most, needed, flags, outliers, description, names)


def _compared_clients(comparisons: Sequence[Comparison]) -> list[int]:
    return sorted({client for c in comparisons for client in (*c.distances, *c.diverged)})


def train_and_compare(
    clients: Sequence[int],
    initial_vectors: InitialVectors,
    training: LocalTraining,
    settings: DetectionConfig,
    seed: int,
    parts: Sequence[RowPart] = (),
) -> Conversation[list[Comparison | None]]:
    """Train and compare models, with all repetitions in lockstep; those on parts of the clients' rows come last.

    The models of the last round are returned individually, and compared in groups of repetitions as large as
    `GROUP_BYTES` allows.

    Args:
        clients: Participating clients.
        initial_vectors: Returns the random initial model of each seed.
        training: Local training of each round.
        settings: Repetitions and rounds.
        seed: Seed from which each repetition derives its own.
        parts: Parts of the rows for additional repetitions, one each.
    """
    seeds = [integer(seed, "outlier-repetition", repetition) for repetition in range(settings.outlier_repetitions)]
    seeds += [integer(seed, "outlier-part", part.index) for part in parts]
    rows = [*[{}] * settings.outlier_repetitions, *(part.to_config() for part in parts)]
    models = dict(enumerate(initial_vectors(seeds)))
    for server_round in range(1, settings.outlier_rounds):
        trainings = [
            Training(vector, {**train_config(training, seeds[r], server_round, reply="merged"), **rows[r]}, clients)
            for r, vector in models.items()
        ]
        _, answers = yield [], trainings
        averages = {repetition: _average(reply) for repetition, reply in zip(models, answers, strict=True)}
        models = {repetition: average for repetition, average in averages.items() if average is not None}
    comparisons: dict[int, Comparison | None] = dict.fromkeys(range(len(seeds)))
    for group in _groups(models, len(clients)):
        last = settings.outlier_rounds
        trainings = [
            Training(models[r], {**train_config(training, seeds[r], last, reply="individual"), **rows[r]}, clients)
            for r in group
        ]
        _, answers = yield [], trainings
        generators = [stream(seed, "outlier-projection", repetition) for repetition in group]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:  # the matrix products run beside each other
            compared = list(pool.map(compare_models, answers, generators, repeat(settings)))
        comparisons.update(zip(group, compared, strict=True))
    return list(comparisons.values())


def _average(answers: TrainAnswers) -> FloatArray | None:
    """Return the average model of one round of FedAvg, or None without answers or if it is not finite."""
    if len(answers.vectors) == 0 or not np.isfinite(answers.vectors).all():
        return None
    weights = answers.num_examples / answers.num_examples.sum()
    return np.asarray(weights @ answers.vectors.astype(np.float64), dtype=np.float32)


def _groups(models: Mapping[int, FloatArray], num_clients: int) -> Iterator[list[int]]:
    """Split repetitions into groups of one, or of more if all their clients' models take at most `GROUP_BYTES`."""
    repetitions = list(models)
    if repetitions:
        size = max(1, GROUP_BYTES // max(1, num_clients * models[repetitions[0]].nbytes))
        yield from (repetitions[start : start + size] for start in range(0, len(repetitions), size))


MAX_PARTS: Final = 8
MIN_PARTS: Final = 3
MIN_PART_ROWS: Final = 5
"""As few rows as a client trains on by default; see `fedscout.engine.data.client`."""

LEAST_SHARE: Final = 0.5
FARTHEST: Final = 20.0
"""A logarithm that no finite model reaches."""

MOST_DRAWS: Final = 20_000
FEWEST_DRAWS: Final = 999
DRAWN_CELLS: Final = 16_000_000
BLOCK_CELLS: Final = 1_000_000
ROUNDING: Final = 1e-9


def row_parts(sizes: Sequence[int], seed: int) -> tuple[RowPart, ...]:
    """Return the parts of rows on which clients of these sizes train; empty if rows are too few."""
    if len(sizes) < MIN_CLIENTS:
        return ()
    smallest = min(size for size in sizes if size >= LEAST_SHARE * float(np.median(sizes)))
    num_parts = min(MAX_PARTS, smallest // MIN_PART_ROWS)
    if num_parts < MIN_PARTS:
        return ()
    partition_seed = integer(seed, "outlier-parts")
    return tuple(RowPart(index, smallest // num_parts, partition_seed) for index in range(num_parts))


def model_test(repetitions: Sequence[Comparison], parts: Sequence[Comparison], rate: float) -> ClientTest | None:
    """Test whether each client's model distances exceed the median client's; None with too few clients or parts.

    Args:
        repetitions: Comparisons on all rows, for the effect. A client whose parameters were not finite in half of them
            counts as infinitely far.
        parts: Independent comparisons, such as on disjoint parts of the rows.
        rate: Significance level.
    """
    clients, exchanged = _compared_clients(repetitions), _compared_clients(parts)
    if len(parts) < MIN_PARTS or not repetitions or len(exchanged) < MIN_CLIENTS:
        return None
    p_values = dict.fromkeys(clients, 1.0) | dict(
        zip(exchanged, exchange_p_values(_log_ratios(parts, exchanged), rate).tolist(), strict=True)
    )
    words = f"permutation test of model distances, {len(parts)} parts of the rows"
    return ClientTest(p_values, _effects(repetitions, clients), {}, "models", words)


def exchange_p_values(values: Values, rate: float) -> Values:
    """Return each client's p-value by the permutation test, corrected over clients.

    Args:
        values: Logarithm for each part and client, shape `(parts, clients)`.
        rate: Significance level; significant clients are removed before the others are tested again.
    """
    num_clients = values.shape[1]
    p_values, remaining = np.ones(num_clients), np.arange(num_clients)
    while len(remaining) >= MIN_CLIENTS and 2 * len(remaining) > num_clients:
        p_values[remaining] = _max_statistic_p_values(values[:, remaining])
        significant = remaining[p_values[remaining] <= rate]
        if len(significant) == 0:
            break
        remaining = np.setdiff1d(remaining, significant)
    return p_values


def _max_statistic_p_values(values: Values) -> Values:
    """Return how often the largest mean of permuted clients reaches each client's, shape `(clients,)`."""
    num_parts, num_clients = values.shape
    draws = int(np.clip(DRAWN_CELLS // values.size, FEWEST_DRAWS, MOST_DRAWS))
    generator = stream(0, "exchanged-models", num_parts, num_clients)
    block = max(1, BLOCK_CELLS // num_clients)
    largest = []
    for start in range(0, draws, block):
        total = np.zeros((min(block, draws - start), num_clients))
        for part_values in values:
            total += generator.permuted(np.broadcast_to(part_values, total.shape), axis=1)
        largest.append(total.max(axis=1))
    ascending = np.sort(np.concatenate(largest))
    reached = draws - np.searchsorted(ascending, values.sum(axis=0) - ROUNDING, side="left")
    return np.asarray((1 + reached) / (1 + draws))


def _log_ratios(comparisons: Sequence[Comparison], clients: Sequence[int]) -> Values:
    """Return log(D / median) of each comparison and client, shape `(comparisons, clients)`."""
    values = np.zeros((len(comparisons), len(clients)))
    for row, comparison in zip(values, comparisons, strict=True):
        median = float(np.median(list(comparison.distances.values())))
        for index, client in enumerate(clients):
            if client in comparison.diverged:
                row[index] = FARTHEST
            elif median > 0 and comparison.distances.get(client, 0.0) > 0:
                row[index] = min(np.log(comparison.distances[client] / median), FARTHEST)
    return values


def _effects(repetitions: Sequence[Comparison], clients: Sequence[int]) -> Mapping[int, float]:
    logarithms = _log_ratios(repetitions, clients)
    compared = np.array([[client in {*c.distances, *c.diverged} for client in clients] for c in repetitions])
    diverged = np.array([[client in c.diverged for client in clients] for c in repetitions])
    finite = compared & ~diverged
    means = np.where(finite, logarithms, 0.0).sum(axis=0) / np.maximum(finite.sum(axis=0), 1)
    means = np.where(2 * diverged.sum(axis=0) >= len(repetitions), FARTHEST, means)
    effects = np.expm1(np.minimum(means - np.median(means), FARTHEST))
    return dict(zip(clients, effects.tolist(), strict=True))


MOST_TESTS: Final = 3
"""Number of tests that share the false-alarm rate."""

MAX_OUTLIER_SHARE: Final = 1 / 3
"""Part of the clients that can be unlike a majority."""


def explain_model_differences(skews: Sequence[CalibratedFinding]) -> str | None:
    """Return why honest clients may train different models, by the calibrated findings on skew; None if no reason."""
    for skew in skews:
        if not skew.measured:
            return f"{skew.name.replace('_', ' ')} was not measured and may explain the differences"
        if skew.detected:
            return f"{skew.name.replace('_', ' ')} was detected"
    return None


# -- decision --------------------------------------------------------------------------------------------------------


def decide_outliers_calibrated(
    labels: Sequence[ClientTest],
    models: ClientTest | None,
    explained: str | None,
    settings: DetectionConfig,
    concepts: Concepts | None = None,
    names: Names = UNNAMED,
) -> CalibratedFinding:
    """Combine the tests.

    Args:
        labels: Tests of labels; empty if not measured.
        models: Test of model distances; None if not measured.
        explained: Benign reason for different models; if given, the model test is ignored.
        settings: False-alarm rate and smallest effects that flag.
        concepts: Whether clients' labels depend on the same features; None if unknown.
        names: Display names of clients and classes.
    """
    if concepts is not None and not concepts.has_majority:
        finding = CalibratedFinding.unmeasured(NAME, settings.detector_rate, concepts.text(names))
        return finding.model_copy(update={"groups": concepts.named})
    tests = [(test, settings.disagreement_effect) for test in labels]
    remark = ""
    if explained:
        remark = f"Model distances were not used, because {explained}."
    elif models is not None:
        tests.append((models, settings.distance_effect))
    if not tests:
        reason = explained or "fewer than three clients have enough rows to compare, or their classes do not differ"
        return CalibratedFinding.unmeasured(NAME, settings.detector_rate, reason)
    finding = decide(NAME, tests, settings.detector_rate, _describe, remark, names)
    num_clients = len(finding.clients)
    contradicted = sum(evidence.flagged and evidence.source == "labels" for evidence in finding.clients.values())
    if contradicted > MAX_OUTLIER_SHARE * num_clients:
        reason = f"labels of {contradicted} of {num_clients} clients contradict the others': no majority agrees"
        return CalibratedFinding.unmeasured(NAME, settings.detector_rate, reason)
    return finding


def _describe(client: int, evidence: ClientEvidence, names: Names) -> str:
    name = names.one_client(client)
    if evidence.source == "models":
        return f"The models of {name} are {evidence.effect:.0%} farther from the others' than the median client's"
    if evidence.effect <= 0:
        return "No client's labels fit its features worse than the other clients' labels fit theirs"
    text = (
        f"The labels of {name} fit its features worse than the other clients' labels fit theirs, as if "
        f"{min(evidence.effect, 1.0):.0%} of its rows had random labels"
    )
    return f"{text}, mainly in {names.some_classes(evidence.classes)}" if evidence.classes else text
