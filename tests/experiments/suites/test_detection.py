"""Detection on federations of known truth: what counts as found and as a false alarm, and a few that are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedscout.detectors import CalibratedFinding
from fedscout.engine.errors import UserError
from fedscout.experiments import suites
from fedscout.experiments.grids.cells import CellContext, Measured
from fedscout.experiments.grids.experiment import Experiment, read_experiment
from fedscout.experiments.scenarios.table import BEARING_SCENARIOS
from fedscout.experiments.suites.detection import CASES, MEASURES, RULES, Detections, Verdict, verdict

COLUMNS: dict[str, Any] = {f"{measure}, {rule}": {} for measure in MEASURES for rule in RULES}


def judged(name: str, scenario: str, flagged: tuple[int, ...], affected: tuple[int, ...] = (2,)) -> tuple[object, ...]:
    finding = CalibratedFinding(
        name=name,  # type: ignore[arg-type]
        rate=0.05,
        p_value=0.5,
        detected=bool(flagged),
        flagged_clients=flagged,
        sentence="",
    )
    made = verdict(finding, CASES[scenario].truth, affected)
    return made.found, made.false_alarm, made.blamed


def test_an_alarm_that_names_nobody_is_one() -> None:
    finding = CalibratedFinding(name="label_skew", rate=0.05, p_value=0.01, detected=True, sentence="")
    assert verdict(finding, CASES["iid"].truth, ()) == Verdict(measured=True, false_alarm=True)


def test_every_published_scenario_has_a_truth() -> None:
    assert set(BEARING_SCENARIOS) < set(CASES)


@pytest.mark.parametrize(
    ("name", "scenario", "flagged", "expected"),
    [
        ("label_skew", "iid", (), (None, False, None)),
        ("label_skew", "iid", (1,), (None, True, None)),
        ("label_skew", "label_skew", (1,), (True, None, None)),
        ("label_skew", "label_skew", (), (False, None, None)),
        ("label_skew", "label_poisoning", (2,), (None, None, False)),
        ("label_skew", "label_poisoning", (1, 2), (None, None, True)),
        ("feature_skew", "label_skew", (0,), (None, True, None)),
        ("feature_skew", "corrupted_client", (2,), (True, None, False)),
        ("label_skew", "sign_flip", (2,), (None, True, None)),
        ("outliers", "iid", (2,), (None, True, None)),
        ("outliers", "rare_client", (0,), (None, True, None)),
        ("outliers", "noisy_labels", (), (False, None, False)),
        ("outliers", "noisy_labels", (2,), (True, None, False)),
        ("outliers", "noisy_labels", (0, 2), (True, None, True)),
        ("outliers", "noisy_labels", (0,), (False, None, True)),
    ],
)
def test_what_is_right_and_wrong(
    name: str, scenario: str, flagged: tuple[int, ...], expected: tuple[object, ...]
) -> None:
    assert judged(name, scenario, flagged) == expected


def test_the_halves_share_no_data() -> None:
    folder = Path(suites.__file__).parent / "detection"
    halves = [read_experiment(folder / f"{name}.yaml").measured_by for name in ("development", "held_out")]
    one, other = ({*half.arguments["datasets"]} for half in halves if half is not None)
    assert not one & other


def measured(out: Path, rows: dict[str, Any], settings: tuple[str, ...] = (), **arguments: Any) -> Measured:
    document = {"title": "t", "unit": "share", "columns": COLUMNS, "method": {"kind": "given"}}
    named = {name: {"arguments": row} for name, row in rows.items()}
    measured_by = {"function": "fedscout.experiments.suites.detection:Detections", "arguments": arguments}
    experiment = Experiment.model_validate({**document, "rows": named, "measured_by": measured_by})
    return Detections(**arguments).measure(experiment, CellContext(out, settings, num_seeds=1))


ALARMS = {"any": {"detector": "any", "case": "iid"}, "labels": {"detector": "label_skew"}}


def test_a_data_set_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for name in ("no_such_data", str(tmp_path / "none.csv")):
        with pytest.raises(UserError):
            measured(tmp_path, ALARMS, datasets={name: {}}, clients=[4], cases=["iid"])


def test_only_federations_of_a_row_are_run_and_what_data_do_not_allow_is_told(tmp_path: Path) -> None:
    """Breast cancer: a poisoned client is found; 400 clients are too many; two poisoners would be half of four."""
    rows = {
        "labels": {"detector": "label_skew", "case": "label_skew"},
        "outliers": {"detector": "outliers", "case": "label_poisoning"},
        "poisoners": {"detector": "outliers", "case": "two_poisoners", "clients": 4},
    }
    settings = ("detection.outlier_repetitions=4",)
    found = measured(tmp_path, rows, settings, datasets={"breast_cancer": {}}, clients=[4, 400])
    assert {*found.absent} == {f"breast_cancer, {case}, 400 clients" for case in ("label_skew", "label_poisoning")}
    assert found.values["labels", "recall, calibrated"] == (1.0,)
    assert found.values["labels", "false alarms, calibrated"] == (None,)
    assert found.values["outliers", "recall, calibrated"] == (1.0,)
    assert found.values["poisoners", "recall, calibrated"] == ()


@pytest.mark.slow
def test_any_alarm_is_that_of_any_detector_and_clients_may_be_absent(tmp_path: Path) -> None:
    rows = {**ALARMS, "features": {"detector": "feature_skew"}, "outliers": {"detector": "outliers"}}
    found = measured(tmp_path, rows, datasets={"wine": {}}, clients=[5], cases=["iid"], absent=0.2).values
    for rule in RULES:
        alarms = [found[row, f"false alarms, {rule}"][0] for row in ("labels", "features", "outliers")]
        assert found["any", f"false alarms, {rule}"] == (max(alarm for alarm in alarms if alarm is not None),)
