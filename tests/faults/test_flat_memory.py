"""Study after study in one process: nothing of a finished study stays behind.

Ten studies here; `python -m tests.faults.many_studies --studies 100` shows a hundred.
"""

from __future__ import annotations

import json

import pytest

from tests.commands import output_of

pytestmark = [pytest.mark.stress, pytest.mark.timeout(290)]

NUM_STUDIES, WARM = 10, 3
BYTES_PER_STUDY = 2**20
"""Allocators settle over the first dozens of studies, by less than this, and then stop; what is exact is the number of
objects. A host's process left behind would be 200 times as much, and shows among the processes, too."""


def held_after_each(grid: str) -> list[dict[str, int]]:
    """Return what a process holds after each of its studies; with all that it started, it ends with the test."""
    lines = output_of("tests.faults.many_studies", "--studies", str(NUM_STUDIES), "--grid", grid, timeout=270)
    held = [json.loads(line) for line in lines]
    assert [entry["study"] for entry in held] == list(range(NUM_STUDIES))
    return held


def assert_the_process_is_flat(held: list[dict[str, int]]) -> None:
    warm, last = held[WARM], held[-1]
    studies = last["study"] - warm["study"]
    assert last["objects"] - warm["objects"] < studies, "each study leaves Python objects behind"
    assert last["files"] <= warm["files"] + 2
    assert last["import_path"] == warm["import_path"]
    assert last["resident_bytes"] - warm["resident_bytes"] < studies * BYTES_PER_STUDY


def test_in_one_process_nothing_stays() -> None:
    assert_the_process_is_flat(held_after_each("local"))


@pytest.mark.ray
def test_on_one_ray_nothing_stays() -> None:
    """Ray keeps a spare worker or two; actors, references and exported code are counted exactly."""
    held = held_after_each("ray")

    assert_the_process_is_flat(held)
    assert {(entry["actors"], entry["busy"], entry["references"], entry["store_bytes"]) for entry in held} == {
        (0, 0, 0, 0)
    }
    assert {entry["exported"] for entry in held[1:]} == {held[0]["exported"]}
    assert max(entry["processes"] for entry in held) <= held[0]["processes"] + 2
