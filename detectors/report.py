"""The configuration of the detectors, the heterogeneity report, and its verdicts.

A report is JSON-serialisable and complete: `HeterogeneityReport.model_validate_json(report.model_dump_json())` equals
`report`. Numbers are finite; a value that could not be measured is None and its sentence gives the reason.

Each property has one verdict: the calibrated finding decides, and the published rule is reported for comparison, with
the reason if they disagree. If a calibrated test is not possible, the property is not measured, whatever the published
rule says: that rule ignores classes, so that it detects feature skew under label skew alone and flags honest clients as
outliers, and label skew is the most frequent obstacle to these tests (`docs/detection.md`). Skew is measured by neither
rule for reinforcement-learning clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedscout.engine.data.client import Privacy
from fedscout.engine.data.federation import UNNAMED, Names
from fedscout.engine.text import html_of

NUM_DETECTORS: Final = 3


class DetectionConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Thresholds and sizes of the detectors, as described in each detector's module."""

    label_threshold: float = Field(default=0.1, gt=0, le=1, description="Jensen-Shannon divergence in bits")
    feature_threshold: float = Field(
        default=0.25, gt=0, le=100, description="distance of centroids over the square root of the total variance"
    )
    max_features: int = Field(
        default=4096, ge=1, description="largest number of features for which skew is measured; use embeddings for more"
    )
    outlier_repetitions: int = Field(
        default=5, ge=1, le=1000, description="number of repetitions, each with a new initial model"
    )
    outlier_rounds: int = Field(default=2, ge=1, le=1000, description="rounds of FedAvg before models are compared")
    outlier_percentile: float = Field(
        default=90.0, gt=0, lt=100, description="percentile of the mean distances above which a client is flagged"
    )
    outlier_min_flags: int = Field(
        default=4, ge=1, description="smallest number of repetitions with a flag that makes a client an outlier"
    )
    max_pairwise_clients: int = Field(
        default=500, ge=2, description="number of clients above which pairs are sampled and models projected"
    )
    projection_size: int = Field(default=512, ge=1, description="dimensions of projected models")
    histogram_bins: int = Field(default=32, ge=2, le=1024, description="equal-width bins of a feature's histogram")
    histogram_reach: float = Field(default=4.0, gt=0, description="half-width of the histogram in standard deviations")

    false_alarm_rate: float = Field(
        default=0.05,
        ge=1e-3,
        le=0.5,
        description="calibrated rules: probability of any finding for identically distributed clients",
    )
    label_effect: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="calibrated rules: smallest share of a flagged client's rows that would have to change class",
    )
    feature_effect: float = Field(
        default=0.25,
        ge=0,
        description="calibrated rules: smallest shift of a flagged client's features in standard deviations",
    )
    disagreement_effect: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="calibrated rules: smallest share of a flagged client's labels that disagree with the others",
    )
    distance_effect: float = Field(
        default=0.5,
        gt=0,
        description="calibrated rules: smallest relative excess of a flagged client's model distance over the median",
    )

    epsilon: float | None = Field(
        default=None, gt=0, le=1000, description="ε of differentially private counts and sums; no noise if left out"
    )
    delta: float = Field(default=1e-6, gt=0, lt=1, description="δ of the private sums")
    clip: float = Field(default=3.0, gt=0, description="bound (±) to which features are clipped for private sums")
    noise: Literal["seeded", "secure"] = Field(
        default="seeded", description="seeded noise is reproducible and gives no privacy; secure noise is OpenDP's"
    )

    @property
    def privacy(self) -> Privacy | None:
        """The differential-privacy parameters of the queries; None without an epsilon."""
        return None if self.epsilon is None else Privacy(self.epsilon, self.delta, self.noise == "secure")

    @property
    def detector_rate(self) -> float:
        """False-alarm rate of one detector: the federation's, divided equally among detectors (Bonferroni)."""
        return self.false_alarm_rate / NUM_DETECTORS

    @property
    def num_rounds(self) -> int:
        """Number of training rounds for the comparison of models, over all repetitions."""
        return self.outlier_rounds * self.outlier_repetitions

    @model_validator(mode="after")
    def _flags_are_reachable(self) -> Self:
        if self.outlier_min_flags > self.outlier_repetitions:
            raise ValueError(
                f"outlier_min_flags must not exceed outlier_repetitions ({self.outlier_repetitions}), "
                f"got {self.outlier_min_flags}"
            )
        return self


