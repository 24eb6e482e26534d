"""`fedscout run`: detect, search, confirm."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from fedscout.experiments.cli.options import AsJson, ConfigFile, Out, Settings, Verbose, read_settings, user_folders

TunedBaseline = Annotated[
    bool | None,
    typer.Option(
        "--tuned-baseline/--no-tuned-baseline",
        help="Whether the winner is also compared with FedAvg at its best client learning rate.",
    ),
]


def run(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Out = None,
    as_json: AsJson = False,
    tuned_baseline: TunedBaseline = None,
    verbose: Verbose = False,
) -> None:
    """Detect heterogeneity, search for the strategy, confirm the winner. Without arguments: the demo."""
    study(settings, config_file, out, as_json, tuned_baseline, verbose, detection=True)


def study(
    settings: list[str] | None,
    config_file: ConfigFile,
    out: Out,
    as_json: bool,
    tuned_baseline: bool | None,
    verbose: bool,
    detection: bool,
) -> None:
    """Run a study and show it."""
    tuned = [] if tuned_baseline is None else [f"search.tuned_baseline={str(tuned_baseline).lower()}"]
    arguments = [*(settings or []), *tuned]
    config = read_settings(arguments, config_file, verbose)
    from fedscout.experiments.config.study_config import planned_trials
    from fedscout.experiments.reports.console import out_console, show_json, show_path
    from fedscout.experiments.reports.details import show_federation, show_outcome, show_report, shown_measure
    from fedscout.experiments.reports.progress import TrialProgress
    from fedscout.experiments.reports.verdict import show_verdict
    from fedscout.experiments.studies.run_folder import default_folder

    num_trials, rounds_less = planned_trials(config)
    progress = TrialProgress(num_trials, config.training.num_rounds, rounds_less, config.training.level_off)
    folder = out or default_folder(config if detection else config.without_diagnosis())
    with progress.live():
        from fedscout.experiments.studies.workflow import run_workflow

        display = progress.display(partial(planned_trials, config))
        finished = run_workflow(config, folder, display, detection, verbose, user_folders())
    if as_json:
        show_json({**finished.document, "out": str(finished.folder)})
        return
    console = out_console()
    show_verdict(console, finished.outcome, finished.report)
    console.print()
    show_federation(console, finished.federation)
    for note in finished.document["dependence"]:
        console.print(f"  {note}")
    if finished.report is not None:
        show_report(console, finished.report)
    measure = shown_measure(finished.federation, finished.measure)
    show_outcome(console, finished.outcome, measure, finished.second_measure)
    console.print()
    show_path(console, "Log of every trial", finished.folder / "trials", " (pandas.read_parquet reads the folder)")
    show_path(console, "Result", finished.folder / "result.json")
