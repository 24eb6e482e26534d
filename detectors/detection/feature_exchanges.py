"""The feature messages: what the feature-skew detector asks in two exchanges, and what travels with it.

With the moments clients send their per-class sums; with the centroids they send the histograms whose bins the moments
place, how unlike their rows are in length, and how their labels agree with the other clients', whose classes the
per-class sums describe.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedscout.detectors.conversation import Conversation
from fedscout.detectors.detection_config import DetectionConfig
from fedscout.detectors.outliers.agreement_tests import label_tests
from fedscout.detectors.outliers.concepts import Concepts, compare_concepts
from fedscout.detectors.outliers.label_agreement import LABEL_AGREEMENT, Agreement, Discriminant, discriminant
from fedscout.detectors.report import (
    CalibratedFinding,
    ClientFeatures,
    FeatureDensity,
    Finding,
)
from fedscout.detectors.skew.calibrated_feature_skew import (
    ENOUGH_RELEASED,
    Shifts,
    classes_as_one,
    decide_feature_skew_calibrated,
    label_adjusted_shifts,
    per_deviation,
    released_share,
    within_covariance,
)
from fedscout.detectors.skew.class_covariances import ClassCovariances
from fedscout.detectors.skew.class_sums import CLASS_SUMS, ROW_NORMS, ClassMoments, excess_variance
from fedscout.detectors.skew.client_features import client_features
from fedscout.detectors.skew.feature_divergence import feature_divergence
from fedscout.detectors.skew.feature_histograms import FEATURE_HISTOGRAM, Bins, FeatureDistances, feature_distances
from fedscout.detectors.skew.feature_skew import (
    FEATURE_CENTROID,
    FEATURE_MOMENTS,
    NAME,
    ClientTotals,
    MomentSums,
    PooledMoments,
    decide_feature_skew,
    principal_axes,
)
from fedscout.detectors.skew.group_norms import GROUP_NORMS, FeatureGroups
from fedscout.detectors.statistics.calibration import ClientTest
from fedscout.engine.data.names import UNNAMED, Names
from fedscout.engine.messages.exchange import Query
from fedscout.engine.messages.message_contents import QueryAnswers

FIRST_BLOCK_CLIENTS = 8
BLOCK_BYTES = 2**29
"""Answers of the first exchange are read in blocks of about this size: one triangle of 4,096 features is 67 MB."""


@dataclass(frozen=True)
class MomentsAnswers:
    """What the first exchange gave.

    Attributes:
        num_features: None if nobody answered.
        pooled: Moments of all rows of those who gave their triangle; None if nobody did, or features are too many.
        totals: Rows, their sum and squares, of each such client.
        classes: Their per-class sums.
        covariances: Of the classes; None where they are too many numbers.
        notes: About clients that did not answer.
    """

    num_features: int | None
    pooled: PooledMoments | None
    totals: Mapping[int, ClientTotals]
    classes: ClassMoments
    covariances: ClassCovariances | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class FeatureMeasurement:
    """What the feature messages gave.

    Attributes:
        finding: The published decision.
        calibrated: The calibrated one.
        num_features: None if nobody answered.
        agreement: Tests of whose labels disagree with the others'; none if not measured.
        distances: Mean distances over pairs; None if not measured.
        divergence: Of raw histograms, the rejected measure; None if not measured.
        notes: What a reader of the finding must know.
        concepts: Whether clients' labels rest on the same features; None if not measured.
        clients: How clients' rows lie in feature space; none if not measured.
        centroids: Their means on the two principal axes, likewise.
        density: How values of the feature of largest variance are spread; None if not measured.
    """

    finding: Finding
    calibrated: CalibratedFinding
    num_features: int | None
    agreement: tuple[ClientTest, ...] = ()
    distances: FeatureDistances | None = None
    divergence: float | None = None
    notes: tuple[str, ...] = ()
    concepts: Concepts | None = None
    clients: tuple[ClientFeatures, ...] = ()
    centroids: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    density: FeatureDensity | None = None


def measure_features(
    clients: Sequence[int],
    paired: Sequence[int],
    settings: DetectionConfig,
    alike: Collection[int],
    grouped: bool = False,
    names: Names = UNNAMED,
) -> Conversation[FeatureMeasurement]:
    """Ask for moments, then for centroids, histograms and agreement, and decide.

    Args:
        clients: Who is asked.
        paired: Those of them whose distances are averaged over all pairs.
        settings: Thresholds and sizes.
        alike: Those of them whose rows may be compared without regard to their class, where they are too few.
        grouped: Whether clients know which of their rows belong together.
        names: Of clients and features, for sentences.
    """
    moments = yield from ask_moments(clients, settings.max_features, names)
    pooled, classes, answered = moments.pooled, moments.classes, tuple(moments.totals)
    rate = settings.detector_rate
    if pooled is None:
        reason = "no client gave its feature sums"
        if moments.num_features is not None:
            reason = f"{moments.num_features} features exceed max_features = {settings.max_features}; use embeddings"
        finding = Finding.unmeasured(NAME, 0.0, reason)
        calibrated = CalibratedFinding.unmeasured(NAME, rate, reason)
        return FeatureMeasurement(finding, calibrated, moments.num_features, notes=moments.notes)
    leading = principal_axes(pooled, settings.feature_scale)
    bins = Bins.around(pooled.mean, pooled.variance, settings.histogram_bins, settings.histogram_reach)
    within = within_covariance(pooled, classes)
    by_class = released_share(classes, pooled) >= ENOUGH_RELEASED
    spread = within if by_class else pooled.covariance
    like = {client: own for client, own in moments.totals.items() if client in alike}
    compared = classes if by_class else classes_as_one(like, pooled)

    def shifts_of(groups: FeatureGroups | None) -> Shifts | str:
        if by_class or len(like) > 1:
            return label_adjusted_shifts(compared, spread, groups, moments.covariances if by_class else None)
        return "clients hold too few rows of most classes to tell of them, and their labels may be skewed"

    def decide(shifts: Shifts | str, excess: float = 0.0) -> CalibratedFinding:
        return decide_feature_skew_calibrated(shifts, rate, settings.feature_effect, by_class, excess, names)

    shifts = shifts_of(None)
    comparison = discriminant(classes, within, pooled.num_rows, strange=decide(shifts).flagged_clients)
    queries = [
        Query(FEATURE_CENTROID, {"mean": pooled.mean, "axes": leading.axes}, clients=answered),
        Query(
            FEATURE_HISTOGRAM,
            {"start": bins.start, "width": bins.width},
            {"bins": bins.bins},
            [client for client in paired if client in moments.totals],
        ),
        Query(ROW_NORMS, {"per_deviation": per_deviation(spread)}, {"by_class": by_class}, answered),
    ]
    if grouped:
        arrays = {"per_deviation": per_deviation(spread), "means": compared.means}
        queries.append(Query(GROUP_NORMS, arrays, {"by_class": by_class}, answered))
    queries += [] if comparison is None else _agreement_queries(comparison, answered)
    (answers, histograms, norms, *others), _ = yield queries, []
    groups = FeatureGroups.read(others[0].arrays) if grouped else None
    agreements = others[1:] if grouped else others
    excess = excess_variance(answer["norms"].astype(np.float64) for answer in norms.arrays.values())
    shifts = shifts if groups is None else shifts_of(groups)
    centroids = {client: answer["centroid"].astype(np.float64) for client, answer in answers.arrays.items()}
    counts = [answer["counts"].astype(np.int32) for answer in histograms.arrays.values()]
    own = {client: Agreement.read(answer) for part in agreements for client, answer in part.arrays.items()}
    return FeatureMeasurement(
        decide_feature_skew(
            centroids, leading.total_variance, settings.feature_threshold, settings.feature_scale, names
        ),
        decide(shifts, excess if groups is None else groups.excess),
        moments.num_features,
        () if comparison is None else label_tests(own, comparison),
        feature_distances(counts, bins),
        feature_divergence(counts, bins),
        (*moments.notes, *refusal_notes("centroid", answers, names)),
        compare_concepts(classes, within, pooled.num_rows, groups),
        () if isinstance(shifts, str) else client_features(shifts, compared, spread),
        {client: tuple(centroid.tolist()) for client, centroid in centroids.items()},
        _density(histograms, bins),
    )


def _density(histograms: QueryAnswers, bins: Bins) -> FeatureDensity | None:
    """Return each client's counts of the feature of largest variance, whose bins are the widest."""
    feature = int(bins.width.argmax())
    counts = {client: answer["counts"][feature].astype(np.int64) for client, answer in histograms.arrays.items()}
    if not counts or bins.width[feature] <= 0:
        return None
    start, width = float(bins.start[feature]), float(bins.width[feature])
    told = {client: tuple(own.tolist()) for client, own in counts.items()}
    return FeatureDensity(feature=feature, start=start, width=width, counts=told)


