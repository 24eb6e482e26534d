"""A given matrix of counts: dealt to the row, or refused with what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedscout.engine.errors import ConfigurationError, DataError
from tests.experiments.partitions.requests import class_counts, deal
from tests.kits.refusals import refused

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
    ("content", "place", "given"),
    [
        (b"a,b,c\n1,2,3\n", ", line 1", "'a,b,c'"),
        (b"1,2,3\n1,2\n", ", line 2", "'1,2'"),
        (b"1,2,3\n1,-2,3\n", ", line 2", "'1,-2,3'"),
        (b"1,2.5,3\n", ", line 1", "'1,2.5,3'"),
        (b"1;2;3\n", ", line 1", "'1;2;3'"),
        (b"", "", "none"),
        (b"\xff\xfe1", "", "0xff"),
        (None, "", "No such file"),
    ],
)
def test_a_file_that_is_no_matrix(tmp_path: Path, content: bytes | None, place: str, given: str) -> None:
    file = tmp_path / "counts.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        deal("counts", LABELS, None, counts=file)
    (fault,) = caught.value.faults
    assert str(fault.key).startswith("federation.partition.counts")
    assert f"{file}{place}" in fault
    assert given in str(fault.given)


@pytest.mark.parametrize(
    ("counts", "num_clients", "given", "names"),
    [
        (None, None, "nothing", ""),
        (((1, 1),), None, 2, "3 columns"),
        (((31, 0, 0),), None, 31, "class 0 than exist, 30"),
        (((5, 5, 6), (5, 5, 6)), None, 12, "class 2 than exist, 10"),
        (((1, 1, 1), (0, 0, 0)), None, "none for client 1", ""),
        (((1, 1, 1),), 10, 10, "federation.partition.counts"),
    ],
)
def test_counts_that_do_not_fit(
    counts: tuple[tuple[int, ...], ...] | None, num_clients: int | None, given: object, names: str
) -> None:
    key = "federation.partition.counts" if num_clients is None else "federation.num_clients"
    with refused(ConfigurationError if counts is None else DataError, key=key, given=given, names=names):
        deal("counts", LABELS, num_clients, counts=counts)