DetectorName = Literal["label_skew", "feature_skew", "outliers"]

EvidenceSource = Literal["labels", "features", "one feature", "models"]

TITLES: Final[Mapping[DetectorName, str]] = {
    "label_skew": "Label skew",
    "feature_skew": "Feature skew",
    "outliers": "Outlier clients",
}
"""Beginning of a finding's sentence."""

ROWS_BELONG_TOGETHER: Final = "Rows seem to belong together"
"""Beginning of that note."""

TENTHS: Final = (
    "This is regression: labels are deciles of the target, and models were compared by their parameters alone."
)
"""The note of a report on clients that do not tell classes."""


class _ReportPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Finding(_ReportPart):
    """Result of one detector by its published rule.

    Attributes:
        name: The detector.
        rule: How the decision was made.
        value: The federation's value; None if it could not be measured.
        threshold: Threshold of the value, in the value's unit.
        detected: Whether the rule finds heterogeneity of this kind.
        flagged_clients: Ascending.
        client_values: The value of each measured client.
        sentence: Description for users.
    """

    name: DetectorName
    rule: Literal["published"] = "published"
    value: float | None
    threshold: float
    detected: bool
    flagged_clients: tuple[int, ...] = ()
    client_values: dict[int, float] = Field(default_factory=dict)
    sentence: str

    @property
    def measured(self) -> bool:
        """Whether there is a value; if not, `detected` is False without meaning."""
        return self.value is not None

    @classmethod
    def of(
        cls,
        name: DetectorName,
        value: float,
        threshold: float,
        client_values: Mapping[int, float],
        flagged: tuple[int, ...],
        description: str,
        names: Names,
    ) -> Finding:
        """Return a finding that detects heterogeneity if clients are flagged; its sentence contains `description`."""
        sentence = f"{TITLES[name]}: {yes_no(bool(flagged))}. {description}."
        return cls(
            name=name,
            value=value,
            threshold=threshold,
            detected=bool(flagged),
            flagged_clients=flagged,
            client_values=dict(client_values),
            sentence=f"{sentence} Flagged: {names.some_clients(flagged)}." if flagged else sentence,
        )

    @classmethod
    def unmeasured(cls, name: DetectorName, threshold: float, reason: str) -> Finding:
        """Return a finding without a value, with the reason."""
        sentence = f"{TITLES[name]}: not measured; {reason}."
        return cls(name=name, value=None, threshold=threshold, detected=False, sentence=sentence)


class FeatureShift(_ReportPart):
    """Shift of a client's values of one feature relative to the others' rows of the same class.

    Attributes:
        feature: Index of the feature.
        shift: In standard deviations of the feature within a class.
    """

    feature: int
    shift: float


class ClientEvidence(_ReportPart):
    """Evidence of a calibrated test on one client.

    Attributes:
        source: What was compared: the client's labels, all its features class by class, the feature of largest shift,
            or its models.
        p_value: Under the hypothesis of identically distributed clients, corrected over clients, in `[0, 1]`.
        effect: Effect size in the unit of the detector's module for the source; 0 or less is no more than chance.
        flagged: Whether both suffice.
        classes: Classes in which a flagged client differs most, the largest difference first.
        features: Features in which it differs most, the largest difference first.
    """

    source: EvidenceSource
    p_value: float
    effect: float
    flagged: bool
    classes: tuple[int, ...] = ()
    features: tuple[FeatureShift, ...] = ()


