"""Named tensors and the flat vector are two spellings of the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.models.layout import ParameterLayout, TensorSlot

SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=6)
LAYOUT = ParameterLayout(
    parameters=(TensorSlot("w", (2, 3)), TensorSlot("b", (2,))), buffers=(TensorSlot("mean", (2,)), TensorSlot("n", ()))
)


@given(SHAPES, st.data())
def test_join_undoes_split(shapes: list[tuple[int, ...]], data: st.DataObject) -> None:
    slots = [TensorSlot(f"t{i}", shape) for i, shape in enumerate(shapes)]
    cut = data.draw(st.integers(0, len(slots)))
    layout = ParameterLayout(tuple(slots[:cut]), tuple(slots[cut:]))
    vector = np.arange(layout.size, dtype=np.float32)

    arrays = layout.split(vector)

    assert {name: array.shape for name, array in arrays.items()} == {slot.name: slot.shape for slot in slots}
    assert np.array_equal(layout.join(arrays), vector)
    assert np.array_equal(layout.join(dict(reversed(arrays.items()))), vector)


def test_sizes() -> None:
    """6 + 2 trainable numbers, then 2 + 1 of buffers."""
    assert (LAYOUT.num_trainable, LAYOUT.size) == (8, 11)
    assert [slot.name for slot in LAYOUT.slots] == ["w", "b", "mean", "n"]


def test_split_gives_views() -> None:
    vector = np.zeros(11, np.float32)

    LAYOUT.split(vector)["b"][1] = 5

    assert vector.tolist() == [0] * 7 + [5] + [0] * 3


def test_join_casts_to_float32() -> None:
    """1 + 2^-30 is no float32; the nearest is 1."""
    arrays = {name: array + 2.0**-30 for name, array in LAYOUT.split(np.ones(11)).items()}

    joined = LAYOUT.join(arrays)

    assert joined.dtype == np.float32
    assert joined.tolist() == [1.0] * 11


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"w": None}, r"\['b', 'mean', 'n'\]$"),
        ({"extra": np.zeros(1)}, r"'extra'\]$"),
        ({"w": np.zeros((3, 2))}, r"'w' .*\(2, 3\).*\(3, 2\)$"),
        ({"n": np.zeros(1)}, r"'n' .*\(1,\)$"),
    ],
)
def test_join_says_what_is_wrong(change: dict[str, np.ndarray | None], named: str) -> None:
    arrays = {**LAYOUT.split(np.zeros(11, np.float32)), **change}

    with pytest.raises(ValueError, match=named):
        LAYOUT.join({name: array for name, array in arrays.items() if array is not None})
