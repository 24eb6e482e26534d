"""The diagnosis: a heterogeneity report, reduced to what a recommendation rests on.

Three findings, each a severity, by what decides in a verdict (`detectors/report.py`). How strong a finding is, `low`
or `high`, is a choice of ours:

- label skew is high from a largest Jensen-Shannon divergence of 0.3 bits: ten clients' labels dealt by Dirichlet(0.5)
  lie about there, by Dirichlet(1) below, by Dirichlet(0.1) well above;
- feature skew is high from twice its threshold;
- an outlier is high if its model's distance stands out by itself. The published rule must flag somebody in every
  repetition, so in a small federation it often names a client that is no worse than the others. The largest D_k counts
  as standing out from a modified z-score of 3.5 (Iglewicz and Hoaglin 1993, section 3.3): (D_k − median)/(1.4826 MAD).

A diagnosis holds aggregates and names; no row of any client, and no client's label counts.

What a recommendation is made for and what it says, whoever makes it: a configuration, why, and whence that comes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
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
    """One kind of heterogeneity.

    Attributes:
        severity: How strong; None if it could not be measured.
        value: Of the detector.
        threshold: That the value is compared with.
        clients: Who stands out.
        rule: Which decision counts.
        named: Features by which clients differ most: names from the data, never to be read as anything else.
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
        num_clients: Of the federation.
        num_classes: Of the labels; 0 where there are none.
        num_features: A row; None if nobody knows.
        median_rows: Of a client; None where clients hold no rows.
        label_skew: Clients see different classes.
        feature_skew: Clients see different inputs.
        outlier: A client's model is far from the others'.
        clients_of_other_updates: Of the calibrated outliers, those whose models alone stand out, and not their labels.
        outlier_z_score: Largest modified z-score of the models' distances; None if it can't be formed.
        metrics: Further measurements of the whole federation.
        speed_ratio: By how much the slowest client takes longer than the median one; None where nothing takes time.
        names: Of clients, for reasons that people read; never shown to a language model, as they may be personal.
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


