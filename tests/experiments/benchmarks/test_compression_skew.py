"""What feature skew says of compressed pictures: the measurement's settings, its table, and one small run of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.benchmarks.detection.compression_skew import (
    CompressionRow,
    CompressionSkew,
    compression_config,
    measure_compression,
    table_lines,
)


def row(quality: int | None, seed: int, shift: float | None, found: bool) -> CompressionRow:
    return CompressionRow(
        quality=quality,
        seed=seed,
        distance=0.5,
        shift=shift,
        largest_other=0.125,
        p_value=0.01 * (seed + 1),
        found=(False, found),
        blamed=found,
    )


def test_what_is_given_wins_over_the_defaults() -> None:
    federation = compression_config(["federation.num_clients=4"], None).federation
    assert (federation.dataset, federation.num_clients, federation.partition.kind) == ("fashion_mnist", 4, "iid")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("federation.scenario=noisy_labels", "federation.scenario must be left out"),
        ("federation.num_clients=2", "federation.num_clients must be above 2, .* got 2"),
    ],
)
def test_what_the_measurement_sets_itself(given: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        compression_config([given], None)


def test_a_line_is_of_all_seeds_of_a_quality() -> None:
    rows = (row(None, 0, 0.0, False), row(10, 0, 0.25, False), row(10, 1, 0.75, True), row(1, 0, None, False))
    lines = table_lines(CompressionSkew(dataset="x", num_clients=5, embedding="features", rows=rows))
    assert lines[0] == "x, 5 clients, client 2 compressed; compared: pixels"
    assert lines[-3:] == [
        "| as it is | 0.500 | 0/1 | 0.000 | 0.125 | 0.01 | 0/1 | 0/1 |",
        "| 10 | 0.500 | 0/2 | 0.500 | 0.125 | 0.015 | 1/2 | 1/2 |",
        "| 1 | 0.500 | 0/1 | not measured | 0.125 | 0.01 | 0/1 | 0/1 |",
    ]


@pytest.mark.data
@pytest.mark.slow
def test_the_compressed_client_is_what_moves(data_folder: Path) -> None:
    given = [f"federation.folder={data_folder}", "federation.max_rows=600", "federation.num_clients=4"]
    config = compression_config([*given, "federation.embedding=features"], None)
    plain, compressed = measure_compression(config, [1], num_seeds=1).rows
    assert (plain.quality, compressed.quality) == (None, 1)
    assert plain.shift is not None
    assert compressed.shift is not None
    assert compressed.shift > 2 * max(plain.shift, plain.largest_other or 0)
