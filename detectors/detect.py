"""How a heterogeneity report is obtained: queries and training rounds through a Flower grid, decisions from answers.

Clients that withhold their label counts, as they do below the fewest rows they may release, take no part in anything
that follows; in particular their models are not asked for. Answers come sorted by client, so a report depends on the
data, the seed and the settings, not on how clients are spread over hosts.

Everything after the label counts is two conversations held together (`fedscout.detectors.conversation`), so that a
whole detection takes four exchanges, for any number of clients and of repetitions:

| exchange | features                       | models                           |
| -------- | ------------------------------ | -------------------------------- |
| 1        | label counts                   |                                  |
| 2        | sums of the first clients      | round 1 of every repetition      |
| 3        | sums of the others             | round 2 of every repetition      |
| 4        | centroids, histograms, others  | mean outputs of one average      |

Sums are moments over all rows and class by class; the others are how labels agree and how unlike rows are. The
published rules and the calibrated ones (`fedscout.detectors.statistics`) decide on the same answers. In the
second exchange clients that know no groups also tell how many of their rows have near copies
(`fedscout.detectors.near_copies`): where these are too many, no difference between clients is told.

More rounds take an exchange each, and so does what exceeds the limits on how much of the clients' answers the server
holds at a time (`feature_exchanges.BLOCK_BYTES`, `outliers.GROUP_BYTES`).

The label message: what clients tell of their classes, completed to all their rows, and the two decisions on it.

The model messages: what the outlier detector trains, and how differently the clients' data make one model answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from flwr.serverapp import Grid

from fedscout.detectors import statistics as metrics
from fedscout.detectors.conversation import Conversation, hold_together, timed
from fedscout.detectors.feature_exchanges import FeatureMeasurement, measure_features, measure_private_features
from fedscout.detectors.feature_skew import NAME as FEATURE_SKEW
from fedscout.detectors.label_skew import (
    NAME,
    NOTHING_TOLD,
    ReleasedCounts,
    decide_label_skew,
    decide_label_skew_calibrated,
)
from fedscout.detectors.label_skew import NAME as LABEL_SKEW
from fedscout.detectors.near_copies import NEAR_COPIES, NearCopies
from fedscout.detectors.outliers import (
    MOST_TESTS,
    Comparison,
    InitialVectors,
    decide_outliers,
    decide_outliers_calibrated,
    model_test,
    row_parts,
    train_and_compare,
    why_models_differ,
)
from fedscout.detectors.outliers import NAME as OUTLIERS
from fedscout.detectors.privacy import PRIVATE_COUNTS, check_library, counts_scale, noise_terms, plausible_counts
from fedscout.detectors.queries import MEAN_OUTPUT
from fedscout.detectors.report import (
    ROWS_BELONG_TOGETHER,
    TENTHS,
    CalibratedFinding,
    ClientFacts,
    DetectionConfig,
    Finding,
    HeterogeneityReport,
    ReportedMetrics,
)
from fedscout.detectors.statistics import GROUP_LABELS, Values, output_divergence, paired_clients, speed_skew
from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import LABEL_COUNTS
from fedscout.engine.data.federation import UNNAMED, Names, RowPart
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.messages.contents import client_of
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


@dataclass(frozen=True)
class ModelMeasurement:
    """What training gave.

    Attributes:
        finding: The published decision.
        comparisons: Those behind it.
        parts: Comparisons on disjoint parts of the rows.
        output_divergence: Of the average model of the first comparison.
    """

    finding: Finding
    comparisons: tuple[Comparison, ...]
    parts: tuple[Comparison, ...]
    output_divergence: float | None

    def metrics(self) -> dict[str, Any]:
        """Return what is reported of them beside the decision."""
        return {
            "output_divergence": self.output_divergence,
            "model_distances": _client_means([comparison.distances for comparison in self.comparisons]),
            "distances_from_average": _client_means([comparison.from_average for comparison in self.comparisons]),
        }


def measure_models(
    clients: Sequence[int],
    paired: Sequence[int],
    initial_vectors: InitialVectors,
    training: LocalTraining,
    settings: DetectionConfig,
    seed: int,
    parts: Sequence[RowPart] = (),
    names: Names = UNNAMED,
) -> Conversation[ModelMeasurement]:
    """Train, compare and decide, then ask for the outputs of the first average.

    Args:
        clients: Who trains.
        paired: Those of them who are asked for outputs; none where rows have no labels.
        initial_vectors: Gives the random initial models of seeds.
        training: Local training of each round.
        settings: Repetitions, rounds and thresholds.
        seed: Of initial models, batches and projections.
        parts: Of the clients' rows, on which they train as well.
        names: Of clients, for the sentence.
    """
    compared = yield from train_and_compare(clients, initial_vectors, training, settings, seed, parts)
    comparisons = compared[: settings.outlier_repetitions]
    usable, whole = (
        tuple(comparison for comparison in some if comparison is not None)
        for some in (comparisons, compared[settings.outlier_repetitions :])
    )
    divergence = None
    if usable and paired and settings.epsilon is None:
        divergence = yield from measure_output_divergence(paired, usable[0].average)
    return ModelMeasurement(decide_outliers(comparisons, settings, names), usable, whole, divergence)


def measure_output_divergence(clients: Sequence[int], model: FloatArray) -> Conversation[float | None]:
    """Ask clients for their mean outputs; None if fewer than two answer with finite ones.

    Args:
        clients: Who is asked.
        model: The model that all of them run, shape `(params,)`.
    """
    (answers,), _ = yield [Query(MEAN_OUTPUT, {"model": model}, clients=clients)], []
    means = [arrays["mean"] for arrays in answers.arrays.values() if np.isfinite(arrays["mean"]).all()]
    return output_divergence(np.stack(means)) if len(means) > 1 else None


def _client_means(repetitions: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return each client's mean over the repetitions that have it."""
    clients = sorted({client for values in repetitions for client in values})
    return {c: float(np.mean([values[c] for values in repetitions if c in values])) for c in clients}


