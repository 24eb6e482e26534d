"""`fedscout train`: one strategy, once."""

from __future__ import annotations

from math import isfinite

import typer

from fedscout.experiments.cli.options import (
    FAILED,
    AsJson,
    ConfigFile,
    Out,
    Settings,
    Verbose,
    read_settings,
    user_folders,
)
from fedscout.experiments.visible import tell


def train(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Out = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Train one strategy, such as strategy.kind=fedadam strategy.eta=0.1, and log it as a trial."""
    config = read_settings(settings, config_file, verbose)
    from fedscout.engine.trials.trial_record import SCORES_WHERE_KNOWN
    from fedscout.experiments.reports.console import out_console, show_json, show_path
    from fedscout.experiments.reports.details import show_federation, show_labels, show_trials
    from fedscout.experiments.reports.progress import TrialProgress
    from fedscout.experiments.studies.run_folder import default_folder
    from fedscout.experiments.studies.study_objective import measures_of_study

    folders = user_folders()
    progress = TrialProgress(1, config.training.num_rounds)
    with progress.live():
        from fedscout.experiments.studies.workflow import run_training, with_strategy

        config = with_strategy(config)
        federation, trial, folder = run_training(
            config, out or default_folder(config), progress.display(), verbose, folders
        )
    if as_json:
        finite = {  # JSON knows no infinity, and of a quantity there is no accuracy
            name: [value if isfinite(value) else None for value in getattr(trial, f"round_{name}")]
            for name in ("accuracy", "loss")
        }
        rounds: dict[str, list[float | None]] = finite if any(finite["accuracy"]) else {"loss": finite["loss"]}
        for name in (*SCORES_WHERE_KNOWN, "seconds"):
            if (scores := getattr(trial, f"round_{name}")) is not None and any(map(isfinite, scores)):
                rounds[name] = [value if isfinite(value) else None for value in scores]
        show_json({"trial": trial.summary(), "view": config.search.view, "rounds": rounds, "out": str(folder)})
        raise typer.Exit(FAILED if trial.status == "failed" else 0)
    console = out_console()
    show_federation(console, federation)
    measure = measures_of_study(config)[0]
    show_trials(console, [trial], None, title="Trial", measure=measure)
    show_labels(console, federation, trial, config.search.view)
    console.print()
    show_path(console, "Log", folder / "trials")
    if trial.status == "failed":
        tell(f"the trial failed: {trial.error}")
        raise typer.Exit(FAILED)
