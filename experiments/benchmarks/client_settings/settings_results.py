"""What a measurement of client settings found, as it is written to a folder and read by the tables."""

from __future__ import annotations

from statistics import fmean

from pydantic import BaseModel

from fedscout.search.confirmation.intervals import PairedDifference


class SettingsCellResult(BaseModel, frozen=True):
    """One row of a part with one strategy; lists have one element a seed.

    Attributes:
        impossible: Why it can't be measured; nothing else is then told.
        accuracies: The best of all rounds on the clients' test rows; chance where a trial failed.
        last: Likewise the mean of the last five rounds.
        proxy_steps: One proxy client trying one setting for a whole training is a step; mean over seeds.
        client_steps: Likewise of the clients themselves.
        failures: Why trials failed, one each.
    """

    row: str
    strategy: str
    impossible: str | None = None
    accuracies: tuple[float, ...] = ()
    last: tuple[float, ...] = ()
    proxy_steps: float = 0.0
    client_steps: float = 0.0
    failures: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """The mean over seeds, of which there must be some."""
        return fmean(self.accuracies)


class SettingsDifference(BaseModel, frozen=True):
    """What one measurement is beyond another, of best rounds.

    Attributes:
        row: Of the one, or of both.
        strategy: Likewise.
        than: The other row, or the other strategy.
        difference: With its interval over seeds.
    """

    row: str
    strategy: str
    than: str
    difference: PairedDifference


class SettingsReport(BaseModel, frozen=True):
    """The measurement of one part on one data set.

    Attributes:
        differences: Of the last row to every other, by strategy.
        between: Of every further strategy to the first, by row.
        resolution: One test row's share.
    """

    title: str
    data: str
    arguments: tuple[str, ...]
    rows: tuple[str, ...]
    strategies: tuple[str, ...]
    published: bool
    num_seeds: int
    cells: tuple[SettingsCellResult, ...]
    differences: tuple[SettingsDifference, ...]
    between: tuple[SettingsDifference, ...]
    resolution: float

    def of(self, row: str, strategy: str) -> SettingsCellResult:
        """Return a cell."""
        return next(cell for cell in self.cells if (cell.row, cell.strategy) == (row, strategy))

    def beyond(self, row: str, strategy: str) -> PairedDifference | None:
        """Return what the last row is beyond another with a strategy; None where that is not known."""
        found = (one.difference for one in self.differences if (one.than, one.strategy) == (row, strategy))
        return next(found, None)
