"""Diagnosis and recommendation: a heterogeneity report reduced to severities, and the data types of a recommendation.

A diagnosis has three findings with a severity each, based on the finding that decides (`detectors/report.py`). The
limits between `low` and `high` are our own choices:

- label skew is high from a largest Jensen-Shannon divergence of 0.3 bits: a Dirichlet(0.5) partition over ten clients
  is about there, Dirichlet(1) below, Dirichlet(0.1) well above;
- feature skew is high from twice its threshold;
- an outlier is high if its model's distance stands out. The published rule must flag some client in every repetition,
  so in a small federation it often flags one that is no worse than the others. The largest D_k stands out from a
  modified z-score of 3.5 (Iglewicz and Hoaglin 1993, section 3.3): (D_k − median)/(1.4826 MAD).

A diagnosis holds aggregates and names, but no rows and no label counts of a client.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, Field

from fedscout.detectors.report import CalibratedFinding, Finding, HeterogeneityReport, deciding
from fedscout.engine.data.federation import UNNAMED, Names
from fedscout.engine.messages.calls import Cohort
from fedscout.search.config import View
from fedscout.search.objective import ACCURACY, DataOrigin, Measure
from fedscout.strategies import SearchSpace, StrategySpec

Severity = Literal["none", "low", "high"]

HIGH_LABEL_DIVERGENCE = 0.3
HIGH_FEATURE_FACTOR = 2.0
OUTLIER_Z_SCORE = 3.5
MAD_TO_DEVIATION = 1.4826
FEATURES_NAMED = 5


class SkewFinding(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Severity of one kind of heterogeneity.

    Attributes:
        severity: None if it could not be measured.
        value: Value of the detector.
        threshold: Threshold of the value.
        clients: Flagged clients.
        rule: The rule of the deciding finding.
        named: Names of the features in which clients differ most; untrusted text from the data.
    """

    severity: Severity | None
    value: float | None = None
    threshold: float | None = None
    clients: tuple[int, ...] = ()
    rule: Literal["published", "calibrated"] = "published"
    named: tuple[str, ...] = ()

    @property
    def detected(self) -> bool:
        """Whether there is heterogeneity of this kind."""
        return self.severity in ("low", "high")


