"""`fedscout bench detection`: which parts are run, of counts that are given."""

from __future__ import annotations

import json

import pytest

from fedscout.experiments.benchmarks.detection import detection_battery, withheld_labels
from fedscout.experiments.benchmarks.detection.detection_battery import SMALL, Battery, BatteryPlan
from fedscout.experiments.benchmarks.detection.withheld_labels import FEDERATIONS, Alarms
from tests.experiments.cli.conftest import Cli

ALARMS = [
    Alarms(labels="a", sizes=sizes, skewed=skewed, min_release=5, found=1, federations=4, share_withheld=0.1)
    for skewed in (False, True)
    for sizes in withheld_labels.SIZES
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Return what is run of each part."""
    found: dict[str, object] = {}

    def battery(plan: BatteryPlan, note: object) -> Battery:
        found["battery"] = plan
        return Battery(runs=(), impossible={})

    def alarms(federations: int, note: object) -> list[Alarms]:
        found["withheld"] = federations
        return ALARMS

    monkeypatch.setattr(detection_battery, "run_battery", battery)
    monkeypatch.setattr(withheld_labels, "withheld_alarms", alarms)
    return found


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ((), {"battery": SMALL, "withheld": FEDERATIONS}),
        (("--battery",), {"battery": SMALL}),
        (("--withheld",), {"withheld": FEDERATIONS}),
        (("--withheld", "--seeds", "7"), {"withheld": 7}),
    ],
)
def test_both_parts_are_run_or_the_one_that_is_chosen(
    cli: Cli, asked: dict[str, object], given: tuple[str, ...], run: dict[str, object]
) -> None:
    done = cli("bench", "detection", *given, "--json")
    assert (done.code, done.err) == (0, "")
    assert asked == run
    assert ("runs" in json.loads(done.out), "withheld_labels" in json.loads(done.out)) == (
        "battery" in run,
        "withheld" in run,
    )


def test_an_option_of_the_battery_chooses_it(cli: Cli, asked: dict[str, object]) -> None:
    assert cli("bench", "detection", "--held-out", "--seeds", "2").code == 0
    (plan,) = asked.values()
    assert isinstance(plan, BatteryPlan)
    assert (plan.sources, plan.seeds) == (detection_battery.HELD_OUT, 2)


@pytest.mark.parametrize(
    "given", [("--seeds", "2"), ("--withheld", "--battery"), ("--withheld", "--clients", "4"), ("--withheld", "seed=1")]
)
def test_options_of_no_part_that_is_run_are_refused(cli: Cli, asked: dict[str, object], given: tuple[str, ...]) -> None:
    assert cli("bench", "detection", *given).code == 2
    assert not asked
