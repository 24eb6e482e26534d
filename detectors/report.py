"""The heterogeneity report: a value that says what was measured, against which threshold, and who stands out.

It is JSON-able and complete: `HeterogeneityReport.model_validate_json(report.model_dump_json())` equals `report`.
Numbers are finite; what could not be measured is None and its sentence says why.

One verdict a property: the calibrated answer decides, the published rule stands beside it, with why they disagree.

Where a calibrated test could not be made, the property is not measured, whatever the published rule says: it ignores
classes, so that it finds feature skew under label skew alone, and it names honest clients as outliers there; label skew
is why these tests most often can't be made (`docs/detection.md`). Clients that play episodes are not tested for skew;
the published rules do not measure it there, either.

The parameters of detection, as a configuration file or the command line sets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedscout.engine.data.client import Privacy
from fedscout.engine.data.federation import UNNAMED, Names
from fedscout.engine.text import paragraph, table

NUM_DETECTORS: Final = 3


class DetectionConfig(BaseModel):
    """Thresholds and sizes of the detectors; each detector's module says what they mean."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    label_threshold: float = Field(default=0.1, gt=0, le=1, description="Jensen-Shannon divergence in bits")
    feature_threshold: float = Field(
        default=0.25, gt=0, le=100, description="distance of centroids over the square root of the total variance"
    )
    feature_scale: Literal["standardised", "raw"] = Field(
        default="standardised", description="whether features are divided by their global standard deviation"
    )
    max_features: int = Field(default=4096, ge=1, description="beyond, feature skew is not measured: use embeddings")
    outlier_repetitions: int = Field(default=5, ge=1, le=1000, description="fresh initial models")
    outlier_rounds: int = Field(default=2, ge=1, le=1000, description="rounds of FedAvg before models are compared")
    outlier_percentile: float = Field(
        default=90.0, gt=0, lt=100, description="of the mean distances; flags those above"
    )
    outlier_min_flags: int = Field(default=4, ge=1, description="repetitions that make a client an outlier")
    max_pairwise_clients: int = Field(default=500, ge=2, description="beyond, pairs are sampled and models projected")
    projection_size: int = Field(default=512, ge=1, description="dimensions of projected models")
    histogram_bins: int = Field(default=32, ge=2, le=1024, description="equal bins of a feature's histogram")
    histogram_reach: float = Field(default=4.0, gt=0, description="standard deviations covered on either side")

    false_alarm_rate: float = Field(
        default=0.05,
        ge=1e-3,
        le=0.5,
        description="of the calibrated rules: probability that a federation of like clients is called anything",
    )
    label_effect: float = Field(
        default=0.1, ge=0, le=1, description="calibrated: part of a flagged client's rows of another class, at least"
    )
    feature_effect: float = Field(
        default=0.25, ge=0, description="calibrated: shift of a flagged client's features in standard deviations"
    )
    disagreement_effect: float = Field(
        default=0.2, gt=0, le=1, description="calibrated: part of a flagged client's labels that others contradict"
    )
    distance_effect: float = Field(
        default=0.5, gt=0, description="calibrated: how much farther a flagged client's model is than the median one"
    )

    epsilon: float | None = Field(
        default=None, gt=0, le=1000, description="of differentially private counts and sums; nothing adds no noise"
    )
    delta: float = Field(default=1e-6, gt=0, lt=1, description="of the private sums")
    clip: float = Field(default=3.0, gt=0, description="features are clipped to plus or minus this for private sums")
    noise: Literal["seeded", "secure"] = Field(
        default="seeded", description="seeded noise can be repeated, and protects nobody; secure noise is OpenDP's"
    )

    @property
    def privacy(self) -> Privacy | None:
        """What clients are promised for the queries; None without an epsilon."""
        return None if self.epsilon is None else Privacy(self.epsilon, self.delta, self.noise == "secure")

    @property
    def detector_rate(self) -> float:
        """One detector's share of the federation's false-alarm rate, divided equally among them (Bonferroni)."""
        return self.false_alarm_rate / NUM_DETECTORS

    @property
    def num_rounds(self) -> int:
        """How many rounds of training the comparison of models takes, over all its repetitions."""
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
"""How the sentence of a finding begins."""

