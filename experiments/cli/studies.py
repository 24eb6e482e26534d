"""Commands that run studies and their parts.

- `fedscout run`: detect, search, confirm.
- `fedscout search`: search and confirm without detection.
- `fedscout train`: train one strategy once.
- `fedscout detect`: measure how the clients' data differ.
- `fedscout recommend`: recommend a strategy with its parameters, without a trial.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.user_code import user_folders
from fedscout.experiments.cli.options import FAILED, AsJson, ConfigFile, Out, Settings, Verbose, read_settings
from fedscout.experiments.reports.console import out_console, show_columns, show_json, show_path
from fedscout.experiments.reports.progress import TrialProgress
from fedscout.experiments.text import tell

if TYPE_CHECKING:
    from rich.console import Console

    from fedscout.experiments.studies.one_shot import Recommended
    from fedscout.experiments.studies.workflow import FinishedStudy


TunedBaseline = Annotated[
    bool | None,
    typer.Option("--tuned-baseline/--no-tuned-baseline", help="Compare with FedAvg at its best learning rate."),
]


OneShot = Annotated[
    bool, typer.Option("--one-shot", help="Instead of a search, confirm what a language model or the rules recommend.")
]
StartText = Annotated[
    str | None, typer.Option("--text", help="With --one-shot: how the clients' data differ, for a language model.")
]


def run(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Out = None,
    as_json: AsJson = False,
    tuned_baseline: TunedBaseline = None,
    one_shot: OneShot = False,
    text: StartText = None,
    verbose: Verbose = False,
) -> None:
    """Detect heterogeneity, search for the strategy, confirm the winner. Without arguments: the demo."""
    all_settings = [*(settings or [])]
    if one_shot:
        others = [setting for setting in all_settings if setting.startswith("search.kind=")]
        if any(setting != "search.kind=one_shot" for setting in others):
            must = "be left out with --one-shot, which runs no search"
            raise ConfigurationError.of("search.kind", must, others[-1])
        all_settings.append("search.kind=one_shot")
    all_settings += _recommender_settings(text=text)
    study(all_settings, config_file, out, as_json, tuned_baseline, verbose, detection=True)


def _recommender_settings(**given: str | Path | None) -> list[str]:
    """Return options as settings of the recommender, without those that are not given."""
    from fedscout.experiments.config import setting_text

    return [f"recommender.{name}={setting_text(str(value))}" for name, value in given.items() if value is not None]


def study(
    settings: list[str] | None,
    config_file: ConfigFile,
    out: Out,
    as_json: bool,
    tuned_baseline: bool | None,
    verbose: bool,
    detection: bool,
) -> None:
    """Run a study and print its results."""
    tuned_settings = [] if tuned_baseline is None else [f"search.tuned_baseline={str(tuned_baseline).lower()}"]
    arguments = [*(settings or []), *tuned_settings]
    config = read_settings(arguments, config_file, verbose)
    from fedscout.experiments.config import planned_trials
    from fedscout.experiments.reports.page import report_of_finished
    from fedscout.experiments.reports.study_console import StudyScreen, federation_line, show_details
    from fedscout.experiments.studies.run_folder import default_folder

    num_trials, rounds_less = planned_trials(config)
    progress = TrialProgress(num_trials, config.training.num_rounds, rounds_less, plain_lines=not as_json)
    folder = out or default_folder(config if detection else config.without_diagnosis())
    try:
        with progress.live():
            from fedscout.experiments.studies.workflow import run_workflow

            finished = run_workflow(config, folder, progress.display(), detection, verbose, user_folders())
    except KeyboardInterrupt:
        if not as_json:
            tell(f"{progress.kept} in {folder}; the same command continues")
        raise
    report = report_of_finished(finished.folder)
    if as_json:
        show_json({**finished.document, "out": str(finished.folder)})
    else:
        console = out_console()
        StudyScreen(
            finished.outcome,
            finished.report,
            federation_line(finished.federation),
            progress.cost(finished.document["timings"]["seconds"]["total"]),
            tuple(_next_steps(finished, folder, report, arguments, config_file, verbose)),
            finished.measure,
            finished.document["dependence"],
        ).show(console)
        show_columns(console, finished.federation.facts, is_brief=not verbose)
        if verbose:
            show_details(console, finished)
    raise typer.Exit(0 if finished.outcome.best is not None else FAILED)  # every training failed


def _next_steps(
    finished: FinishedStudy,
    folder: Path,
    report: Path | None,
    arguments: Sequence[str],
    config_file: Path | None,
    verbose: bool,
) -> Iterator[tuple[str, str]]:
    """Yield label and command of the next steps for a finished study."""
    from fedscout.experiments.studies.result import advised

    outcome, rate = finished.outcome, finished.document["config"]["training"]["learning_rate"]
    if strategy := advised(outcome.confirmation, outcome.best, rate):
        yield "Train", command_line(training_command(arguments, config_file, strategy))
        yield "Export", command_line(["fedscout", "app", "--from", str(folder)])
    if report is not None:
        yield "Report", command_line(["fedscout", "report", str(folder), "--open"])
    if not verbose:
        yield "More", "the same command with --verbose"


# The commands suggested to the user as next steps.

NOT_TRAINING_KEYS = ("search.", "recommender.", "strategy")
"""Prefixes of a study's arguments that a training of its winner omits."""

