"""`fedscout run`: detect, search, confirm."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedscout.engine.errors import Fault
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

if TYPE_CHECKING:
    from fedscout.experiments.reports.study_screen import Cost
    from fedscout.experiments.studies.workflow import Finished

TunedBaseline = Annotated[
    bool | None,
    typer.Option(
        "--tuned-baseline/--no-tuned-baseline",
        help="Whether the winner is also compared with FedAvg at its best client learning rate.",
    ),
]


OneShot = Annotated[
    bool,
    typer.Option(
        "--one-shot",
        help="Search nothing: train once what a language model recommends, or without a key for one the rules, and "
        "confirm it on fresh seeds.",
    ),
]
Text = Annotated[
    str | None,
    typer.Option("--text", help="Of --one-shot: how the clients' data differ, in your words, for a language model."),
]


def run(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Out = None,
    as_json: AsJson = False,
    tuned_baseline: TunedBaseline = None,
    one_shot: OneShot = False,
    text: Text = None,
    verbose: Verbose = False,
) -> None:
    """Detect heterogeneity, search for the strategy, confirm the winner. Without arguments: the demo."""
    _check_one_shot(one_shot, settings or [])
    asked = [*(settings or []), *_one_shot_settings(one_shot, text)]
    study(asked, config_file, out, as_json, tuned_baseline, verbose, detection=True)


def _check_one_shot(one_shot: bool, settings: Sequence[str]) -> None:
    """Refuse an explicit searcher beside `--one-shot`.

    Raises:
        ConfigurationError: If another kind of search is asked for.
    """
    kinds = [value for key, _, value in (each.partition("=") for each in settings) if key.strip() == "search.kind"]
    if one_shot and any(kind.strip() != "one_shot" for kind in kinds):
        from fedscout.engine.errors import ConfigurationError

        raise ConfigurationError(
            Fault("search.kind", "be left out beside --one-shot, which searches nothing", f"search.kind={kinds[-1]}")
        )


def _one_shot_settings(one_shot: bool, text: str | None) -> list[str]:
    """Return what the two options are short for, so that a study is told in full by its settings."""
    import yaml

    found = ["search.kind=one_shot"] if one_shot else []
    if text is not None:
        quoted = yaml.safe_dump(text, default_style='"', width=sys.maxsize).strip()
        found.append(f"recommender.text={quoted}")
    return found


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
    from fedscout.experiments.cli.command_line import study_command
    from fedscout.experiments.config.study_config import planned_trials
    from fedscout.experiments.reports.console import show_json
    from fedscout.experiments.reports.page.write_report import report_of_finished
    from fedscout.experiments.reports.progress import TrialProgress
    from fedscout.experiments.studies.run_folder import default_folder

    num_trials, rounds_less = planned_trials(config)
    shape = (num_trials, config.training.num_rounds, rounds_less, config.training.level_off)
    progress = TrialProgress(*shape, plain_lines=not as_json)
    folder = out or default_folder(config if detection else config.without_diagnosis())
    try:
        with progress.live():
            from fedscout.experiments.studies.workflow import run_workflow

            display = progress.display(partial(planned_trials, config))
            finished = run_workflow(config, folder, display, detection, verbose, user_folders())
    except KeyboardInterrupt:
        if not as_json:
            again = study_command("run" if detection else "search", arguments, config_file, out)
            tell(f"{progress.so_far.kept} in {folder}; to go on: {shlex.join(again)}")
        raise
    report = report_of_finished(finished.folder)
    if as_json:
        show_json({**finished.document, "out": str(finished.folder)})
        raise typer.Exit(_status(finished))
    _show(
        finished,
        progress.so_far.cost(finished.document["timings"]["seconds"]["total"]),
        folder,
        report,
        arguments,
        config_file,
        verbose,
    )
    raise typer.Exit(_status(finished))


def _status(finished: Finished) -> int:
    """Return the exit status: of a study of which no training went through that of a failed training."""
    return 0 if finished.outcome.best is not None else FAILED


def _show(
    finished: Finished,
    cost: Cost,
    folder: Path,
    report: Path | None,
    arguments: Sequence[str],
    config_file: Path | None,
    verbose: bool,
) -> None:
    """Print the screen, and below it, if asked, all that it rests on."""
    from fedscout.experiments.reports.columns_console import show_columns
    from fedscout.experiments.reports.console import out_console
    from fedscout.experiments.reports.details import federation_line, show_study
    from fedscout.experiments.reports.study_screen import StudyScreen

    console = out_console()
    StudyScreen(
        finished.outcome,
        finished.report,
        federation_line(finished.federation),
        cost,
        tuple(_next_steps(finished, folder, report, arguments, config_file, verbose)),
        finished.measure,
        finished.second_measure,
        finished.document["dependence"],
    ).show(console)
    show_columns(console, finished.federation.facts, is_brief=not verbose)
    if verbose:
        show_study(console, finished)


def _next_steps(
    finished: Finished,
    folder: Path,
    report: Path | None,
    arguments: Sequence[str],
    config_file: Path | None,
    verbose: bool,
) -> Iterator[tuple[str, str]]:
    """Yield what can be done with a finished study, label and command."""
    from fedscout.experiments.cli.command_line import command_line, training_command
    from fedscout.experiments.deployment.study_winner import advised

    document, outcome = finished.document, finished.outcome
    rate = document["config"]["training"]["learning_rate"]
    if strategy := advised(document["confirmation"], document["best"], rate):
        yield "Train", command_line(training_command(arguments, config_file, strategy, outcome.levelled))
        tables = [setting for setting in arguments if setting.startswith("client_settings.")]
        yield "Export", command_line(["fedscout", "app", *tables, "--from", str(folder)])
    if report is not None:
        yield "Report", command_line(["fedscout", "report", str(folder), "--open"])
    if not verbose:
        yield "More", "the same command with --verbose"
