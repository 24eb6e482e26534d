"""The feature messages: the two exchanges of the feature-skew detector, and the histograms whose bins they place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.serverapp import Grid

from detectors.detection_config import DetectionConfig
from detectors.feature_histograms import FEATURE_HISTOGRAM, Bins, FeatureDistances, feature_distances
from detectors.feature_skew import (
    FEATURE_CENTROID,
    FEATURE_MOMENTS,
    NAME,
    ClientMoments,
    PooledMoments,
    decide_feature_skew,
    pool_moments,
    principal_axes,
)
from detectors.report import Finding, name_clients
from engine.messages import QueryAnswers, send_query

FIRST_BLOCK_CLIENTS = 8
BLOCK_BYTES = 2**29
"""Answers of the first exchange are read in blocks of about this size: one triangle of 4,096 features is 67 MB."""


@dataclass
class MomentsReader:
    """Reads the first exchange block by block, so that the server never holds all clients' triangles.

    Attributes:
        grid: Where the clients are.
        clients: Who is asked.
        max_features: Beyond, clients send no triangle and reading ends.
        num_features: Known after the first answer.
        answered: Who gave a triangle so far.
        notes: About clients that did not answer.
    """

    grid: Grid
    clients: Sequence[int]
    max_features: int
    num_features: int | None = None
    answered: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[ClientMoments]:
        position, size = 0, FIRST_BLOCK_CLIENTS
        while position < len(self.clients):
            block = self.clients[position : position + size]
            config = {"max_features": self.max_features}
            answers = send_query(self.grid, FEATURE_MOMENTS, config=config, clients=block)
            self.notes += refusal_notes("feature sums", answers)
            for client, arrays in answers.arrays.items():
                total = arrays["sum"].astype(np.float64)
                self.num_features = len(total)
                if "scatter" not in arrays:
                    return
                self.answered.append(client)
                scatter = arrays["scatter"].astype(np.float64, copy=False)
                yield ClientMoments(answers.num_examples[client], total, scatter)
            position += len(block)
            if self.num_features is not None:
                size = max(1, BLOCK_BYTES // (4 * self.num_features * (self.num_features + 1)))


@dataclass(frozen=True)
class FeatureMeasurement:
    """Outcome of the two exchanges.

    Attributes:
        finding: The decision.
        num_features: None if nobody answered.
        clients: Who took part.
        pooled: Moments of all their rows; None if not measured.
        notes: What a reader of the finding must know.
    """

    finding: Finding
    num_features: int | None
    clients: tuple[int, ...] = ()
    pooled: PooledMoments | None = None
    notes: tuple[str, ...] = ()


def measure_features(grid: Grid, clients: Sequence[int], settings: DetectionConfig) -> FeatureMeasurement:
    """Run both exchanges and decide."""
    reader = MomentsReader(grid, clients, settings.max_features)
    pooled = pool_moments(reader)
    if pooled is None:
        reason = "no client gave its feature sums"
        if reader.num_features is not None:
            reason = f"{reader.num_features} features exceed max_features = {settings.max_features}; use embeddings"
        finding = Finding.unmeasured(NAME, 0.0, f"Feature skew: not measured; {reason}.")
        return FeatureMeasurement(finding, reader.num_features, notes=tuple(reader.notes))
    leading = principal_axes(pooled, settings.feature_scale)
    arrays = {"mean": pooled.mean, "axes": leading.axes}
    answers = send_query(grid, FEATURE_CENTROID, arrays=arrays, clients=reader.answered)
    centroids = {client: answer["centroid"].astype(np.float64) for client, answer in answers.arrays.items()}
    finding = decide_feature_skew(centroids, leading.total_variance, settings.feature_threshold, settings.feature_scale)
    notes = (*reader.notes, *refusal_notes("centroid", answers))
    return FeatureMeasurement(finding, reader.num_features, tuple(reader.answered), pooled, notes)


def measure_distances(
    grid: Grid, clients: Sequence[int], pooled: PooledMoments, settings: DetectionConfig
) -> FeatureDistances | None:
    """Ask for histograms and return the mean distances over all pairs of `clients`, None if there is no pair."""
    bins = Bins.around(pooled.mean, pooled.variance, settings.histogram_bins, settings.histogram_reach)
    arrays = {"start": bins.start, "width": bins.width}
    answers = send_query(grid, FEATURE_HISTOGRAM, arrays=arrays, config={"bins": bins.bins}, clients=clients)
    counts = (answer["counts"].astype(np.int32, copy=False) for answer in answers.arrays.values())
    return feature_distances(counts, bins)


def refusal_notes(what: str, answers: QueryAnswers) -> list[str]:
    """Return a note about the clients that did not answer, with the reason of the first one."""
    clients = sorted(answers.refused)
    return [f"No {what} from {name_clients(clients)}: {answers.refused[clients[0]]}."] if clients else []
