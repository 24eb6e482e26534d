"""The gate: what passes it is over enough rows, and what it leaves out can't be worked out from the rest."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.data.client import (
    Answer,
    CountAggregate,
    NoisyAggregate,
    Partition,
    Privacy,
    Release,
    RowAggregate,
    WithheldError,
    release_counts,
    released_cells,
)
from fedscout.engine.data.devices import AbsentError
from fedscout.engine.data.federation import Federation
from fedscout.engine.trials.record import Trial
from tests.engine.choices import FLOWER_CHOICES, spec_of
from tests.engine.federations import SIZES, uneven_federation
from tests.engine.results import local_result

CELLS = st.lists(st.integers(0, 12), min_size=1, max_size=8)
FEWEST = st.integers(1, 9)


@given(CELLS, st.integers(0, 9))
def test_neither_what_is_told_nor_what_is_left_out_is_too_little(cells: list[int], fewest: int) -> None:
    """The sum over all rows is known, so that the cells left out must hold none or enough, together."""
    rows = np.array(cells)
    told = released_cells(rows, fewest)
    assert (rows[told] >= fewest).all()
    left_out = rows[~told].sum()
    if rows.sum() >= fewest:
        assert left_out == 0 or left_out >= fewest
    if (rows[rows > 0] >= fewest).all():
        np.testing.assert_array_equal(told, rows > 0)


@given(CELLS, FEWEST)
def test_counts_are_told_as_far_as_nothing_follows_from_them(cells: list[int], fewest: int) -> None:
    """Never more than there are; and fewer only of the cell that `released_cells` leaves out, whose rows and those of
    the small ones together are known: what is told of it is that number less `fewest`, if that is enough."""
    rows = np.array(cells)
    told, cells_told = release_counts(rows, fewest), released_cells(rows, fewest)
    np.testing.assert_array_equal(told[cells_told], rows[cells_told])
    joined = ~cells_told & (rows >= fewest)
    assert joined.sum() <= 1
    rest = rows[~cells_told].sum() - fewest
    assert told[joined].tolist() == [rest if rest >= fewest and rest > 0 else 0] * int(joined.sum())
    assert (told[~cells_told & ~joined] == 0).all()


def test_the_first_cell_that_could_be_told_joins_a_lonely_row() -> None:
    """Four of its rows hide the one; of eight rows four would be left, so all go."""
    assert released_cells(np.array([20, 1, 6, 30]), 5).tolist() == [False, False, True, True]
    assert release_counts(np.array([20, 1, 6, 30]), 5).tolist() == [16, 0, 6, 30]
    assert release_counts(np.array([8, 1, 6, 30]), 5).tolist() == [0, 0, 6, 30]


@pytest.mark.parametrize("num_cells", [2, 3, 4])
def test_who_knows_all_that_is_told_can_not_tell_a_small_cell(num_cells: int) -> None:
    """By enumeration: all clients of up to 12 rows that tell the same counts, the same sums over cells and the same
    number of rows. Among them every cell of one or two rows takes another value, too; unless all that are left out
    hold two, the most that they can."""
    fewest = 3
    alike = defaultdict(list)
    for cells in product(range(13), repeat=num_cells):
        if fewest <= sum(cells) <= 12:
            rows = np.array(cells)
            told = np.where(released_cells(rows, fewest), rows, 0)
            alike[sum(cells), tuple(told), tuple(release_counts(rows, fewest))].append(cells)
    assert len(alike) > 10
    for group in alike.values():
        if all(count == fewest - 1 or count >= fewest for count in group[0]):
            continue
        for values in zip(*group, strict=True):
            assert len(set(values)) > 1 or not 0 < values[0] < fewest


def test_cells_of_several_tables_are_told_one_table_at_a_time() -> None:
    rows = np.array([[20, 1, 6, 30], [5, 5, 5, 5]])
    np.testing.assert_array_equal(released_cells(rows, 5), [released_cells(own, 5) for own in rows])
    np.testing.assert_array_equal(release_counts(rows, 5), [release_counts(own, 5) for own in rows])


def test_sums_of_small_cells_are_zero() -> None:
    sums = np.arange(1.0, 9.0).reshape(4, 2)
    passed = Release(5).released_part({"sums": RowAggregate(sums, np.array([20, 1, 6, 30]))})["sums"]
    np.testing.assert_array_equal(passed, [[0, 0], [0, 0], [5, 6], [7, 8]])
    assert Release(1).released_part({"sums": RowAggregate(sums, np.array([20, 1, 6, 30]))})["sums"] is sums


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_numbers_over_few_rows_do_not_pass(rows: int) -> None:
    with pytest.raises(WithheldError, match=r"federation\.min_release$"):
        Release(5).released_part({"enough": RowAggregate(np.ones(2), 5), "mean": RowAggregate(np.ones(2), rows)})
    enough = {"mean": RowAggregate(np.ones(2), 5), "none": RowAggregate(np.zeros(2), 0)}
    assert Release(5).released_part(enough).keys() == enough.keys()


def test_where_privacy_is_promised_only_noise_passes_and_enough_of_it() -> None:
    promised = Privacy(1.0, 1e-6, secure=True)
    release, noisy = Release(5, privacy=promised), np.array([3])
    assert release.released_part({"counts": NoisyAggregate(noisy, promised)})["counts"] is noisy
    assert release.released_part({"counts": NoisyAggregate(noisy, Privacy(0.9, secure=True))})["counts"] is noisy
    less = (replace(promised, epsilon=1.1), replace(promised, delta=1e-5), replace(promised, secure=False))
    for part in (
        *(NoisyAggregate(noisy, privacy) for privacy in less),
        RowAggregate(noisy, 1000),
        CountAggregate(np.array([1000, 1000])),
    ):
        with pytest.raises(WithheldError, match=r"detection\.epsilon"):
            release.released_part({"counts": NoisyAggregate(noisy, promised), "other": part})


def test_what_a_query_raises_does_not_pass() -> None:
    def fails() -> Answer:
        raise IndexError("index 7 is out of bounds for axis 0 with size 2")

    def withholds() -> Answer:
        raise WithheldError("mine")

    for release in (Release(5), Release(5, privacy=Privacy(1.0))):
        with pytest.raises(WithheldError) as withheld:
            release.answer(fails)
        assert isinstance(withheld.value.__cause__, IndexError)
        assert not any(word in str(withheld.value) for word in ("7", "index", "IndexError"))
        assert ("detection.epsilon" in str(withheld.value)) == (release.privacy is not None)
        with pytest.raises(WithheldError, match="mine"):
            release.answer(withholds)


def test_what_says_nothing_of_its_rows_does_not_pass() -> None:
    with pytest.raises(TypeError, match="ndarray"):
        Release(1).released_part({"counts": np.ones(2)})  # type: ignore[dict-item]


# -- Clients with few rows that abstain: neither trained nor scored, and the trial goes on -----------------------------


ABSTAINING = Release(5, "abstain")
TRAINING = (0, 1, 3, 5)
"""With at least five training rows; the clients of 40, 17, 12 and 33 rows."""


def result_of(federation: Federation, choice: str = "fedavg") -> Trial:
    return local_result(spec_of(FLOWER_CHOICES[choice]), federation)


@pytest.mark.parametrize("choice", ["fedavg", "fedavg-individual", "fedmedian"])
def test_a_trial_goes_as_if_they_held_nothing(choice: str) -> None:
    federation = uneven_federation()
    without = [federation.partition.client(c) if c in TRAINING else [] for c in range(len(SIZES))]
    abstained = result_of(replace(federation, release=ABSTAINING), choice)
    expected = result_of(replace(federation, partition=Partition.from_lists(without)), choice)
    assert abstained.status == expected.status == "completed"
    np.testing.assert_allclose(abstained.vector, expected.vector, rtol=0, atol=1e-6)  # exact sums scale with all rows


def test_their_absence_is_counted_and_tells_no_number() -> None:
    result = result_of(replace(uneven_federation(), release=ABSTAINING))
    missing = {f"{server_round}:{client}" for server_round in (1, 2, 3) for client in {*range(7)} - {*TRAINING}}
    assert set(result.dropped_clients) == missing
    (reason,) = set(result.dropped_clients.values())
    assert reason.startswith(AbsentError.__name__)
    assert not any(character.isdigit() for character in reason)


def test_only_who_tests_on_enough_rows_is_scored() -> None:
    """A fifth of 40 and of 33 rows is enough, of 17 and 12 it is not."""
    result = result_of(replace(uneven_federation(), release=ABSTAINING))
    assert result.status == "completed"
    assert result.client_num_examples == (8, 0, 0, 0, 0, 7, 0)
    assert result_of(uneven_federation()).client_num_examples == (8, 3, 0, 2, 0, 7, 1)
