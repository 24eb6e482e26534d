"""The heterogeneity that a partition and a scenario have in fact produced, in numbers that every run can report.

A partition is asked for by a knob such as Dirichlet's alpha; what comes out depends on the data and on chance. These
are the metrics of `fedscout.detectors.statistics.heterogeneity_metrics`, computed by whoever built the federation. What
detection reports too has the same name, and where clients tell all (`federation.min_release=1`) the same value for the
same settings and seed: metrics are over the clients that hold at least `federation.min_release` rows, as others answer
no query, and distances over the pairs of the same drawn clients.

Distances of features are the detectors' where these compare the features themselves. Where a federation names a
network whose view detectors compare, the features as stored are compared here, and a note says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from fedscout.detectors.detection_config import DetectionConfig
from fedscout.detectors.report import Finding
from fedscout.detectors.skew.label_skew import ReleasedCounts, decide_label_skew
from fedscout.detectors.statistics import heterogeneity_metrics as metrics
from fedscout.detectors.statistics.heterogeneity_metrics import paired_clients
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.federation import Federation
from fedscout.experiments.federations.description.feature_metrics import measure_features
from fedscout.experiments.federations.description.holdings import Holdings, holdings_of, row_length
from fedscout.experiments.federations.description.token_metrics import MAX_BINS, token_hellinger

QUICK_COLUMNS = 64
"""So many columns of a row are compared where every run must pay for it."""

MAX_CELLS = 400_000
"""Most columns times clients that are compared: some ten seconds of work."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Spread(_Value):
    """How a number is distributed over clients: smallest, quartiles, largest and mean."""

    smallest: float
    lower_quartile: float
    median: float
    upper_quartile: float
    largest: float
    mean: float

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Spread:
        """Return the spread of at least one value."""
        found = np.asarray(values, dtype=np.float64)
        marks = [float(mark) for mark in np.quantile(found, [0, 0.25, 0.5, 0.75, 1])]
        names = ("smallest", "lower_quartile", "median", "upper_quartile", "largest")
        return cls(**dict(zip(names, marks, strict=True)), mean=float(found.mean()))


class Realised(_Value):
    """How the data of a federation's clients differ; None where there is nothing to measure.

    Attributes:
        num_clients: Clients, empty ones included.
        num_empty_clients: Those without a row.
        num_measured_clients: Those with at least `federation.min_release` rows, over which everything below
            `client_rows` is measured.
        num_paired_clients: Those over whose pairs the distances are averaged.
        num_classes: Classes.
        num_rows: Rows of the data set.
        num_rows_dealt: Those that at least one client holds.
        num_rows_not_dealt: Those that nobody holds.
        num_rows_repeated: Further copies of rows that are held more than once, by the same client or by others.
        client_rows: Rows of a client, over all clients.
        quantity_ratio: Largest over smallest number of rows.
        quantity_variation: Coefficient of variation of the numbers of rows.
        quantity_gini: Gini coefficient of the numbers of rows.
        label_hellinger: Mean Hellinger distance of label distributions over pairs, in `[0, 1]`.
        label_wasserstein: Mean 1-Wasserstein distance of the same, class numbers taken as places on a line: in classes;
            None of classes with names that are no numbers, whose order means nothing.
        label_skew: Largest Jensen-Shannon divergence between a client's labels and everyone's, in bits.
        label_skew_client: Whose that is.
        label_divergence: The divergence over clients.
        heterogeneity_index: 1 − (c − 1)/(c_max − 1) of a client that holds c of c_max classes, over clients.
        feature_hellinger: Mean Hellinger distance of feature histograms over pairs and features, in `[0, 1]`.
        feature_wasserstein: Mean 1-Wasserstein distance over pairs and features, in standard deviations.
        num_features: Numbers in a row.
        num_features_compared: Of which so many were compared.
        token_hellinger: For texts: mean Hellinger distance of token histograms over pairs, in place of the two.
        notes: What a reader must know of how it was measured.
    """

    num_clients: int
    num_empty_clients: int
    num_measured_clients: int
    num_paired_clients: int
    num_classes: int
    num_rows: int
    num_rows_dealt: int
    num_rows_not_dealt: int
    num_rows_repeated: int
    client_rows: Spread
    quantity_ratio: float | None = None
    quantity_variation: float | None = None
    quantity_gini: float | None = None
    label_hellinger: float | None = None
    label_wasserstein: float | None = None
    label_skew: float | None = None
    label_skew_client: int | None = None
    label_divergence: Spread | None = None
    heterogeneity_index: Spread | None = None
    feature_hellinger: float | None = None
    feature_wasserstein: float | None = None
    num_features: int
    num_features_compared: int = 0
    token_hellinger: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """The realised heterogeneity and what it was computed from.

    Attributes:
        realised: The numbers.
        holdings: What clients hold.
        label_skew: The detector's finding, which has every client's divergence.
        heterogeneity_indices: Of each measured client.
    """

    realised: Realised
    holdings: Holdings
    label_skew: Finding
    heterogeneity_indices: Mapping[int, float]


