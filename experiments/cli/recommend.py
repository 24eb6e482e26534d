"""`fedscout recommend`: one strategy with its parameters, without a trial."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedscout.experiments.cli.options import AsJson, ConfigFile, Out, Settings, Verbose, read_settings, user_folders

if TYPE_CHECKING:
    from rich.console import Console

    from fedscout.experiments.studies.recommending import Recommended


class Source(StrEnum):
    """Who recommends."""

    auto = "auto"
    rules = "rules"
    llm = "llm"


Text = Annotated[
    str | None, typer.Option("--text", help="How the clients' data differ, in your words, for a language model.")
]
Report = Annotated[
    Path | None, typer.Option("--report", help="A report of `fedscout detect --out`, in place of measuring.")
]
Who = Annotated[
    Source | None,
    typer.Option(
        "--source", help="auto, the default, asks a language model if there is a key for one, else the rules."
    ),
]
Replay = Annotated[
    Path | None, typer.Option("--replay", help="Recorded exchanges (llm.jsonl) that answer without a network.")
]


def recommend(
    settings: Settings = None,
    config_file: ConfigFile = None,
    text: Text = None,
    report: Report = None,
    source: Who = None,
    replay: Replay = None,
    out: Out = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Recommend a strategy from the diagnosis or from your description, without a trial."""
    config = read_settings(settings, config_file, verbose)
    if replay is not None:
        recommender = config.recommender.model_copy(update={"replay": replay})
        config = config.model_copy(update={"recommender": recommender})
    from fedscout.experiments.reports.console import out_console, show_json, show_path
    from fedscout.experiments.reports.details import show_report
    from fedscout.experiments.reports.progress import TrialProgress
    from fedscout.experiments.studies import workflow
    from fedscout.experiments.studies.recommending import Wanted, asks_model
    from fedscout.experiments.studies.run_folder import default_folder

    user_folders()
    given = config.recommender
    wanted = Wanted(given.source if source is None else source.value, given.text if text is None else text, report)
    folder = default_folder(config) if out is None and asks_model(config, wanted.source) else out
    progress = TrialProgress()
    with progress.live():
        found = workflow.recommend(config, wanted, folder, progress.display(), verbose)
    if as_json:
        show_json({**found.document(config), "out": None if folder is None else str(folder)})
        return
    console = out_console()
    if found.report is not None:
        show_report(console, found.report)
    show_recommendation(console, found)
    if folder is not None:
        console.print()
        show_path(console, "Recommendation", folder / workflow.RECOMMENDATION_FILE)


def show_recommendation(console: Console, found: Recommended) -> None:
    """Print what is recommended, by whom, and why."""
    recommendation = found.recommendation
    use = recommendation.model_use
    by = "the rules" if use is None else f"the language model {use.model}"
    console.print(f"\nRecommended by {by}", style="bold", end=": ")
    console.print(str(recommendation.spec), style="bold")
    for ground in recommendation.grounds:
        console.print(f"  {ground.rule}: {ground.because} [{ground.source}]")
    for alternative in recommendation.alternatives:
        named = f"{alternative.spec}: {alternative.because} [{alternative.source}]"
        console.print(f"  compare with {named}")
    if use is not None:
        tokens = "not counted" if use.prompt_tokens is None else f"{use.prompt_tokens} + {use.completion_tokens}"
        cost = "" if use.cost_usd is None else f", {use.cost_usd:.4f} US dollars"
        console.print(f"  {use.num_answers} answer{'' if use.num_answers == 1 else 's'}, tokens {tokens}{cost}")
    for note in recommendation.notes:
        console.print(f"  {note}")