COPIES: Final = "near copies"
"""Under which name the work on them is timed."""

MOSTLY_TOLD: Final = 0.5
SUSPECT_LABELS: Final = 0.05
"""See `clients_of_like_labels`."""


def detect(
    grid: Grid,
    initial_vectors: InitialVectors,
    training: LocalTraining,
    settings: DetectionConfig,
    seed: int,
    holds_rows: bool = True,
    grouped: bool = False,
    classifies: bool = True,
    ordered: bool = True,
    expected_seconds: Mapping[int, float] | None = None,
    names: Names = UNNAMED,
) -> HeterogeneityReport:
    """Measure how the clients' data differ.

    Args:
        grid: Where the clients are; they must know `CLIENT_QUERIES`.
        initial_vectors: Gives the random initial models of seeds, each of shape `(params,)`.
        training: Local training of the outlier detector's rounds.
        settings: Thresholds and sizes.
        seed: Of initial models, batches and samples.
        holds_rows: Whether clients hold labelled rows. If not, only their models are compared.
        grouped: Whether they know which of their rows belong together.
        classifies: Whether models tell classes. If not, labels are tenths of a quantity, and outputs are not compared.
        ordered: Whether class numbers are places on a line.
        expected_seconds: Of a round, of clients that take any; None where nothing is known of time.
        names: Of clients, classes and features, for sentences.

    Raises:
        DataError: If no client answers.
    """
    from threadpoolctl import threadpool_limits

    timings: dict[str, float] = {}
    seconds = expected_seconds or {}
    speeds = speed_skew({client: seconds.get(client, 0.0) for client in map(client_of, grid.get_node_ids())}, names)
    if not holds_rows:
        report = _detect_by_models(grid, initial_vectors, training, settings, seed, names)
        return report.model_copy(update={"speed_skew": speeds})
    private = settings.epsilon is not None
    if private:
        check_library()
    with threadpool_limits(limits=1):  # sums over several threads differ in their last bits
        results = hold_together(grid, {LABEL_SKEW: measure_labels(settings, seed, grouped, names)}, timings)
        labels: LabelMeasurement = results[LABEL_SKEW]
        clients = tuple(labels.counts)
        paired = paired_clients(clients, settings.max_pairwise_clients, seed)
        alike = clients_of_like_labels(labels)
        sizes = labels.released.num_rows.tolist()
        parts = () if private or labels.calibrated.detected else row_parts(sizes, seed)
        conversations: dict[str, Conversation[Any]] = {
            FEATURE_SKEW: measure_private_features(clients, settings, seed, alike, names)
            if private
            else measure_features(clients, paired, settings, alike, grouped, names),
            OUTLIERS: measure_models(
                clients, paired if classifies else (), initial_vectors, training, settings, seed, parts, names
            ),
        }
        if not (private or grouped):
            conversations[COPIES] = _measure_copies(clients)
        results = hold_together(grid, conversations, timings)
        copies: NearCopies | None = results.get(COPIES)
        features: FeatureMeasurement = results[FEATURE_SKEW]
        models: ModelMeasurement = results[OUTLIERS]
        with timed(timings, OUTLIERS):
            skews = tuple(_unless_copied(found, copies) for found in (labels.calibrated, features.calibrated))
            explained = why_models_differ(skews)
            if private and explained is None:
                explained = "noise may hide skew that would be the reason"
            tested = model_test(models.comparisons, models.parts, settings.detector_rate / MOST_TESTS)
            calibrated_outliers = decide_outliers_calibrated(
                features.agreement, tested, explained, settings, features.concepts, names
            )
            calibrated_outliers = _unless_copied(calibrated_outliers, copies)
        with timed(timings, "metrics"):
            reported = _metrics(labels.counts, paired, features, models, ordered)
    return HeterogeneityReport(
        seed=seed,
        settings=settings,
        num_clients=len(list(grid.get_node_ids())),
        num_classes=len(labels.counts[clients[0]]),
        num_features=features.num_features,
        clients=_client_facts(labels.released),
        withheld=dict(labels.withheld),
        label_skew=labels.finding,
        feature_skew=features.finding,
        outliers=models.finding,
        calibrated=(*skews, calibrated_outliers),
        metrics=reported,
        features=features.clients,
        centroids=features.centroids,
        density=features.density,
        speed_skew=speeds,
        notes=(
            *labels.notes,
            *features.notes,
            *_copies_notes(copies),
            *_sampling_notes(len(clients), settings),
            *_privacy_notes(settings),
            *([] if classifies else [TENTHS]),
        ),
        names=names,
        timings=timings,
    )


