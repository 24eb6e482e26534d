"""The strip: which rows it has, and how dark its cells are."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedscout.detectors import DetectionConfig
from fedscout.experiments.charts import MAX_ROWS, MOST_DIFFERENT, NUM_DECILES, shades, strip_of
from fedscout.experiments.description import Description, describe_federation
from fedscout.experiments.reports.console import PlainConsole
from fedscout.experiments.reports.description_console import BLOCKS, PLAIN_BLOCKS, show_description
from fedscout.experiments.scenarios.features import ScaledUpdate
from fedscout.experiments.scenarios.labels import ShiftLabels
from tests.experiments.description.federations import by_counts


def described(counts: npt.ArrayLike, **others: Any) -> Description:
    return describe_federation(by_counts(counts, **others), DetectionConfig(), seed=0)


def many(num_clients: int) -> Description:
    """Return clients of which the one with the larger number has labels farther from everyone's."""
    first = np.arange(num_clients) + 10
    return described(np.column_stack([first**2, np.full(num_clients, 10)]))


def shown(description: Description, width: int = 120, encoding: str = "utf-8", by_count: bool = False) -> str:
    """Return what a terminal of this width shows, without colour."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    show_description(PlainConsole(file=file, width=width), description, by_count)
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("values", "largest", "expected"),
    [
        ([0, 0.01, 0.25, 0.26, 0.5, 0.75, 0.76, 1], 1.0, [0, 1, 1, 2, 2, 3, 4, 4]),
        ([0, 1, 8], 8, [0, 1, 4]),
        ([0, 0], 0, [0, 0]),
    ],
)
def test_shades_are_equal_steps_and_nothing_is_only_nothing(
    values: list[float], largest: float, expected: list[int]
) -> None:
    assert shades(values, largest).tolist() == expected


def test_few_clients_have_a_row_each_in_their_order() -> None:
    strip = strip_of(described([[10, 0, 5], [0, 3, 0], [0, 0, 0]]), 60)
    assert [row.label for row in strip.clients] == ["0", "1", "2"]
    assert [row.counts.tolist() for row in strip.clients] == [[10, 0, 5], [0, 3, 0], [0, 0, 0]]
    assert strip.clients[0].shares.tolist() == [10 / 15, 0, 5 / 15]
    assert strip.clients[1].divergence is None  # too few rows
    assert (strip.deciles, strip.remark) == ((), None)


def test_of_many_the_most_different_are_shown_and_deciles_add_up_to_all() -> None:
    description = many(MAX_ROWS + 5)
    strip = strip_of(description, 60)
    assert len(strip.clients) == MOST_DIFFERENT
    divergences = [client.label_divergence or 0.0 for client in description.clients]
    assert [row.divergence for row in strip.clients] == sorted(divergences)[: -MOST_DIFFERENT - 1 : -1]
    assert len(strip.deciles) == NUM_DECILES
    assert sum(row.num_rows for row in strip.deciles) == description.realised.client_rows.mean * (MAX_ROWS + 5)
    means = [row.divergence or 0.0 for row in strip.deciles]
    assert means == sorted(means)
    assert all(f" {number} " in str(strip.remark) for number in (MAX_ROWS + 5, MOST_DIFFERENT))
    assert strip_of(many(MAX_ROWS), 60).remark is None


def test_neighbouring_classes_share_a_column_where_there_is_no_room() -> None:
    strip = strip_of(described([[1, 2, 3, 4, 5], [10, 20, 30, 40, 50]]), 2)
    assert strip.classes_per_column == 3
    assert [row.counts.tolist() for row in strip.clients] == [[1 + 2 + 3, 4 + 5], [60, 90]]


def test_the_strip_can_be_read_without_colour() -> None:
    text = shown(described([[40, 0, 0], [20, 20, 0], [0, 10, 30]], affected_clients=(2,)))
    lines = [line.split() for line in text.splitlines()]
    cells = {line[0]: line for line in lines if line and line[0] in {"0", "1", "2"}}
    assert cells["0"][1:3] == ["40", "██····"]
    assert cells["1"][1:3] == ["40", "▒▒▒▒··"]
    assert cells["2"][1:4] == ["*", "40", "··░░▓▓"]
    assert f"{BLOCKS[0]} none, {BLOCKS[1]} up to 0.25, {BLOCKS[2]} up to 0.5" in text
    assert "* affected" in text


def test_shades_by_rows() -> None:
    text = shown(described([[40, 0], [10, 10]]), by_count=True)
    for shown_shades in ("██··", "░░░░", "░ up to 10, ▒ up to 20, ▓ up to 30, █ up to 40"):
        assert shown_shades in text


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 80, 200])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    counts = np.random.default_rng(0).integers(1, 30, (60, 150))
    for description in (described(counts), described(counts[:3], facts={"client_names": ("a" * 90, "b", "c")})):
        assert max(len(line) for line in shown(description, width).splitlines()) <= width


def test_a_terminal_that_knows_ascii_only_gets_that() -> None:
    text = shown(described([[40, 0], [10, 10]], class_names=("grün", "blau")), encoding="ascii")
    assert PLAIN_BLOCKS[4] * 2 + PLAIN_BLOCKS[0] * 2 in text
    assert "gr?n, blau" in text


def test_what_a_scenario_changed_is_shown() -> None:
    text = shown(described([[10, 5], [10, 5]], transforms={1: (ShiftLabels(),)}, affected_clients=(1,)))
    for named in ("client 1.", "15 of 15", "ShiftLabels()"):
        assert named in text
    assert "not the rows" in shown(described([[10, 5], [10, 5]], affected_clients=(0,)))


def test_what_attackers_send_is_shown() -> None:
    text = shown(described([[10, 5], [10, 5]], attacks={1: (ScaledUpdate(-1.0 / 3),)}, affected_clients=(1,)))
    assert "client 1." in text
    assert re.search(r"client +attacks", text)
    assert "ScaledUpdate(factor=-0.333)" in text


@pytest.mark.parametrize("counts", [[[0, 0], [0, 0]], [[1, 0]], [[30, 10]]])
def test_federations_with_next_to_nothing_are_shown(counts: list[list[int]]) -> None:
    text = shown(described(counts))
    assert text.startswith("test\n")
    assert re.search(rf"^clients +{len(counts)}\b", text, re.MULTILINE)


def test_texts_of_the_users_data_are_no_markup() -> None:
    text = shown(described([[10, 0], [0, 10]], class_names=("[bold]", "[/]"), facts={"client_names": ("[red]x", "y")}))
    assert "[bold], [/]" in text
    assert "0 [red]x" in text
