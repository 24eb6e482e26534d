"""One mean, whatever the order and the grouping; as exact as its docstring says."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from math import isqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedscout.engine.arrays import FloatArray
from fedscout.engine.messages.calls import TrainResults
from fedscout.engine.messages.exact_mean import (
    FROM_BYTES,
    FROM_NODES,
    Answer,
    ExactScale,
    exponents,
    fraction_bits,
    group_size,
    with_one_sum,
)

LIMIT = float(np.nextafter(np.float32(2**16), np.float32(0)))
WEIGHTS = st.integers(1, 5000)


def scale_for(most: int) -> ExactScale:
    """The scale of a model of small parameters: e = 0 for all of them."""
    return ExactScale.of(np.zeros(1, np.float32), most)


@st.composite
def weighted_vectors(draw: st.DrawFn) -> tuple[list[FloatArray], list[int], int]:
    """Vectors inside the range of the sum, their weights, and a largest total weight that they respect."""
    count = draw(st.integers(1, 6))
    values = st.floats(-LIMIT, LIMIT, width=32)
    vectors = draw(st.lists(arrays(np.float32, 3, elements=values), min_size=count, max_size=count))
    weights = draw(st.lists(WEIGHTS, min_size=count, max_size=count))
    return vectors, weights, sum(weights) + draw(st.integers(0, 10**6))


@given(weighted_vectors(), st.randoms(use_true_random=False))
def test_order_and_grouping_do_not_change_a_bit(case: tuple[list[FloatArray], list[int], int], random: object) -> None:
    vectors, weights, most = case
    scale = scale_for(most)
    terms = [scale.total(vector[None], [weight]) for vector, weight in zip(vectors, weights, strict=True)]
    reference = scale.mean(np.sum(terms, axis=0), sum(weights))

    random.shuffle(terms)
    cut = random.randint(0, len(terms))
    zero = np.zeros(3, np.int64)
    hosts = sum(terms[:cut], zero) + sum(terms[cut:], zero)

    assert scale.mean(hosts, sum(weights)).tobytes() == reference.tobytes()


@given(weighted_vectors())
def test_the_mean_is_as_near_as_stated(case: tuple[list[FloatArray], list[int], int]) -> None:
    """Rounding each product: 2^-(b+1) a client over the weight; then half a float32 step."""
    vectors, weights, most = case
    scale = scale_for(most)
    total = sum(scale.total(v[None], [w]) for v, w in zip(vectors, weights, strict=True))

    result = scale.mean(np.asarray(total), sum(weights))

    assert result.dtype == np.float32
    for column, value in enumerate(result):
        pairs = zip(vectors, weights, strict=True)
        exact = sum((w * Fraction(float(v[column])) for v, w in pairs), Fraction(0)) / sum(weights)
        products = Fraction(len(vectors), sum(weights)) / 2 ** (fraction_bits(most) + 1)
        rounding = Fraction(float(np.spacing(np.abs(value)))) / 2 * (1 + Fraction(1, 2**20))
        assert abs(Fraction(float(value)) - exact) <= products + rounding


@given(weighted_vectors(), st.booleans(), arrays(np.float32, 3, elements=st.floats(-8, 8, width=32)))
def test_the_sum_of_rows_is_the_sum_of_each(
    case: tuple[list[FloatArray], list[int], int], small: bool, received: FloatArray
) -> None:
    """Python's integers hold any sum; small values take the way over float64, large ones that over int64."""
    vectors, weights, most = case
    scale = ExactScale.of(received, most)
    matrix = np.stack(vectors) * np.float32(2.0**-15 if small else 1)
    terms = [scale.total(row[None], [weight]).tolist() for row, weight in zip(matrix, weights, strict=True)]

    assert scale.total(matrix, weights).tolist() == [sum(column) for column in zip(*terms, strict=True)]


@pytest.mark.parametrize("received", [0.5, 3.0], ids=["one range", "a range each"])
def test_each_row_is_inside_or_not_by_itself(received: float) -> None:
    scale = ExactScale.of(np.array([0.25, received], np.float32), 1)
    inside = [[0, 6e4], [-6e4, 0], [-0.0, 1e-45], [LIMIT, -LIMIT]]
    outside = [[1e6, 0], [0, -1e6], [np.nan, 0], [0, -np.inf], [2.0**16, 0], [-(2.0**16), 0]]
    assert scale.holds(np.array(inside, np.float32)).all()
    assert not scale.holds(np.array(outside, np.float32)).any()
    without_limit = ExactScale.of(np.array([1e35], np.float32), 1)
    assert without_limit.holds(np.array([[3e38], [np.inf]], np.float32)).tolist() == [True, False]


def test_the_range_of_one_begins_at_one() -> None:
    """|x| < 2^e: e is 0 up to the number before 1, and 1 from there."""
    before, one = (ExactScale.of(np.array([x], np.float32), 1) for x in (np.nextafter(np.float32(1), np.float32(0)), 1))
    grown = np.array([[1e5]], np.float32)
    assert (before.holds(grown)[0], one.holds(grown)[0]) == (False, True)
    assert one.per_raised.tolist() == [before.per_unit / 2]


def test_sums_that_float64_can_not_hold_are_exact() -> None:
    """(2^24 − 1)(2^29 − 1) + (2^24 − 1)(2^29 − 2) is odd and nearly 2^54."""
    scale = scale_for(2**30)
    value = np.float32((2**24 - 1) / 2**15)
    assert scale.per_unit == 2**15
    total = scale.total(np.full((2, 1), value), [2**29 - 1, 2**29 - 2])
    assert total.tolist() == [(2**24 - 1) * (2**30 - 3)]