def clients_of_like_labels(labels: LabelMeasurement) -> tuple[int, ...]:
    """Return the clients whose rows may be compared whatever their class: none whose labels may be another mixture.

    It takes labels that are known, of at least `MOSTLY_TOLD` of all rows, and in which no skew was found. A client may
    still hold another mixture that is too weak for the test to find, or that withheld counts may explain, and strong
    enough to shift its features. So those are left out whose labels differ from the others' with a p-value below
    `SUSPECT_LABELS`, not corrected over clients: by the label test where all is told, which knows of noise, and else by
    Pearson's test of what is told, withheld rows being one more class.
    """
    from scipy.stats import chi2_contingency

    tested = labels.calibrated
    told, rows = labels.released.told, labels.released.num_rows
    if not tested.measured or tested.detected or told.sum() < MOSTLY_TOLD * rows.sum():
        return ()
    if told.sum() == rows.sum():
        least = min(1.0, SUSPECT_LABELS * len(tested.clients))
        return tuple(client for client, own in tested.clients.items() if own.p_value >= least)
    table = np.column_stack([told, rows - told.sum(axis=1)])
    table = table[:, table.sum(axis=0) > 0]
    everyone = table.sum(axis=0)
    return tuple(
        client
        for client, own in zip(labels.released.clients, table, strict=True)
        if chi2_contingency(np.stack([own, everyone - own]), correction=False).pvalue >= SUSPECT_LABELS
    )


def _measure_copies(clients: Sequence[int]) -> Conversation[NearCopies]:
    (answers,), _ = yield [Query(NEAR_COPIES, clients=clients)], []
    return NearCopies.pooled(answers.arrays.values())


def _unless_copied(finding: CalibratedFinding, copies: NearCopies | None) -> CalibratedFinding:
    """Return a finding, or that nothing can be told where rows have near copies and a difference was found.

    Tests take rows as independent. Rows that belong together make clients differ more than chance has it, never less,
    so that only what was found is in doubt.
    """
    if copies is None or not copies.too_many or not finding.detected:
        return finding
    reason = (
        f"{ROWS_BELONG_TOGETHER[0].lower()}{ROWS_BELONG_TOGETHER[1:]}, and the test takes rows as independent; "
        "federation.group_column names what rows belong to"
    )
    return CalibratedFinding.unmeasured(finding.name, finding.rate, reason)