class CalibratedFinding(_ReportPart):
    """Result of one detector by a test of known false-alarm rate.

    Attributes:
        name: The detector.
        rule: How the decision was made.
        rate: Probability that the detector flags any client in a federation of identically distributed clients.
        method: Description of the tests; empty if there was none.
        p_value: p-value of the most deviating client; None if it could not be measured.
        effect: Effect size of the same client.
        detected: Whether any client is flagged.
        flagged_clients: Ascending.
        clients: Evidence on each measured client.
        groups: For outliers without a majority: groups of clients whose labels agree.
        sentence: Description for users.
    """

    name: DetectorName
    rule: Literal["calibrated"] = "calibrated"
    rate: float
    method: str = ""
    p_value: float | None = None
    effect: float | None = None
    detected: bool = False
    flagged_clients: tuple[int, ...] = ()
    clients: dict[int, ClientEvidence] = Field(default_factory=dict)
    groups: tuple[tuple[int, ...], ...] = Field(default=(), exclude_if=lambda groups: not groups)
    sentence: str

    @property
    def measured(self) -> bool:
        """Whether there is a p-value; if not, `detected` is False without meaning."""
        return self.p_value is not None

    @classmethod
    def unmeasured(cls, name: DetectorName, rate: float, reason: str) -> CalibratedFinding:
        """Return a finding without a p-value, with the reason."""
        return cls(name=name, rate=rate, sentence=f"{TITLES[name]}, calibrated: not measured; {reason}.")


class ClientFacts(_ReportPart):
    """Facts about one client that answered.

    Attributes:
        client: Client index.
        num_rows: Number of rows.
        label_counts: Released rows of each class: 0 if they are too few, so that the sum may be less than `num_rows`.
        min_release: Fewest rows of a class that the client releases.
        heterogeneity_index: 1 − (c − 1)/(c_max − 1), c of c_max classes present, in `[0, 1]`; the smallest value
            consistent with the released counts, with withheld rows in as many classes as possible.
    """

    client: int
    num_rows: int
    label_counts: tuple[int, ...]
    min_release: int = Field(default=1, ge=1)
    heterogeneity_index: float


class ReportedMetrics(_ReportPart):
    """Metrics reported in addition to the detectors' findings; None if they could not be measured.

    Attributes:
        quantity_ratio: Largest over smallest number of rows.
        quantity_variation: Coefficient of variation of the numbers of rows.
        quantity_gini: Gini coefficient of the numbers of rows.
        label_hellinger: Mean Hellinger distance of label distributions over pairs of clients.
        label_wasserstein: Mean 1-Wasserstein distance of label distributions in class numbers; None for classes with
            non-numeric names, whose order has no meaning.
        feature_hellinger: Mean Hellinger distance of feature histograms over pairs, averaged over features.
        feature_wasserstein: Mean 1-Wasserstein distance, averaged over features, in standard deviations.
        output_divergence: Mean Jensen-Shannon divergence of clients' mean outputs of one model, in bits.
        input_curvature: Largest eigenvalue of E[x xᵀ] over a client's model inputs x, the median over clients.
        model_distances: D_k of the outlier detector, a client's mean over repetitions.
    """

    quantity_ratio: float | None = None
    quantity_variation: float | None = None
    quantity_gini: float | None = None
    label_hellinger: float | None = None
    label_wasserstein: float | None = None
    feature_hellinger: float | None = None
    feature_wasserstein: float | None = None
    output_divergence: float | None = None
    input_curvature: float | None = None
    model_distances: dict[int, float] = Field(default_factory=dict)


class SpeedSkew(_ReportPart):
    """Differences in speed between clients; see `fedscout.detectors.statistics`.

    Attributes:
        slowest: The slowest client.
        slowest_seconds: Its expected seconds of a round.
        median_seconds: The median client's.
        ratio: The first over the second; None if the median is 0.
        sentence: Description for users.
    """

    slowest: int
    slowest_seconds: float
    median_seconds: float
    ratio: float | None
    sentence: str

    @property
    def is_notable(self) -> bool:
        """Whether the slowest client takes longer than the median client beyond rounding."""
        return self.ratio is None or round(self.ratio, 1) > 1


