"""Commands that run many studies.

- `fedscout sweep`: run a study for every combination of values, or a user's own experiment, and summarize all in one
table.
- `fedscout tune-table`: tune a table of client settings, cell by cell, on rows that no client holds.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.user_code import user_folders
from fedscout.experiments.cli import options
from fedscout.experiments.reports.console import markdown_table, out_console, show_json, show_path
from fedscout.experiments.text import show, tell

if TYPE_CHECKING:
    from fedscout.experiments.sweeps.sweep import Sweep


Parallel = Annotated[
    int | None,
    typer.Option(
        "--parallel", "-p", min=1, help="Number of studies run in parallel; by default from the number of CPUs."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the studies and their state without running anything.")]

LOST = 1
NONE_COMPLETED = 2


def sweep(
    settings: options.Settings = None,
    config_file: options.ConfigFile = None,
    out: options.Out = None,
    as_json: options.AsJson = False,
    parallel: Parallel = None,
    dry_run: DryRun = False,
    rows: options.Rows = None,
    columns: options.Columns = None,
    seeds: options.Seeds = None,
    verbose: options.Verbose = False,
) -> None:
    """Run a study for every combination of values, such as `seed=0,1,2 federation.num_clients=4,10`.

    A YAML file with `rows` is a user-defined experiment: methods × federations, all on the same seeds.
    """
    options.prepare(verbose)
    from fedscout.experiments.grids.experiment import is_experiment
    from fedscout.experiments.sweeps.sweep import read_sweep

    texts = [*([str(config_file)] if config_file else []), *(settings or ())]
    files = [text for text in texts if is_experiment(Path(text))]
    if files:
        others = [text for text in texts if text not in files]
        if len(files) > 1 or not all("=" in text for text in others):
            raise ConfigurationError.of("a file with rows", "be the only file", ", ".join(texts))
        request = (tuple(others), None, seeds, parallel, options.names(rows), options.names(columns), tell)
        _run_file(Path(files[0]), request, out, as_json, dry_run)
        return
    if rows is not None or columns is not None or seeds is not None:
        raise ConfigurationError.of("--rows, --columns and --seeds", "be left out without a YAML file that has rows")

    planned = read_sweep(settings or [], config_file)
    folder = out or Path("runs") / planned.default_name
    if dry_run:
        _list(planned, folder, as_json)
        return
    from fedscout.experiments.reports.page import report_of_finished
    from fedscout.experiments.reports.sweep_console import GridProgress, show_not_completed, show_sweep
    from fedscout.experiments.sweeps.run import run_sweep, summary_document

    progress = GridProgress("studies")
    with progress.live():
        outcome = run_sweep(planned, folder, progress.display(), parallel, verbose, user_folders())
    report_path = report_of_finished(outcome.folder)
    if as_json:
        show_json({**summary_document(outcome), "out": str(outcome.folder)})
    else:
        show_sweep(out_console(), outcome)
        if report_path is not None:
            show_path(out_console(), "Report", report_path, " (open it in a browser)")
    show_not_completed(outcome)
    if outcome.with_status("lost"):
        raise typer.Exit(LOST)
    if not outcome.with_status("completed"):
        raise typer.Exit(NONE_COMPLETED)


def _run_file(file: Path, request: tuple[Any, ...], out: Path | None, as_json: bool, dry_run: bool) -> None:
    """Run a user's own experiment, or list its cells, and print its table; `request` follows the command in a `Run`."""
    from fedscout.experiments.grids.catalogue import Run, run_file
    from fedscout.experiments.grids.cells import finished_cells
    from fedscout.experiments.grids.experiment import read_experiment
    from fedscout.experiments.reports.sweep_console import result_lines

    folder = out or Path("runs") / file.stem
    run = Run(f"fedscout sweep {shlex.quote(str(file))}", result_lines, *request)
    if dry_run:
        experiment = read_experiment(file).only(run.rows, run.columns).parts()
        finished = finished_cells(experiment, folder, run.context(experiment, folder))
        cells = [{"row": cell[0], "column": cell[1], "finished": cell in finished} for cell in experiment.measured()]
        if as_json:
            show_json({"out": str(folder), "cells": cells})
        else:
            _show_listed(["row", "column"], [[*cell.values()] for cell in cells])
        return
    user_folders()
    result = run_file(file, folder, run)
    if as_json:
        show_json({**result.model_dump(mode="json"), "out": str(folder)})
    else:
        show("\n".join([*result_lines(result), ""]))
        show_path(out_console(), "Table", folder / f"{file.stem}.md")
        show_path(out_console(), "Picture", folder / f"{file.stem}.svg")
    if all(cell.mean is None for cell in result.cells):
        raise typer.Exit(NONE_COMPLETED)


