"""What of a report a recommendation rests on."""

from __future__ import annotations

import pytest

from fedscout.detectors.report import CalibratedFinding, ClientEvidence, FeatureShift
from fedscout.search.recommenders.diagnosis import diagnose
from tests.search.recommenders.reports import report_of


@pytest.mark.parametrize(
    ("divergence", "severity"),
    [(None, None), (0.1, "none"), (0.11, "low"), (0.29, "low"), (0.3, "high"), (1.0, "high")],
)
def test_label_skew_by_the_published_rule(divergence: float | None, severity: str | None) -> None:
    assert diagnose(report_of(divergence=divergence)).label_skew.severity == severity


@pytest.mark.parametrize(
    ("distance", "shifted", "severity"), [(None, (), None), (4.0, (), "none"), (7.9, (1,), "low"), (8.0, (1,), "high")]
)
def test_feature_skew_is_high_from_twice_its_threshold(
    distance: float | None, shifted: tuple[int, ...], severity: str | None
) -> None:
    found = diagnose(report_of(distance=distance, shifted=shifted))
    assert found.feature_skew.severity == severity
    assert found.feature_skew.clients == shifted


def test_z_score_of_the_farthest_model() -> None:
    """Of 1, 2, 3, 4 and 10 the median is 3 and the median deviation 1, so the score is 7/1.4826."""
    assert diagnose(report_of(distances=(1.0, 2.0, 3.0, 4.0, 10.0))).outlier_z_score == pytest.approx(7 / 1.4826)
    assert diagnose(report_of(distances=(1.0, 9.0))).outlier_z_score is None
    assert diagnose(report_of(distances=(1.0, 1.0, 1.0, 9.0))).outlier_z_score is None


@pytest.mark.parametrize(
    ("farthest", "outliers", "severity"), [(9.0, (), "none"), (4.4, (3,), "low"), (9.0, (3,), "high")]
)
def test_an_outlier_is_high_only_if_it_stands_out_by_itself(
    farthest: float, outliers: tuple[int, ...], severity: str
) -> None:
    report = report_of(outliers=outliers, distances=(1.0, 2.0, 3.0, farthest))
    found = diagnose(report).outlier
    assert (found.severity, found.clients, found.rule) == (severity, outliers, "published")


def calibrated(
    name: str, detected: bool, p_value: float | None = 0.5, shifts: tuple[float, ...] = ()
) -> CalibratedFinding:
    """Return a calibrated finding with what a diagnosis reads of it."""
    features = tuple(FeatureShift(feature=i, shift=s) for i, s in enumerate(shifts))
    return CalibratedFinding.model_construct(
        name=name,
        p_value=p_value,
        detected=detected,
        flagged_clients=(1,) if detected else (),
        clients={1: ClientEvidence.model_construct(source="labels", features=features)},
    )


def test_the_calibrated_decision_counts_where_there_is_one() -> None:
    decisions = (calibrated("label_skew", False), calibrated("outliers", True))
    report = report_of(divergence=0.2, outliers=(3,), calibrated=decisions)
    found = diagnose(report)
    assert (found.label_skew.severity, found.label_skew.rule) == ("none", "calibrated")
    assert (found.outlier.severity, found.outlier.clients, found.outlier.rule) == ("high", (1,), "calibrated")
    assert found.feature_skew.rule == "published"


@pytest.mark.parametrize("p_value", [0.5, None])
def test_inputs_that_only_the_published_rule_calls_unlike_are_not_unlike(p_value: float | None) -> None:
    """It ignores classes: a client whose labels are wrong stays one, though its share of classes moves its mean."""
    untold = (calibrated(name, False, p_value=p_value) for name in ("label_skew", "feature_skew"))
    tested = (*untold, calibrated("outliers", True))
    found = diagnose(report_of(distance=9.0, shifted=(1,), outliers=(1,), calibrated=tested))
    assert (found.feature_skew.clients, found.outlier.clients) == ((), (1,))
    for aspect in (found.label_skew, found.feature_skew):
        assert (aspect.severity is None) == (p_value is None)  # what could not be tested has none


def test_features_that_differ_most_are_named_the_largest_shift_first() -> None:
    report = report_of(calibrated=(calibrated("feature_skew", True, shifts=(0.5, -3.0, 1.0)),))
    assert diagnose(report, ("age", "weight", "height")).feature_skew.named == ("weight", "height", "age")
    assert diagnose(report, ("age",)).feature_skew.named == ("age",)
    assert diagnose(report).feature_skew.named == ()


def test_a_diagnosis_holds_no_clients_label_counts() -> None:
    report = report_of(rows=(111, 222, 333, 444))
    text = diagnose(report).model_dump_json()
    counts = {str(count) for client in report.clients for count in client.label_counts}
    assert not [count for count in counts if count in text]
    assert diagnose(report).median_rows == 277.5