ROWS_BELONG_TOGETHER: Final = "Rows seem to belong together"
"""How the note begins which says so."""

TENTHS: Final = "A quantity is predicted: labels are its tenths, and models were compared by their parameters alone."
"""The note of a report on clients that do not tell classes."""


class _ReportPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Finding(_ReportPart):
    """What one detector found by its published rule.

    Attributes:
        name: The detector.
        rule: How the decision was made.
        value: The federation's value; None if it could not be measured.
        threshold: What the value is compared with, in the value's unit.
        detected: Whether the rule finds heterogeneity of this kind.
        flagged_clients: Ascending.
        client_values: The value of each client that was measured.
        sentence: The finding for people.
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
        """Whether there is a value; if not, `detected` is False and means nothing."""
        return self.value is not None

    @classmethod
    def unmeasured(cls, name: DetectorName, threshold: float, reason: str) -> Finding:
        """Return the finding of a detector that could not measure."""
        sentence = f"{TITLES[name]}: not measured; {reason}."
        return cls(name=name, value=None, threshold=threshold, detected=False, sentence=sentence)


class FeatureShift(_ReportPart):
    """How far a client's values of one feature are from the others', rows of the same class compared.

    Attributes:
        feature: Its position among the features.
        shift: In standard deviations of the feature within a class.
    """

    feature: int
    shift: float


class ClientEvidence(_ReportPart):
    """What a calibrated decision has on one client.

    Attributes:
        source: What was compared: the client's labels, its features class by class, all or the one of largest shift,
            or its models.
        p_value: Probability of as much if clients are alike, corrected over clients, in `[0, 1]`.
        effect: How much the client differs, in the unit that the detector's module gives for the source; 0 or less is
            no more than chance has it.
        flagged: Whether both suffice.
        classes: Classes by which a flagged client differs most, the largest difference first.
        features: Features by which it differs most, likewise.
    """

    source: EvidenceSource
    p_value: float
    effect: float
    flagged: bool
    classes: tuple[int, ...] = ()
    features: tuple[FeatureShift, ...] = ()


class CalibratedFinding(_ReportPart):
    """What one detector found by a test of known false-alarm rate.

    Attributes:
        name: The detector.
        rule: How the decision was made.
        rate: Probability that the detector flags anyone in a federation of like clients.
        method: The tests; empty if there was none.
        p_value: Of the client that stands out most; None if it could not be measured.
        effect: Of the same client.
        detected: Whether anyone is flagged.
        flagged_clients: Ascending.
        clients: Evidence on each client that was measured.
        groups: Of outliers: clients whose labels agree among themselves, where no majority does.
        sentence: The finding for people.
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
        """Whether there is a p-value; if not, `detected` is False and means nothing."""
        return self.p_value is not None

    @classmethod
    def unmeasured(cls, name: DetectorName, rate: float, reason: str) -> CalibratedFinding:
        """Return the finding of a detector that could not measure."""
        return cls(name=name, rate=rate, sentence=f"{TITLES[name]}, calibrated: not measured; {reason}.")


class ClientFacts(_ReportPart):
    """What is known of one client that answered.

    Attributes:
        client: Its index.
        num_rows: Rows it holds.
        label_counts: Rows of each class, as far as the client tells them: 0 where they are too few, so that these may
            add up to fewer than `num_rows`.
        min_release: Fewest rows of a class of which the client tells.
        heterogeneity_index: 1 − (c − 1)/(c_max − 1), c of c_max classes present, in `[0, 1]`; where rows are withheld,
            the smallest that agrees with what is told: they are of as many classes as they can be.
    """

    client: int
    num_rows: int
    label_counts: tuple[int, ...]
    min_release: int = Field(default=1, ge=1)
    heterogeneity_index: float