def diagnose(report: HeterogeneityReport, feature_names: Sequence[str] = ()) -> Diagnosis:
    """Return the diagnosis of a report.

    Args:
        report: Of the detectors.
        feature_names: Of the federation, where it is at hand: the features by which clients differ are named.
    """
    rows = [client.num_rows for client in report.clients]
    score = _largest_z_score(list(report.metrics.model_distances.values()))
    tested = report.calibrated_finding("outliers")
    is_tested = tested is not None and tested.measured
    stands_out = is_tested or (score is not None and score >= OUTLIER_Z_SCORE)
    values = report.metrics.model_dump(exclude={"model_distances", "distances_from_average"})
    values |= _extent(list(report.metrics.model_distances.values()))
    features = report.feature_skew
    return Diagnosis(
        num_clients=report.num_clients,
        num_classes=report.num_classes,
        num_features=report.num_features,
        median_rows=float(statistics.median(rows)) if rows else None,
        label_skew=_aspect(report, report.label_skew, _reaches(report.label_skew, HIGH_LABEL_DIVERGENCE)),
        feature_skew=_aspect(
            report, features, _reaches(features, HIGH_FEATURE_FACTOR * features.threshold), feature_names
        ),
        outlier=_aspect(report, report.outliers, stands_out),
        clients_of_other_updates=_by_model_alone(tested),
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
    """Return one kind of heterogeneity, by the finding that decides."""
    found = deciding(report, published)
    severity: Severity = ("high" if is_high else "low") if found.detected else "none"
    return SkewFinding(
        severity=severity if found.measured else None,
        value=published.value,
        threshold=published.threshold,
        clients=found.flagged_clients,
        rule=found.rule,
        named=_named(found, feature_names),
    )


def _named(found: Finding | CalibratedFinding, feature_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the features by which the flagged clients differ most."""
    if isinstance(found, Finding) or not feature_names:
        return ()
    evidence = [found.clients[client] for client in found.flagged_clients if client in found.clients]
    shifts = [shift for client in evidence for shift in client.features]
    largest = sorted(shifts, key=lambda shift: -abs(shift.shift))
    names = [feature_names[shift.feature] for shift in largest if shift.feature < len(feature_names)]
    return tuple(dict.fromkeys(names))[:FEATURES_NAMED]


def _by_model_alone(tested: CalibratedFinding | None) -> tuple[int, ...]:
    if tested is None:
        return ()
    evidence = tested.clients
    return tuple(client for client in tested.flagged_clients if evidence[client].source == "models")


def _extent(distances: Sequence[float]) -> dict[str, float]:
    """Return the median and the largest distance of the models, by which nobody can be told; none of none."""
    if not distances:
        return {}
    return {"median_model_distance": statistics.median(distances), "largest_model_distance": max(distances)}


def _largest_z_score(distances: Sequence[float]) -> float | None:
    """Return the largest modified z-score; None for fewer than three values or without any spread."""
    if len(distances) < 3:
        return None
    middle = statistics.median(distances)
    spread = MAD_TO_DEVIATION * statistics.median(abs(distance - middle) for distance in distances)
    return (max(distances) - middle) / spread if spread > 0 else None


Source = Literal["rules", "llm"]

RULES_WERE_ASKED = "The rules answer, as they were asked."
TRAINING_SHARE = 0.8
"""Share of a client's rows that train, as far as a recommendation needs it."""


@dataclass(frozen=True)
class RecommendationContext:
    """A federation that needs a strategy.

    Attributes:
        space: What can be chosen for it.
        num_rounds: Of a training.
        view: Whose test data judge the model: the clients' own, or uncorrupted ones.
        diagnosis: How the clients' data differ; None if that was not measured.
        description: The same in a person's words; None if nobody gave any.
        measure: What is to be as large as possible.
        dealing: How rows came to the clients; None if nobody knows.
        selection: Kind of the policy that says who trains; None where the strategy does.
    """

    space: SearchSpace
    num_rounds: int
    view: View = "own"
    diagnosis: Diagnosis | None = None
    description: str | None = None
    measure: Measure = ACCURACY
    dealing: DataOrigin | None = None
    selection: str | None = None

    @property
    def cohort(self) -> Cohort:
        """The clients."""
        return self.space.cohort

    @property
    def steps_a_round(self) -> int | None:
        """Optimizer steps that a median client makes in a round; None where rows or local training are not known."""
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
        rule: Its name.
        applied: Whether it decided, or was considered and passed over.
        because: The facts that decided, in a sentence.
        source: Where the rule was published, or what it rests on.
    """

    rule: str
    applied: bool
    because: str
    source: str


@dataclass(frozen=True)
class Alternative:
    """Another configuration that is worth a trial.

    Attributes:
        spec: Fits the federation's cohort.
        because: Why, in a sentence.
        source: Who advises it.
    """

    spec: StrategySpec
    because: str
    source: str

    def document(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {
            "strategy": {"kind": self.spec.kind, **self.spec.parameters()},
            "name": str(self.spec),
            "because": self.because,
            "source": self.source,
        }


@dataclass(frozen=True)
class ModelUse:
    """What a language model was asked and what that took.

    Attributes:
        model: Its name.
        format: Of the prompt; None where only a person's words were shown.
        num_answers: Answers that it gave; all but the last were invalid.
        prompt_tokens: Of all requests; None if the server did not count.
        completion_tokens: Of all answers, likewise.
        cost_usd: Of all; None without a price.
    """

    model: str
    format: str | None
    num_answers: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None


@dataclass(frozen=True)
class Recommendation:
    """A strategy with its parameters, chosen without a trial.

    Attributes:
        spec: Fits the federation's cohort, and is in its search space.
        source: Who chose it.
        grounds: Why, the deciding reason first.
        alternatives: What others advise to compare it with.
        notes: What else is worth knowing.
        diagnosis: What it rests on; None if nothing was measured.
        model_use: Of a language model; None if none was asked.
        instead_of_model: Why the rules answer and no language model, and what of the question they do not use; None
            where a model answers, or where the rules were asked and use all.
    """

    spec: StrategySpec
    source: Source
    grounds: tuple[Reason, ...]
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    model_use: ModelUse | None = None
    instead_of_model: str | None = None

    @property
    def answered_by(self) -> str:
        """Who gave it, for people, and where the rules did, why no language model."""
        if self.model_use is not None:
            return f"The language model {self.model_use.model} answers."
        return self.instead_of_model or RULES_WERE_ASKED

    def with_alternatives(self, found: Iterable[Alternative]) -> Recommendation:
        """Return it beside others' advice."""
        return replace(self, alternatives=tuple(found))

    def document(self) -> dict[str, Any]:
        """Return the recommendation as JSON-able values."""
        use = self.model_use
        return {
            "source": self.source,
            "instead_of_model": self.instead_of_model,
            "strategy": {"kind": self.spec.kind, **self.spec.parameters()},
            "name": str(self.spec),
            "grounds": [vars(ground) for ground in self.grounds],
            "alternatives": [alternative.document() for alternative in self.alternatives],
            "notes": list(self.notes),
            "diagnosis": None if self.diagnosis is None else self.diagnosis.model_dump(mode="json"),
            "language_model": None if use is None else vars(use),
        }
