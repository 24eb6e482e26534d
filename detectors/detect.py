"""How a heterogeneity report is obtained: queries and training rounds through a Flower grid, decisions from answers.

Clients that withhold their label counts, as they do below the fewest rows they may release, take no part in anything
that follows; in particular their models are not asked for. Answers come sorted by client, so a report depends on the
data, the seed and the settings, not on how clients are spread over hosts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from flwr.serverapp import Grid

from detectors import metrics
from detectors.detection_config import DetectionConfig
from detectors.feature_exchanges import measure_distances, measure_features
from detectors.feature_histograms import FeatureDistances
from detectors.label_skew import LABEL_COUNTS, decide_label_skew
from detectors.mean_outputs import measure_output_divergence
from detectors.outliers import Comparison, compare_through_grid, decide_outliers
from detectors.report import ClientFacts, HeterogeneityReport, ReportedMetrics
from engine.errors import DataError
from engine.federation import FloatArray
from engine.messages import QueryAnswers, send_query
from engine.seeds import stream
from engine.training_config import LocalTraining

Counts = Mapping[int, npt.NDArray[np.integer]]


def detect(
    grid: Grid,
    initial_vector: Callable[[int], FloatArray],
    training: LocalTraining,
    settings: DetectionConfig,
    seed: int,
) -> HeterogeneityReport:
    """Measure how the clients' data differ.

    Args:
        grid: Where the clients are; they must know `CLIENT_QUERIES`.
        initial_vector: Gives the random initial model of a seed, shape `(params,)`.
        training: Local training of the outlier detector's rounds.
        settings: Thresholds and sizes.
        seed: Of initial models, batches and samples.

    Raises:
        DataError: If no client answers.
    """
    from threadpoolctl import threadpool_limits

    timings: dict[str, float] = {}
    with threadpool_limits(limits=1):  # sums over several threads differ in their last bits
        with _timed(timings, "label_skew"):
            labels = send_query(grid, LABEL_COUNTS)
            counts = _label_counts(labels)
            label_skew = decide_label_skew(counts, settings.label_threshold)
        clients = tuple(counts)
        paired = _sample(clients, settings.max_pairwise_clients, seed)
        with _timed(timings, "feature_skew"):
            features = measure_features(grid, clients, settings)
        with _timed(timings, "outliers"):
            comparisons = compare_through_grid(grid, clients, initial_vector, training, settings, seed)
            outliers = decide_outliers(comparisons, settings)
        with _timed(timings, "metrics"):
            distances = None
            if features.pooled is not None:
                paired_features = [client for client in paired if client in features.clients]
                distances = measure_distances(grid, paired_features, features.pooled, settings)
            first = next((comparison for comparison in comparisons if comparison is not None), None)
            outputs = measure_output_divergence(grid, paired, first.average) if first else None
            reported = _metrics(counts, paired, distances, comparisons, outputs)
    return HeterogeneityReport(
        seed=seed,
        settings=settings,
        num_clients=len(list(grid.get_node_ids())),
        num_classes=len(counts[clients[0]]),
        num_features=features.num_features,
        clients=tuple(_client_facts(client, counts[client]) for client in clients),
        withheld=dict(labels.refused),
        label_skew=label_skew,
        feature_skew=features.finding,
        outliers=outliers,
        metrics=reported,
        notes=(*features.notes, *_sampling_notes(len(clients), settings)),
        timings=timings,
    )


def _label_counts(answers: QueryAnswers) -> Counts:
    if not answers.arrays:
        reasons = sorted(set(answers.refused.values())) or ["there are no clients"]
        raise DataError(f"at least one client must answer; of {len(answers.refused)} none did: {reasons[0]}")
    return {client: arrays["counts"].astype(np.int64) for client, arrays in answers.arrays.items()}


@contextmanager
def _timed(timings: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    timings[name] = time.perf_counter() - started


def _client_facts(client: int, counts: npt.NDArray[np.integer]) -> ClientFacts:
    return ClientFacts(
        client=client,
        num_rows=int(counts.sum()),
        label_counts=tuple(int(count) for count in counts),
        heterogeneity_index=metrics.heterogeneity_index(int((counts > 0).sum()), len(counts)),
    )


def _sample(clients: Sequence[int], limit: int, seed: int) -> tuple[int, ...]:
    """Return all clients, or `limit` of them drawn by seed, ascending."""
    if len(clients) <= limit:
        return tuple(clients)
    drawn = stream(seed, "pair-sample").choice(len(clients), size=limit, replace=False)
    return tuple(clients[position] for position in sorted(drawn))


def _sampling_notes(num_clients: int, settings: DetectionConfig) -> list[str]:
    limit = settings.max_pairwise_clients
    if num_clients <= limit:
        return []
    return [
        f"Label and feature distances are over the pairs of {limit} clients drawn by seed, of {num_clients}.",
        f"Models of more than {settings.projection_size} parameters were compared in as many random projections.",
    ]


def _metrics(
    counts: Counts,
    paired: Sequence[int],
    distances: FeatureDistances | None,
    comparisons: Sequence[Comparison | None],
    output_divergence: float | None,
) -> ReportedMetrics:
    matrix = np.stack(list(counts.values()))
    sizes = matrix.sum(axis=1)
    shares = metrics.distribution(matrix)
    pairs = metrics.distribution(np.stack([counts[client] for client in paired]))
    usable = [comparison for comparison in comparisons if comparison is not None]
    return ReportedMetrics(
        quantity_ratio=metrics.quantity_ratio(sizes),
        quantity_variation=metrics.coefficient_of_variation(sizes),
        quantity_gini=metrics.gini(sizes),
        entropy_spread=metrics.entropy_spread(shares),
        entropy_spread_normalised=metrics.entropy_spread(shares, normalised=True),
        label_hellinger=metrics.mean_pairwise_hellinger(pairs) if len(pairs) > 1 else None,
        feature_hellinger=distances.hellinger if distances else None,
        feature_wasserstein=distances.wasserstein if distances else None,
        output_divergence=output_divergence,
        model_distances=_client_means([comparison.distances for comparison in usable]),
        distances_from_average=_client_means([comparison.from_average for comparison in usable]),
    )


def _client_means(repetitions: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return each client's mean over the repetitions that have it."""
    clients = sorted({client for values in repetitions for client in values})
    return {c: float(np.mean([values[c] for values in repetitions if c in values])) for c in clients}
