"""PyramidFL's ranks and slack against numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Assignment
from fedscout.strategies.selection.oort import Oort, OortSpec, PyramidFL, PyramidFLSpec, extra_rounds, ranks
from fedscout.strategies.selection.table import parse_selection
from tests.kits.refusals import refused
from tests.strategies.selection.reports import cohort, report, table


def test_the_largest_update_withholds_least() -> None:
    """Ranks 3, 0, 1, 1 of four: .1 + .5 k / 4."""
    policy = PyramidFL(PyramidFLSpec())
    policy.observe(report(1, [2, 3, 5, 7], update_norm=[1.0, 4.0, 2.0, 2.0]))
    assigned = policy.assign(table(8), [7, 5, 3, 2])
    assert {client: each.withheld for client, each in assigned.items()} == pytest.approx(
        {2: 0.475, 3: 0.1, 5: 0.225, 7: 0.225}, rel=1e-12
    )
    assert all(each.epochs == 1 for each in assigned.values())


def test_who_told_no_norm_ranks_first() -> None:
    policy = PyramidFL(PyramidFLSpec())
    policy.observe(report(1, [0, 1, 2], update_norm=[1.0, 2.0, np.nan]))
    withheld = [policy.assign(table(4), [0, 1, 2, 3])[client].withheld for client in range(4)]
    assert withheld == pytest.approx([0.1 + 0.5 * 3 / 4, 0.1 + 0.5 * 2 / 4, 0.1, 0.1], rel=1e-12)


def test_ranks_count_those_that_are_larger() -> None:
    assert ranks(np.array([1.0, np.inf, 3.0, 3.0, np.inf])).tolist() == [4, 0, 2, 2, 0]


def test_the_quick_train_longer() -> None:
    """Of 10 seconds, those of 1, 2, 4 and 0.5 have a slack of 9, 4, 1.5 and 19 of their own rounds."""
    reachable = table([1, 3, 4, 6, 8], seconds=[1.0, 2.0, 4.0, 10.0, 0.5])
    assigned = PyramidFL(PyramidFLSpec()).assign(reachable, [8, 6, 4, 3, 1])
    assert {client: each.epochs for client, each in assigned.items()} == {1: 10, 3: 5, 4: 2, 6: 1, 8: 11}


def test_slack_without_durations() -> None:
    assert extra_rounds(np.zeros(3), 10).tolist() == [0, 0, 0]
    assert extra_rounds(np.array([0.0, 1.0]), 10).tolist() == [10, 0]
    assert extra_rounds(np.array([0.1, 1.0]), 0).tolist() == [0, 0]


def test_nobody_takes_longer_than_the_slowest() -> None:
    seconds = np.random.default_rng(0).lognormal(sigma=2, size=1000)
    slack = extra_rounds(seconds, 10)
    assert ((1 + slack) * seconds <= seconds.max()).all()
    assert ((2 + slack) * seconds > seconds.max())[slack < 10].all()


def test_nobody_else_is_assigned_anything() -> None:
    assert list(PyramidFL(PyramidFLSpec()).assign(table(9), [4])) == [4]
    assert PyramidFL(PyramidFLSpec(withheld_first=0, withheld_last=0)).assign(table(9), [4]) == {4: Assignment()}


def test_it_chooses_as_oort_does() -> None:
    oort, pyramid = Oort(OortSpec()), PyramidFL(PyramidFLSpec())
    for server_round in range(1, 30):
        reachable = table(20, seconds=np.arange(20.0).tolist())
        chosen = [
            policy.choose(server_round, reachable, 4, np.random.default_rng(server_round)).tolist()
            for policy in (oort, pyramid)
        ]
        assert chosen[0] == chosen[1]
        for policy in (oort, pyramid):
            policy.observe(report(server_round, sorted(chosen[0]), [1 + client for client in sorted(chosen[0])]))


def test_large_updates_must_withhold_less() -> None:
    document = {"kind": "pyramidfl", "withheld_first": 0.5, "withheld_last": 0.2}
    with refused(StrategyError, key="withheld_first", given="0.5"):
        parse_selection(document, cohort())
