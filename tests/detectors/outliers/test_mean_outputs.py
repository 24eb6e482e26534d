"""Output divergence: what a client returns, and its value where it can be derived."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from fedscout.detectors.conversation import hold
from fedscout.detectors.detect import measure_output_divergence
from fedscout.detectors.queries import mean_output
from fedscout.engine.data.client import QueryInputs
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.contents import QueryAnswers
from tests.detectors.federations import CLIENT_QUERIES, federation, samples


def test_mean_output_averages_over_rows_not_chunks() -> None:
    chunks = [np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], np.float32), np.array([[0.0, 1.0]], np.float32)]
    data = samples(np.zeros((4, 3)))
    inputs = QueryInputs(data, 2, {"model": np.zeros(1, np.float32)}, {}, lambda vector: iter(chunks))
    np.testing.assert_array_equal(mean_output(inputs)["mean"].values, [0.5, 0.5])


def test_the_mean_is_of_float64_and_the_model_is_run_in_float32() -> None:
    outputs = np.tile(np.array([0.1, 0.9], np.float32), (1000, 1))
    run: list[np.ndarray] = []

    def outputs_of(vector: np.ndarray) -> Iterator[np.ndarray]:
        run.append(vector)
        yield outputs

    inputs = QueryInputs(samples(np.zeros((1000, 1))), 2, {"model": np.arange(2.0)}, {}, outputs_of)
    mean = mean_output(inputs)["mean"].values
    np.testing.assert_allclose(mean, outputs[0].astype(np.float64), rtol=1e-14)
    assert run[0].dtype == np.float32


def test_an_answer_that_is_not_finite_is_left_out() -> None:
    """Of answers (1, 0), (0, 1) and one with a NaN: the divergence of the first two, one bit."""

    def divergence(*means: tuple[float, float]) -> float | None:
        conversation = measure_output_divergence(range(len(means)), np.zeros(1, np.float32))
        next(conversation)
        arrays = {client: {"mean": np.array(mean)} for client, mean in enumerate(means)}
        with pytest.raises(StopIteration) as stop:
            conversation.send(([QueryAnswers(arrays, dict.fromkeys(arrays, 9), {})], []))
        value: float | None = stop.value.value
        return value

    assert divergence((1, 0), (0.5, np.nan), (0, 1), (np.inf, 0)) == pytest.approx(1)
    assert divergence((1, 0), (np.nan, 1)) is None


def linear_outputs(grid: LocalGrid, num_features: int, favoured: float) -> np.ndarray:
    """A model whose first output grows with the first feature and ignores everything else."""
    named = {slot.name: np.zeros(slot.shape, np.float32) for slot in grid.facts.layout.slots}
    first, last = named["0.weight"], named["2.weight"]
    first[0, 0] = 1.0
    last[0, 0] = favoured
    return grid.facts.layout.join(named)


def test_equal_clients_have_none_and_opposite_clients_the_entropy_of_their_mixture() -> None:
    generator = np.random.default_rng(0)
    rows = generator.random((40, 3)).astype(np.float32)
    labels = np.zeros(40, np.int64)
    equal = LocalGrid(federation([(rows, labels), (rows, labels)]), CLIENT_QUERIES)
    model = linear_outputs(equal, 3, 1.0)
    assert hold(equal, measure_output_divergence((0, 1), model)) == 0.0

    # Client 0 has zeros (outputs 1/2, 1/2), client 1 large first features (outputs 1, 0). With M = (3/4, 1/4):
    # JS = H(M) - H(1/2, 1/2) / 2 = 0.811278 - 0.5 bits.
    high = np.zeros((40, 3), np.float32)
    high[:, 0] = 100.0
    opposite = LocalGrid(federation([(np.zeros_like(high), labels), (high, labels)]), CLIENT_QUERIES)
    assert hold(opposite, measure_output_divergence((0, 1), model)) == pytest.approx(0.311278, abs=1e-6)


def test_one_answer_is_no_divergence() -> None:
    rows, labels = np.ones((10, 3), np.float32), np.zeros(10, np.int64)
    grid = LocalGrid(federation([(rows, labels), (rows[:2], labels[:2])]), CLIENT_QUERIES)
    assert hold(grid, measure_output_divergence((0, 1), linear_outputs(grid, 3, 1.0))) is None
