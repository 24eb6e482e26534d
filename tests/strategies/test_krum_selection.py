"""Krum's choice is Flower's, near ties and equal models included."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.multikrum import compute_distances
from flwr.serverapp.strategy.multikrum import select_multikrum as flowers_selection
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscout.engine.messages.contents import view_record
from fedscout.strategies.aggregation.robust import select_multikrum, squared_distances


def models(kind: str, seed: int, num_clients: int, num_parameters: int) -> npt.NDArray[np.float32]:
    """Return the clients' models; `near` ones differ by less than their squared norms are rounded."""
    values = np.random.default_rng(seed).normal(size=(num_clients, num_parameters)).astype(np.float32)
    if kind == "near":
        return (100 + 1e-3 * values).astype(np.float32)
    if kind == "alike":
        return np.repeat(values[: (num_clients + 1) // 2], 2, axis=0)[:num_clients]
    if kind == "a NaN":
        values[num_clients // 2, 0] = np.nan
    if kind == "infinite":
        values[num_clients // 2] = np.inf
    return values


def contents(matrix: npt.NDArray[Any], ours: bool) -> list[RecordDict]:
    """Return one content a row, in two arrays where there are parameters for two."""
    made = []
    for client, row in enumerate(matrix):
        arrays = {"w": row[: len(row) // 2].reshape(-1, 1), "b": row[len(row) // 2 :]} if len(row) > 3 else {"w": row}
        record = view_record(arrays) if ours else ArrayRecord({name: Array(array) for name, array in arrays.items()})
        made.append(RecordDict({"arrays": record, "metrics": MetricRecord({"client": client})}))
    return made


def chosen(selected: list[RecordDict]) -> list[Any]:
    return [content["metrics"]["client"] for content in selected]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "near", "alike", "a NaN", "infinite"])
@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 70), st.sampled_from([1, 2, 7, 300]), st.floats(0, 1), st.floats(0, 1))
def test_the_same_replies_in_the_same_order(
    kind: str, seed: int, num_clients: int, num_parameters: int, malicious: float, selected: float
) -> None:
    matrix = models(kind, seed, num_clients, num_parameters)
    num_malicious, num_selected = int(malicious * num_clients), 1 + int(selected * num_clients)
    with np.errstate(all="ignore"):
        ours = select_multikrum(contents(matrix, ours=True), num_malicious, num_selected)
        flowers = flowers_selection(contents(matrix, ours=False), num_malicious, num_selected)
    assert chosen(ours) == chosen(flowers)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (30, 1000), (100, 18_530)])
@pytest.mark.parametrize("kind", ["normal", "near"])
def test_distances_are_flowers_bit_for_bit(kind: str, shape: tuple[int, int]) -> None:
    matrix = models(kind, 0, *shape)
    flowers = compute_distances([ArrayRecord({"w": Array(row)}) for row in matrix])
    ours = squared_distances(matrix)
    assert ours.dtype == flowers.dtype == np.float32
    assert ours.tobytes() == flowers.tobytes()


def test_the_formula_is_float32s_and_not_the_exact_one() -> None:
    """Models near each other and far from 0: ‖x‖² = 3·10⁸ has a float32 spacing of 32, so 2 is lost in it."""
    matrix = np.array([[1e4, 1e4, 1e4], [1e4, 1e4, 1e4 + 1], [1e4, 1e4 + 1, 1e4 + 1]], np.float32)
    exact = ((matrix[:, None].astype(np.float64) - matrix[None]) ** 2).sum(axis=2)
    assert exact[0, 2] == 2
    assert squared_distances(matrix)[0, 2] % 32 == 0
