"""The picture: what is drawn, and files that are the same for the same federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest

from fedscout.detectors import DetectionConfig
from fedscout.experiments.federations.description.description import Description, describe_federation
from fedscout.experiments.reports.class_strip import MAX_ROWS
from fedscout.experiments.reports.federation_picture import draw, save_picture
from tests.experiments.federations.description.federations import by_counts


def described(counts: npt.ArrayLike, **others: Any) -> Description:
    return describe_federation(by_counts(counts, **others), DetectionConfig(), seed=0)


def test_a_cell_is_the_share_of_the_clients_rows() -> None:
    description = described([[30, 10], [5, 15], [0, 0]], class_names=("a", "b"), affected_clients=(1,))
    cells, sizes, _ = draw(description).axes
    assert np.asarray(cells.images[0].get_array()).tolist() == [[0.75, 0.25], [0.25, 0.75], [0, 0]]
    assert [label.get_text() for label in cells.get_xticklabels()] == ["a", "b"]
    assert [label.get_text() for label in cells.get_yticklabels()] == ["0", "1 *", "2"]
    assert sizes.patches[0].get_data().values.tolist() == [40, 20, 0]


def test_a_cell_may_be_a_number_of_rows() -> None:
    cells = draw(described([[30, 10], [5, 15]]), by_count=True).axes[0]
    assert np.asarray(cells.images[0].get_array()).tolist() == [[30, 10], [5, 15]]


def test_many_clients_are_ordered_by_divergence_and_those_without_one_left_out() -> None:
    sizes = np.arange(MAX_ROWS + 5) + 10
    counts = np.column_stack([sizes**2, np.full(len(sizes), 10)])
    counts[:2] = [[1, 0], [0, 0]]
    description = described(counts)
    cells = draw(description).axes[0]
    shares = np.asarray(cells.images[0].get_array())
    assert len(shares) == MAX_ROWS + 3
    by_divergence = sorted(
        (client for client in description.clients if client.label_divergence is not None),
        key=lambda client: -(client.label_divergence or 0.0),
    )
    expected = [client.label_counts[0] / client.num_rows for client in by_divergence]
    assert shares[:, 0].tolist() == pytest.approx(expected)
    assert [label.get_text() for label in cells.get_yticklabels()] == ["most different", "most alike"]
    assert cells.get_ylabel().startswith(f"{MAX_ROWS + 3} of {MAX_ROWS + 5} clients")


@pytest.mark.slow
def test_files_are_a_png_and_an_svg_and_the_same_each_time(tmp_path: Path) -> None:
    # A dollar sign or two in a user's class names begin no formula.
    description = described([[30, 10], [5, 15]], class_names=("$a_$", "b" * 50))
    for name in ("one", "two"):
        for kind in ("png", "svg"):
            save_picture(draw(description), tmp_path / f"{name}.{kind}", kind)
    assert (tmp_path / "one.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert ElementTree.parse(tmp_path / "one.svg").getroot().tag.endswith("svg")
    for kind in ("png", "svg"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
