"""The feature exchanges of a detection: which queries the feature detectors send, and the findings from the answers.

Without noise there are two exchanges. The first queries the moments and the per-class sums. The second queries the
centroids, the histograms, whose bins depend on the moments, the moments of row lengths, and the label agreement, whose
class means depend on the per-class sums.

With differential privacy, clients release noisy sums S_k and sums of squares of their clipped features
(`fedscout.detectors.privacy`) in one exchange. Without cross-products there are no principal axes, so the published
rule is not measured. The calibrated rule compares rows regardless of class, hence only for clients with similar labels,
and tests feature by feature:

    z_kj = (S_kj − n_k S_j / N) / √(n_k (1 − n_k / N) s²_j + σ² ((1 − n_k / N)² + (K − 1) (n_k / N)²)),

σ² being the variance of the noise on a sum. A client's p-value is that of its largest |z|, times the number of features
(Bonferroni, as their correlation is unknown), corrected over clients by Holm's method. s²_j is increased by two
standard deviations of its noise, which is conservative. The effect is that of
`fedscout.detectors.calibrated_feature_skew`, with the contribution of the noise also subtracted from its square.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedscout.detectors import calibrated_feature_skew, feature_skew, label_agreement
from fedscout.detectors.conversation import Conversation
from fedscout.detectors.privacy import noise_terms, sums_deviation
from fedscout.detectors.report import CalibratedFinding, DetectionConfig, Finding
from fedscout.detectors.statistics import ClientTest, Values
from fedscout.engine.data.federation import UNNAMED, Names
from fedscout.engine.messages.contents import Query, QueryAnswers

FIRST_BLOCK_CLIENTS = 8
BLOCK_BYTES = 2**29
"""Answers of the first exchange are read in blocks of about this size: one triangle of 4,096 features is 67 MB."""


@dataclass(frozen=True)
class MomentsAnswers:
    """Result of the first exchange.

    Attributes:
        num_features: None without answers.
        pooled: Moments of all rows of the clients that sent their triangle; None if none did, or with too many
            features.
        totals: Row count, sum and squares of each such client.
        classes: Their per-class sums.
        covariances: Covariances by class mix; None if they are too large.
        notes: Notes on clients that did not answer.
    """

    num_features: int | None
    pooled: feature_skew.PooledMoments | None
    totals: Mapping[int, feature_skew.ClientTotals]
    classes: feature_skew.ClassMoments
    covariances: feature_skew.ClassCovariances | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class FeatureMeasurement:
    """Result of the feature exchanges.

    Attributes:
        finding: Decision of the published rule.
        calibrated: Decision of the calibrated rule.
        num_features: None without answers.
        agreement: Tests of whose labels disagree with the others'; empty if not measured.
        distances: Mean distances over pairs, by reported metric; empty if not measured.
        notes: Caveats on the finding.
        concepts: Whether clients' labels depend on the same features; None if not measured.
        shifts: Each client's shift on shared axes; empty if not measured.
        centroids: Means of clients on the two principal axes; empty if not measured.
    """

    finding: Finding
    calibrated: CalibratedFinding
    num_features: int | None
    agreement: tuple[ClientTest, ...] = ()
    distances: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    concepts: label_agreement.Concepts | None = None
    shifts: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    centroids: Mapping[int, tuple[float, ...]] = field(default_factory=dict)


def measure_features(
    clients: Sequence[int],
    paired: Sequence[int],
    settings: DetectionConfig,
    alike: Collection[int],
    grouped: bool = False,
    names: Names = UNNAMED,
) -> Conversation[FeatureMeasurement]:
    """Query moments, then centroids, histograms and label agreement, and decide.

    Args:
        clients: Clients to query.
        paired: Subset of the clients for pairwise distances.
        settings: Thresholds and sizes.
        alike: Subset of the clients whose rows may be compared regardless of class, if rows per class are too few.
        grouped: Whether clients have row groups.
        names: Display names of clients and features.
    """
    moments = yield from ask_moments(clients, settings.max_features, names)
    pooled, classes, answered = moments.pooled, moments.classes, tuple(moments.totals)
    rate = settings.detector_rate
    if pooled is None:
        many = f"{moments.num_features} features exceed max_features = {settings.max_features}; use embeddings"
        reason = "no client reported its feature sums" if moments.num_features is None else many
        finding = Finding.unmeasured(feature_skew.NAME, 0.0, reason)
        calibrated = CalibratedFinding.unmeasured(feature_skew.NAME, rate, reason)
        return FeatureMeasurement(finding, calibrated, moments.num_features, notes=moments.notes)
    axes, total_variance = feature_skew.principal_axes(pooled)
    bins = feature_skew.Bins.around(pooled.mean, pooled.variance, settings.histogram_bins, settings.histogram_reach)
    within = calibrated_feature_skew.within_covariance(pooled, classes)
    by_class = bool(classes.pooled_counts.sum() / pooled.num_rows >= calibrated_feature_skew.ENOUGH_RELEASED)
    spread = within if by_class else pooled.covariance
    like = {client: agreed for client, agreed in moments.totals.items() if client in alike}
    compared = classes if by_class else calibrated_feature_skew.classes_as_one(like, pooled)

    def shifts_of(groups: feature_skew.FeatureGroups | None) -> calibrated_feature_skew.Shifts | str:
        if by_class or len(like) > 1:
            return calibrated_feature_skew.label_adjusted_shifts(
                compared, spread, groups, moments.covariances if by_class else None
            )
        return "clients hold too few rows of most classes to release their sums, and their labels may be skewed"

    def decide(shifts: calibrated_feature_skew.Shifts | str, excess: float = 0.0) -> CalibratedFinding:
        return calibrated_feature_skew.decide_feature_skew_calibrated(
            shifts, rate, settings.feature_effect, by_class, excess, names
        )

    shifts = shifts_of(None)
    comparison = label_agreement.discriminant(classes, within, pooled.num_rows, strange=decide(shifts).flagged_clients)
    scale = {"per_deviation": calibrated_feature_skew.per_deviation(spread)}
    queries = [
        Query("feature_centroid", {"mean": pooled.mean, "axes": axes}, clients=answered),
        Query(
            "feature_histogram",
            {"start": bins.start, "width": bins.width},
            {"bins": bins.bins},
            [client for client in paired if client in moments.totals],
        ),
        Query("row_norms", scale, {"by_class": by_class}, answered),
    ]
    if grouped:
        arrays = {**scale, "means": compared.means}
        queries.append(Query("group_norms", arrays, {"by_class": by_class}, answered))
    if comparison is not None:
        compared_arrays = comparison.arrays()
        for is_shifted in (False, True):  # clients with feature skew subtract their shift
            if members := [client for client in answered if (client in comparison.shifted) == is_shifted]:
                queries.append(Query("label_agreement", compared_arrays, {"shifted": is_shifted}, members))
    (answers, histograms, norms, *others), _ = yield queries, []
    groups = feature_skew.FeatureGroups.read(others[0].arrays) if grouped else None
    agreements = others[1:] if grouped else others
    excess = feature_skew.excess_variance(answer["norms"].astype(np.float64) for answer in norms.arrays.values())
    shifts = shifts if groups is None else shifts_of(groups)
    centroids = {client: answer["centroid"].astype(np.float64) for client, answer in answers.arrays.items()}
    counts = [answer["counts"].astype(np.int32) for answer in histograms.arrays.values()]
    means = [moments.totals[client].total / moments.totals[client].num_rows for client in histograms.arrays]
    agreed = {
        client: label_agreement.Agreement.read(answer) for part in agreements for client, answer in part.arrays.items()
    }
    return FeatureMeasurement(
        feature_skew.decide_feature_skew(centroids, total_variance, settings.feature_threshold, names),
        decide(shifts, excess if groups is None else groups.excess),
        moments.num_features,
        () if comparison is None else label_agreement.label_tests(agreed, comparison),
        feature_skew.feature_distances(counts, means, bins),
        (*moments.notes, *refusal_notes("centroid", answers, names)),
        label_agreement.compare_concepts(classes, within, pooled.num_rows, groups),
        {} if isinstance(shifts, str) else calibrated_feature_skew.shared_axes(shifts),
        {client: tuple(centroid.tolist()) for client, centroid in centroids.items()},
    )


def ask_moments(clients: Sequence[int], max_features: int, names: Names = UNNAMED) -> Conversation[MomentsAnswers]:
    """Query moments and per-class sums block by block, so that the server never holds those of all clients.

    Args:
        clients: Clients to query.
        max_features: With more features, clients send no triangle and no further clients are queried.
        names: Display names of clients.
    """
    sums = feature_skew.MomentSums()
    classes: feature_skew.ClassMoments | None = None
    covariances: feature_skew.ClassCovariances | None = None
    notes: list[str] = []
    num_features: int | None = None
    position, size = 0, FIRST_BLOCK_CLIENTS
    config = {"max_features": max_features}
    while position < len(clients):
        block = clients[position : position + size]
        queries = [Query(name, config=config, clients=block) for name in ("feature_moments", "class_sums")]
        (answers, by_class), _ = yield queries, []
        notes += refusal_notes("feature sums", answers, names)
        num_classes = 0
        for client, arrays in answers.arrays.items():
            num_features = len(arrays["sum"])
            if "scatter" not in arrays:
                return MomentsAnswers(
                    num_features, None, {}, feature_skew.ClassMoments.empty_moments(0, num_features), None, tuple(notes)
                )
            total, scatter = (arrays[name].astype(np.float64, copy=False) for name in ("sum", "scatter"))
            sums.add(client, answers.num_examples[client], total, scatter)
            if client in by_class.arrays:
                counts = by_class.arrays[client]["counts"].astype(np.int64)
                num_classes = len(counts)
                numbers = [by_class.arrays[client][name].astype(np.float64, copy=False) for name in ("sums", "squares")]
                if classes is None:
                    classes = feature_skew.ClassMoments.empty_moments(num_classes, num_features)
                    if feature_skew.ClassCovariances.fit(num_classes, num_features):
                        covariances = feature_skew.ClassCovariances(num_classes, num_features)
                classes.add(client, counts, *numbers)
                if covariances is not None:
                    covariances.add(answers.num_examples[client], total, scatter, counts, numbers[0])
        position += len(block)
        if num_features is not None:
            client_bytes = 4 * num_features * (num_features + 1) + 16 * num_features * num_classes
            size = max(1, BLOCK_BYTES // client_bytes)
    classes = classes or feature_skew.ClassMoments.empty_moments(0, num_features or 0)
    return MomentsAnswers(num_features, sums.pooled(), sums.totals, classes, covariances, tuple(notes))


def refusal_notes(what: str, answers: QueryAnswers, names: Names) -> list[str]:
    """Return a note on the clients that did not answer, with the reason of the first one."""
    clients = sorted(answers.refused)
    return [f"No {what} from {names.some_clients(clients)}: {answers.refused[clients[0]]}."] if clients else []


WITHOUT_AXES = "principal axes need cross-products, which clients do not send if detection.epsilon is set"


def measure_private_features(
    clients: Sequence[int], settings: DetectionConfig, seed: int, alike: Collection[int], names: Names = UNNAMED
) -> Conversation[FeatureMeasurement]:
    """Query noisy sums and decide.

    Args:
        clients: Clients to query.
        settings: Thresholds and the noise that clients add.
        seed: Seed of seeded noise.
        alike: Subset of the clients whose rows may be compared regardless of class.
        names: Display names of clients and features.
    """
    (answers,), _ = yield [Query("private_sums", config=noise_terms(settings, seed), clients=clients)], []
    sums, squares = (
        {client: arrays[name].astype(np.float64) for client, arrays in answers.arrays.items()}
        for name in ("sum", "squares")
    )
    num_features = len(next(iter(sums.values()))) if sums else None
    similar_sums = {client: client_sum for client, client_sum in sums.items() if client in alike}
    published = Finding.unmeasured(feature_skew.NAME, 0.0, WITHOUT_AXES)
    if len(similar_sums) < 2 or num_features is None:
        reason = "noisy sums cover all classes together, so at least two clients must have similar labels"
        calibrated = CalibratedFinding.unmeasured(feature_skew.NAME, settings.detector_rate, reason)
    else:
        assert settings.epsilon is not None
        deviation = sums_deviation(settings.epsilon, settings.delta, num_features)
        noise = deviation * 2 * settings.clip, deviation * settings.clip**2
        calibrated = decide_private_features(
            similar_sums, squares, answers.num_examples, noise, settings.detector_rate, settings.feature_effect, names
        )
    notes = tuple(refusal_notes("noisy sums", answers, names))
    return FeatureMeasurement(published, calibrated, num_features, notes=notes)


def decide_private_features(
    sums: Mapping[int, Values],
    squares: Mapping[int, Values],
    num_rows: Mapping[int, int],
    noise: tuple[float, float],
    rate: float,
    min_effect: float,
    names: Names = UNNAMED,
) -> CalibratedFinding:
    """Test each client's largest shift.

    Args:
        sums: Noisy sums, shape `(d,)`.
        squares: Noisy sums of squares, shape `(d,)`.
        num_rows: Rows of each client.
        noise: Standard deviations of the noise on a sum and on a sum of squares.
        rate: Probability of any flag in a federation of identically distributed clients.
        min_effect: Smallest root mean square shift that flags.
        names: Display names of clients and features.
    """
    from scipy.special import ndtr

    clients = sorted(sums)
    rows = np.array([num_rows[client] for client in clients], dtype=np.float64)[:, None]
    totals = np.stack([sums[client] for client in clients])
    total_rows = float(rows.sum())
    mean = totals.sum(axis=0) / total_rows
    spread = np.sum([squares[client] for client in clients], axis=0) / total_rows - mean**2
    spread = np.maximum(spread, 0.0) + 2 * np.sqrt(len(clients)) * noise[1] / total_rows
    part = rows / total_rows
    noise_variance = noise[0] ** 2 * ((1 - part) ** 2 + (len(clients) - 1) * part**2)
    surplus = totals - rows * mean
    scores = np.abs(surplus) / np.sqrt(rows * (1 - part) * spread + noise_variance)
    p_values = np.minimum(1.0, 2 * ndtr(-scores).min(axis=1) * scores.shape[1])
    offsets = surplus / rows / np.sqrt(spread)
    by_chance = 1 / rows[:, 0] + (noise[0] ** 2 / rows**2 / spread).mean(axis=1)
    return calibrated_feature_skew.decide_shifts(
        clients,
        p_values,
        offsets,
        by_chance,
        range(offsets.shape[1]),
        rate,
        min_effect,
        "largest shift of a feature, by noisy sums",
        "of any class, according to noisy sums",
        names=names,
    )
