"""Heterogeneity detection through a Flower grid: exchange queries and models with clients and decide from the answers.

Clients that withhold their label counts, because they hold fewer rows than they may release, are excluded from all
later steps; in particular their models are not requested. Answers are sorted by client, so a report depends on the
data, the seed and the settings, but not on how clients are distributed over hosts.

After the label counts, the feature and the model measurement run in lockstep (`fedscout.detectors.conversation`), so
that a whole detection takes four exchanges, for any number of clients and of repetitions:

| exchange | features                       | models                           |
| -------- | ------------------------------ | -------------------------------- |
| 1        | label counts                   |                                  |
| 2        | sums of the first clients      | round 1 of every repetition      |
| 3        | sums of the others             | round 2 of every repetition      |
| 4        | centroids, histograms, others  | mean outputs of one average      |

Sums are moments over all rows and per class; "others" are the label agreement and the moments of row lengths. The
published and the calibrated rules (`fedscout.detectors.statistics`) decide on the same answers. In the second exchange
clients without row groups also report how many of their rows have near copies (`fedscout.detectors.near_copies`);
if there are too many, no difference between clients is reported.

Each further round takes one more exchange, and so does each block beyond the limits on how much of the clients'
answers the server holds at a time (`feature_exchanges.BLOCK_BYTES`, `outliers.GROUP_BYTES`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from flwr.serverapp import Grid

from fedscout.detectors import feature_skew, label_skew, outliers, privacy, report as reports, statistics
from fedscout.detectors.conversation import Conversation, run_lockstep, timed
from fedscout.detectors.feature_exchanges import FeatureMeasurement, measure_features, measure_private_features
from fedscout.detectors.near_copies import NearCopies
from fedscout.detectors.report import ROWS_BELONG_TOGETHER, CalibratedFinding, DetectionConfig, Finding
from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import LABEL_COUNTS
from fedscout.engine.data.federation import UNNAMED, Names, RowPart
from fedscout.engine.errors import DataError
from fedscout.engine.messages.contents import Query, client_of


@dataclass(frozen=True)
class LabelMeasurement:
    """Result of the label exchange.

    Attributes:
        released: Released label counts; with noise, adjusted to add up to each client's rows.
        counts: Rows of each class by client; withheld rows are completed so that clients are most similar.
        withheld: Reason of each client that released no counts.
        finding: Decision of the published rule.
        calibrated: Decision of the calibrated rule.
        notes: Caveats on the findings.
    """

    released: label_skew.ReleasedCounts
    counts: Mapping[int, statistics.Values]
    withheld: Mapping[int, str]
    finding: Finding
    calibrated: CalibratedFinding
    notes: tuple[str, ...] = ()


def measure_labels(
    settings: DetectionConfig, seed: int, grouped: bool = False, names: Names = UNNAMED
) -> Conversation[LabelMeasurement]:
    """Query the label counts of every client, with noise if an epsilon is set, and decide on label skew.

    Args:
        settings: Thresholds and the noise that clients add.
        seed: Seed of simulated tables and of seeded noise.
        grouped: Whether clients have row groups; these are queried unless noise is added.
        names: Display names of clients and classes.

    Raises:
        DataError: If no client answers.
    """
    private = settings.epsilon is not None
    query = Query("private_counts", config=privacy.noise_terms(settings, seed)) if private else Query(LABEL_COUNTS)
    queries_groups = grouped and not private
    (answers, *group_answers), _ = yield [query, *([Query("group_labels")] if queries_groups else [])], []
    groups = group_answers[0].arrays if queries_groups else None
    if not answers.arrays:
        reasons = sorted(set(answers.refused.values())) or ["there are no clients"]
        raise DataError.of("at least one client", "answer", hint=f"none of {len(answers.refused)} did: {reasons[0]}")
    reported = np.stack([arrays["counts"].astype(np.int64) for arrays in answers.arrays.values()])
    clients = tuple(answers.arrays)
    sizes = np.array([answers.num_examples[client] for client in clients])
    if private:
        plausible = dict(zip(clients, privacy.plausible_counts(reported, sizes), strict=True))
        released = label_skew.ReleasedCounts.exact(plausible)
    else:
        min_release = np.concatenate([arrays["min_release"] for arrays in answers.arrays.values()]).astype(np.int64)
        released = label_skew.ReleasedCounts(clients, reported, sizes, np.maximum(min_release, 1))  # a client may lie
    counts = dict(zip(clients, released.completed(), strict=True))
    rate = settings.detector_rate
    if released.share_released == 0:
        finding = Finding.unmeasured(label_skew.NAME, settings.label_threshold, label_skew.NOTHING_RELEASED)
        calibrated = CalibratedFinding.unmeasured(label_skew.NAME, rate, label_skew.NOTHING_RELEASED)
    else:
        noise_scale = privacy.counts_scale(settings.epsilon) if settings.epsilon is not None else 0.0
        finding = label_skew.decide_label_skew(released, settings.label_threshold, names)
        calibrated = label_skew.decide_label_skew_calibrated(
            released, rate, settings.label_effect, seed, noise_scale, groups, names
        )
    note = (
        "Clients that add noise do not report which rows belong together. Labels were tested as if all rows were "
        "independent, so a finding of label skew may be a false alarm."
    )
    notes = (note,) if grouped and private else ()
    return LabelMeasurement(released, counts, answers.refused, finding, calibrated, notes)


@dataclass(frozen=True)
class ModelMeasurement:
    """Result of the training exchanges.

    Attributes:
        finding: Decision of the published rule.
        comparisons: Comparison of each repetition.
        parts: Comparisons on disjoint parts of the rows.
        output_divergence: Output divergence of the average model of the first comparison.
    """

    finding: Finding
    comparisons: tuple[outliers.Comparison, ...]
    parts: tuple[outliers.Comparison, ...]
    output_divergence: float | None

    def metrics(self) -> dict[str, Any]:
        """Return the reported metrics of models by the names of `ReportedMetrics`."""
        distances = [comparison.distances for comparison in self.comparisons]
        clients = sorted({client for values in distances for client in values})
        means = {c: float(np.mean([values[c] for values in distances if c in values])) for c in clients}
        return {"output_divergence": self.output_divergence, "model_distances": means}


def measure_models(
    clients: Sequence[int],
    paired: Sequence[int],
    initial_vectors: outliers.InitialVectors,
    training: LocalTraining,
    settings: DetectionConfig,
    seed: int,
    parts: Sequence[RowPart] = (),
    names: Names = UNNAMED,
) -> Conversation[ModelMeasurement]:
    """Train and compare models, decide on outliers, and query the outputs of the first average model.

    Args:
        clients: Clients that train.
        paired: Subset of the clients whose outputs are queried; empty if rows have no labels.
        initial_vectors: Returns the random initial model of each seed.
        training: Local training of each round.
        settings: Repetitions, rounds and thresholds.
        seed: Seed of initial models, batches and projections.
        parts: Parts of the clients' rows for additional repetitions.
        names: Display names of clients.
    """
    compared = yield from outliers.train_and_compare(clients, initial_vectors, training, settings, seed, parts)
    comparisons = compared[: settings.outlier_repetitions]
    usable, part_comparisons = (
        tuple(comparison for comparison in group if comparison is not None)
        for group in (comparisons, compared[settings.outlier_repetitions :])
    )
    divergence = None
    if usable and paired and settings.epsilon is None:
        divergence = yield from measure_output_divergence(paired, usable[0].average)
    finding = outliers.decide_outliers(comparisons, settings, names)
    return ModelMeasurement(finding, usable, part_comparisons, divergence)


def measure_output_divergence(clients: Sequence[int], model: FloatArray) -> Conversation[float | None]:
    """Query the clients' mean outputs; return None if fewer than two clients answer with finite ones.

    Args:
        clients: Clients to query.
        model: The model that all of them evaluate, shape `(params,)`.
    """
    (answers,), _ = yield [Query("mean_output", {"model": model}, clients=clients)], []
    means = [arrays["mean"] for arrays in answers.arrays.values() if np.isfinite(arrays["mean"]).all()]
    return statistics.output_divergence(np.stack(means)) if len(means) > 1 else None


COPIES: Final = "near copies"
CURVATURE: Final = "input curvature"
"""Names of these steps in the timings."""

MIN_RELEASED_SHARE: Final = 0.5
SUSPECT_LABELS: Final = 0.05
"""See `clients_with_similar_labels`."""


def detect(
    grid: Grid,
    initial_vectors: outliers.InitialVectors,
    training: LocalTraining,
    settings: DetectionConfig,
    seed: int,
    holds_rows: bool = True,
    grouped: bool = False,
    classifies: bool = True,
    ordered: bool = True,
    expected_seconds: Mapping[int, float] | None = None,
    names: Names = UNNAMED,
) -> reports.HeterogeneityReport:
    """Measure how the clients' data differ.

    Args:
        grid: Connection to the clients, which must support `CLIENT_QUERIES`.
        initial_vectors: Returns the random initial model of each seed, each of shape `(params,)`.
        training: Local training of the outlier detector's rounds.
        settings: Thresholds and sizes.
        seed: Seed of initial models, batches and samples.
        holds_rows: Whether clients hold labelled rows. If not, only their models are compared.
        grouped: Whether clients have row groups.
        classifies: Whether the task is classification. If not, labels are deciles of the regression target, and
            outputs are not compared.
        ordered: Whether class numbers are ordinal.
        expected_seconds: Expected seconds of a round, by client; clients without an entry take none. None if unknown.
        names: Display names of clients, classes and features.

    Raises:
        DataError: If no client answers.
    """
    from threadpoolctl import threadpool_limits

    timings: dict[str, float] = {}
    seconds = {client: (expected_seconds or {}).get(client, 0.0) for client in map(client_of, grid.get_node_ids())}
    speeds = statistics.speed_skew(seconds, names)
    if not holds_rows:
        report = _detect_by_models(grid, initial_vectors, training, settings, seed, names)
        return report.model_copy(update={"speed_skew": speeds})
    private = settings.epsilon is not None
    if private:
        privacy.check_library()
    with threadpool_limits(limits=1):  # sums over several threads differ in their last bits
        results = run_lockstep(grid, {label_skew.NAME: measure_labels(settings, seed, grouped, names)}, timings)
        labels: LabelMeasurement = results[label_skew.NAME]
        clients = tuple(labels.counts)
        paired = statistics.paired_clients(clients, settings.max_pairwise_clients, seed)
        similar = clients_with_similar_labels(labels)
        sizes = labels.released.num_rows.tolist()
        parts = () if private or labels.calibrated.detected else outliers.row_parts(sizes, seed)
        conversations: dict[str, Conversation[Any]] = {
            feature_skew.NAME: measure_private_features(clients, settings, seed, similar, names)
            if private
            else measure_features(clients, paired, settings, similar, grouped, names),
            outliers.NAME: measure_models(
                clients, paired if classifies else (), initial_vectors, training, settings, seed, parts, names
            ),
        }
        if not private:
            conversations[CURVATURE] = _measure_curvature(clients)
        if not (private or grouped):
            conversations[COPIES] = _measure_copies(clients)
        results = run_lockstep(grid, conversations, timings)
        copies: NearCopies | None = results.get(COPIES)
        features: FeatureMeasurement = results[feature_skew.NAME]
        models: ModelMeasurement = results[outliers.NAME]
        with timed(timings, outliers.NAME):
            skews = tuple(_unmeasured_if_near_copies(each, copies) for each in (labels.calibrated, features.calibrated))
            reason = outliers.explain_model_differences(skews)
            if private and reason is None:
                reason = "noise may hide skew that explains the differences"
            tested = outliers.model_test(models.comparisons, models.parts, settings.detector_rate / outliers.MOST_TESTS)
            calibrated_outliers = outliers.decide_outliers_calibrated(
                features.agreement, tested, reason, settings, features.concepts, names
            )
            calibrated_outliers = _unmeasured_if_near_copies(calibrated_outliers, copies)
        with timed(timings, "metrics"):
            matrix, paired_counts = (
                np.stack([labels.counts[client] for client in compared]) for compared in (clients, paired)
            )
            reported = reports.ReportedMetrics(
                **statistics.count_metrics(matrix, paired_counts, ordered),
                **features.distances,
                **models.metrics(),
                input_curvature=results.get(CURVATURE),
            )
    return reports.HeterogeneityReport(
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
        feature_shifts=dict(features.shifts),
        centroids=features.centroids,
        speed_skew=speeds,
        notes=(*labels.notes, *features.notes, *_notes(copies, len(clients), settings, classifies)),
        names=names,
        timings=timings,
    )


def clients_with_similar_labels(labels: LabelMeasurement) -> tuple[int, ...]:
    """Return the clients with similar label distributions, whose rows may be compared regardless of class.

    Requires that the class of at least `MIN_RELEASED_SHARE` of all rows is released and that no label skew was
    detected. A client may still have a different label distribution that is too weak for the test, or hidden by
    withheld counts, but strong enough to shift its features. Therefore clients are excluded whose labels differ from
    the others' with a p-value below `SUSPECT_LABELS`, not corrected over clients: by the label test, which accounts for
    noise, if all counts are released, else by Pearson's test of the released counts with the withheld rows as one more
    class.
    """
    from scipy.special import chdtrc

    finding = labels.calibrated
    reported, rows = labels.released.by_class, labels.released.num_rows
    if not finding.measured or finding.detected or reported.sum() < MIN_RELEASED_SHARE * rows.sum():
        return ()
    if reported.sum() == rows.sum():
        min_p_value = min(1.0, SUSPECT_LABELS * len(finding.clients))
        return tuple(client for client, own in finding.clients.items() if own.p_value >= min_p_value)
    table = np.column_stack([reported, rows - reported.sum(axis=1)])
    table = table[:, table.sum(axis=0) > 0]
    pooled = table.sum(axis=0)
    return tuple(
        client
        for client, own in zip(labels.released.clients, table, strict=True)
        if chdtrc(len(pooled) - 1, label_skew.pearson(np.stack([own, pooled - own]))[0]) >= SUSPECT_LABELS
    )


def _measure_curvature(clients: Sequence[int]) -> Conversation[float | None]:
    """Query the clients' input curvatures; return their median, None if none answers with a number."""
    (answers,), _ = yield [Query("input_curvature", clients=clients)], []
    values = [float(arrays["curvature"][0]) for arrays in answers.arrays.values()]
    usable = [value for value in values if np.isfinite(value) and value > 0]
    return float(np.median(usable)) if usable else None