class HeterogeneityReport(_ReportPart):
    """How the data of a federation's clients differ.

    Attributes:
        seed: Seed of models and samples.
        settings: Thresholds and sizes.
        num_clients: Clients of the federation, including those without an answer.
        num_classes: Number of classes.
        num_features: Features per row, or None without answers.
        clients: Clients that answered, ascending.
        withheld: Reason of each client that released no label counts; it is excluded from all other measurements.
        label_skew: Finding on labels.
        feature_skew: Finding on features.
        outliers: Finding on models.
        calibrated: Calibrated findings on the same three properties, as far as tests were made.
        metrics: Further metrics.
        feature_shifts: Each client's offset from the median client, class by class if enough rows are released, on axes
            shared by all clients (`fedscout.detectors.calibrated_feature_skew`). Empty if clients were not compared
            or add noise.
        centroids: Clients' means on the two principal axes of the published feature skew; empty if not measured.
        speed_skew: Differences in speed; None if no client takes any time.
        notes: Caveats on the measurement: samples, projections, missing answers.
        names: Names of clients, classes and features, as far as known to the server; used in sentences.
        timings: Seconds of waiting for `clients`, and of the server's own work by detector; the only part that differs
            from run to run.
    """

    seed: int
    settings: DetectionConfig
    num_clients: int
    num_classes: int
    num_features: int | None
    clients: tuple[ClientFacts, ...]
    withheld: dict[int, str] = Field(default_factory=dict)
    label_skew: Finding
    feature_skew: Finding
    outliers: Finding
    calibrated: tuple[CalibratedFinding, ...] = ()
    metrics: ReportedMetrics
    feature_shifts: dict[int, tuple[float, ...]] = Field(default_factory=dict, exclude_if=lambda found: not found)
    centroids: dict[int, tuple[float, float]] = Field(default_factory=dict, exclude_if=lambda found: not found)
    speed_skew: SpeedSkew | None = Field(default=None, exclude_if=lambda found: found is None)
    notes: tuple[str, ...] = ()
    names: Names = UNNAMED
    timings: dict[str, float] = Field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All published findings, in the order of presentation."""
        return (self.label_skew, self.feature_skew, self.outliers)

    @property
    def rows_belong_together(self) -> bool:
        """Whether too many rows have near copies at the same client, so that differences can't be tested."""
        return any(note.startswith(ROWS_BELONG_TOGETHER) for note in self.notes)

    @property
    def withheld_rows(self) -> dict[int, int]:
        """Number of rows whose class is withheld, by client, for the clients that answered and withhold any."""
        withheld = {facts.client: facts.num_rows - sum(facts.label_counts) for facts in self.clients}
        return {client: rows for client, rows in withheld.items() if rows}

    @property
    def further_sentences(self) -> tuple[str, ...]:
        """Sentences on further properties than the findings."""
        speeds = self.speed_skew if self.speed_skew is not None and self.speed_skew.is_notable else None
        return () if speeds is None else (speeds.sentence,)

    @property
    def withholding(self) -> str:
        """A sentence on how many rows' class is withheld, and by how many clients; empty if none is."""
        rows, all_rows = sum(self.withheld_rows.values()), sum(facts.num_rows for facts in self.clients)
        parts = []
        if rows:
            clients = f"{len(self.withheld_rows)} of {self.num_clients} clients"
            parts.append(f"small class counts, {rows:,} of {all_rows:,} rows ({rows / all_rows:.1%}), by {clients}")
        if self.withheld:
            parts.append(f"everything, by {len(self.withheld)} of {self.num_clients} clients")
        return f"Withheld for privacy: {'; '.join(parts)}." if parts else ""

    def calibrated_finding(self, name: DetectorName) -> CalibratedFinding | None:
        """Return the calibrated finding of a detector, or None where the report has none."""
        return next((finding for finding in self.calibrated if finding.name == name), None)

    def _repr_html_(self) -> str:
        import pandas as pd

        rows = []
        for published in self.findings:
            finding = self.calibrated_finding(published.name) or published
            verdict = yes_no(finding.detected) if finding.measured else "not measured"
            clients = ", ".join(map(self.names.client, finding.flagged_clients))
            rows.append((TITLES[published.name], verdict, clients, finding.sentence))
        table = pd.DataFrame(rows, columns=["property", "found", "clients", "finding"])
        return html_of(table, *self.further_sentences, *filter(None, [self.withholding]), *self.notes)

    def without_timings(self) -> HeterogeneityReport:
        """Return the report without timings, equal for equal data and seed."""
        return self.model_copy(update={"timings": {}})


