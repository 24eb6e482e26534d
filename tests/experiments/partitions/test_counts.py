"""A given matrix of counts: dealt to the row, or refused with what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedscout.engine.errors import ConfigurationError, DataError, UserError
from tests.experiments.partitions.requests import class_counts, deal

LABELS = np.repeat(np.arange(3), [30, 20, 10])


@given(arrays(np.int64, st.tuples(st.integers(1, 5), st.just(3)), elements=st.integers(0, 2)))
def test_counts_are_as_given(counts: np.ndarray) -> None:
    counts[:, 0] += 1  # nobody is empty
    given_counts = tuple(tuple(int(cell) for cell in row) for row in counts)
    partition = deal("counts", LABELS, None, counts=given_counts).partition
    np.testing.assert_array_equal(class_counts(LABELS, partition), counts)
    assert len(np.unique(partition.rows)) == counts.sum()


def test_a_file_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "counts.csv"
    file.write_text("\ufeff10, 0,5\n0,20,5\n\n")
    from_file = deal("counts", LABELS, 2, counts=file).partition
    given_counts = deal("counts", LABELS, None, counts=((10, 0, 5), (0, 20, 5))).partition
    np.testing.assert_array_equal(from_file.rows, given_counts.rows)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"a,b,c\n1,2,3\n", "line 1 must hold 3 whole numbers >= 0, without a header, got 'a,b,c'"),
        (b"1,2,3\n1,2\n", "line 2 must hold 3 whole numbers >= 0, without a header, got '1,2'"),
        (b"1,2,3\n1,-2,3\n", "line 2 must hold 3 whole numbers"),
        (b"1,2.5,3\n", "line 1 must hold 3 whole numbers"),
        (b"1;2;3\n", "line 1 must hold 1 whole numbers"),
        (b"", "must hold a line of class counts a client, got none"),
        (b"\xff\xfe1", "must be a CSV file that can be read"),
        (None, "must be a CSV file that can be read"),
    ],
)
def test_a_file_that_is_no_matrix(tmp_path: Path, content: bytes | None, fault: str) -> None:
    file = tmp_path / "counts.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        deal("counts", LABELS, None, counts=file)
    assert fault in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("counts", "num_clients", "fault"),
    [
        (None, None, "must hold a row of class counts a client, or the path of a CSV file"),
        (((1, 1),), None, "must have 3 columns, one a class, got 2"),
        (((31, 0, 0),), None, "must not ask for more rows of class 0 than there are, 30, got 31"),
        (((5, 5, 6), (5, 5, 6)), None, "must not ask for more rows of class 2 than there are, 10, got 12"),
        (((1, 1, 1), (0, 0, 0)), None, "must give every client a row, got none for client 1"),
        (((1, 1, 1),), 10, "must be left out or be 1, the number of rows"),
    ],
)
def test_counts_that_do_not_fit(
    counts: tuple[tuple[int, ...], ...] | None, num_clients: int | None, fault: str
) -> None:
    with pytest.raises(UserError) as caught:
        deal("counts", LABELS, num_clients, counts=counts)
    assert isinstance(caught.value, ConfigurationError if counts is None else DataError)
    assert fault in str(caught.value)