class ClientFeatures(_ReportPart):
    """How one client's rows lie in feature space, rows of the same class compared where enough was told of classes.

    It follows from sums that the client has told; `fedscout.detectors.calibrated_feature_skew` says how.

    Attributes:
        client: Its index.
        shift: Where its rows lie against the median client's, on axes that all clients of the report share. Its length
            is the root mean square over features in standard deviations within a class.
        spread: How far its rows scatter about their class's mean, over everyone's; None where one row a class is told.
        gain: How far apart its class means lie, over everyone's; None where it tells of fewer than two classes.
    """

    client: int
    shift: tuple[float, ...]
    spread: float | None = None
    gain: float | None = None


class FeatureDensity(_ReportPart):
    """How each client's values of one feature are spread: that of largest variance.

    It is out of the histograms that clients have told for the mean distances: of groups of `min_release` rows at least.

    Attributes:
        feature: Its position among the features.
        start: Lower edge of the first bin.
        width: Of each bin.
        counts: Rows in each bin, by client.
    """

    feature: int
    start: float
    width: float
    counts: dict[int, tuple[int, ...]]


class ReportedMetrics(_ReportPart):
    """Metrics reported beside the detectors; None where they could not be measured.

    Attributes:
        quantity_ratio: Largest over smallest number of rows.
        quantity_variation: Coefficient of variation of the numbers of rows.
        quantity_gini: Gini coefficient of the numbers of rows.
        entropy_spread: Largest minus smallest label entropy in bits: a rejected measure, for comparison.
        entropy_spread_normalised: The same over log2 of the number of classes.
        label_hellinger: Mean Hellinger distance of label distributions over pairs of clients.
        label_wasserstein: Mean 1-Wasserstein distance of the same, class numbers taken as places on a line: in classes;
            None of classes with names that are no numbers, whose order means nothing.
        feature_hellinger: Mean Hellinger distance of feature histograms over pairs, averaged over features.
        feature_wasserstein: Mean 1-Wasserstein distance, averaged over features, in standard deviations.
        feature_divergence: Largest mean Jensen-Shannon divergence of a client's raw feature histograms from everyone's,
            in bits: a rejected measure, for comparison.
        output_divergence: Mean Jensen-Shannon divergence of clients' mean outputs of one model, in bits.
        model_distances: D_k of the outlier detector, a client's mean over repetitions.
        distances_from_average: Distance from the aggregated model, likewise: a rejected measure, for comparison.
    """

    quantity_ratio: float | None = None
    quantity_variation: float | None = None
    quantity_gini: float | None = None
    entropy_spread: float | None = None
    entropy_spread_normalised: float | None = None
    label_hellinger: float | None = None
    label_wasserstein: float | None = None
    feature_hellinger: float | None = None
    feature_wasserstein: float | None = None
    feature_divergence: float | None = None
    output_divergence: float | None = None
    model_distances: dict[int, float] = Field(default_factory=dict)
    distances_from_average: dict[int, float] = Field(default_factory=dict)


class SpeedSkew(_ReportPart):
    """How unlike clients are in speed; see `fedscout.detectors.statistics`.

    Attributes:
        slowest: The client that takes longest.
        slowest_seconds: Its expected seconds of a round.
        median_seconds: The median client's.
        ratio: The first over the second; None where the median takes none.
        sentence: The finding for people.
    """

    slowest: int
    slowest_seconds: float
    median_seconds: float
    ratio: float | None
    sentence: str

    @classmethod
    def of(cls, slowest: int, slowest_seconds: float, median_seconds: float, names: Names = UNNAMED) -> SpeedSkew:
        """Return the finding, in words."""
        ratio = slowest_seconds / median_seconds if median_seconds > 0 else None
        times = "" if ratio is None else f", {ratio:.3g} times as long as the median client"
        where = f"{names.one_client(slowest)} takes {slowest_seconds:.3g} simulated seconds a round{times}"
        rest = "; half of the clients take none" if ratio is None else ""
        return cls(
            slowest=slowest,
            slowest_seconds=slowest_seconds,
            median_seconds=median_seconds,
            ratio=ratio,
            sentence=f"Speed: {where}{rest}.",
        )

    @property
    def is_worth_telling(self) -> bool:
        """Whether the slowest takes longer than the median client by more than rounding."""
        return self.ratio is None or round(self.ratio, 1) > 1