def _measure_copies(clients: Sequence[int]) -> Conversation[NearCopies]:
    (answers,), _ = yield [Query("near_copies", clients=clients)], []
    return NearCopies.pooled(answers.arrays.values())


def _unmeasured_if_near_copies(finding: CalibratedFinding, copies: NearCopies | None) -> CalibratedFinding:
    """Return the finding, or "not measured" if it detects a difference and too many rows have near copies.

    Tests assume independent rows. Dependent rows make clients differ more than chance would, never less, so only
    positive findings are unreliable.
    """
    if copies is None or not copies.too_many or not finding.detected:
        return finding
    reason = (
        f"{ROWS_BELONG_TOGETHER[0].lower()}{ROWS_BELONG_TOGETHER[1:]}, but the test assumes independent rows; "
        "set federation.group_column to the column that groups them"
    )
    return CalibratedFinding.unmeasured(finding.name, finding.rate, reason)


def _notes(copies: NearCopies | None, num_clients: int, settings: DetectionConfig, classifies: bool) -> Iterator[str]:
    """Yield the caveats on near copies, sampled pairs, noise and regression targets."""
    if copies is not None and copies.too_many:
        yield (
            f"{ROWS_BELONG_TOGETHER}, as they have near copies at the same client: {copies.text()}. The tests assume "
            "independent rows, so a difference between clients can't be tested; set federation.group_column to the "
            "column that groups the rows."
        )
    if num_clients > (limit := settings.max_pairwise_clients):
        yield f"Label and feature distances cover the pairs of {limit} clients of {num_clients}, drawn at random."
        yield f"Models of more than {settings.projection_size} parameters were compared by as many random projections."
    if settings.epsilon is not None:
        yield (
            f"Label counts and feature sums have noise for epsilon {settings.epsilon:g} and delta {settings.delta:g}; "
            "numbers of rows and the compared models have none."
        )
        if settings.noise == "seeded":
            yield "The noise was drawn from the seed: this shows its effect, but gives no privacy."
    if not classifies:
        yield reports.TENTHS


