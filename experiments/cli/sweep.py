"""`fedscout sweep`: a study for every combination of values, or a user's own experiment, and one table over all."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedscout.engine.errors import Fault
from fedscout.experiments.cli.options import AsJson, ConfigFile, Out, Settings, Verbose, names, prepare, user_folders
from fedscout.experiments.visible import show, tell

if TYPE_CHECKING:
    from fedscout.experiments.grids.catalogue import Run
    from fedscout.experiments.studies.sweeps.grid_configurations import Sweep

Parallel = Annotated[
    int | None, typer.Option("--parallel", "-p", min=1, help="Studies at once; by the CPUs there are if left out.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the studies and what is there of them; run nothing.")]
Rows = Annotated[str | None, typer.Option(help="Of a file with rows: names, separated by commas.", show_default=False)]
Columns = Annotated[str | None, typer.Option(help="Likewise, of its columns.", show_default=False)]
Seeds = Annotated[
    int | None, typer.Option(min=2, help="Of a file with rows: in place of its own number.", show_default=False)
]

LOST = 1
NONE_COMPLETED = 2


def sweep(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Out = None,
    as_json: AsJson = False,
    parallel: Parallel = None,
    dry_run: DryRun = False,
    rows: Rows = None,
    columns: Columns = None,
    seeds: Seeds = None,
    verbose: Verbose = False,
) -> None:
    """Run a study for every combination of values, such as `seed=0,1,2 federation.num_clients=4,10`.

    A YAML file with `rows` is an experiment of your own: methods, by federations, each on the same seeds.
    """
    prepare(verbose)
    from fedscout.engine.errors import ConfigurationError
    from fedscout.experiments.grids.experiment import is_experiment
    from fedscout.experiments.studies.sweeps.grid_configurations import read_sweep

    texts = [*([str(config_file)] if config_file else []), *(settings or ())]
    files = [text for text in texts if is_experiment(Path(text))]
    if files:
        others = [text for text in texts if text not in files]
        if len(files) > 1 or not all("=" in text for text in others):
            raise ConfigurationError(Fault("a file with rows", "be the only file", ", ".join(texts)))
        _run_file(Path(files[0]), others, out, as_json, dry_run, (parallel, rows, columns, seeds))
        return
    if rows is not None or columns is not None or seeds is not None:
        raise ConfigurationError(
            Fault("--rows, --columns and --seeds", "be left out without a YAML file that has rows")
        )

    planned = read_sweep(settings or [], config_file)
    folder = out or Path("runs") / planned.default_name
    if dry_run:
        _list(planned, folder, as_json)
        return
    from fedscout.experiments.reports.console import out_console, show_json, show_path
    from fedscout.experiments.reports.page.write_report import report_of_finished
    from fedscout.experiments.reports.sweep_console import SweepProgress, show_not_completed, show_sweep
    from fedscout.experiments.studies.sweeps.run_sweep import run_sweep, summary_document

    progress = SweepProgress(len(planned.configurations))
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


def _run_file(
    file: Path,
    settings: Sequence[str],
    out: Path | None,
    as_json: bool,
    dry_run: bool,
    limits: tuple[int | None, str | None, str | None, int | None],
) -> None:
    """Run a user's own experiment, or list its cells, and print its table."""
    from fedscout.experiments.grids.catalogue import Run, run_file
    from fedscout.experiments.grids.tables import result_lines
    from fedscout.experiments.reports.console import out_console, show_json, show_path

    parallel, rows, columns, seeds = limits
    folder = out or Path("runs") / file.stem
    command = f"fedscout sweep {shlex.quote(str(file))}"
    run = Run(command, tuple(settings), None, seeds, parallel, names(rows), names(columns), tell)
    if dry_run:
        _list_cells(file, folder, run, as_json)
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


def _list_cells(file: Path, folder: Path, run: Run, as_json: bool) -> None:
    """Print the cells of an experiment, and which are finished."""
    from fedscout.experiments.grids.experiment import read_experiment
    from fedscout.experiments.grids.runner import finished_cells
    from fedscout.experiments.reports.console import show_json
    from fedscout.experiments.reports.markdown_table import markdown_table

    experiment = read_experiment(file).only(run.rows, run.columns).parts()
    finished = finished_cells(experiment, folder, run.context(experiment, folder))
    listed = [{"row": cell[0], "column": cell[1], "finished": cell in finished} for cell in experiment.cells()]
    if as_json:
        show_json({"out": str(folder), "cells": listed})
        return
    told = [[one["row"], one["column"], "finished" if one["finished"] else ""] for one in listed]
    show("\n".join(markdown_table(["row", "column", ""], told)))


def _list(planned: Sweep, out: Path, as_json: bool) -> None:
    """Print the studies, and what earlier commands left of each."""
    from fedscout.experiments.reports.console import out_console, show_json
    from fedscout.experiments.reports.sweep_console import show_points
    from fedscout.experiments.studies.sweeps.run_sweep import num_planned_trials
    from fedscout.experiments.studies.sweeps.sweep_folder import check_sweep_folder

    folder = check_sweep_folder(out, planned)
    listed = [
        {
            "study": folder.study(one).name,
            "values": dict(one.setting),
            "finished": folder.result(one) is not None,
            "trials": folder.num_trials(one),
            "planned_trials": num_planned_trials(one.config),
        }
        for one in planned.configurations
    ]
    if as_json:
        show_json({"out": str(folder.path), "studies": listed})
        return
    show_points(out_console(), planned, listed)
