"""The picture: what is drawn, and files that are the same for the same federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest

from fedscout.detectors import DetectionConfig
from fedscout.experiments.charts import MAX_ROWS, MOST_CLASSES, MOST_DIFFERENT, NUM_DECILES, federation_map, strip_of
from fedscout.experiments.description import Description, describe_federation
from fedscout.experiments.reports.description_console import write_description
from tests.experiments.description.federations import by_counts


def described(counts: npt.ArrayLike, **others: Any) -> Description:
    return describe_federation(by_counts(counts, **others), DetectionConfig(), seed=0)


def drawn(description: Description, by_count: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tiles and the bars as Vega-Lite, each with its own data."""
    whole = federation_map(description, by_count).to_dict()
    tiles, bars = ({**part, "data": whole["datasets"][part["data"]["name"]]} for part in whole["hconcat"])
    return tiles, bars


def values_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chart["data"]
    return found


def test_a_cell_is_the_share_of_the_clients_rows() -> None:
    description = described([[30, 10], [5, 15], [0, 0]], class_names=("a", "b"), affected_clients=(1,))
    tiles, bars = drawn(description)
    shares = {(cell["client"], cell["class"]): cell["share"] for cell in values_of(tiles)}
    assert shares == {("0", "a"): 0.75, ("0", "b"): 0.25, ("1 *", "a"): 0.25, ("1 *", "b"): 0.75}
    assert tiles["encoding"]["x"]["scale"]["domain"] == ["a", "b"]
    assert tiles["encoding"]["y"]["scale"]["domain"] == ["0", "1 *", "2"]
    assert (tiles["encoding"]["opacity"]["field"], tiles["encoding"]["opacity"]["scale"]["domain"]) == ("share", [0, 1])
    assert [bar["rows"] for bar in values_of(bars)] == [40, 20, 0]
    assert [bar["affected"] for bar in values_of(bars)] == [False, True, False]


def test_a_cell_may_be_a_number_of_rows() -> None:
    tiles, _ = drawn(described([[30, 10], [5, 15]]), by_count=True)
    assert [cell["rows"] for cell in values_of(tiles)] == [30, 10, 5, 15]
    assert (tiles["encoding"]["opacity"]["field"], tiles["encoding"]["opacity"]["scale"]["domain"]) == ("rows", [0, 30])


def test_many_clients_have_the_rows_of_the_strip() -> None:
    sizes = np.arange(MAX_ROWS + 5) + 10
    counts = np.column_stack([sizes**2, np.full(len(sizes), 10)])
    counts[:2] = [[1, 0], [0, 0]]
    description = described(counts)
    strip = strip_of(description, MOST_CLASSES)
    tiles, bars = drawn(description)
    assert len(values_of(bars)) == MOST_DIFFERENT + NUM_DECILES
    assert tiles["encoding"]["y"]["scale"]["domain"] == [row.label for row in (*strip.clients, *strip.deciles)]
    measured = [client for client in description.clients if client.label_divergence is not None]
    assert len(measured) == MAX_ROWS + 3
    rows = [client.num_rows for client in sorted(measured, key=lambda client: client.label_divergence or 0.0)]
    means = [np.mean(part) for part in np.array_split(rows, NUM_DECILES)]
    assert [bar["rows"] for bar in values_of(bars)[MOST_DIFFERENT:]] == pytest.approx(means, rel=1e-4)


def test_too_many_classes_share_columns() -> None:
    tiles, _ = drawn(described(np.full((3, MOST_CLASSES + 2), 4)))
    columns = tiles["encoding"]["x"]["scale"]["domain"]
    assert len(columns) == MOST_CLASSES // 2 + 1
    assert columns[0] == "0 … 1"
    assert {cell["rows"] for cell in values_of(tiles)} == {8}


@pytest.mark.slow
def test_files_are_json_png_and_svg(tmp_path: Path) -> None:
    description = described([[30, 10], [5, 15]], class_names=("$a_$", "b" * 50))
    one, two = (write_description(description, tmp_path / name) for name in ("one", "two"))
    assert [path.name for path in one] == ["description.json", "clients.png", "clients.svg"]
    assert one[1].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert ElementTree.parse(one[2]).getroot().tag.endswith("svg")
    assert [path.read_bytes() for path in one[:2]] == [path.read_bytes() for path in two[:2]]  # SVG numbers its clips
