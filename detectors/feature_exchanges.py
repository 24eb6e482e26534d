"""The feature messages: the two exchanges of the feature-skew detector, and the histograms whose bins they place.

The histograms are asked for together with the centroids, as both need the first exchange and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detectors.conversation import Conversation
from detectors.detection_config import DetectionConfig
from detectors.feature_histograms import FEATURE_HISTOGRAM, Bins, FeatureDistances, feature_distances
from detectors.feature_skew import (
    FEATURE_CENTROID,
    FEATURE_MOMENTS,
    NAME,
    ClientMoments,
    MomentSums,
    PooledMoments,
    decide_feature_skew,
    principal_axes,
)
from detectors.report import Finding, name_clients
from engine.exchange import Query
from engine.messages import QueryAnswers

FIRST_BLOCK_CLIENTS = 8
BLOCK_BYTES = 2**29
"""Answers of the first exchange are read in blocks of about this size: one triangle of 4,096 features is 67 MB."""


@dataclass(frozen=True)
class MomentsAnswers:
    """What the first exchange gave.

    Attributes:
        num_features: None if nobody answered.
        clients: Who gave its triangle.
        pooled: Moments of all their rows; None if nobody gave its triangle, or features are too many.
        notes: About clients that did not answer.
    """

    num_features: int | None
    clients: tuple[int, ...]
    pooled: PooledMoments | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class FeatureMeasurement:
    """What the feature messages gave.

    Attributes:
        finding: The decision.
        num_features: None if nobody answered.
        distances: Mean distances over pairs; None if not measured.
        notes: What a reader of the finding must know.
    """

    finding: Finding
    num_features: int | None
    distances: FeatureDistances | None = None
    notes: tuple[str, ...] = ()


def measure_features(
    clients: Sequence[int], paired: Sequence[int], settings: DetectionConfig
) -> Conversation[FeatureMeasurement]:
    """Ask for moments, then for centroids and histograms, and decide.

    Args:
        clients: Who is asked.
        paired: Those of them whose distances are averaged over all pairs.
        settings: Thresholds and sizes.
    """
    moments = yield from ask_moments(clients, settings.max_features)
    pooled = moments.pooled
    if pooled is None:
        reason = "no client gave its feature sums"
        if moments.num_features is not None:
            reason = f"{moments.num_features} features exceed max_features = {settings.max_features}; use embeddings"
        finding = Finding.unmeasured(NAME, 0.0, f"Feature skew: not measured; {reason}.")
        return FeatureMeasurement(finding, moments.num_features, notes=moments.notes)
    leading = principal_axes(pooled, settings.feature_scale)
    answered = frozenset(moments.clients)
    bins = Bins.around(pooled.mean, pooled.variance, settings.histogram_bins, settings.histogram_reach)
    centroid_query = Query(FEATURE_CENTROID, {"mean": pooled.mean, "axes": leading.axes}, clients=moments.clients)
    histogram_query = Query(
        FEATURE_HISTOGRAM,
        {"start": bins.start, "width": bins.width},
        {"bins": bins.bins},
        [client for client in paired if client in answered],
    )
    (answers, histograms), _ = yield [centroid_query, histogram_query], []
    centroids = {client: answer["centroid"].astype(np.float64) for client, answer in answers.arrays.items()}
    finding = decide_feature_skew(centroids, leading.total_variance, settings.feature_threshold, settings.feature_scale)
    return FeatureMeasurement(
        finding,
        moments.num_features,
        feature_distances((answer["counts"].astype(np.int32) for answer in histograms.arrays.values()), bins),
        (*moments.notes, *refusal_notes("centroid", answers)),
    )


def ask_moments(clients: Sequence[int], max_features: int) -> Conversation[MomentsAnswers]:
    """Ask for moments block by block, so that the server never holds all clients' triangles.

    Args:
        clients: Who is asked.
        max_features: Beyond, clients send no triangle and nobody else is asked.
    """
    sums = MomentSums()
    answered: list[int] = []
    notes: list[str] = []
    num_features: int | None = None
    position, size = 0, FIRST_BLOCK_CLIENTS
    while position < len(clients):
        block = clients[position : position + size]
        (answers,), _ = yield [Query(FEATURE_MOMENTS, config={"max_features": max_features}, clients=block)], []
        notes += refusal_notes("feature sums", answers)
        for client, arrays in answers.arrays.items():
            num_features = len(arrays["sum"])
            if "scatter" not in arrays:
                return MomentsAnswers(num_features, (), None, tuple(notes))
            total, scatter = (arrays[name].astype(np.float64, copy=False) for name in ("sum", "scatter"))
            sums.add(ClientMoments(answers.num_examples[client], total, scatter))
            answered.append(client)
        position += len(block)
        if num_features is not None:
            size = max(1, BLOCK_BYTES // (4 * num_features * (num_features + 1)))
    return MomentsAnswers(num_features, tuple(answered), sums.pooled(), tuple(notes))


def refusal_notes(what: str, answers: QueryAnswers) -> list[str]:
    """Return a note about the clients that did not answer, with the reason of the first one."""
    clients = sorted(answers.refused)
    return [f"No {what} from {name_clients(clients)}: {answers.refused[clients[0]]}."] if clients else []