class Diagnosis(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How the clients' data differ.

    Attributes:
        num_clients: Number of clients.
        num_classes: Number of classes; 0 without labels.
        num_features: Features per row; None if unknown.
        median_rows: Median number of rows of a client; None if clients hold no rows.
        label_skew: Differences in label distributions.
        feature_skew: Differences in feature distributions.
        outlier: Clients whose models are far from the others'.
        clients_of_other_updates: The calibrated outliers by models alone, not by labels.
        outlier_z_score: Largest modified z-score of the models' distances; None if undefined.
        metrics: Further metrics of the whole federation.
        speed_ratio: Ratio of the slowest client's time to the median one's; None if no client takes any time.
        names: Display names of clients; never sent to a language model, as they may be personal data.
    """

    num_clients: int
    num_classes: int
    num_features: int | None
    median_rows: float | None
    label_skew: SkewFinding
    feature_skew: SkewFinding
    outlier: SkewFinding
    clients_of_other_updates: tuple[int, ...] = ()
    outlier_z_score: float | None
    metrics: dict[str, float]
    speed_ratio: float | None = Field(default=None, exclude_if=lambda ratio: ratio is None)
    names: Names = Field(default=UNNAMED, exclude=True)

    @property
    def input_curvature(self) -> float | None:
        """The input curvature (`detectors.queries`); None if unknown."""
        return self.metrics.get("input_curvature")


def diagnose(report: HeterogeneityReport, feature_names: Sequence[str] = ()) -> Diagnosis:
    """Return the diagnosis of a report.

    Args:
        report: Report of the detectors.
        feature_names: Feature names of the federation, if available, for the features in which clients differ.
    """
    rows = [client.num_rows for client in report.clients]
    model_distances = list(report.metrics.model_distances.values())
    score = _largest_z_score(model_distances)
    outlier_finding = report.calibrated_finding("outliers")
    is_tested = outlier_finding is not None and outlier_finding.measured
    stands_out = is_tested or (score is not None and score >= OUTLIER_Z_SCORE)
    values = report.metrics.model_dump(exclude={"model_distances"})
    if model_distances:  # which do not identify a client
        values["median_model_distance"] = statistics.median(model_distances)
        values["largest_model_distance"] = max(model_distances)
    labels, features = report.label_skew, report.feature_skew
    tested = {} if outlier_finding is None else {c: outlier_finding.clients[c] for c in outlier_finding.flagged_clients}
    return Diagnosis(
        num_clients=report.num_clients,
        num_classes=report.num_classes,
        num_features=report.num_features,
        median_rows=float(statistics.median(rows)) if rows else None,
        label_skew=_aspect(report, labels, _reaches(labels, HIGH_LABEL_DIVERGENCE)),
        feature_skew=_aspect(
            report, features, _reaches(features, HIGH_FEATURE_FACTOR * features.threshold), feature_names
        ),
        outlier=_aspect(report, report.outliers, stands_out),
        clients_of_other_updates=tuple(c for c, own in tested.items() if own.source == "models"),
        outlier_z_score=score,
        metrics={name: value for name, value in values.items() if isinstance(value, int | float)},
        speed_ratio=None if report.speed_skew is None else report.speed_skew.ratio,
        names=report.names,
    )


def _reaches(finding: Finding, value: float) -> bool:
    return finding.value is not None and finding.value >= value


def _aspect(
    report: HeterogeneityReport, published: Finding, is_high: bool, feature_names: Sequence[str] = ()
) -> SkewFinding:
    """Return the severity of one kind of heterogeneity, by the finding that decides."""
    finding = deciding(report, published)
    severity: Severity = ("high" if is_high else "low") if finding.detected else "none"
    return SkewFinding(
        severity=severity if finding.measured else None,
        value=published.value,
        threshold=published.threshold,
        clients=finding.flagged_clients,
        rule=finding.rule,
        named=_named(finding, feature_names),
    )


def _named(found: Finding | CalibratedFinding, feature_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the features in which the flagged clients differ most."""
    if isinstance(found, Finding) or not feature_names:
        return ()
    evidence = [found.clients[client] for client in found.flagged_clients if client in found.clients]
    shifts = [shift for client in evidence for shift in client.features]
    largest = sorted(shifts, key=lambda shift: -abs(shift.shift))
    names = [feature_names[shift.feature] for shift in largest if shift.feature < len(feature_names)]
    return tuple(dict.fromkeys(names))[:FEATURES_NAMED]


def _largest_z_score(distances: Sequence[float]) -> float | None:
    """Return the largest modified z-score; None for fewer than three values or zero spread."""
    if len(distances) < 3:
        return None
    middle = statistics.median(distances)
    spread = MAD_TO_DEVIATION * statistics.median(abs(distance - middle) for distance in distances)
    return (max(distances) - middle) / spread if spread > 0 else None


Source = Literal["rules", "llm"]

RULES_WERE_ASKED = "The rules made the recommendation, as requested."
TRAINING_SHARE = 0.8
"""Share of a client's rows that train, as far as a recommendation needs it."""


@dataclass(frozen=True)
class RecommendationContext:
    """A federation that needs a strategy.

    Attributes:
        space: Search space.
        num_rounds: Rounds of a training.
        view: Test data of the fitness: the clients' own, or uncorrupted.
        diagnosis: How the clients' data differ; None if not measured.
        description: Description by a person; None without one.
        measure: What the fitness measures.
        data_origin: Data set and partition; None if unknown.
    """

    space: SearchSpace
    num_rounds: int
    view: View = "own"
    diagnosis: Diagnosis | None = None
    description: str | None = None
    measure: Measure = ACCURACY
    data_origin: DataOrigin | None = None

    @property
    def cohort(self) -> Cohort:
        """The clients."""
        return self.space.cohort

    @property
    def steps_a_round(self) -> int | None:
        """Optimizer steps of a median client per round; None if rows or local training are unknown."""
        rows = self.diagnosis.median_rows if self.diagnosis is not None else None
        epochs, batch_size = (self.space.given.get(name) for name in ("client_local_epochs", "client_batch_size"))
        if rows is None or not isinstance(epochs, int) or not isinstance(batch_size, int):
            return None
        return max(1, math.ceil(TRAINING_SHARE * rows / batch_size)) * epochs

    def diagnosed(self, diagnosis: Diagnosis) -> RecommendationContext:
        """Return the same federation with another diagnosis."""
        return replace(self, diagnosis=diagnosis, description=None)


@dataclass(frozen=True)
class Reason:
    """One reason for a recommendation.

    Attributes:
        rule: Name of the rule.
        applied: Whether it decided, or was skipped.
        explanation: The deciding facts, in a sentence.
        source: Publication of the rule, or its basis.
    """

    rule: str
    applied: bool
    explanation: str
    source: str


@dataclass(frozen=True)
class Alternative:
    """Another configuration that is worth a trial.

    Attributes:
        spec: Fits the federation's cohort.
        explanation: Why, in a sentence.
        source: Source of the advice.
    """

    spec: StrategySpec
    explanation: str
    source: str

    def document(self) -> dict[str, Any]:
        """Return JSON-serialisable values."""
        return {
            "strategy": {"kind": self.spec.kind, **self.spec.parameters()},
            "name": str(self.spec),
            "explanation": self.explanation,
            "source": self.source,
        }


@dataclass(frozen=True)
class ModelUse:
    """Usage of a language model.

    Attributes:
        model: Name of the model.
        format: Format of the prompt; None if only a person's description was included.
        num_answers: Number of answers; all but the last were invalid.
        prompt_tokens: Total of all requests; None if the server did not count.
        completion_tokens: Total of all answers; None if the server did not count.
    """

    model: str
    format: str | None
    num_answers: int
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True)
class Recommendation:
    """A strategy with its parameters, chosen without a trial.

    Attributes:
        spec: Fits the federation's cohort, and is in its search space.
        source: Source of the recommendation.
        reasons: Reasons, the deciding one first.
        alternatives: Other advice, for comparison.
        notes: Further notes.
        diagnosis: Its basis; None if nothing was measured.
        model_use: Usage of a language model; None if none was used.
        instead_of_model: Why the rules answer instead of a language model, and which inputs they ignore; None if a
            model answers, or if the rules were requested and ignore nothing.
    """

    spec: StrategySpec
    source: Source
    reasons: tuple[Reason, ...]
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    model_use: ModelUse | None = None
    instead_of_model: str | None = None

    @property
    def answered_by(self) -> str:
        """A sentence on the source, and if it is the rules, why no language model was used."""
        if self.model_use is not None:
            return f"The language model {self.model_use.model} made the recommendation."
        return self.instead_of_model or RULES_WERE_ASKED

    def document(self) -> dict[str, Any]:
        """Return the recommendation as JSON-serialisable values."""
        use = self.model_use
        return {
            "source": self.source,
            "answered_by": self.answered_by,
            "instead_of_model": self.instead_of_model,
            "strategy": {"kind": self.spec.kind, **self.spec.parameters()},
            "name": str(self.spec),
            "reasons": [vars(ground) for ground in self.reasons],
            "alternatives": [alternative.document() for alternative in self.alternatives],
            "notes": list(self.notes),
            "diagnosis": None if self.diagnosis is None else self.diagnosis.model_dump(mode="json"),
            "language_model": None if use is None else vars(use),
        }
