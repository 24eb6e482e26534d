"""The federations of a study's columns, each built when it is its turn; a column without its data is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedscout.engine.errors import DataError
from fedscout.experiments.benchmarks.choice.choice_battery import FederationCase, ReadyCase, ready_case
from fedscout.experiments.reproduction.published_study import Desk


def ready_columns(
    federations: Mapping[str, tuple[str, ...]], desk: Desk, absent: dict[str, str]
) -> Iterator[tuple[str, ReadyCase]]:
    """Yield every column whose data are there.

    Args:
        federations: Arguments of each column.
        desk: Whose settings win.
        absent: Gets the reason of each column that is not yielded.

    Raises:
        ConfigurationError: If an argument is wrong.
    """
    for column, arguments in federations.items():
        try:
            ready = ready_case(FederationCase(column, arguments), desk.settings, quick=False)
        except DataError as error:
            absent[column] = str(error)
            continue
        yield column, ready
