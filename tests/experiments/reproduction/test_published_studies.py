"""The tables of the sources: every cell that is spoken of exists, and every training that is named can be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.reproduction.chosen_cells import Asked, ChosenCells, Searched
from fedscout.experiments.reproduction.fifty_trials import FiftyTrials
from fedscout.experiments.reproduction.published_study import (
    Measurement,
    PublishedStudy,
    Source,
    chain,
    chain_of_columns,
    numbers,
)
from fedscout.experiments.reproduction.reported_cells import ReportedCells
from fedscout.experiments.reproduction.run_reproduction import studies_named
from fedscout.experiments.reproduction.sources.source_table import SOURCES
from fedscout.experiments.reproduction.timed_cells import TimedDetections, TimedModules, TimedStudies
from fedscout.experiments.reproduction.trained_cells import TrainedCells, arguments_read
from fedscout.experiments.studies.workflow import with_strategy
from fedscout.strategies import parse_strategy

STUDIES = [
    pytest.param(source, study, id=f"{source.name}/{study.name}") for source in SOURCES for study in source.studies
]


def arguments_of(measurement: Measurement) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of everything that a measurement builds or trains."""
    match measurement:
        case TrainedCells():
            yield from measurement.cells.values()
        case ChosenCells():
            yield from measurement.federations.values()
            for choice in measurement.choices.values():
                if isinstance(choice, Searched | Asked):
                    yield from ((*federation, *choice.settings) for federation in measurement.federations.values())
        case FiftyTrials() | ReportedCells() | TimedDetections():
            yield from measurement.federations.values()
        case TimedModules():
            yield measurement.arguments
        case TimedStudies():
            yield from ((*measurement.arguments, *(settings or ())) for settings in measurement.studies.values())


@pytest.mark.parametrize(("source", "study"), STUDIES)
def test_what_is_said_is_said_of_cells_that_are_there(source: Source, study: PublishedStudy) -> None:
    cells = {(row, column) for row in study.rows for column in study.columns}
    assert len(cells) == len(study.rows) * len(study.columns)
    assert study.published.keys() <= cells
    assert {cell for one in study.orderings for cell in (one.first, one.second)} <= cells
    assert all(one.first != one.second for one in study.orderings)
    assert "laptop" in study.measurements


@pytest.mark.slow
@pytest.mark.parametrize(("source", "study"), STUDIES)
def test_every_argument_is_read(source: Source, study: PublishedStudy) -> None:
    for measurement in study.measurements.values():
        for arguments in arguments_of(measurement):
            parse_strategy(with_strategy(arguments_read(arguments, ())).strategy or {})


def test_every_name_is_one_study_s() -> None:
    names = [f"{source.name}/{name}" for source in SOURCES for study in source.studies for name in study.names]
    assert len(names) == len({*names})


def test_a_study_is_found_by_each_of_its_names_and_a_source_s_name_is_all_of_them() -> None:
    assert studies_named(SOURCES, ["choice/table4"], "laptop") == studies_named(SOURCES, ["choice/table6"], "laptop")
    both = studies_named(SOURCES, ["selection", "selection/table1"], "laptop")
    assert [study.name for _, study in both] == [study.name for study in both[0][0].studies]
    assert len(studies_named(SOURCES, [], "laptop")) == len(STUDIES)


def test_a_wrong_name_is_told_the_right_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean choice/table6"):
        studies_named(SOURCES, ["choice/tabel6"], "laptop")


def test_a_published_table_is_given_row_by_row() -> None:
    found = numbers(("a", "b"), ("x", "y"), ((50, None), (25, 100)), ((5, None), (None, 1)), factor=0.01)
    assert found.keys() == {("a", "x"), ("b", "x"), ("b", "y")}
    assert (found["a", "x"].value, found["a", "x"].deviation) == (0.5, 0.05)
    assert (found["b", "x"].value, found["b", "x"].deviation) == (0.25, None)


def test_a_chain_has_each_above_the_next() -> None:
    rows = chain(("a", "b", "c"), "x", "falls")
    assert [(one.first, one.second) for one in rows] == [(("a", "x"), ("b", "x")), (("b", "x"), ("c", "x"))]
    columns = chain_of_columns("a", ("x", "y"), "falls")
    assert [(one.first, one.second) for one in columns] == [(("a", "x"), ("a", "y"))]
