"""Runner of an experiment: measures its pending cells in parallel on Ray, or sequentially in this process.

OUT/studies/<federation>/trials/   ordinary trial logs, in which no training is repeated
OUT/cells/<digest>.json            a finished cell
OUT/<name>.json, <name>.md, <name>.svg   the numbers, the table, the chart

A cell's file is named by the digest of everything that determines it, so an interrupted run resumes, and another row,
column or seed measures only what is new. A cell that fails, or whose process dies twice, is reported as absent and does
not affect the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedscout.engine.config import EngineConfig
from fedscout.engine.errors import ConfigurationError, UserError
from fedscout.engine.runtime.storage import Storage, mounted_at, storage_of
from fedscout.experiments.data.files import START_VARIABLE
from fedscout.experiments.grids.cells import CellContext, Measured, Values, measure_cell, together
from fedscout.experiments.grids.experiment import Cell, Experiment, arguments
from fedscout.experiments.grids.federation_runner import read_config
from fedscout.experiments.grids.methods import Detect, Train, imported
from fedscout.experiments.studies.run_folder import versions
from fedscout.experiments.studies.workflow import with_strategy
from fedscout.experiments.sweeps.sweep import StudyEnd, SweepFolder, end_by, read_json
from fedscout.strategies import parse_strategy

CELLS = "cells"


@dataclass(frozen=True)
class CellEnd:
    """The status of an ended cell, as a worker of `StudyWorkerPool` returns it.

    Attributes:
        status: `completed`, `failed`, or `lost` if its process died.
        error: The reason if it did not complete.
        measured: Its numbers.
    """

    status: str
    error: str | None = None
    measured: Measured | None = None


def run_cells(
    experiment: Experiment, folder: SweepFolder, context: CellContext, engine: EngineConfig, parallel: int | None = None
) -> Measured:
    """Return the numbers of all cells, measuring those that the folder lacks.

    Args:
        experiment: At its scale.
        folder: Locked by the caller.
        context: The folder of trials, settings and seeds.
        engine: `grid=local` runs cells sequentially in this process; else they run in parallel on Ray.
        parallel: Maximum number of parallel cells; None is the number of CPUs.

    Raises:
        UserError: If a setting is wrong in a cell.
    """
    if experiment.measured_by is not None:
        measurement = imported(experiment.measured_by.function)(**experiment.measured_by.arguments)
        measured: Measured = measurement.measure(experiment, context)
        return measured
    measured_by_cell = finished_cells(experiment, folder.path, context)
    pending = [cell for cell in experiment.cells() if cell not in measured_by_cell]
    for row, column in pending:
        method = experiment.rows[row]
        method_arguments = arguments(method.settings) if isinstance(method, Train | Detect) else ()
        try:  # a mistake is told before anything is done
            config = read_config((*arguments(experiment.federations[column]), *method_arguments), context.settings)
            if isinstance(method, Train):
                parse_strategy(with_strategy(config).strategy or {})
        except UserError as error:
            raise ConfigurationError([f"{row} × {column}: {fault}" for fault in error.faults]) from error
    ends = _in_process if engine.grid == "local" or len(pending) < 2 else partial(_on_ray, engine, parallel)
    for position, end in ends(experiment, pending, context):
        cell, cell_numbers = pending[position], end.measured
        if cell_numbers is None:
            measured_by_cell[cell] = Measured({}, absent={" × ".join(cell): end.error or "lost"})
            continue
        measured_by_cell[cell] = cell_numbers
        if cell in cell_numbers.values:
            document = {**_identity(experiment, cell, context), **_document(cell, cell_numbers)}
            folder.write_text(_file(experiment, cell, context), json.dumps(document))
    return together([measured_by_cell[cell] for cell in experiment.cells()])


def finished_cells(experiment: Experiment, folder: Path, context: CellContext) -> dict[Cell, Measured]:
    """Return the numbers of all cells that a folder holds."""
    stored = {cell: _stored(cell, read_json(folder / _file(experiment, cell, context))) for cell in experiment.cells()}
    return {cell: numbers for cell, numbers in stored.items() if numbers is not None}


def _file(experiment: Experiment, cell: Cell, context: CellContext) -> str:
    return f"{CELLS}/{_digest(experiment, cell, context)}.json"


def _in_process(experiment: Experiment, cells: Sequence[Cell], context: CellContext) -> Iterator[tuple[int, CellEnd]]:
    for position, cell in enumerate(cells):
        context.note(" × ".join(cell))
        yield position, CellEnd("completed", measured=measure_cell(experiment, cell, context))


def _on_ray(
    engine: EngineConfig, parallel: int | None, experiment: Experiment, cells: Sequence[Cell], context: CellContext
) -> Iterator[tuple[int, CellEnd]]:
    from fedscout.engine.runtime.ray import ray_runtime
    from fedscout.experiments.sweeps import workers

    with ExitStack() as stack:
        ray = stack.enter_context(ray_runtime(engine, verbose=False))
        num_parallel = min(len(cells), parallel or workers.cluster_cpus(ray).driver_cpus)
        pool = workers.StudyWorkerPool(ray, workers.worker_environment(), worker=CellWorker)
        stack.callback(pool.close)
        worker_context = replace(context, folder=context.folder.absolute(), note=lambda _: None)
        calls = [(experiment, cell, worker_context, storage_of(worker_context.folder)) for cell in cells]
        begun = lambda position: context.note(" × ".join(cells[position]))  # noqa: E731
        for position, end in pool.run(calls, num_parallel, begun, lambda: None):
            yield position, end if isinstance(end, CellEnd) else CellEnd(end.status, end.error)


class CellWorker:
    """A worker that measures cells, one after the other, in a process of its own.

    It sets the given environment variables and works in the command's folder, where a user's paths and code are found.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        import os
        import sys

        os.environ.update(environment)
        os.chdir(environment[START_VARIABLE])
        sys.path.append(environment[START_VARIABLE])

    def run(self, experiment: Experiment, cell: Cell, context: CellContext, kept: Storage | None = None) -> CellEnd:
        """Measure a cell, whose folder may be in a storage; only an interruption raises an exception."""
        try:
            with mounted_at(context.folder, kept):
                return CellEnd("completed", measured=measure_cell(experiment, cell, context))
        except Exception as error:  # one cell's end is not the experiment's
            end: StudyEnd = end_by(error)
            return CellEnd("failed", end.error)


