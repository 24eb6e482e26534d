"""Feature skew from noisy sums: what is left to see of features under differential privacy.

Clients release noisy sums S_k and squares of their clipped features (`fedscout.detectors.statistics.privacy`) in one
exchange. Without cross-products there are no principal axes, so the published rule is not measured. The calibrated one
compares rows of all classes as one, hence is not asked where labels are skewed, and feature by feature:

    z_kj = (S_kj − n_k S_j / N) / √(n_k (1 − n_k / N) s²_j + σ² ((1 − n_k / N)² + (K − 1) (n_k / N)²)),

σ² being the variance of the noise on a sum. A client's p-value is that of its largest |z|, times the number of features
(Bonferroni, as their correlation is not known), corrected over clients by Holm's method. s²_j is taken two standard
deviations of its noise too large rather than too small. The effect is that of
`fedscout.detectors.skew.calibrated_feature_skew`, the noise's part taken from its square as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedscout.detectors.conversation import Conversation
from fedscout.detectors.detection.feature_exchanges import FeatureMeasurement, refusal_notes
from fedscout.detectors.detection_config import DetectionConfig
from fedscout.detectors.report import CalibratedFinding, Finding
from fedscout.detectors.skew.calibrated_feature_skew import decide_shifts
from fedscout.detectors.skew.feature_skew import NAME
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.detectors.statistics.privacy import PRIVATE_SUMS, noise_terms, sums_deviation
from fedscout.engine.data.names import UNNAMED, Names
from fedscout.engine.messages.exchange import Query

WITHOUT_AXES = "with detection.epsilon clients send no cross-products, without which there are no principal axes"


def measure_private_features(
    clients: Sequence[int], settings: DetectionConfig, seed: int, alike: Collection[int], names: Names = UNNAMED
) -> Conversation[FeatureMeasurement]:
    """Ask for noisy sums and decide.

    Args:
        clients: Who is asked.
        settings: Thresholds, and how much noise clients add.
        seed: Of seeded noise.
        alike: Those of them whose rows may be compared without regard to their class.
        names: Of clients and features, for sentences.
    """
    (answers,), _ = yield [Query(PRIVATE_SUMS, config=noise_terms(settings, seed), clients=clients)], []
    rate = settings.detector_rate
    published = Finding.unmeasured(NAME, 0.0, WITHOUT_AXES)
    sums = {client: arrays["sum"].astype(np.float64) for client, arrays in answers.arrays.items()}
    squares = {client: arrays["squares"].astype(np.float64) for client, arrays in answers.arrays.items()}
    num_features = len(next(iter(sums.values()))) if sums else None
    like = {client: own for client, own in sums.items() if client in alike}
    if len(sums) < 2 or num_features is None:
        calibrated = CalibratedFinding.unmeasured(NAME, rate, f"it takes two clients, got {len(sums)}")
    elif len(like) < 2:
        reason = "clients add noise to sums of all classes, and labels may be skewed"
        calibrated = CalibratedFinding.unmeasured(NAME, rate, reason)
    else:
        assert settings.epsilon is not None
        deviation = sums_deviation(settings.epsilon, settings.delta, num_features)
        noise = deviation * 2 * settings.clip, deviation * settings.clip**2
        calibrated = decide_private_features(
            like, squares, answers.num_examples, noise, rate, settings.feature_effect, names
        )
    return FeatureMeasurement(
        published, calibrated, num_features, notes=tuple(refusal_notes("noisy sums", answers, names))
    )


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
        rate: Probability of any flag in a federation of like clients.
        min_effect: Root mean square shift that a flagged client has at least.
        names: Of clients and features, for the sentence.
    """
    from scipy.stats import norm

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
    p_values = np.minimum(1.0, 2 * norm.sf(scores).min(axis=1) * scores.shape[1])
    offsets = surplus / rows / np.sqrt(spread)
    by_chance = 1 / rows[:, 0] + (noise[0] ** 2 / rows**2 / spread).mean(axis=1)
    return decide_shifts(
        clients,
        p_values,
        offsets,
        by_chance,
        range(offsets.shape[1]),
        rate,
        min_effect,
        "largest shift of a feature, by noisy sums",
        "of any class, by noisy sums",
        names=names,
    )
