"""Trials in this process, one after the other; on Ray they are held to the same results in `test_ray_grid`."""

from __future__ import annotations

from collections.abc import Mapping

from fedscout.engine.client.host import ClientHost
from fedscout.engine.trials.runner import LocalRunner
from tests.engine.choices import FEDADAM, FEDAVG, Choice, RaisingFedAvg, spec_of
from tests.engine.trials.test_resume import assert_same

SPECS = [
    spec_of(choice, phase=str(number))
    for number, choice in enumerate((FEDAVG, FEDADAM, Choice(RaisingFedAvg), FEDAVG, FEDAVG))
]


def test_results_come_in_order_with_their_rounds(host: ClientHost) -> None:
    told: list[Mapping[str, int]] = []

    results = list(LocalRunner(host).run(SPECS, told.append))

    assert [position for position, _ in results] == [0, 1, 2, 3, 4]
    assert [result.status for _, result in results] == ["completed", "completed", "failed", "completed", "completed"]
    assert told[:3] == [{SPECS[0].key: done} for done in (1, 2, 3)]
    assert {SPECS[2].key: 1} in told
    assert {SPECS[2].key: 2} not in told
    assert_same(results[0][1], results[3][1])