def _copies_notes(copies: NearCopies | None) -> list[str]:
    if copies is None or not copies.too_many:
        return []
    return [
        f"{ROWS_BELONG_TOGETHER}, as they have near copies at the same client: {copies.text()}. Tests take rows as "
        "independent, so that a difference between clients can't be told; federation.group_column names what rows "
        "belong to."
    ]


def _detect_by_models(
    grid: Grid,
    initial_vectors: InitialVectors,
    training: LocalTraining,
    settings: DetectionConfig,
    seed: int,
    names: Names,
) -> HeterogeneityReport:
    """Return the report on clients that play episodes: they have neither labels nor features, but models."""
    timings: dict[str, float] = {}
    clients = tuple(sorted(client_of(node) for node in grid.get_node_ids()))
    conversation = measure_models(clients, (), initial_vectors, training, settings, seed, names=names)
    models: ModelMeasurement = hold_together(grid, {OUTLIERS: conversation}, timings)[OUTLIERS]
    # Who plays draws episodes anew in each repetition, so that these are as independent as parts of rows.
    tested = model_test(models.comparisons, models.comparisons, settings.detector_rate)
    without = "clients that play episodes hold no labelled rows"
    return HeterogeneityReport(
        seed=seed,
        settings=settings,
        num_clients=len(clients),
        num_classes=0,
        num_features=None,
        clients=(),
        label_skew=Finding.unmeasured(LABEL_SKEW, settings.label_threshold, without),
        feature_skew=Finding.unmeasured(FEATURE_SKEW, settings.feature_threshold, without),
        outliers=models.finding,
        calibrated=(decide_outliers_calibrated((), tested, None, settings, names=names),),
        metrics=ReportedMetrics(**models.metrics()),
        notes=("The clients' models were compared; labels and features have no meaning where episodes are played.",),
        names=names,
        timings=timings,
    )


def _privacy_notes(settings: DetectionConfig) -> list[str]:
    if settings.epsilon is None:
        return []
    note = (
        f"Label counts and feature sums hold noise of epsilon {settings.epsilon:g} and delta {settings.delta:g}; "
        "numbers of rows and the models that were compared hold none."
    )
    if settings.noise == "secure":
        return [note]
    return [note, "The noise was drawn from the seed, which shows its effect and protects nobody."]


def _client_facts(released: ReleasedCounts) -> tuple[ClientFacts, ...]:
    low, high = released.limits()
    withheld = released.num_rows - low.sum(axis=1)
    present = np.count_nonzero(low, axis=1) + np.minimum(np.count_nonzero((low == 0) & (high > 0), axis=1), withheld)
    return tuple(
        ClientFacts(
            client=client,
            num_rows=int(released.num_rows[place]),
            label_counts=tuple(low[place].tolist()),
            min_release=int(released.min_release[place]),
            heterogeneity_index=metrics.heterogeneity_index(int(present[place]), low.shape[1]),
        )
        for place, client in enumerate(released.clients)
    )


def _sampling_notes(num_clients: int, settings: DetectionConfig) -> list[str]:
    limit = settings.max_pairwise_clients
    if num_clients <= limit:
        return []
    return [
        f"Label and feature distances are over the pairs of {limit} clients drawn by seed, of {num_clients}.",
        f"Models of more than {settings.projection_size} parameters were compared in as many random projections.",
    ]


def _metrics(
    counts: Mapping[int, metrics.Values],
    paired: Sequence[int],
    features: FeatureMeasurement,
    models: ModelMeasurement,
    ordered: bool,
) -> ReportedMetrics:
    matrix = np.stack(list(counts.values()))
    shares = metrics.distribution(matrix)
    distances = features.distances
    return ReportedMetrics(
        **metrics.count_metrics(matrix, np.stack([counts[client] for client in paired]), ordered),
        entropy_spread=metrics.entropy_spread(shares),
        entropy_spread_normalised=metrics.entropy_spread(shares, normalised=True),
        feature_hellinger=distances.hellinger if distances else None,
        feature_wasserstein=distances.wasserstein if distances else None,
        feature_divergence=features.divergence,
        **models.metrics(),
    )