WHY_PUBLISHED_ONLY: Final[Mapping[DetectorName, str]] = {
    "label_skew": "the difference is within chance, or below the smallest effect that is flagged",
    "feature_skew": "label skew shifts a client's mean but not the means of its classes, or the shift is within chance",
    "outliers": "the published rule flags the farthest client of any federation, and clients with skewed data are far",
}
"""Why the published rule detects what the test does not."""

WHY_TESTED_ONLY: Final[Mapping[DetectorName, str]] = {
    "label_skew": "the divergence is significant, but below the published threshold",
    "feature_skew": "the shift is significant, but small on the two principal axes of the published rule",
    "outliers": "the published rule counts how often a model is farthest; the test how far it is, or how labels fit",
}


def yes_no(detected: bool) -> str:
    """Return `yes` or `no`."""
    return "yes" if detected else "no"


@dataclass(frozen=True)
class Verdict:
    """Verdict on one property of a federation.

    Attributes:
        decided_by: The finding that decides.
        sentence: Its description for users.
        published_line: The published rule's answer in one line, and why it disagrees; empty if nothing was measured, or
            is no calibrated finding.
    """

    decided_by: Finding | CalibratedFinding
    sentence: str
    published_line: str = ""

    @property
    def name(self) -> DetectorName:
        """The property."""
        return self.decided_by.name

    @property
    def detected(self) -> bool:
        """Whether the federation has the property."""
        return self.decided_by.detected

    @property
    def measured(self) -> bool:
        """Whether the property was measured."""
        return self.decided_by.measured


def deciding(report: HeterogeneityReport, published: Finding) -> Finding | CalibratedFinding:
    """Return the finding that decides on the property of a published one: the calibrated one, if there is one."""
    return report.calibrated_finding(published.name) or published


def verdicts(report: HeterogeneityReport) -> tuple[Verdict, ...]:
    """Return the verdicts of a report, in the order of presentation."""
    return tuple(_verdict(report, published) for published in report.findings)


def _verdict(report: HeterogeneityReport, published: Finding) -> Verdict:
    calibrated = report.calibrated_finding(published.name)
    if calibrated is None:
        return Verdict(published, published.sentence)
    sentence = calibrated.sentence.replace(", calibrated:", ":", 1)
    published_line = _published_line(published, report.names) if published.measured or calibrated.measured else ""
    if published.measured and calibrated.measured and published.detected != calibrated.detected:
        reasons = WHY_PUBLISHED_ONLY if published.detected else WHY_TESTED_ONLY
        published_line += f" The two rules disagree: {reasons[published.name]}."
    return Verdict(calibrated, sentence, published_line)


def _published_line(rule: Finding, names: Names) -> str:
    if rule.value is None:
        return "Published rule: not measured."
    flagged = f"; flagged: {names.some_clients(rule.flagged_clients)}" if rule.flagged_clients else ""
    return f"Published rule: {yes_no(rule.detected)}, {rule.value:.3g}, threshold {rule.threshold:.3g}{flagged}."
