"""The arithmetic of races."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.search.config import RacingConfig, SearchConfig
from fedscout.search.searchers.racing import Rung, most_trials, race, rung_rounds, total_rounds_of


@pytest.mark.parametrize(
    ("num_rounds", "factor", "min_rounds", "expected"),
    [
        (30, 4, 2, [2, 8, 30]),  # 30/4 = 7.5, 30/16 = 1.875, 30/64 < 1
        (81, 3, 1, [1, 3, 9, 27, 81]),  # Li et al. 2018, table 1
        (81, 3, 9, [9, 27, 81]),
        (1, 4, 2, [1]),
        (10, 4, 11, [10]),
        (2, 2, 1, [1, 2]),
    ],
)
def test_rungs_end_at_shares_of_a_full_training(
    num_rounds: int, factor: int, min_rounds: int, expected: list[int]
) -> None:
    assert rung_rounds(num_rounds, factor, min_rounds) == expected


def test_survivors_go_on_from_where_they_stopped() -> None:
    """14 for 2 rounds, 4 of them for 6 more, 1 for 22 more: 28 + 24 + 22."""
    assert total_rounds_of([Rung(2, 14), Rung(8, 4), Rung(30, 1)]) == 74


def test_the_default_race_sees_every_strategy_for_two_and_a_half_trainings() -> None:
    """⌊15/4⌋ = 3 go on, and 1: 30 + 18 + 22 = 70 rounds; 16 would be 32 + 24 + 22 = 78, more than 75."""
    (rungs,) = race(RacingConfig(), 30)
    assert rungs == [Rung(2, 15), Rung(8, 3), Rung(30, 1)]
    assert total_rounds_of(rungs) <= 75


@given(
    num_rounds=st.integers(1, 200),
    trainings=st.floats(1, 40),
    factor=st.integers(2, 10),
    min_rounds=st.integers(1, 20),
    brackets=st.integers(1, 4),
)
def test_races_keep_to_their_budget_and_use_it(
    num_rounds: int, trainings: float, factor: int, min_rounds: int, brackets: int
) -> None:
    config = RacingConfig(trainings=trainings, reduction_factor=factor, min_rounds=min_rounds, brackets=brackets)
    races = race(config, num_rounds)
    assert 1 <= len(races) <= brackets
    share = trainings * num_rounds / len(races)
    for rungs in races:
        ends, sizes = [rung.num_rounds for rung in rungs], [rung.size for rung in rungs]
        assert ends == sorted({*ends})
        assert ends[-1] == num_rounds
        assert all(end >= min(min_rounds, num_rounds) for end in ends)
        assert all(smaller == max(1, larger // factor) for larger, smaller in pairwise(sizes))
        assert total_rounds_of(rungs) <= share
        one_more = [sizes[0] + 1]
        for _ in ends[1:]:
            one_more.append(max(1, one_more[-1] // factor))
        assert total_rounds_of([Rung(end, size) for end, size in zip(ends, one_more, strict=True)]) > share
    starts = [rungs[0].num_rounds for rungs in races]
    assert starts == sorted({*starts})


def test_what_a_display_expects() -> None:
    """15 + 3 + 1 trials of 15·2 + 3·8 + 30 = 84 rounds, where as many full ones had 570."""
    assert most_trials(SearchConfig(kind="racing"), 30) == (19, 486)
    assert most_trials(SearchConfig(budget=5), 30) == (5, 0)