OF_ITS_MEASURE = ("search.view=", "search.objective=", "search.target=")


def command_line(words: Sequence[str], width: int = 72) -> str:
    r"""Return words as a shell command; long commands are continued on the next line after a `\`."""
    lines = [""]
    for word in map(shlex.quote, words):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def training_command(settings: Iterable[str], file: Path | None, strategy: Mapping[str, Any]) -> list[str]:
    """Return the words of the command that trains a study's winner.

    Args:
        settings: Arguments of the study.
        file: Configuration file of the study, or None.
        strategy: Kind and parameters of the winner.
    """
    from fedscout.experiments.config import setting_text
    from fedscout.strategies import parse_strategy

    left_out = {"kind", "ranges"}  # only a search draws from the ranges of a user's own strategy
    values = parse_strategy(strategy).model_dump(mode="json", exclude_defaults=True, exclude=left_out)
    return [
        *("fedscout", "train", *([] if file is None else ["-c", str(file)])),
        *filter(_is_of_a_training, settings),
        *(f"strategy.{name}={setting_text(value)}" for name, value in {"kind": strategy["kind"], **values}.items()),
    ]


def _is_of_a_training(setting: str) -> bool:
    is_file = "=" not in setting
    return is_file or not setting.startswith(NOT_TRAINING_KEYS) or setting.startswith(OF_ITS_MEASURE)


def search(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Out = None,
    as_json: AsJson = False,
    tuned_baseline: TunedBaseline = None,
    verbose: Verbose = False,
) -> None:
    """Search for the strategy and confirm the winner, like run without detection."""
    study(settings, config_file, out, as_json, tuned_baseline, verbose, detection=False)


