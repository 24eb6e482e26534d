"""The detection battery: what counts as found and as a false alarm, its rates, and a cell that is run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedscout.detectors import CalibratedFinding
from fedscout.engine.errors import ConfigurationError, UserError
from fedscout.experiments.benchmarks.detection.battery_federations import (
    BUNDLED,
    CASES,
    DEVELOPMENT,
    HELD_OUT,
    DataSource,
    half_of,
)
from fedscout.experiments.benchmarks.detection.detection_battery import (
    DETECTORS,
    FULL,
    SMALL,
    Battery,
    BatteryPlan,
    BatteryRun,
    Verdict,
    battery_plan,
    run_battery,
    verdict,
)
from fedscout.experiments.benchmarks.detection.detection_battery_table import (
    Rate,
    any_false_alarm,
    battery_document,
    blamed,
    false_alarms,
    recall,
    table_lines,
)
from fedscout.experiments.federations.scenarios.published_scenarios import BEARING_SCENARIOS


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


def test_rates_count_only_where_they_have_a_meaning() -> None:
    """Two of three found, one of them beside blame; one alarm where nothing was to be found, of two such."""
    verdicts = [
        Verdict(measured=True, found=True, blamed=False),
        Verdict(measured=True, found=True, blamed=True),
        Verdict(measured=True, found=False),
        Verdict(measured=True, false_alarm=True),
        Verdict(measured=False, false_alarm=False),
        Verdict(measured=True),
    ]
    assert recall(verdicts) == Rate(successes=2, trials=3)
    assert false_alarms(verdicts) == Rate(successes=1, trials=2)
    assert blamed(verdicts) == Rate(successes=1, trials=2)


def test_the_halves_share_no_data() -> None:
    names = [source.name for source in (*DEVELOPMENT, *HELD_OUT)]
    assert len(names) == len(set(names))
    assert [half_of(name) for name in ("digits", "wine", "own.csv")] == ["development", "held out", "other"]


def test_wilson_s_interval() -> None:
    """Its ends are the shares p from which the count lies z deviations away; without trials anything is possible."""
    quantile = stats.norm.ppf(0.975)
    for successes, trials in ((0, 20), (3, 20), (10, 20), (20, 20), (1, 1)):
        for end in Rate(successes=successes, trials=trials).interval:
            away = abs(successes / trials - end)
            assert away == pytest.approx(quantile * np.sqrt(end * (1 - end) / trials), abs=1e-9)
    assert Rate(successes=0, trials=0).interval == (0.0, 1.0)
    assert str(Rate(successes=0, trials=0)) == "-"


def run_of(scenario: str, published: Verdict, calibrated: Verdict) -> BatteryRun:
    """A federation in which each rule makes the same of all three detectors."""
    return BatteryRun(
        dataset="wine",
        scenario=scenario,
        num_clients=4,
        seed=0,
        published=dict.fromkeys(DETECTORS, published),
        calibrated=dict.fromkeys(DETECTORS, calibrated),
    )


def test_the_rules_are_told_apart() -> None:
    """The published rule cries wolf in the federation of like clients, and finds one of two skewed ones."""
    found, lost = (Verdict(measured=True, found=known) for known in (True, False))
    calm, alarm = (Verdict(measured=True, false_alarm=known) for known in (False, True))
    runs = (run_of("label_skew", lost, found), run_of("dirichlet", found, found), run_of("iid", alarm, calm))
    assert any_false_alarm(runs, "published") == Rate(successes=1, trials=1)
    assert any_false_alarm(runs, "calibrated") == Rate(successes=0, trials=1)
    battery = Battery(runs=runs, impossible={})
    rates = {
        rate["rule"]: (rate["recall"]["successes"], rate["false_alarms"]["successes"])
        for rate in battery_document(battery)["rates"]
        if rate["detector"] == "label_skew" and rate["scenario"] is None
    }
    assert rates == {"published": (1, 1), "calibrated": (2, 0)}
    lines = table_lines(battery)
    (line,) = (line for line in lines if line.startswith("| label skew | "))
    counts = [cell.split()[0] for cell in line.strip("| ").split(" | ")[1:]]
    assert counts == ["1/2", "2/2", "1/1", "0/1", "-", "-"]
    assert any("recall of label skew >= 0.95: 2/2" in line and line.endswith("met") for line in lines)


def test_the_plan_takes_what_is_given() -> None:
    assert battery_plan(True, (), (), (), None) == FULL
    assert battery_plan(False, (), (), (), None) == SMALL
    assert battery_plan(False, (), (), (), None, held_out=True).sources == HELD_OUT
    plan = battery_plan(False, ["wine", "digits:500", "hf:a/b"], [7], ["iid"], 2, ["seed=3"])
    assert plan.sources == (DataSource("wine"), DataSource("digits", 500), DataSource("hf:a/b"))
    assert (plan.num_clients, plan.seeds, plan.scenarios, plan.settings) == ((7,), 2, ("iid",), ("seed=3",))


def test_mistakes_are_told() -> None:
    with pytest.raises(ConfigurationError, match=r"--scenario must be one of iid, .*, got upside_down"):
        battery_plan(True, (), (), ["upside_down"], None)
    with pytest.raises(ConfigurationError, match=r"NAME:ROWS with a number of rows >= 2, got 'digits:many'"):
        battery_plan(True, ["digits:many"], (), (), None)


def test_a_data_set_that_cannot_be_read_is_told_before_any_cell_is_run(tmp_path: Path) -> None:
    for name, said in (("no_such_data", "must be one of"), (str(tmp_path / "none.csv"), "none.csv")):
        cells: list[str] = []
        with pytest.raises(UserError, match=said):
            run_battery(BatteryPlan((BUNDLED[0], DataSource(name)), (4,), seeds=1), cells.append)
        assert not cells


def test_a_small_battery() -> None:
    """Breast cancer, four clients: a poisoned client is found; too many clients for the rows is a cell left out."""
    settings = ("detection.outlier_repetitions=4",)
    plan = BatteryPlan(BUNDLED[:1], (4, 400), 1, ("label_skew", "label_poisoning"), settings)
    cells: list[str] = []
    battery = run_battery(plan, cells.append)
    assert len(cells) == 4
    assert next((run.scenario, run.num_clients) for run in battery.runs) == ("label_skew", 4)
    assert any("400 clients" in cell for cell in battery.impossible)
    found = {run.scenario: run for run in battery.runs if run.num_clients == 4}
    assert found["label_skew"].calibrated["label_skew"].found
    assert found["label_poisoning"].calibrated["outliers"].found
    document = json.loads(json.dumps(battery_document(battery), allow_nan=False))
    assert document["runs"][0]["seed"] != document["runs"][1]["seed"]  # no deal of the rows counts twice
    lines = table_lines(battery)
    assert any(line.startswith("| label skew | ") for line in lines)
    assert any("left out" in line for line in lines)
