"""One verdict a property: who decides, what stands beside it, and why the rules disagree."""

from __future__ import annotations

import pytest

from fedscout.detectors import CalibratedFinding, ClientEvidence, HeterogeneityReport
from fedscout.detectors.report import DetectorName, Verdict, verdicts
from tests.detectors.federations import FlipLabels, federation, gaussian_clients, report_of


@pytest.fixture(scope="module")
def report() -> HeterogeneityReport:
    return report_of(federation(gaussian_clients([150] * 4), transforms={2: (FlipLabels(),)}))


def changed(
    report: HeterogeneityReport, name: DetectorName, published: bool, calibrated: CalibratedFinding | None
) -> Verdict:
    """Return the verdict on one property after the published rule's answer and the calibrated finding are replaced."""
    finding = getattr(report, name).model_copy(update={"detected": published, "value": 0.5})
    others = [found for found in report.calibrated if found.name != name]
    found = report.model_copy(
        update={name: finding, "calibrated": tuple(others if calibrated is None else [*others, calibrated])}
    )
    return next(verdict for verdict in verdicts(found) if verdict.name == name)


def finding_of(name: DetectorName, p_value: float, detected: bool) -> CalibratedFinding:
    evidence = ClientEvidence(source="labels", p_value=p_value, effect=0.5, flagged=detected)
    return CalibratedFinding(
        name=name,
        rate=0.0167,
        p_value=p_value,
        effect=0.5,
        detected=detected,
        flagged_clients=(2,) if detected else (),
        clients={2: evidence},
        sentence="Title, calibrated: what was found.",
    )


def test_there_is_one_verdict_a_property_and_the_test_decides(report: HeterogeneityReport) -> None:
    found = {verdict.name: verdict for verdict in verdicts(report)}
    assert list(found) == ["label_skew", "feature_skew", "outliers"]
    assert found["outliers"].detected
    assert found["outliers"].decided_by.flagged_clients == (2,)
    assert all("calibrated" not in verdict.sentence for verdict in found.values())
    assert all(verdict.beside.startswith("Published rule: ") for verdict in found.values())


@pytest.mark.parametrize(
    ("name", "p_value", "detected"),
    [
        ("label_skew", 0.3, False),
        ("label_skew", 0.001, False),
        ("label_skew", 0.001, True),
        ("feature_skew", 0.3, False),
        ("feature_skew", 0.001, True),
        ("outliers", 0.3, False),
        ("outliers", 0.001, True),
    ],
)
def test_where_the_rules_disagree_it_is_said_why(
    report: HeterogeneityReport, name: DetectorName, p_value: float, detected: bool
) -> None:
    calibrated = finding_of(name, p_value, detected)
    parted = changed(report, name, not detected, calibrated)
    assert parted.detected == detected
    assert parted.sentence == "Title: what was found."
    agreeing = changed(report, name, detected, calibrated)
    assert parted.beside.count(". ") == 1  # the published rule's answer, and why it is another
    assert agreeing.beside.count(". ") == 0


def test_skew_is_why_honest_models_differ(report: HeterogeneityReport) -> None:
    skewed = report.model_copy(update={"calibrated": (finding_of("label_skew", 0.001, True), *report.calibrated[1:])})
    told = [changed(one, "outliers", True, finding_of("outliers", 0.3, False)).beside for one in (report, skewed)]
    assert told[0] != told[1]


@pytest.mark.parametrize("name", ["label_skew", "feature_skew", "outliers"])
def test_without_a_test_nothing_is_said_whatever_the_published_rule_finds(
    report: HeterogeneityReport, name: DetectorName
) -> None:
    verdict = changed(report, name, True, CalibratedFinding.unmeasured(name, 0.0167, "a reason"))
    assert not verdict.detected
    assert not verdict.measured
    assert isinstance(verdict.decided_by, CalibratedFinding)
    assert verdict.beside


def test_where_no_test_was_asked_for_the_published_rule_decides(report: HeterogeneityReport) -> None:
    verdict = changed(report, "label_skew", True, None)
    assert verdict.detected
    assert verdict.beside == ""
