"""Streams depend on their coordinates and on nothing else."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from fedscout.engine.seeds import integer, stream

COORDINATES = [
    (seed, purpose, *indices)
    for seed in (0, 1, 2**40)
    for purpose in ("batches", "split", "")
    for indices in ((), (0,), (1,), (0, 0), (0, 1), (1, 0), (3, 7))
]


def test_streams_differ_by_their_coordinates_and_by_nothing_else() -> None:
    drawn = {coordinates: tuple(stream(*coordinates).random(2)) for coordinates in COORDINATES}
    again = {coordinates: tuple(stream(*coordinates).random(2)) for coordinates in reversed(COORDINATES)}

    assert drawn == again
    assert len(set(drawn.values())) == len({integer(*coordinates) for coordinates in COORDINATES}) == len(COORDINATES)


def test_integers_fit_libraries_that_take_signed_seeds() -> None:
    values = [integer(7, "range", index) for index in range(200)]

    assert min(values) >= 0
    assert max(values) < 2**63
    # the top bit in use is set in half of them; all 200 below 2**62 has probability 2**-200
    assert max(values) >= 2**62
    assert isinstance(values[0], int)


@pytest.mark.slow
def test_no_two_purposes_of_the_program_share_a_key() -> None:
    root = Path(__file__).resolve().parent.parent.parent
    purposes = {
        purpose
        for package in ("engine", "detectors", "strategies", "search", "experiments")
        for file in (root / package).rglob("*.py")
        for purpose in re.findall(
            r"\b(?:stream|integer)\([^,()]+(?:\([^()]*\)|\[[^\]]*\])?, \"([^\"]+)\"", file.read_text()
        )
    }

    assert {"batches", "split", "initial-model", "corruption"} <= purposes
    assert len({zlib.crc32(purpose.encode()) for purpose in purposes}) == len(purposes)
