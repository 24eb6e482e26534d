"""The report as a value: JSON, validation, sentences."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from fedscout.detectors import DetectionConfig, Finding, HeterogeneityReport
from fedscout.detectors.report import CalibratedFinding
from tests.detectors.federations import federation, gaussian_clients, report_of


@pytest.fixture(scope="module")
def report() -> HeterogeneityReport:
    """Of three clients that answer and one that may not."""
    return report_of(federation(gaussian_clients([20, 3, 40, 60])), seed=1)


def test_json_round_trip(report: HeterogeneityReport) -> None:
    text = report.model_dump_json()
    assert HeterogeneityReport.model_validate_json(text) == report
    assert HeterogeneityReport.model_validate(json.loads(text)) == report


def test_json_has_plain_finite_numbers_only(report: HeterogeneityReport) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(report.model_dump_json(), parse_constant=refuse)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_finding_must_be_finite(value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        Finding(name="outliers", value=value, threshold=1, detected=False, sentence="")


def test_a_report_can_not_be_changed(report: HeterogeneityReport) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        report.seed = 2  # type: ignore[misc]


def test_timings_are_apart(report: HeterogeneityReport) -> None:
    steps = {"clients", "label_skew", "feature_skew", "outliers", "input curvature", "near copies", "metrics"}
    assert set(report.timings) == steps
    assert all(seconds >= 0 for seconds in report.timings.values())
    assert report.without_timings().timings == {}
    assert report.without_timings().model_dump(exclude={"timings"}) == report.model_dump(exclude={"timings"})


def test_sentences_tell_value_threshold_and_clients(report: HeterogeneityReport) -> None:
    for finding in report.findings:
        assert f"{finding.threshold:.3g}" in finding.sentence
        assert (": yes." in finding.sentence) == finding.detected


def test_what_was_not_measured_says_so_and_detects_nothing() -> None:
    nothing = Finding.unmeasured("outliers", 2.5, "there are two clients")
    assert not nothing.measured
    told = nothing.sentence
    assert nothing == Finding(name="outliers", value=None, threshold=2.5, detected=False, sentence=told)
    calibrated = CalibratedFinding.unmeasured("outliers", 0.05, "there are two clients")
    assert all("there are two clients" in sentence for sentence in (told, calibrated.sentence))
    assert not calibrated.measured
    assert not calibrated.detected
    # a value of 0 was measured
    assert nothing.model_copy(update={"value": 0.0}).measured
    assert calibrated.model_copy(update={"p_value": 0.0}).measured


def test_a_calibrated_finding_is_found_by_name(report: HeterogeneityReport) -> None:
    for finding in report.calibrated:
        assert report.calibrated_finding(finding.name) is finding
    without = report.model_copy(update={"calibrated": report.calibrated[:1]})
    assert [without.calibrated_finding(name) is None for name in ("label_skew", "outliers")] == [False, True]


def test_flags_beyond_the_repetitions_are_refused() -> None:
    with pytest.raises(ValidationError, match="outlier_min_flags"):
        DetectionConfig(outlier_repetitions=3)


def test_reading_a_report_loads_nothing_heavy() -> None:
    heavy = {"flwr", "torch", "ray", "sklearn", "pandas", "scipy"}
    program = f"import sys, detectors; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
