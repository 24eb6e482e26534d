"""What is drawn of a study: panels of intervals, or curves over what is a quantity."""

from __future__ import annotations

from typing import Any, Literal

from fedscout.experiments.grids.cells import Measured
from fedscout.experiments.grids.comparison import ExperimentResult, cell_results
from fedscout.experiments.grids.experiment import Experiment
from fedscout.experiments.grids.tables import experiment_picture

ROWS, COLUMNS = ("one", "other"), ("round 1", "round 2", "round 10")
Steps = Literal["rows", "columns"]


def drawn(steps: Steps | None) -> dict[str, Any]:
    values = {(row, column): (0.1 * place, 0.2) for row in ROWS for place, column in enumerate(COLUMNS)}
    experiment = Experiment.model_validate(
        {
            "title": "two curves",
            "rows": {row: {} for row in ROWS},
            "columns": {column: {} for column in COLUMNS},
            "published": {"one": {"round 2": 0.5}},
        }
    )
    whole = ExperimentResult(
        name="source/fig",
        title="two curves",
        scale="",
        unit="accuracy",
        date="2026-11-23",
        version="0",
        command="",
        seconds=0,
        test_to_train=0,
        rows=ROWS,
        columns=COLUMNS,
        reference=None,
        cells=cell_results(experiment, Measured(values)),
        statements=(),
        notes=(),
        absent={},
        steps=steps,
    )
    document: dict[str, Any] = experiment_picture(whole).to_dict()
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
