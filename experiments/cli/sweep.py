"""`fedscout sweep`: a study for every combination of values, and one table over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedscout.experiments.cli.options import AsJson, ConfigFile, Out, Settings, Verbose, prepare, user_folders

if TYPE_CHECKING:
    from fedscout.experiments.studies.sweeps.grid_configurations import Sweep

Parallel = Annotated[
    int | None, typer.Option("--parallel", "-p", min=1, help="Studies at once; by the CPUs there are if left out.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the studies and what is there of them; run nothing.")]

LOST = 1
NONE_COMPLETED = 2


def sweep(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Out = None,
    as_json: AsJson = False,
    parallel: Parallel = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
) -> None:
    """Run a study for every combination of values, such as `seed=0,1,2 federation.num_clients=4,10`."""
    prepare(verbose)
    from fedscout.experiments.studies.sweeps.grid_configurations import read_sweep

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