def _detect_by_models(
    grid: Grid,
    initial_vectors: outliers.InitialVectors,
    training: LocalTraining,
    settings: DetectionConfig,
    seed: int,
    names: Names,
) -> reports.HeterogeneityReport:
    """Return the report on reinforcement-learning clients, which have models but neither labels nor features."""
    timings: dict[str, float] = {}
    clients = tuple(sorted(client_of(node) for node in grid.get_node_ids()))
    conversation = measure_models(clients, (), initial_vectors, training, settings, seed, names=names)
    models: ModelMeasurement = run_lockstep(grid, {outliers.NAME: conversation}, timings)[outliers.NAME]
    # Episodes are drawn anew in each repetition, so repetitions are as independent as parts of rows.
    distance_test = outliers.model_test(models.comparisons, models.comparisons, settings.detector_rate)
    reason = "reinforcement-learning clients hold no labelled rows"
    return reports.HeterogeneityReport(
        seed=seed,
        settings=settings,
        num_clients=len(clients),
        num_classes=0,
        num_features=None,
        clients=(),
        label_skew=Finding.unmeasured(label_skew.NAME, settings.label_threshold, reason),
        feature_skew=Finding.unmeasured(feature_skew.NAME, settings.feature_threshold, reason),
        outliers=models.finding,
        calibrated=(outliers.decide_outliers_calibrated((), distance_test, None, settings, names=names),),
        metrics=reports.ReportedMetrics(**models.metrics()),
        notes=("Only the models were compared, as reinforcement-learning clients have neither labels nor features.",),
        names=names,
        timings=timings,
    )


def _client_facts(released: label_skew.ReleasedCounts) -> tuple[reports.ClientFacts, ...]:
    low, high = released.limits()
    withheld = released.num_rows - low.sum(axis=1)
    present = np.count_nonzero(low, axis=1) + np.minimum(np.count_nonzero((low == 0) & (high > 0), axis=1), withheld)
    return tuple(
        reports.ClientFacts(
            client=client,
            num_rows=int(released.num_rows[index]),
            label_counts=tuple(low[index].tolist()),
            min_release=int(released.min_release[index]),
            heterogeneity_index=statistics.heterogeneity_index(int(present[index]), low.shape[1]),
        )
        for index, client in enumerate(released.clients)
    )
