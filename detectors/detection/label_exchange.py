"""The label message: what clients tell of their classes, completed to all their rows, and the two decisions on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedscout.detectors.conversation import Conversation
from fedscout.detectors.detection_config import DetectionConfig
from fedscout.detectors.report import CalibratedFinding, Finding
from fedscout.detectors.skew.calibrated_label_skew import decide_label_skew_calibrated
from fedscout.detectors.skew.label_skew import (
    NAME,
    NOTHING_TOLD,
    ReleasedCounts,
    decide_label_skew,
)
from fedscout.detectors.statistics.design_effects import GROUP_LABELS
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.detectors.statistics.privacy import PRIVATE_COUNTS, counts_scale, noise_terms, plausible_counts
from fedscout.engine.data.client_query import LABEL_COUNTS
from fedscout.engine.data.names import UNNAMED, Names
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.messages.exchange import Query


@dataclass(frozen=True)
class LabelMeasurement:
    """What the label message gave, by client where it is of clients.

    Attributes:
        released: What clients tell of each class; with noise, made to add up to their rows.
        counts: Rows of each class, withheld ones completed so that clients are most alike.
        withheld: Why the others told nothing.
        finding: The published decision.
        calibrated: The calibrated one.
        notes: What a reader of the findings must know.
    """

    released: ReleasedCounts
    counts: Mapping[int, Values]
    withheld: Mapping[int, str]
    finding: Finding
    calibrated: CalibratedFinding
    notes: tuple[str, ...] = ()


def measure_labels(
    settings: DetectionConfig, seed: int, grouped: bool = False, names: Names = UNNAMED
) -> Conversation[LabelMeasurement]:
    """Ask every client for its label counts, with noise if there is an epsilon, and decide.

    Args:
        settings: Thresholds, and how much noise clients add.
        seed: Of drawn tables and of seeded noise.
        grouped: Whether clients know which of their rows belong together; asked for unless noise is added.
        names: Of clients and classes, for sentences.

    Raises:
        DataError: If no client answers.
    """
    private = settings.epsilon is not None
    query = Query(PRIVATE_COUNTS, config=noise_terms(settings, seed)) if private else Query(LABEL_COUNTS)
    asks_groups = grouped and not private
    (answers, *others), _ = yield [query, *([Query(GROUP_LABELS)] if asks_groups else [])], []
    groups = others[0].arrays if asks_groups else None
    if not answers.arrays:
        reasons = sorted(set(answers.refused.values())) or ["there are no clients"]
        raise DataError(
            Fault("at least one client", "answer", hint=f"of {len(answers.refused)} none did: {reasons[0]}")
        )
    told = np.stack([arrays["counts"].astype(np.int64) for arrays in answers.arrays.values()])
    clients = tuple(answers.arrays)
    sizes = np.array([answers.num_examples[client] for client in clients])
    if private:
        released = ReleasedCounts.whole(dict(zip(clients, plausible_counts(told, sizes), strict=True)))
    else:
        least = np.concatenate([arrays["min_release"] for arrays in answers.arrays.values()]).astype(np.int64)
        released = ReleasedCounts(clients, told, sizes, np.maximum(least, 1))  # a client may lie
    counts = dict(zip(clients, released.completed(), strict=True))
    rate = settings.detector_rate
    if released.share_told == 0:
        finding = Finding.unmeasured(NAME, settings.label_threshold, NOTHING_TOLD)
        calibrated = CalibratedFinding.unmeasured(NAME, rate, NOTHING_TOLD)
    else:
        noise_scale = counts_scale(settings.epsilon) if settings.epsilon is not None else 0.0
        finding = decide_label_skew(released, settings.label_threshold, names)
        calibrated = decide_label_skew_calibrated(
            released, rate, settings.label_effect, seed, noise_scale, groups, names
        )
    notes = []
    if grouped and private:
        notes.append(
            "Clients that add noise tell nothing of which rows belong together: labels were tested as if all rows were "
            "independent, so that label skew may be a false alarm."
        )
    return LabelMeasurement(released, counts, answers.refused, finding, calibrated, tuple(notes))
