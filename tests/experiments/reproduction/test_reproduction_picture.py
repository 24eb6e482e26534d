"""What is drawn of a study: panels of intervals, or curves over what is a quantity."""

from __future__ import annotations

from typing import Any

from fedscout.experiments.reproduction.published_study import Measured, Number, PublishedStudy, Steps
from fedscout.experiments.reproduction.reproduced import ReproducedStudy, cells_of
from fedscout.experiments.reproduction.reproduction_picture import reproduction_picture

ROWS, COLUMNS = ("one", "other"), ("round 1", "round 2", "round 10")


def drawn(steps: Steps | None) -> dict[str, Any]:
    values = {(row, column): (0.1 * place, 0.2) for row in ROWS for place, column in enumerate(COLUMNS)}
    study = PublishedStudy("fig", "two curves", ROWS, COLUMNS, {}, {("one", "round 2"): Number(0.5)}, steps=steps)
    whole = ReproducedStudy(
        source="source",
        name="fig",
        title="two curves",
        scale="laptop",
        unit="accuracy",
        date="2026-11-23",
        version="0",
        command="",
        seconds=0,
        test_to_train=0,
        rows=ROWS,
        columns=COLUMNS,
        cells=cells_of(study, Measured(values)),
        orderings=(),
        notes=(),
        absent={},
        steps=steps,
    )
    document: dict[str, Any] = reproduction_picture(whole).to_dict()
    return document


def test_curves_go_over_the_steps_in_their_order() -> None:
    ways: tuple[tuple[Steps, tuple[str, ...], tuple[str, ...]], ...] = (
        ("columns", COLUMNS, ROWS),
        ("rows", ROWS, COLUMNS),
    )
    for steps, along, curves in ways:
        chart = drawn(steps)
        x = chart["layer"][0]["encoding"]["x"]
        assert x["sort"] == list(along)
        (points,) = chart["datasets"].values()
        assert {point[x["field"]] for point in points} == {*along}
        assert {point["curve"] for point in points} == {*curves}
        assert [point["published"] for point in points].count(None) == 5


def test_what_is_no_quantity_is_in_panels() -> None:
    assert [panel["title"] for panel in drawn(None)["concat"]] == list(ROWS)