def _identity(experiment: Experiment, cell: Cell, context: CellContext) -> dict[str, Any]:
    row, column = cell
    method = experiment.rows[row]
    assert method is not None
    return {
        "row": row,
        "column": column,
        "method": method.model_dump(mode="json"),
        "settings": [*arguments(experiment.federations[column]), *context.settings],
        "num_seeds": context.num_seeds,
        "streams": [context.fresh_stream, context.tuning_stream],
        "versions": versions(),
    }


def _digest(experiment: Experiment, cell: Cell, context: CellContext) -> str:
    identity = {
        key: value for key, value in _identity(experiment, cell, context).items() if key not in ("row", "column")
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _document(cell: Cell, found: Measured) -> dict[str, Any]:
    return {
        "values": found.values[cell],
        "test_to_train": found.test_to_train,
        "failures": found.absent.get(" × ".join(cell)),
        "figures": {name: cells[cell] for name, cells in found.figures.items() if cell in cells},
        "resolution": found.resolution,
    }


def _values(numbers: Iterable[Any]) -> Values:
    return tuple(None if number is None else float(number) for number in numbers)


def _stored(cell: Cell, document: Mapping[str, Any] | None) -> Measured | None:
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        if document is not None:
            values = _values(document["values"])
            absent = {" × ".join(cell): str(document["failures"])} if document["failures"] else {}
            figures = {str(name): {cell: _values(figure)} for name, figure in document["figures"].items()}
            ratio, step = float(document["test_to_train"]), float(document["resolution"])
            return Measured({cell: values}, ratio, absent, figures, step)
    return None
