"""Conversations with clients, the report as a value, and one verdict a property."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from pydantic import ValidationError

from fedscout.detectors import CalibratedFinding, DetectionConfig, Finding, HeterogeneityReport
from fedscout.detectors.conversation import CLIENTS, Conversation, hold, run_lockstep
from fedscout.detectors.report import DetectorName, Verdict, verdicts
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import LABEL_COUNTS
from fedscout.engine.messages.contents import Query, Training, train_config
from fedscout.experiments.scenarios.labels import ShiftLabels
from tests.detectors.federations import RecordingGrid, federation, gaussian_clients, report_of


@pytest.fixture(scope="module")
def report() -> HeterogeneityReport:
    """Of three clients that answer and one that may not."""
    return report_of(federation(gaussian_clients([20, 3, 40, 60])), seed=1)


def test_json_round_trip_and_timings_apart(report: HeterogeneityReport) -> None:
    assert HeterogeneityReport.model_validate_json(report.model_dump_json()) == report
    steps = {"clients", "label_skew", "feature_skew", "outliers", "input curvature", "near copies", "metrics"}
    assert set(report.timings) == steps
    assert report.without_timings() == report.model_copy(update={"timings": {}})


def test_more_flags_than_repetitions_are_refused() -> None:
    with pytest.raises(ValidationError, match="outlier_min_flags"):
        DetectionConfig(outlier_repetitions=3)


def test_reading_a_report_loads_nothing_heavy() -> None:
    heavy = {"flwr", "torch", "ray", "sklearn", "pandas", "scipy"}
    program = f"import sys, detectors; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# -- One verdict a property: who decides, what stands beside it, and why the rules disagree ----------------------------


@pytest.fixture(scope="module")
def judged() -> HeterogeneityReport:
    return report_of(federation(gaussian_clients([150] * 4), transforms={2: (ShiftLabels(),)}))


def changed(
    judged: HeterogeneityReport, name: DetectorName, published: bool, calibrated: CalibratedFinding | None
) -> Verdict:
    """Return the verdict on one property after the published rule's answer and the calibrated finding are replaced."""
    finding = getattr(judged, name).model_copy(update={"detected": published, "value": 0.5})
    others = [found for found in judged.calibrated if found.name != name]
    decisions = others if calibrated is None else [*others, calibrated]
    found = judged.model_copy(update={name: finding, "calibrated": tuple(decisions)})
    return next(verdict for verdict in verdicts(found) if verdict.name == name)


def test_there_is_one_verdict_a_property_and_the_test_decides(judged: HeterogeneityReport) -> None:
    found = {verdict.name: verdict for verdict in verdicts(judged)}
    assert list(found) == ["label_skew", "feature_skew", "outliers"]
    assert found["outliers"].decided_by.flagged_clients == (2,)


@pytest.mark.parametrize("name", ["label_skew", "feature_skew", "outliers"])
@pytest.mark.parametrize("detected", [False, True])
def test_why_the_rules_disagree_is_said(judged: HeterogeneityReport, name: DetectorName, detected: bool) -> None:
    found = {"detected": detected, "flagged_clients": (2,) * detected, "sentence": "Title, calibrated: what was found."}
    calibrated = judged.calibrated_finding(name).model_copy(update=found)
    parted, agreeing = (changed(judged, name, published, calibrated) for published in (not detected, detected))
    assert (parted.detected, parted.sentence) == (detected, "Title: what was found.")
    assert parted.published_line.count(". ") == 1  # the published rule's answer, and why it is another
    assert agreeing.published_line.count(". ") == 0


@pytest.mark.parametrize("name", ["label_skew", "feature_skew", "outliers"])
def test_the_published_rule_decides_without_a_test_alone(judged: HeterogeneityReport, name: DetectorName) -> None:
    """A test that could not be made says nothing, whatever that rule finds; a value of 0 was measured."""
    unmeasured = CalibratedFinding.unmeasured(name, 0.0167, "there are two clients")
    verdict = changed(judged, name, True, unmeasured)
    assert (verdict.detected, verdict.measured, verdict.decided_by) == (False, False, unmeasured)
    assert verdict.published_line
    alone = changed(judged, name, True, None)
    assert (alone.detected, alone.measured, alone.published_line) == (True, True, "")
    nothing = Finding.unmeasured(name, 2.5, "there are two clients")
    assert (nothing.measured, nothing.model_copy(update={"value": 0.0}).measured) == (False, True)


# -- Conversations held together: each hears its own answers, and what all of them send travels together ---------------


SIZES = (10, 20, 30)


@pytest.fixture
def grid() -> RecordingGrid:
    return RecordingGrid(federation(gaussian_clients(SIZES)))


def rows_of(*clients: int) -> Conversation[list[int]]:
    """Ask client after client how many rows it has."""
    rows = []
    for client in clients:
        (answers,), _ = yield [Query(LABEL_COUNTS, clients=[client])], []
        rows.append(int(answers.arrays[client]["counts"].sum()))
    return rows


def trained_rows(grid: RecordingGrid, *seeds: int) -> Conversation[list[int]]:
    """Ask all clients, in one sending, to train from the models of some seeds."""
    config = train_config(LocalTraining(), 0, 1, "merged")
    _, answers = yield [], [Training(grid.initial_vector(seed), config) for seed in seeds]
    return [int(own.num_examples.sum()) for own in answers]


def test_each_conversation_hears_its_own_answers_in_as_few_exchanges_as_it_takes(grid: RecordingGrid) -> None:
    talks = {"up": rows_of(0, 1, 2), "models": trained_rows(grid, 1, 2), "down": rows_of(2, 1), "none": rows_of()}
    results = run_lockstep(grid, talks)
    assert results == {"up": [10, 20, 30], "models": [48, 48], "down": [30, 20], "none": []}  # 80 % train
    assert [[kind for kind, _, _ in contents] for contents in grid.exchanges] == [
        ["query", "query", "train", "train"],
        ["query", "query"],
        ["query"],
    ]
    assert hold(grid, rows_of()) == []
    assert run_lockstep(grid, {}) == {}
    assert len(grid.exchanges) == 3


def test_a_conversation_that_fails_fails_the_holder_and_own_work_is_timed(grid: RecordingGrid) -> None:
    def busy(fails: bool = False) -> Conversation[None]:
        yield [Query(LABEL_COUNTS)], []
        np.linalg.svd(np.random.default_rng(0).normal(size=(300, 300)))
        if fails:
            raise ArithmeticError("broken")

    with pytest.raises(ArithmeticError, match="broken"):
        run_lockstep(grid, {"up": rows_of(0, 1), "broken": busy(fails=True)})
    timings = {"busy": 1.0}
    run_lockstep(grid, {"busy": busy(), "idle": rows_of(0)}, timings)
    assert set(timings) == {"busy", "idle", CLIENTS}
    assert timings["busy"] - 1.0 > timings["idle"] >= 0
    assert timings[CLIENTS] > 0
