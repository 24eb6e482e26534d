"""Statistics in blocks are those that NumPy and Flower take along the first axis, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.serverapp.strategy.bulyan import aggregate_n_closest_weights
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscout.strategies.aggregation import robust
from fedscout.strategies.aggregation.robust import mean_around_median, median, trimmed_mean

FloatArray = npt.NDArray[np.floating]


def _some(values: FloatArray, generator: np.random.Generator, *special: float) -> FloatArray:
    """Put each special value into a tenth of the places."""
    for value in special:
        values[generator.random(values.shape) < 0.1] = value
    return values


POPULATIONS: dict[str, Callable[[FloatArray, np.random.Generator], FloatArray]] = {
    "normal": lambda values, _: values,
    "ties": lambda values, _: np.round(values),
    "zeros of both signs": lambda values, generator: _some(np.round(values), generator, 0.0, -0.0),
    "all alike": lambda values, _: np.repeat(values[:1], len(values), axis=0),
    "infinite": lambda values, generator: _some(values, generator, np.inf, -np.inf),
    "NaN of both signs": lambda values, generator: _some(values, generator, np.nan, -np.nan),
    "one client is NaN": lambda values, _: np.concatenate([np.full_like(values[:1], np.nan), values[1:]]),
    "of all sizes": lambda values, _: (np.sign(values) * np.exp(30 * np.abs(values))).astype(values.dtype),
}

each_population = pytest.mark.parametrize("population", POPULATIONS)

SHAPES = [(), (0,), (1,), (1, 1), (3,), (2, 5), (64,), (65,), (129,)]


def models(population: str, seed: int, num_clients: int, shape: tuple[int, ...], dtype: Any = np.float32) -> FloatArray:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(num_clients, *shape)).astype(dtype)
    return POPULATIONS[population](values, generator)


def flowers_median(values: FloatArray) -> FloatArray:
    return np.asarray(np.median(values, axis=0))


def flowers_trimmed_mean(values: FloatArray, num_trimmed: int) -> FloatArray:
    beta = (num_trimmed + 0.5) / len(values) if num_trimmed else 0.0
    assert int(beta * len(values)) == num_trimmed
    return np.asarray(trim_mean(values, min(beta, np.nextafter(0.5, 0))))


def flowers_mean_around_median(values: FloatArray, num_kept: int) -> FloatArray:
    return np.asarray(aggregate_n_closest_weights([flowers_median(values)], [[row] for row in values], num_kept)[0])


def assert_same(ours: FloatArray, flowers: FloatArray) -> None:
    assert ours.dtype == flowers.dtype
    assert ours.shape == flowers.shape
    np.testing.assert_array_equal(ours, flowers)  # exact; equal zeros may differ in sign


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small models have several, and several slabs, the last of one coordinate among them."""
    monkeypatch.setattr(robust, "BLOCK", 64)
    monkeypatch.setattr(robust, "SLAB", 128)


@pytest.fixture(autouse=True)
def _no_warnings_of_numpys() -> Any:
    with np.errstate(all="ignore"):
        yield


@pytest.mark.sampled(4)
@each_population
@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120), st.sampled_from(SHAPES))
def test_median(population: str, seed: int, num_clients: int, shape: tuple[int, ...]) -> None:
    values = models(population, seed, num_clients, shape)
    assert_same(median(values.copy()), flowers_median(values))


@pytest.mark.sampled(4)
@pytest.mark.slow
@each_population
@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120), st.sampled_from(SHAPES), st.floats(0, 1))
def test_trimmed_mean(population: str, seed: int, num_clients: int, shape: tuple[int, ...], share: float) -> None:
    values = models(population, seed, num_clients, shape)
    num_trimmed = round(share * ((num_clients - 1) // 2))
    assert_same(trimmed_mean(values.copy(), num_trimmed), flowers_trimmed_mean(values, num_trimmed))


@pytest.mark.sampled(4)
@each_population
@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120), st.sampled_from(SHAPES), st.floats(0, 1))
def test_mean_around_median(population: str, seed: int, num_clients: int, shape: tuple[int, ...], share: float) -> None:
    values = models(population, seed, num_clients, shape)
    num_kept = 1 + round(share * (num_clients - 1))
    assert_same(mean_around_median(values.copy(), num_kept), flowers_mean_around_median(values, num_kept))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32])
def test_other_types(dtype: Any) -> None:
    values = (10 * models("normal", 0, 9, (130,), np.float64)).astype(dtype)
    assert_same(median(values), flowers_median(values))
    assert_same(trimmed_mean(values, 2), flowers_trimmed_mean(values, 2))
    assert_same(mean_around_median(values, 4), flowers_mean_around_median(values, 4))


@pytest.mark.parametrize(("block", "slab"), [(1000, 1000), (1000, 2000), (1000, 10**6), (10**6, 10**6)])
def test_neither_blocks_and_slabs_nor_the_number_of_threads_change_anything(
    block: int, slab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def statistics() -> list[bytes]:
        found = median(values), trimmed_mean(values, 7), mean_around_median(values, 30)
        return [each.tobytes() for each in found]

    values = models("normal", 0, 50, (3001,))
    before = statistics()
    monkeypatch.setattr(robust, "BLOCK", block)
    monkeypatch.setattr(robust, "SLAB", slab)
    for num_threads in (1, 3):
        monkeypatch.setattr(robust, "NUM_THREADS", num_threads)
        assert statistics() == before


def test_a_fault_in_a_thread_is_not_lost() -> None:
    def fail(block: FloatArray) -> FloatArray:
        raise ZeroDivisionError(str(block.shape))

    with pytest.raises(ZeroDivisionError):
        robust._in_blocks(models("normal", 0, 3, (200,)), fail)