class HeterogeneityReport(_ReportPart):
    """How the data of a federation's clients differ.

    Attributes:
        seed: Of the models and of samples.
        settings: Thresholds and sizes.
        num_clients: Clients of the federation, those without an answer included.
        num_classes: Classes.
        num_features: Features a row, or None if nobody answered.
        clients: Who answered, ascending.
        withheld: Reason of each client that gave no label counts; it takes no part in anything else.
        label_skew: Finding on labels.
        feature_skew: Finding on features.
        outliers: Finding on models.
        calibrated: The same three questions answered at a known false-alarm rate, as far as they were asked.
        metrics: Reported beside.
        features: How clients' rows lie in feature space; empty where they could not be compared, or tell noisy sums.
        centroids: Clients' means on the two principal axes of the published feature skew; empty if not measured.
        density: How values of the feature of largest variance are spread; None where that was not measured.
        speed_skew: How unlike clients are in speed; None where none takes any time.
        notes: What a reader must know of how it was measured: samples, projections, missing answers.
        names: Of clients, classes and features, as far as the server knows them; sentences use them.
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
    features: tuple[ClientFeatures, ...] = Field(default=(), exclude_if=lambda found: not found)
    centroids: dict[int, tuple[float, float]] = Field(default_factory=dict, exclude_if=lambda found: not found)
    density: FeatureDensity | None = Field(default=None, exclude_if=lambda found: found is None)
    speed_skew: SpeedSkew | None = Field(default=None, exclude_if=lambda found: found is None)
    notes: tuple[str, ...] = ()
    names: Names = UNNAMED
    timings: dict[str, float] = Field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, in the order in which they are told."""
        return (self.label_skew, self.feature_skew, self.outliers)

    @property
    def rows_belong_together(self) -> bool:
        """Whether rows seem to be alike beyond chance at the same client, so that no difference can be told from it."""
        return any(note.startswith(ROWS_BELONG_TOGETHER) for note in self.notes)

    @property
    def withheld_rows(self) -> dict[int, int]:
        """Rows whose class a client withholds, by client, of the clients that answered and withhold any."""
        withheld = {own.client: own.num_rows - sum(own.label_counts) for own in self.clients}
        return {client: rows for client, rows in withheld.items() if rows}

    @property
    def beside(self) -> tuple[str, ...]:
        """What is told beside the findings, a sentence each."""
        speeds = self.speed_skew if self.speed_skew is not None and self.speed_skew.is_worth_telling else None
        return () if speeds is None else (speeds.sentence,)

    @property
    def withholding(self) -> str:
        """How many rows' class is not told, and by how many clients, in a sentence; empty where all is told."""
        rows, all_rows = sum(self.withheld_rows.values()), sum(own.num_rows for own in self.clients)
        parts = []
        if rows:
            clients = f"{len(self.withheld_rows)} of {self.num_clients} clients"
            parts.append(f"the class of {rows:,} of {all_rows:,} rows ({rows / all_rows:.1%}), by {clients}")
        if self.withheld:
            parts.append(f"everything, by {len(self.withheld)} of {self.num_clients} clients")
        return f"Withheld: {'; '.join(parts)}." if parts else ""

    def calibrated_finding(self, name: DetectorName) -> CalibratedFinding | None:
        """Return the calibrated finding of a detector, or None where the report has none."""
        return next((finding for finding in self.calibrated if finding.name == name), None)

    def _repr_html_(self) -> str:
        rows = []
        for published in self.findings:
            found = self.calibrated_finding(published.name) or published
            verdict = ("yes" if found.detected else "no") if found.measured else "not measured"
            clients = ", ".join(map(self.names.client, found.flagged_clients))
            rows.append((TITLES[published.name], verdict, clients, found.sentence))
        return table(("", "found", "clients", ""), rows) + "".join(
            map(paragraph, (*self.beside, *filter(None, [self.withholding]), *self.notes))
        )

    def without_timings(self) -> HeterogeneityReport:
        """Return the report without timings, equal for equal data and seed."""
        return self.model_copy(update={"timings": {}})