@pytest.mark.parametrize("elements", [1, 2, 7, 12])
def test_sums_in_parts_are_the_sum(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fits into the cache, and with a unit for each element."""
    generator = np.random.default_rng(0)
    vectors, received = generator.normal(size=(3, 5)).astype(np.float32), np.array([0.1, 5, 0.2, 300, 7], np.float32)
    for scale in (ExactScale.of(received, 60), scale_for(60)):
        whole = scale.total(vectors, [10, 20, 30])
        with monkeypatch.context() as patch:
            patch.setattr("fedscout.engine.messages.exact_mean.CHUNK_ELEMENTS", elements)
            assert scale.total(vectors, [10, 20, 30]).tolist() == whole.tolist()


def test_the_bits_follow_the_largest_total_weight() -> None:
    """b = 46 − bits: 2^16 · (2^bits − 1) · 2^b < 2^62."""
    for most in (1, 7, 8, 10**6):
        b = fraction_bits(most)
        assert 2**16 * most * 2**b < 2**62
        assert 2**16 * (2 * most + 1) * 2**b >= 2**62


def test_the_range_grows_with_the_received_model() -> None:
    """An element that was large before may be 2^16 times as large; one that was small is still summed finely."""
    received = np.array([0.0, 1.0, -1.5, 3e5, 1e-20], np.float32)
    assert exponents(received).tolist() == [0, 1, 1, 19, 0]  # |x| < 2^e; 3e5 is between 2^18 and 2^19
    scale = ExactScale.of(received, 1)
    grown = np.array([6e4, 1e5, -1e5, 3e10, 6e4], np.float32)
    assert scale.holds(grown[None])[0]
    assert not scale_for(1).holds(grown[None])[0]
    for element in range(5):
        beyond = grown.copy()
        beyond[element] = 2.0 ** (16 + exponents(received)[element])
        assert not scale.holds(beyond[None])[0]


@given(weighted_vectors(), arrays(np.float32, 3, elements=st.floats(-(2.0**60), 2.0**60, width=32)))
def test_sums_do_not_overflow_in_any_range(case: tuple[list[FloatArray], list[int], int], received: FloatArray) -> None:
    vectors, weights, most = case
    scale = ExactScale.of(received, most)
    bits = fraction_bits(most) - exponents(received)
    large = [(vector * np.exp2(exponents(received))).astype(np.float32) for vector in vectors]
    assert all(scale.holds(vector[None])[0] for vector in large)
    terms = [scale.total(vector[None], [weight]) for vector, weight in zip(large, weights, strict=True)]
    exact = [sum(int(term[i]) for term in terms) for i in range(3)]
    assert np.sum(terms, axis=0).tolist() == exact
    result = scale.mean(np.sum(terms, axis=0), sum(weights))
    for i in range(3):
        true = Fraction(exact[i]) / sum(weights) / Fraction(2) ** int(bits[i])
        assert abs(Fraction(float(result[i])) - true) <= Fraction(float(np.spacing(np.abs(result[i]))))


# -- In whatever groups exact sums are added, the total has the same bits, and nothing else of an answer changes -------


NUM_PARAMS = 5


def answers(num_hosts: int) -> list[TrainResults]:
    """Sums of any size in 64 bits; the host 2 only scored."""
    generator = np.random.default_rng(0)

    def total() -> np.ndarray:
        return generator.integers(-(2**62) // num_hosts, 2**62 // num_hosts, NUM_PARAMS)

    return [
        TrainResults(clients=[host], total=total(), auxiliary_totals={"drift": total()})
        if host != 2
        else TrainResults()
        for host in range(num_hosts)
    ]


def in_groups(given: list[TrainResults], size: int) -> list[TrainResults]:
    added: list[Answer] = []
    for start in range(0, len(given), size):
        added += with_one_sum(deepcopy(given[start : start + size]))
    return added


@pytest.mark.parametrize("size", [1, 2, 3, 4, 10])
def test_the_total_of_any_groups_is_that_of_all(size: int) -> None:
    given = answers(10)
    added = in_groups(given, size)

    kept = [one for one in added if one.total is not None]
    assert len(kept) == -(-10 // size) - (size == 1)
    assert np.array_equal(sum(one.total for one in kept), sum(one.total for one in given if one.total is not None))
    drifts = [sum(one.auxiliary_totals["drift"] for one in some) for some in (kept, [*given[:2], *given[3:]])]
    assert np.array_equal(*drifts)
    assert [one.clients for one in added] == [one.clients for one in given]
    assert all(one.in_another_sum != (one.total is not None) for one in added if one.clients)


def test_parts_of_one_answer_are_added_as_well_and_stay_its_parts() -> None:
    given = answers(5)
    first, second = with_one_sum(deepcopy([given[:3], given[3]]))

    assert isinstance(first, list)
    assert [part.clients for part in first] == [[0], [1], []]
    assert np.array_equal(first[0].total, given[0].total + given[1].total + given[3].total)
    assert second.in_another_sum


def test_sums_that_were_read_from_shared_memory_are_not_written_to() -> None:
    given = answers(3)
    given[0].total.flags.writeable = False
    with_one_sum(given)


def test_hosts_on_many_nodes_with_large_models_add_in_groups() -> None:
    assert group_size(100, 100, FROM_BYTES) == 10
    assert group_size(4 * FROM_NODES, FROM_NODES, FROM_BYTES) == isqrt(4 * FROM_NODES)
    assert group_size(100, FROM_NODES - 1, FROM_BYTES) == 1
    assert group_size(100, 100, FROM_BYTES - 1) == 1
