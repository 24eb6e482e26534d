"""Outlier clients: whose locally trained model is far from the others'.

Per repetition FedAvg runs for two rounds from a fresh random initial model, and the clients' parameters w_k after
local training of round 2 are compared: round 1 is dominated by the initialisation, later rounds are homogenised.

    D_k = mean over j ≠ k of ‖w_k − w_j‖₂

In a repetition client k is flagged if D_k is at least the 90th percentile of all D (linear interpolation). Client k is
an outlier if at least 4 of 5 repetitions flag it.

Choices and deviations:

- Three clients are needed; of two neither can be told to be the deviating one.
- If all D_k are equal nothing stands out and nobody is flagged, although all are "at least the percentile".
- Parameters that are not finite after round 2 flag their client and count as no distance to the others. If the
  average of round 1 is not finite the repetition says nothing about anyone and is counted as void. Clients that a
  repetition could not compare are not flagged in it.
- Beyond a given number of clients parameters are first projected to fewer dimensions by a seeded count sketch
  (Weinberger et al. Feature hashing for large scale multitask learning. ICML 2009): squared distances stay unbiased,
  with a relative standard deviation of about √(2 / dimensions).
- The percentile flags one client of 3 to 10 in every repetition even if nobody deviates, so the rule raises false
  alarms by construction: 6.25 % of federations of four equal clients if ranks were independent, more as they are not.

A rejected alternative is reported beside it for comparison: the distance of each client from the aggregated model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from fedscout.detectors.conversation import Conversation
from fedscout.detectors.detection_config import DetectionConfig
from fedscout.detectors.report import Finding, yes_no
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.data.names import UNNAMED, Names
from fedscout.engine.data.row_parts import RowPart
from fedscout.engine.messages.exchange import Training
from fedscout.engine.messages.message_contents import TrainAnswers, train_config
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

Compare = Callable[[TrainAnswers, np.random.Generator, DetectionConfig], "Comparison | None"]
"""Compares the models of one repetition, as `compare_models` does; called from several threads at once."""


@dataclass(frozen=True)
class Comparison:
    """The clients' models of one repetition, compared.

    Attributes:
        distances: D_k of each client with finite parameters.
        from_average: Distance of each such client from the weighted average of all of them.
        diverged: Clients whose parameters are not finite.
        average: That average, shape `(params,)`.
    """

    distances: Mapping[int, float]
    from_average: Mapping[int, float]
    diverged: tuple[int, ...]
    average: FloatArray


def mean_distances(vectors: npt.NDArray[np.floating]) -> Values:
    """Return D, the mean Euclidean distance of each row to all others, shape `(clients,)`.

    Args:
        vectors: Shape `(clients >= 2, params)`.
    """
    gram = np.zeros((len(vectors), len(vectors)))
    about_average(vectors, np.full(len(vectors), 1 / len(vectors)), gram)
    return _mean_distances(gram)


def about_average(
    vectors: npt.NDArray[np.floating], weights: Values, gram: Values | None = None
) -> tuple[Values, Values]:
    """Return the weighted average of the rows, shape `(params,)`, and each row's distance from it, `(clients,)`.

    Works on some parameters at a time, so that no float64 copy of all vectors is made.

    Args:
        vectors: Shape `(clients, params)`.
        weights: Of the average, adding up to 1, shape `(clients,)`.
        gram: Is added the products of the rows less the average, shape `(clients, clients)`. Without that,
            ‖a‖² + ‖b‖² − 2 aᵀb would cancel where vectors are long against their differences.
    """
    average = np.empty(vectors.shape[1])
    squares = np.zeros(len(vectors))
    for start in range(0, vectors.shape[1], CHUNK_PARAMETERS):
        chunk = vectors[:, start : start + CHUNK_PARAMETERS].astype(np.float64)
        centre = average[start : start + CHUNK_PARAMETERS] = weights @ chunk
        chunk -= centre
        squares += np.einsum("kp,kp->k", chunk, chunk)
        if gram is not None:
            gram += chunk @ chunk.T
    return average, np.sqrt(squares)


def _mean_distances(gram: Values) -> Values:
    norms = np.diag(gram)
    squared = np.maximum(norms[:, None] + norms[None, :] - 2 * gram, 0.0)
    np.fill_diagonal(squared, 0.0)
    return np.asarray(np.sqrt(squared).sum(axis=1) / (len(gram) - 1))


def sketch(vectors: FloatArray, size: int, generator: np.random.Generator) -> Values:
    """Return the count sketch of each row: each parameter, with a random sign, is added to a random one of `size`."""
    entries = generator.integers(0, size, vectors.shape[1])
    signs = generator.choice(np.array([-1.0, 1.0]), vectors.shape[1])
    return np.stack([np.bincount(entries, weights=signs * vector, minlength=size) for vector in vectors])


def compare_models(
    answers: TrainAnswers, generator: np.random.Generator, settings: DetectionConfig
) -> Comparison | None:
    """Return how far the models of one repetition are apart; None if fewer than three can be compared.

    Args:
        answers: Parameters after local training, and training rows, the weights of the average.
        generator: Of the projection.
        settings: For the size from which models are projected.
    """
    clients, vectors, num_examples = answers.clients, answers.vectors, answers.num_examples
    finite = np.asarray(np.isfinite(vectors).all(axis=1))
    if finite.sum() < MIN_CLIENTS:
        return None
    members = [client for client, usable in zip(clients, finite, strict=True) if usable]
    usable_vectors = vectors if finite.all() else vectors[finite]
    weights = num_examples[finite] / num_examples[finite].sum()
    if len(members) > settings.max_pairwise_clients and vectors.shape[1] > settings.projection_size:
        average, from_average = about_average(usable_vectors, weights)
        distances = mean_distances(sketch(usable_vectors, settings.projection_size, generator))
    else:
        gram = np.zeros((len(members), len(members)))
        average, from_average = about_average(usable_vectors, weights, gram)
        distances = _mean_distances(gram)
    return Comparison(
        distances=dict(zip(members, distances.tolist(), strict=True)),
        from_average=dict(zip(members, from_average.tolist(), strict=True)),
        diverged=tuple(client for client, usable in zip(clients, finite, strict=True) if not usable),
        average=average.astype(np.float32),
    )


def flag_distant(comparison: Comparison, percentile: float) -> tuple[int, ...]:
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
        comparisons: One a repetition; None where the models could not be compared.
        settings: Percentile and the number of flags that makes an outlier.
        names: Of clients, for the sentence.
    """
    needed = settings.outlier_min_flags
    usable = [comparison for comparison in comparisons if comparison is not None]
    if len(usable) < needed:
        reason = (
            f"{len(usable)} of {len(comparisons)} repetitions gave at least "
            f"{MIN_CLIENTS} models with finite parameters, and {needed} are needed"
        )
        return Finding.unmeasured(NAME, needed, reason)
    clients = sorted({client for c in usable for client in (*c.distances, *c.diverged)})
    flags = dict.fromkeys(clients, 0)
    for comparison in usable:
        for client in flag_distant(comparison, settings.outlier_percentile):
            flags[client] += 1
    most = max(flags.values())
    outliers = tuple(client for client in clients if flags[client] >= needed)
    leaders = tuple(client for client in clients if flags[client] == most)
    void = f" ({len(comparisons) - len(usable)} void)" if len(usable) < len(comparisons) else ""
    sentence = (
        f"Outlier clients: {yes_no(bool(outliers))}. Over {len(comparisons)} repetitions{void} the client flagged most "
        f"often for the distance of its model from the others' was flagged {most} times "
        f"({names.some_clients(leaders)}); an outlier is flagged at least {needed} times."
    )
    if outliers:
        sentence += f" Outliers: {names.some_clients(outliers)}."
    return Finding(
        name=NAME,
        value=float(most),
        threshold=float(needed),
        detected=bool(outliers),
        flagged_clients=outliers,
        client_values={client: float(count) for client, count in flags.items()},
        sentence=sentence,
    )


