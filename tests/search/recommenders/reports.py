"""Reports and diagnoses of made-up federations, and situations to recommend for."""

from __future__ import annotations

from typing import Any

from fedscout.detectors import DetectionConfig, Finding, HeterogeneityReport, ReportedMetrics
from fedscout.detectors.report import CalibratedFinding, ClientFacts
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages.calls import Cohort
from fedscout.search.recommenders.diagnosis import Diagnosis, RecommendationContext, Severity, SkewFinding
from fedscout.strategies import given_values, space_of

DIVERGENCE = {"none": 0.01, "low": 0.2, "high": 0.5}
DISTANCE = {"none": 1.0, "low": 5.0, "high": 9.0}


def diagnosis_of(
    label_skew: Severity | None = "none",
    feature_skew: Severity | None = "none",
    outlier: Severity | None = "none",
    outliers: tuple[int, ...] = (2,),
    other_inputs: tuple[int, ...] = (),
    **fields: Any,
) -> Diagnosis:
    """Return a diagnosis of ten clients with ten classes and 160 rows each, or what a test says."""
    flagged = outliers if outlier in ("low", "high") else ()
    given: dict[str, Any] = {
        "num_clients": 10,
        "num_classes": 10,
        "num_features": 64,
        "median_rows": 160.0,
        "label_skew": SkewFinding(severity=label_skew, value=DIVERGENCE.get(label_skew or ""), threshold=0.1),
        "feature_skew": SkewFinding(
            severity=feature_skew, value=DISTANCE.get(feature_skew or ""), threshold=4.0, clients=other_inputs
        ),
        "outlier": SkewFinding(severity=outlier, value=5.0 if flagged else 2.0, threshold=4.0, clients=flagged),
        "outlier_z_score": 8.0 if outlier == "high" else 1.0,
        "metrics": {"quantity_gini": 0.25},
    }
    return Diagnosis(**{**given, **fields})


def context_of(
    diagnosis: Diagnosis | None = None, num_clients: int = 10, num_rounds: int = 30, **fields: Any
) -> RecommendationContext:
    """Return a situation of ten clients that make one step a round, or what a test says."""
    training = LocalTraining()
    num_sampled = fields.pop("num_sampled", num_clients)
    cohort = Cohort(num_clients, num_sampled, training.learning_rate, server_rows=60, server_labels=True)
    space = space_of(cohort, fields.pop("kinds", None), given=given_values(training), **fields.pop("space", {}))
    return RecommendationContext(space, num_rounds, diagnosis=diagnosis, **fields)


def finding(name: Any, value: float | None, threshold: float, flagged: tuple[int, ...] = ()) -> Finding:
    """Return a published finding."""
    if value is None:
        return Finding.unmeasured(name, threshold, "nobody was asked")
    return Finding(
        name=name, value=value, threshold=threshold, detected=bool(flagged), flagged_clients=flagged, sentence="Told."
    )


def report_of(
    divergence: float | None = 0.01,
    distance: float | None = 1.0,
    outliers: tuple[int, ...] = (),
    distances: tuple[float, ...] = (1.0, 1.1, 0.9, 1.05),
    calibrated: tuple[CalibratedFinding, ...] = (),
    shifted: tuple[int, ...] = (),
    rows: tuple[int, ...] = (100, 200, 300, 400),
    num_classes: int = 2,
) -> HeterogeneityReport:
    """Return a report on a client for each number of rows."""
    skewed = tuple(range(len(rows))) if divergence is not None and divergence > 0.1 else ()
    report = HeterogeneityReport(
        seed=0,
        settings=DetectionConfig(),
        num_clients=len(rows),
        num_classes=num_classes,
        num_features=254,
        clients=tuple(
            ClientFacts(client=client, num_rows=n, label_counts=(n - n // 2, n // 2), heterogeneity_index=0.0)
            for client, n in enumerate(rows)
        ),
        label_skew=finding("label_skew", divergence, 0.1, skewed),
        feature_skew=finding("feature_skew", distance, 4.0, shifted),
        outliers=finding("outliers", 5.0 if outliers else 2.0, 4.0, outliers),
        metrics=ReportedMetrics(quantity_gini=0.25, model_distances=dict(enumerate(distances))),
    )
    return report.model_copy(update={"calibrated": calibrated})