def yes_no(detected: bool) -> str:
    """Return the word for a decision."""
    return "yes" if detected else "no"


@dataclass(frozen=True)
class Verdict:
    """What is said of one property of a federation.

    Attributes:
        decided_by: The finding that decides.
        sentence: What it says, for people.
        beside: The published rule's answer in a line, and why it is another; empty where nothing was measured, or the
            calibrated test was not asked.
    """

    decided_by: Finding | CalibratedFinding
    sentence: str
    beside: str = ""

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
        """Whether anything could be said."""
        return self.decided_by.measured


def deciding(report: HeterogeneityReport, published: Finding) -> Finding | CalibratedFinding:
    """Return the finding that decides on the property of a published one: the calibrated one, wherever it was asked."""
    return report.calibrated_finding(published.name) or published


def verdicts(report: HeterogeneityReport) -> tuple[Verdict, ...]:
    """Return the verdicts of a report, in the order in which they are told."""
    return tuple(_verdict(report, published) for published in report.findings)


def _verdict(report: HeterogeneityReport, published: Finding) -> Verdict:
    calibrated = report.calibrated_finding(published.name)
    if calibrated is None:
        return Verdict(published, published.sentence)
    tested = calibrated.sentence.replace(", calibrated:", ":", 1)
    beside = _published_line(published, report.names) if published.measured or calibrated.measured else ""
    if published.measured and calibrated.measured and published.detected != calibrated.detected:
        reason = _why_published_only(report, calibrated) if published.detected else _why_tested_only(calibrated)
        beside += f" The two rules disagree: {reason}."
    return Verdict(calibrated, tested, beside)


def _published_line(finding: Finding, names: Names) -> str:
    if finding.value is None:
        return "Published rule: not measured."
    flagged = f", {names.some_clients(finding.flagged_clients)}" if finding.flagged_clients else ""
    return f"Published rule: {yes_no(finding.detected)}, {finding.value:.3g} against {finding.threshold:.3g}{flagged}."


def _why_published_only(report: HeterogeneityReport, calibrated: CalibratedFinding) -> str:
    """Return why a published rule finds what the test does not."""
    skews = [found for name in ("label_skew", "feature_skew") if (found := report.calibrated_finding(name)) is not None]
    named = " and ".join(found.name.replace("_", " ") for found in skews if found.detected)
    if calibrated.name == "outliers":
        if named:
            return f"under {named} honest clients train unlike models"
        return "the published rule flags the farthest client, and some client is farthest in any federation"
    if calibrated.name == "feature_skew" and report.label_skew.detected:
        return "label skew shifts a client's mean, but not the means of its classes"
    if calibrated.p_value is not None and calibrated.p_value <= calibrated.rate:
        return "the difference is significant, but below the smallest effect that counts"
    return "with so few rows, clients of one distribution differ as much by chance"


def _why_tested_only(calibrated: CalibratedFinding) -> str:
    """Return why a test finds what the published rule does not."""
    if calibrated.name == "outliers":
        sources = {calibrated.clients[client].source for client in calibrated.flagged_clients}
        if sources == {"labels"}:
            return "wrong labels need not move a client's model far"
        return "the published rule asks who is farthest in most repetitions, the test how far a model is"
    if calibrated.name == "feature_skew":
        return "the shift is significant, but small on the two principal axes of the published rule"
    return "the divergence is significant, but below the published threshold"