def train_and_compare(
    clients: Sequence[int],
    initial_vectors: InitialVectors,
    training: LocalTraining,
    settings: DetectionConfig,
    seed: int,
    parts: Sequence[RowPart] = (),
    compare: Compare = compare_models,
) -> Conversation[list[Comparison | None]]:
    """Train and compare, all repetitions in lockstep; those on parts of the clients' rows come after the others.

    The models of the last round come one by one, and are compared in as large groups of repetitions as `GROUP_BYTES`
    allows.

    Args:
        clients: Who takes part.
        initial_vectors: Gives the random initial models of seeds.
        training: Local training of each round.
        settings: Repetitions and rounds.
        seed: Each repetition derives its own from it.
        parts: Rows on which further repetitions train, one a repetition.
        compare: What is made of the models of a repetition.
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
        averages = {repetition: _average(own) for repetition, own in zip(models, answers, strict=True)}
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
            compared = list(pool.map(compare, answers, generators, repeat(settings)))
        comparisons.update(zip(group, compared, strict=True))
    return list(comparisons.values())


def _average(answers: TrainAnswers) -> FloatArray | None:
    """Return the average model of one round of FedAvg, or None if nobody answered or it is not finite."""
    if len(answers.vectors) == 0 or not np.isfinite(answers.vectors).all():
        return None
    weights = answers.num_examples / answers.num_examples.sum()
    return np.asarray(weights @ answers.vectors.astype(np.float64), dtype=np.float32)


def _groups(models: Mapping[int, FloatArray], num_clients: int) -> Iterator[list[int]]:
    """Deal repetitions into groups of one, or of more if all their clients' models take at most `GROUP_BYTES`."""
    repetitions = list(models)
    if repetitions:
        size = max(1, GROUP_BYTES // max(1, num_clients * models[repetitions[0]].nbytes))
        yield from (repetitions[start : start + size] for start in range(0, len(repetitions), size))