def _agreement_queries(comparison: Discriminant, clients: Sequence[int]) -> list[Query]:
    """Return the question to those whose features are not skewed, and the one to those who take a shift off."""
    arrays, shifted = comparison.arrays(), comparison.shifted
    plain, moved = [c for c in clients if c not in shifted], [c for c in clients if c in shifted]
    queries = [Query(LABEL_AGREEMENT, arrays, {"shifted": False}, plain)] if plain else []
    return [*queries, Query(LABEL_AGREEMENT, arrays, {"shifted": True}, moved)] if moved else queries


def ask_moments(clients: Sequence[int], max_features: int, names: Names = UNNAMED) -> Conversation[MomentsAnswers]:
    """Ask for moments and per-class sums block by block, so that the server never holds those of all clients.

    Args:
        clients: Who is asked.
        max_features: Beyond, clients send no triangle and nobody else is asked.
        names: Of clients, for notes.
    """
    sums = MomentSums()
    classes: ClassMoments | None = None
    covariances: ClassCovariances | None = None
    notes: list[str] = []
    num_features: int | None = None
    position, size = 0, FIRST_BLOCK_CLIENTS
    config = {"max_features": max_features}
    while position < len(clients):
        block = clients[position : position + size]
        queries = [Query(name, config=config, clients=block) for name in (FEATURE_MOMENTS, CLASS_SUMS)]
        (answers, by_class), _ = yield queries, []
        notes += refusal_notes("feature sums", answers, names)
        num_classes = 0
        for client, arrays in answers.arrays.items():
            num_features = len(arrays["sum"])
            if "scatter" not in arrays:
                return MomentsAnswers(
                    num_features, None, {}, ClassMoments.of_nobody(0, num_features), None, tuple(notes)
                )
            total, scatter = (arrays[name].astype(np.float64, copy=False) for name in ("sum", "scatter"))
            sums.add(client, answers.num_examples[client], total, scatter)
            if client in by_class.arrays:
                counts = by_class.arrays[client]["counts"].astype(np.int64)
                num_classes = len(counts)
                numbers = [by_class.arrays[client][name].astype(np.float64, copy=False) for name in ("sums", "squares")]
                if classes is None:
                    classes = ClassMoments.of_nobody(num_classes, num_features)
                    if ClassCovariances.fit(num_classes, num_features):
                        covariances = ClassCovariances(num_classes, num_features)
                classes.add(client, counts, *numbers)
                if covariances is not None:
                    covariances.add(answers.num_examples[client], total, scatter, counts, numbers[0])
        position += len(block)
        if num_features is not None:
            client_bytes = 4 * num_features * (num_features + 1) + 16 * num_features * num_classes
            size = max(1, BLOCK_BYTES // client_bytes)
    classes = classes or ClassMoments.of_nobody(0, num_features or 0)
    return MomentsAnswers(num_features, sums.pooled(), sums.totals, classes, covariances, tuple(notes))


def refusal_notes(what: str, answers: QueryAnswers, names: Names) -> list[str]:
    """Return a note about the clients that did not answer, with the reason of the first one."""
    clients = sorted(answers.refused)
    return [f"No {what} from {names.some_clients(clients)}: {answers.refused[clients[0]]}."] if clients else []