def train(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Out = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Train one strategy, such as strategy.kind=fedadam strategy.eta=0.1, and log it as a trial."""
    config = read_settings(settings, config_file, verbose)
    from fedscout.experiments.federation import built_study
    from fedscout.experiments.reports.study_console import show_federation, show_trial
    from fedscout.experiments.studies.checks import measure_of_study
    from fedscout.experiments.studies.result import rounds_of
    from fedscout.experiments.studies.run_folder import default_folder
    from fedscout.experiments.trained import DESCRIPTION_FILE

    folders = user_folders()
    progress = TrialProgress(1, config.training.num_rounds)
    with progress.live():
        from fedscout.experiments.studies.workflow import run_training, with_strategy

        config = with_strategy(config)
        federation, trial, folder = run_training(
            config, out or default_folder(config), progress.display(), verbose, folders
        )
    if as_json:
        rounds = {  # JSON has no infinity
            name: [value if isfinite(value) else None for value in values] for name, values in rounds_of(trial).items()
        }
        show_json({"trial": trial.summary(), "view": config.search.view, "rounds": rounds, "out": str(folder)})
        raise typer.Exit(FAILED if trial.status == "failed" else 0)
    console = out_console()
    show_federation(console, federation)
    show_trial(console, trial, measure_of_study(built_study(config, federation)[0]))
    show_path(console, "Log", folder / "trials")
    if (folder / DESCRIPTION_FILE).is_file():
        command = shlex.join(["fedscout", "predict", str(folder)])
        console.print(f"Predict: {command} TABLE", soft_wrap=True)
    if trial.status == "failed":
        tell(f"the trial failed: {trial.error}")
        raise typer.Exit(FAILED)


def detect(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Out = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Measure label skew, feature skew and outlier clients."""
    config = read_settings(settings, config_file, verbose)
    from fedscout.experiments.description import dependence_notes
    from fedscout.experiments.reports.study_console import show_diagnosis, show_federation

    progress = TrialProgress()
    with progress.live():
        from fedscout.experiments.studies.workflow import run_detection

        federation, report = run_detection(config, progress.display(), verbose, out)
    if as_json:
        affected = list(federation.affected_clients)
        show_json({"report": report.model_dump(mode="json"), "affected_clients": affected})
        return
    console = out_console()
    show_federation(console, federation)
    show_diagnosis(console, report, in_full=verbose)
    for note in dependence_notes(federation, config.seed, config.training.test_fraction):
        console.print(f"  {note}")
    show_columns(console, federation.facts, is_brief=True)


Text = Annotated[
    str | None, typer.Option("--text", help="A description of how the clients' data differ, for a language model.")
]
Report = Annotated[
    Path | None, typer.Option("--report", help="report.json of an earlier `fedscout detect --out`; no data are read.")
]
Who = Annotated[
    Literal["auto", "rules", "llm"] | None,
    typer.Option("--source", help="auto (default) asks a language model if an API key is set, else the rules."),
]
Replay = Annotated[
    Path | None, typer.Option("--replay", help="Recorded exchanges (llm.jsonl) to replay without a network.")
]
Prompt = Annotated[bool, typer.Option("--prompt", help="Print what a language model would receive; nothing is sent.")]


def recommend(
    settings: Settings = None,
    config_file: ConfigFile = None,
    text: Text = None,
    report: Report = None,
    source: Who = None,
    replay: Replay = None,
    prompt: Prompt = False,
    out: Out = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Recommend a strategy from the diagnosis or from your description, without a trial."""
    arguments = [*(settings or []), *_recommender_settings(text=text, source=source, replay=replay)]
    config = read_settings(arguments, config_file, verbose)
    from fedscout.experiments.reports.study_console import show_diagnosis
    from fedscout.experiments.studies import workflow
    from fedscout.experiments.studies.one_shot import asks_model
    from fedscout.experiments.studies.run_folder import default_folder

    user_folders()
    progress = TrialProgress()
    if prompt:
        with progress.live():
            messages = workflow.prompt(config, progress.display(), verbose, report)
        if as_json:
            show_json({"messages": [message.model_dump() for message in messages]})
        else:
            for message in messages:
                out_console().print(f"{message.role}:\n{message.content}\n", soft_wrap=True)
        return
    folder = default_folder(config) if out is None and asks_model(config) else out
    with progress.live():
        recommended = workflow.recommend(config, folder, progress.display(), verbose, report=report)
    if as_json:
        show_json({**recommended.document(config), "out": None if folder is None else str(folder)})
        return
    console = out_console()
    if recommended.report is not None:
        show_diagnosis(console, recommended.report, in_full=True)
    show_recommendation(console, recommended)
    if folder is not None:
        console.print()
        show_path(console, "Recommendation", folder / workflow.RECOMMENDATION_FILE)


def show_recommendation(console: Console, found: Recommended) -> None:
    """Print a recommendation, its source and its reasons."""
    recommendation = found.recommendation
    use = recommendation.model_use
    by = "the rules" if use is None else f"the language model {use.model}"
    console.print(f"\nRecommended by {by}", style="bold", end=": ")
    console.print(str(recommendation.spec), style="bold")
    for reason in recommendation.reasons:
        console.print(f"  {reason.rule}: {reason.explanation} [{reason.source}]")
    for alternative in recommendation.alternatives:
        comparison = f"{alternative.spec}: {alternative.explanation} [{alternative.source}]"
        console.print(f"  compare with {comparison}")
    if use is not None:
        tokens = "not counted" if use.prompt_tokens is None else f"{use.prompt_tokens} + {use.completion_tokens}"
        console.print(f"  {use.num_answers} answer{'' if use.num_answers == 1 else 's'}, tokens {tokens}")
    for note in recommendation.notes:
        console.print(f"  {note}")