def _list(planned: Sweep, out: Path, as_json: bool) -> None:
    """Print the studies and their state from earlier commands."""
    from fedscout.engine.trials.log import num_trials
    from fedscout.experiments.config import planned_trials
    from fedscout.experiments.sweeps.sweep import check_sweep_folder, value_text

    folder = check_sweep_folder(out, planned)
    listed = [
        {
            "study": folder.study(configuration).name,
            "values": dict(configuration.setting),
            "finished": folder.result(configuration) is not None,
            "trials": num_trials(folder.study(configuration) / "trials"),
            "planned_trials": planned_trials(configuration.config)[0],
        }
        for configuration in planned.configurations
    ]
    if as_json:
        show_json({"out": str(folder.path), "studies": listed})
        return
    rows = [
        (*map(value_text, one.setting.values()), *(entry[name] for name in ("study", "trials", "finished")))
        for one, entry in zip(planned.configurations, listed, strict=True)
    ]
    _show_listed([*(key.rpartition(".")[2] for key in planned.axes), "folder", "trials"], rows)


def _show_listed(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table whose rows end with whether the study or the cell is finished."""
    texts = [[*row, "finished" if finished else ""] for *row, finished in rows]
    show("\n".join(markdown_table([*headings, ""], texts)))


Number = TypeVar("Number", int, float)

TableFile = Annotated[
    Path, typer.Option("--out", "-o", help="File of the table; its logs are written to NAME.tuning beside it.")
]
Metric = Annotated[
    str, typer.Option("--metric", help="heterogeneity, entropy, or package.module:function of (class counts, rows).")
]
Heterogeneity = Annotated[
    str | None,
    typer.Option(
        "--heterogeneity",
        help="Rows of the grid: heterogeneity or entropy in [0, 1], 0.2,0.4,0.6,0.8 by default, or values of the "
        "function.",
    ),
]
Quantity = Annotated[
    str | None,
    typer.Option(
        "--quantity",
        help="Columns of the grid: training rows per client; 100,200,400,600,800,1000 by default, scaled down if there "
        "are too few proxy rows.",
    ),
]
Proxy = Annotated[
    str | None,
    typer.Option(
        "--proxy",
        help="Another data set for the proxy rows; by default they are a share of the clients' data set "
        "(federation.server_rows, else 0.3).",
    ),
]
Synthetic = Annotated[
    int | None,
    typer.Option(
        "--synthetic",
        min=1,
        help="Number of synthetic proxy rows, drawn per class from the clients' reported means and covariance.",
    ),
]
Clients = Annotated[int, typer.Option("--clients", min=1, max=1000, help="Number of proxy clients per cell.")]
Patience = Annotated[
    int, typer.Option("--patience", min=1, help="Number of settings without improvement after which a cell stops.")
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold", help="Clients report a distance to the nearest cell above this value; never by default."
    ),
]
Refine = Annotated[
    Path | None,
    typer.Option("--refine", help="An existing table to refine and extend: its cells are kept, new ones are tuned."),
]
ParallelCells = Annotated[
    int | None,
    typer.Option("--parallel", "-p", min=1, help="Number of cells tuned in parallel; one per CPU by default."),
]


def tune_table(
    context: typer.Context,
    out: TableFile,
    settings: options.Settings = None,
    config_file: options.ConfigFile = None,
    metric: Metric = "heterogeneity",
    heterogeneity: Heterogeneity = None,
    quantity: Quantity = None,
    proxy: Proxy = None,
    synthetic: Synthetic = None,
    clients: Clients = 5,
    patience: Patience = 5,
    threshold: Threshold = None,
    refine: Refine = None,
    parallel: ParallelCells = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """Write a table of the best client settings by heterogeneity and rows of a client, such as hrt.json."""
    options.prepare(verbose)
    from click.core import ParameterSource

    from fedscout.experiments.client_settings.request import TableRequest, make_table, read_config, refinement_of
    from fedscout.experiments.reports.sweep_console import GridProgress, show_table, table_document

    if refine is None:
        levels = () if heterogeneity is None else _numbers("--heterogeneity", heterogeneity, float)
        quantities = None if quantity is None else _numbers("--quantity", quantity, int)
        config = read_config(settings or [], config_file, proxy, synthetic is not None)
        request = TableRequest(config, levels, quantities, clients, patience, threshold, synthetic, metric)
    else:
        determined = ("metric", "heterogeneity", "quantity", "proxy", "synthetic", "clients", "patience")
        if given := [name for name in determined if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]:
            keys = ", ".join(f"--{name}" for name in given)
            raise ConfigurationError.of(keys, "be left out with --refine, whose table determines it")
        request = refinement_of(refine, out, settings or [], config_file, threshold)
    progress = GridProgress("cells")
    with progress.live():
        tuned = make_table(request, out, progress.display(), parallel, verbose, user_folders())
    if as_json:
        show_json(table_document(tuned))
    else:
        show_table(out_console(), tuned)


def _numbers(option: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Return comma-separated numbers.

    Raises:
        ConfigurationError: If they are no numbers.
    """
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        expected = "whole numbers" if kind is int else "numbers"
        raise ConfigurationError.of(option, f"be {expected} separated by commas", repr(text)) from None
