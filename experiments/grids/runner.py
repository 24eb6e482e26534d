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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedscout.engine.config import EngineConfig
from fedscout.engine.errors import ConfigurationError, UserError
from fedscout.engine.runtime.storage import Storage, mounted_at, storage_of
from fedscout.experiments.config import check_searchable
from fedscout.experiments.grids.cells import CellContext, CellValues, Measured, cell_name, measure_cell
from fedscout.experiments.grids.experiment import Cell, Experiment, arguments
from fedscout.experiments.grids.federation_runner import read_config
from fedscout.experiments.grids.methods import Choose, Detect, Given, Train, imported
from fedscout.experiments.grids.recommenders import recommender_named
from fedscout.experiments.studies.grid_folder import GridFolder, read_json
from fedscout.experiments.studies.run_folder import versions
from fedscout.experiments.studies.workers import Display, End, end_by, run_pieces
from fedscout.experiments.studies.workflow import with_strategy
from fedscout.strategies import parse_strategy

CELLS = "cells"
NAMES = ("row", "column")
"""Part of a cell's file, but not of its digest."""


def run_cells(
    experiment: Experiment, folder: GridFolder, context: CellContext, engine: EngineConfig, parallel: int | None = None
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
    cells = finished_cells(experiment, folder.path, context)
    missing = {}
    pending = [cell for cell in experiment.measured() if cell not in cells]
    _check(experiment, pending, context)
    worker_context = replace(context, folder=context.folder.absolute(), note=lambda _: None)
    shares_folders = any(isinstance(experiment.rows[row], Given) for row, _ in pending)
    if len(pending) < 2 or shares_folders:  # without Ray
        engine, parallel = engine.model_copy(update={"grid": "local"}), None
    ends = run_pieces(
        engine,
        run_cell,
        [(experiment, cell, worker_context, storage_of(worker_context.folder)) for cell in pending],
        parallel,
        Display(begun=lambda position: context.note(cell_name(pending[position]))),
        search_path=(str(Path.cwd()),),
    )
    for position, end in ends:
        cell = pending[position]
        if end.result is None:
            missing[cell_name(cell)] = end.error or "lost"
            continue
        cells[cell] = end.result
        document = {**_identity(experiment, cell, context), **end.result.model_dump()}
        folder.write_text(_file(experiment, cell, context), json.dumps(document))
    return Measured({cell: cells[cell] for cell in experiment.cells() if cell in cells}, missing)


def _check(experiment: Experiment, cells: Sequence[Cell], context: CellContext) -> None:
    """Check the settings of cells, so that a mistake is reported before anything is done.

    Raises:
        ConfigurationError: With the faults of the first cell that has any.
    """
    for row, column in cells:
        method = experiment.rows[row]
        method_arguments = arguments(method.settings) if isinstance(method, Train | Detect) else ()
        try:
            config = read_config((*arguments(experiment.federations[column]), *method_arguments), context.settings)
            if isinstance(method, Train):
                parse_strategy(with_strategy(config).strategy or {})
            elif isinstance(method, Given):
                imported(str(method.function))
            elif not isinstance(method, Detect):
                check_searchable(config)
            if isinstance(method, Choose):
                recommender_named(method.by)
        except UserError as error:
            raise ConfigurationError([f"{row} × {column}: {fault}" for fault in error.faults]) from error


def finished_cells(experiment: Experiment, folder: Path, context: CellContext) -> dict[Cell, CellValues]:
    """Return the numbers of all cells that a folder holds."""
    cells = {}
    for cell in experiment.measured():
        with suppress(ValidationError):
            stored = read_json(folder / _file(experiment, cell, context)) or {}
            cells[cell] = CellValues.model_validate(stored)
    return cells


def run_cell(experiment: Experiment, cell: Cell, context: CellContext, storage: Storage | None) -> End:
    """Measure a cell, whose folder may be in a storage; only an interruption raises an exception."""
    try:
        with mounted_at(context.folder, storage):
            return End("completed", result=measure_cell(experiment, cell, context))
    except Exception as error:  # one cell's end is not the experiment's
        return end_by(error)


def _file(experiment: Experiment, cell: Cell, context: CellContext) -> str:
    identity = {name: value for name, value in _identity(experiment, cell, context).items() if name not in NAMES}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return f"{CELLS}/{digest}.json"


def _identity(experiment: Experiment, cell: Cell, context: CellContext) -> dict[str, Any]:
    row, column = cell
    method = experiment.rows[row]
    assert isinstance(method, BaseModel)
    return {
        "row": row,
        "column": column,
        "method": method.model_dump(mode="json"),
        "settings": [*arguments(experiment.federations[column]), *context.settings],
        "num_seeds": context.num_seeds,
        "streams": [context.fresh_stream, context.tuning_stream],
        "versions": versions(),
    }