def realised(
    federation: Federation, settings: DetectionConfig | None = None, seed: int = 0, max_features: int = QUICK_COLUMNS
) -> Realised:
    """Measure what a federation has become. Equal arguments give equal results, to the last bit.

    Args:
        federation: With its rows.
        settings: Of detection, for limits and bins; None for the defaults.
        seed: Of clients and features that are drawn where there are too many; detection draws by the study's seed.
        max_features: Most features that are compared; of more, as many are drawn.
    """
    return measure(federation, settings or DetectionConfig(), seed, max_features).realised


def measure(federation: Federation, settings: DetectionConfig, seed: int, max_features: int) -> Measurement:
    """Measure as `realised`, and return what it was computed from, too."""
    sizes, plays = federation.partition.sizes, federation.task is not None
    measured = tuple(np.flatnonzero(sizes >= max(federation.release.min_release, 1)).tolist())
    paired = paired_clients(measured, settings.max_pairwise_clients, seed)
    is_text = federation.facts.get("data_kind") == "tokens"
    num_compared = max(1, min(max_features, MAX_CELLS // max(len(paired), 1)))
    holdings = holdings_of(federation, row_length(federation) if is_text else num_compared, seed)
    with_labels = () if plays else measured
    counts = holdings.label_counts
    whole = ReleasedCounts.whole({client: counts[client] for client in with_labels})
    finding = decide_label_skew(whole, settings.label_threshold)
    indices = _heterogeneity_indices(counts, with_labels)
    found: dict[str, object] = {
        **metrics.count_metrics(counts[list(with_labels)], counts[list(paired)], federation.has_ordered_classes),
        "heterogeneity_index": Spread.of(list(indices.values())) if indices else None,
    }
    if finding.value is not None:
        found |= {
            "label_skew": finding.value,
            "label_skew_client": max(finding.client_values, key=finding.client_values.__getitem__),
            "label_divergence": Spread.of(list(finding.client_values.values())),
        }
    if is_text and not plays:
        found["token_hellinger"] = token_hellinger(holdings, paired)
    elif not plays and (distances := measure_features(holdings, measured, paired, settings)) is not None:
        found |= {"feature_hellinger": distances.hellinger, "feature_wasserstein": distances.wasserstein}
        found["num_features_compared"] = holdings.features.shape[1]
    times = np.bincount(federation.partition.rows, minlength=len(federation.labels))
    dealt = int(np.count_nonzero(times))
    document = {
        "num_clients": federation.num_clients,
        "num_empty_clients": int(np.count_nonzero(sizes == 0)),
        "num_measured_clients": len(measured),
        "num_paired_clients": len(paired),
        "num_classes": federation.num_classes,
        "num_rows": len(federation.labels),
        "num_rows_dealt": dealt,
        "num_rows_not_dealt": len(federation.labels) - dealt,
        "num_rows_repeated": int(sizes.sum()) - dealt,
        "client_rows": Spread.of(sizes),
        "num_features": holdings.num_columns,
        **found,
        "notes": _notes(federation, holdings, len(measured), len(paired), is_text),
    }
    return Measurement(Realised.model_validate(document), holdings, finding, indices)


def _heterogeneity_indices(counts: IntArray, measured: Sequence[int]) -> dict[int, float]:
    num_classes = counts.shape[1]
    by_present = [metrics.heterogeneity_index(present, num_classes) for present in range(1, num_classes + 1)]
    present = np.count_nonzero(counts, axis=1)
    return {client: by_present[present[client] - 1] for client in measured}


def _notes(
    federation: Federation, holdings: Holdings, num_measured: int, num_paired: int, is_text: bool
) -> tuple[str, ...]:
    """Say what was left out, drawn, or measured in place of something else."""
    if federation.task is not None:
        return (
            "Clients play episodes in place of holding rows, so there is nothing to compare; their rows only count.",
        )
    notes = []
    left_out = federation.num_clients - num_measured
    if left_out:
        notes.append(
            f"{left_out} of {federation.num_clients} clients hold fewer than {federation.release.min_release} rows "
            "(federation.min_release) and are left out of all metrics, as in detection."
        )
    if num_paired < num_measured:
        notes.append(
            f"Label and feature distances are over the pairs of {num_paired} clients drawn by seed, of {num_measured}."
        )
    if is_text:
        notes.append(
            f"Rows are texts: token histograms are compared, without padding; beyond the {MAX_BINS - 1} most frequent, "
            "tokens share a bin."
        )
    elif holdings.features.shape[1] < holdings.num_columns:
        notes.append(
            f"Feature distances are over {holdings.features.shape[1]} of {holdings.num_columns} numbers of a row, "
            "drawn by seed."
        )
    if federation.embedding is not None:
        notes.append("Detection compares a network's view of a row; here the rows are compared as they are stored.")
    return tuple(notes)
