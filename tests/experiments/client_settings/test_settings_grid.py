"""The grid: which indices there are, who begins with whom, and what a refined one adds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.experiments.client_settings.proxies import (
    HETEROGENEITIES,
    QUANTITIES,
    CellPosition,
    classes_of,
    grid_of,
    index_of,
    refined_classes,
    refined_quantities,
    scaled,
    warm_started_by,
)


def test_ten_classes_give_the_published_rows() -> None:
    assert [classes_of(value, 10) for value in HETEROGENEITIES] == [8, 6, 5, 3]


def test_two_classes_know_two_indices() -> None:
    held = {classes_of(value, 2) for value in HETEROGENEITIES}
    assert held == {1, 2}
    assert [index_of(count, 2) for count in (2, 1)] == [0, 1]
    assert len(grid_of([classes_of(value, 2) for value in HETEROGENEITIES], QUANTITIES)) == 2 * len(QUANTITIES)


@given(st.integers(2, 200), st.floats(0, 1))
def test_the_index_that_there_is_is_the_nearest(num_classes: int, wanted: float) -> None:
    distances = [abs(index_of(held, num_classes) - wanted) for held in range(1, num_classes + 1)]
    held = classes_of(wanted, num_classes)
    assert distances[held - 1] == pytest.approx(min(distances), abs=1e-12)
    assert classes_of(index_of(held, num_classes), num_classes) == held


def test_quantities_keep_their_proportions() -> None:
    assert scaled(QUANTITIES, 1000) == scaled(QUANTITIES, 5000) == QUANTITIES
    assert scaled(QUANTITIES, 120) == (12, 24, 48, 72, 96, 120)


def test_a_cell_begins_with_neighbours_before_it_and_never_in_a_circle() -> None:
    grid = grid_of([8, 6, 5, 3], QUANTITIES)
    first = warm_started_by(grid)
    assert first[CellPosition(8, 100)] == ()
    assert set(first[CellPosition(6, 200)]) == {CellPosition(8, 200), CellPosition(6, 100)}
    position = {place: number for number, place in enumerate(grid)}
    assert all(position[near] < position[place] for place in grid for near in first[place])


def test_what_is_known_comes_before_all_that_is_new() -> None:
    known = grid_of([8, 3], [100, 300])
    new = [place for place in grid_of([8, 5, 3], [100, 200, 300]) if place not in known]
    first = warm_started_by(new, known)
    assert set(first[CellPosition(8, 200)]) == {CellPosition(8, 100), CellPosition(8, 300)}
    assert set(first[CellPosition(5, 200)]) == {CellPosition(8, 200), CellPosition(5, 100)}


def test_a_refined_grid_has_what_lies_between_and_beyond() -> None:
    assert refined_quantities([100, 200, 400]) == (50, 100, 150, 200, 300, 400, 500)
    assert refined_quantities([100]) == (50, 100, 150)
    assert refined_classes([9, 5, 1], 9) == (1, 3, 5, 7, 9)
    assert refined_classes([7, 5], 9) == (4, 5, 6, 7, 8)
    assert refined_classes([8, 2], 9) == (1, 2, 5, 8, 9)  # no index is below 0 or above 1
    assert refined_classes([2, 1], 2) == (1, 2)


@given(st.sets(st.integers(1, 2000), min_size=1, max_size=8))
def test_refining_keeps_all_and_goes_beyond_both_ends(quantities: set[int]) -> None:
    found = refined_quantities(quantities)
    assert set(found) >= quantities
    assert found[-1] > max(quantities)
    assert 1 <= found[0] <= min(quantities)
