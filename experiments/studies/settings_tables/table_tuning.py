"""A table of client settings from its grid to its file: what is tuned already is read, the rest is tuned.

    proxy rows ─► grid ─► cells, each after its neighbours: workers on one Ray, or this process ─► one Parquet

The log of a cell is a folder of its own beside the table, named by a digest of all that decides it. So a tuner that was
killed goes on where it was, and another grid or other settings over the same table find what they have in common.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedscout.engine.contracts.settings_table import SettingsTable
from fedscout.engine.errors import ConfigurationError, EngineError, Fault, LogError, UserError
from fedscout.engine.runtime.atomic_file import folder_made, remove_unfinished
from fedscout.engine.runtime.folder_lock import UNUSABLE, folder_lock
from fedscout.engine.runtime.json_file import read_json_object
from fedscout.engine.trials.cheap_collections import cheap_collections
from fedscout.experiments.studies.settings_tables.cell_tuning import (
    RESULT_FILE,
    CellResult,
    CellTuning,
    Setting,
    tune_cell,
)
from fedscout.experiments.studies.settings_tables.settings_grid import Place, warm_started_by
from fedscout.experiments.studies.sweeps import study_worker_pool as workers
from fedscout.experiments.studies.sweeps.study_run import StudyEnd, one_line
from fedscout.experiments.studies.sweeps.sweep_folder import await_release
from fedscout.search.settings_table_file import write_settings_table

DIGEST_DIGITS = 10


@dataclass(frozen=True)
class PlannedCell:
    """A cell that is to be tuned.

    Attributes:
        place: In the grid.
        digest: Of all that decides its result.
        folder: Of its log.
        after: The cells before it, by position, whose best settings it tries first.
        known: Settings of cells tuned elsewhere that it tries as well.
    """

    place: Place
    digest: str
    folder: Path
    after: tuple[int, ...]
    known: tuple[Setting, ...]


@dataclass(frozen=True)
class TuningDisplay:
    """What a command shows while a table is tuned; every part is optional.

    Attributes:
        known: Told once all cells, and the positions of those that are tuned already.
        begun: The cell of a position begins, or begins again.
        ended: It ended.
        tick: Called about twice a second where cells are tuned side by side, and after each trial where not.
    """

    known: Callable[[Sequence[PlannedCell], Sequence[int]], None] = lambda _cells, _known: None
    begun: Callable[[int], None] = lambda _: None
    ended: Callable[[int], None] = lambda _: None
    tick: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class TunedTable:
    """A table that is written.

    Attributes:
        path: Its file.
        table: Its cells, in the order of the grid.
        provenance: As in the file.
    """

    path: Path
    table: SettingsTable
    provenance: Mapping[str, Any]


def folder_of(table: Path) -> Path:
    """Return the folder of a table's logs, beside it."""
    return table.absolute().with_name(f"{table.stem}.tuning")


def plan_cells(
    tuning: CellTuning, cells: Sequence[Place], folder: Path, known: Mapping[Place, Setting] | None = None
) -> list[PlannedCell]:
    """Return what is to be tuned, each cell after those that it begins with.

    Args:
        tuning: What all cells share.
        cells: Their places, in the order of the grid.
        folder: Of the table's logs.
        known: The settings of cells that stay as they are.
    """
    known = known or {}
    first = warm_started_by(cells, list(known))
    planned: list[PlannedCell] = []
    positions: dict[Place, int] = {}
    for place in cells:
        after = tuple(positions[near] for near in first[place] if near in positions)
        given = tuple(known[near] for near in first[place] if near in known)
        digest = tuning.digest(place, [*given, *(planned[position].digest for position in after)])
        heterogeneity = place.heterogeneity(tuning.proxy.num_classes)
        name = f"heterogeneity_{heterogeneity:.2f},quantity_{place.quantity}-{digest[:DIGEST_DIGITS]}"
        positions[place] = len(planned)
        planned.append(PlannedCell(place, digest, folder / "cells" / name, after, given))
    return planned


def tune_table(
    tuning: CellTuning,
    planned: Sequence[PlannedCell],
    folder: Path,
    display: TuningDisplay,
    parallel: int | None = None,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
) -> dict[Place, CellResult]:
    """Tune all cells, or those that are left, and return what was found for each.

    Raises:
        UserError: If the folder can't be used, or a cell can't be tuned.
        EngineError: If a cell was lost to the machinery.
    """
    with _opened(folder):
        found = {position: result for position, cell in enumerate(planned) if (result := stored_result(cell))}
        display.known(planned, list(found))
        for position, end in _run_all(tuning, planned, found, display, parallel, verbose, search_path):
            if end.status == "failed":
                raise ConfigurationError(end.error or "a cell failed")
            result = stored_result(planned[position])
            if end.status == "lost" or result is None:
                raise EngineError(f"cell {planned[position].folder.name} was lost: {end.error}")
            found[position] = result
            display.ended(position)
    return {cell.place: found[position] for position, cell in enumerate(planned)}


