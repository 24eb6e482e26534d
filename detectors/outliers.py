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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from flwr.serverapp import Grid

from detectors.detection_config import DetectionConfig
from detectors.metrics import Values, distances_to
from detectors.report import Finding, name_clients, yes_no
from engine.federation import FloatArray
from engine.messages import send_train, train_config
from engine.seeds import integer, stream
from engine.training_config import LocalTraining

NAME: Final = "outliers"
MIN_CLIENTS = 3
CHUNK_PARAMETERS = 4096
TIE = 1e-9
"""Distances within this share of each other are equal up to rounding."""


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

    Works on some parameters at a time, so that no float64 copy of all vectors is made. Columns are centred first, as
    ‖a‖² + ‖b‖² − 2 aᵀb cancels where vectors are long against their differences.

    Args:
        vectors: Shape `(clients >= 2, params)`.
    """
    num_clients = len(vectors)
    gram = np.zeros((num_clients, num_clients))
    for start in range(0, vectors.shape[1], CHUNK_PARAMETERS):
        chunk = vectors[:, start : start + CHUNK_PARAMETERS].astype(np.float64)
        chunk -= chunk.mean(axis=0)
        gram += chunk @ chunk.T
    norms = np.diag(gram)
    squared = np.maximum(norms[:, None] + norms[None, :] - 2 * gram, 0.0)
    np.fill_diagonal(squared, 0.0)
    return np.asarray(np.sqrt(squared).sum(axis=1) / (num_clients - 1))


def sketch(vectors: FloatArray, size: int, generator: np.random.Generator) -> Values:
    """Return the count sketch of each row: each parameter, with a random sign, is added to a random one of `size`."""
    entries = generator.integers(0, size, vectors.shape[1])
    signs = generator.choice(np.array([-1.0, 1.0]), vectors.shape[1])
    return np.stack([np.bincount(entries, weights=signs * vector, minlength=size) for vector in vectors])


def compare_models(
    clients: Sequence[int],
    vectors: FloatArray,
    num_examples: npt.NDArray[np.integer],
    settings: DetectionConfig,
    generator: np.random.Generator,
) -> Comparison | None:
    """Return how far the models of one repetition are apart; None if fewer than three can be compared.

    Args:
        clients: Who trained, aligned with the rows of `vectors` and with `num_examples`.
        vectors: Parameters after local training, shape `(clients, params)`.
        num_examples: Training rows, the weights of the average.
        settings: For the size from which models are projected.
        generator: Of the projection.
    """
    finite = np.asarray(np.isfinite(vectors).all(axis=1))
    if finite.sum() < MIN_CLIENTS:
        return None
    members = [client for client, usable in zip(clients, finite, strict=True) if usable]
    usable_vectors = vectors if finite.all() else vectors[finite]
    weights = num_examples[finite] / num_examples[finite].sum()
    average = np.zeros(vectors.shape[1])
    for weight, vector in zip(weights, usable_vectors, strict=True):
        average += weight * vector.astype(np.float64)
    from_average = [float(distances_to(vector, average)) for vector in usable_vectors]
    if len(members) > settings.max_pairwise_clients and vectors.shape[1] > settings.projection_size:
        distances = mean_distances(sketch(usable_vectors, settings.projection_size, generator))
    else:
        distances = mean_distances(usable_vectors)
    return Comparison(
        distances={client: float(distance) for client, distance in zip(members, distances, strict=True)},
        from_average=dict(zip(members, from_average, strict=True)),
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


def decide_outliers(comparisons: Sequence[Comparison | None], settings: DetectionConfig) -> Finding:
    """Return the decision over all repetitions.

    Args:
        comparisons: One a repetition; None where the models could not be compared.
        settings: Percentile and the number of flags that makes an outlier.
    """
    needed = settings.outlier_min_flags
    usable = [comparison for comparison in comparisons if comparison is not None]
    if len(usable) < needed:
        reason = (
            f"Outlier clients: not measured; {len(usable)} of {len(comparisons)} repetitions gave at least "
            f"{MIN_CLIENTS} models with finite parameters, and {needed} are needed."
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
        f"often for the distance of its model from the others' was flagged {most} times ({name_clients(leaders)}); "
        f"an outlier is flagged at least {needed} times."
    )
    if outliers:
        sentence += f" Outliers: {name_clients(outliers)}."
    return Finding(
        name=NAME,
        value=float(most),
        threshold=float(needed),
        detected=bool(outliers),
        flagged_clients=outliers,
        client_values={client: float(count) for client, count in flags.items()},
        sentence=sentence,
    )


def compare_through_grid(
    grid: Grid,
    clients: Sequence[int],
    initial_vector: Callable[[int], FloatArray],
    training: LocalTraining,
    settings: DetectionConfig,
    seed: int,
) -> list[Comparison | None]:
    """Train and compare, repetition after repetition.

    Args:
        grid: Where the clients are.
        clients: Who takes part.
        initial_vector: Gives the random initial model of a seed, shape `(params,)`.
        training: Local training of each round.
        settings: Repetitions and rounds.
        seed: Each repetition derives its own from it.
    """
    comparisons: list[Comparison | None] = []
    for repetition in range(settings.outlier_repetitions):
        repetition_seed = integer(seed, "outlier-repetition", repetition)
        vector: FloatArray | None = initial_vector(repetition_seed)
        for server_round in range(1, settings.outlier_rounds):
            if vector is not None:
                vector = _average(grid, vector, training, repetition_seed, server_round, clients)
        if vector is None:
            comparisons.append(None)
            continue
        config = train_config(training, repetition_seed, settings.outlier_rounds, reply="individual")
        answers = send_train(grid, vector, config, clients)
        generator = stream(seed, "outlier-projection", repetition)
        compared = compare_models(answers.clients, answers.vectors, answers.num_examples, settings, generator)
        comparisons.append(compared)
    return comparisons


def _average(
    grid: Grid,
    vector: FloatArray,
    training: LocalTraining,
    seed: int,
    server_round: int,
    clients: Sequence[int],
) -> FloatArray | None:
    """Return the average model after one round of FedAvg, or None if nobody answered or it is not finite."""
    answers = send_train(grid, vector, train_config(training, seed, server_round, reply="merged"), clients)
    if len(answers.vectors) == 0 or not np.isfinite(answers.vectors).all():
        return None
    weights = answers.num_examples / answers.num_examples.sum()
    return np.asarray(weights @ answers.vectors.astype(np.float64), dtype=np.float32)