def write_tuned(
    path: Path, results: Sequence[CellResult], provenance: Mapping[str, Any], threshold: float | None
) -> TunedTable:
    """Write the table of some cells, a full grid, with what is told of each beside, and return it."""
    table = SettingsTable(tuple(result.cell for result in results), threshold)
    told = {**provenance, "cells": [result.beside() for result in results]}
    write_settings_table(path, table, told)
    return TunedTable(path, table, told)


def stored_result(cell: PlannedCell) -> CellResult | None:
    """Return what an earlier command found for a cell; None if it did not get that far."""
    try:
        return CellResult.of(read_json_object(cell.folder / RESULT_FILE))
    except (OSError, ValueError, TypeError, KeyError):
        return None


@contextmanager
def _opened(folder: Path) -> Iterator[None]:
    """Hold the folder of a table's logs, made if missing."""
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_made(folder))
            stack.enter_context(folder_lock(folder))
        except OSError as error:
            raise LogError(UNUSABLE.format(path=folder, reason=error.strerror)) from error
        yield


def run_cell(
    tuning: CellTuning, cell: PlannedCell, before: Sequence[PlannedCell], told: Callable[[], None] = lambda: None
) -> StudyEnd:
    """Tune one cell, whatever its end is; only an interruption leaves this function as an error."""
    with cheap_collections():
        try:
            cell.folder.mkdir(parents=True, exist_ok=True)
            await_release(cell.folder)
            with folder_lock(cell.folder):
                for name in ("", "trials", "checkpoints"):
                    remove_unfinished(cell.folder / name)
                results = [result for each in before if (result := stored_result(each)) is not None]
                first = [*cell.known, *(result.setting for result in results)]
                tune_cell(tuning, cell.place, first, cell.digest, cell.folder, lambda _trial, _known: told())
            end = StudyEnd("completed")
        except UserError as error:
            end = StudyEnd("failed", str(error))
        except Exception as error:  # told by whoever waits for it
            end = StudyEnd("lost", one_line(error), traceback.format_exc())
        gc.collect()
    return end


class CellWorker:
    """Tunes cells, one after the other, in a process of its own."""

    def __init__(self, environment: Mapping[str, str], search_path: tuple[str, ...], tuning: CellTuning) -> None:
        import os
        import sys

        os.environ.update(environment)
        sys.path.extend(folder for folder in search_path if folder not in sys.path)
        self._tuning = tuning

    def run(self, cell: PlannedCell, before: Sequence[PlannedCell]) -> StudyEnd:
        """Tune one cell to its end."""
        return run_cell(self._tuning, cell, before)


def _run_all(
    tuning: CellTuning,
    planned: Sequence[PlannedCell],
    found: Mapping[int, CellResult],
    display: TuningDisplay,
    parallel: int | None,
    verbose: bool,
    search_path: tuple[str, ...],
) -> Iterator[tuple[int, StudyEnd]]:
    """Tune what is not found yet, in this process or by workers on one Ray, and yield each position with its end."""
    pending = [position for position in range(len(planned)) if position not in found]
    if not pending:
        return
    before = [[planned[near] for near in planned[position].after] for position in pending]
    engine = tuning.config.engine
    if engine.grid == "local":
        if parallel not in (None, 1):
            raise ConfigurationError(
                Fault("--parallel", "be left out or 1 with engine.grid=local, which is this process alone", parallel)
            )
        for position, near in zip(pending, before, strict=True):
            display.begun(position)
            yield position, run_cell(tuning, planned[position], near, display.tick)
        return
    from fedscout.engine.runtime.ray_runtime import ray_runtime

    with ray_runtime(engine, verbose) as ray:
        at_once = parallel or min(len(pending), workers.cluster_cpus(ray).driver_cpus)
        settings = (workers.worker_environment(), search_path, ray.put(tuning))
        places = {position: place for place, position in enumerate(pending)}
        after = [[places[near] for near in planned[position].after if near in places] for position in pending]
        cells = [(planned[position], near) for position, near in zip(pending, before, strict=True)]
        with closing(workers.StudyWorkerPool(ray, *settings, worker=CellWorker)) as pool:
            ends = pool.run(cells, at_once, lambda place: display.begun(pending[place]), display.tick, after)
            for place, end in ends:
                yield pending[place], end
