"""`fedscout app`: a Flower app for real clients."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedscout.engine.errors import Fault
from fedscout.experiments.cli.options import ConfigFile, Settings, Verbose, prepare, read_settings, user_folders
from fedscout.experiments.visible import show


class By(StrEnum):
    """How an app chooses."""

    rules = "rules"
    search = "search"


def app(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the app, new or empty; the app is called as it is.")
    ] = Path("federation_app"),
    study: Annotated[
        Path | None,
        typer.Option("--from", help="Folder of a finished study, whose winner is trained.", show_default=False),
    ] = None,
    choose: Annotated[
        By | None,
        typer.Option(
            "--choose",
            help="Without --from and strategy.kind: how the driver chooses once it has detected; rules if left out.",
            show_default=False,
        ),
    ] = None,
    min_clients: Annotated[
        int | None,
        typer.Option(
            min=1, help="Clients that must be connected before anything begins; the study's, if left out, else 2."
        ),
    ] = None,
    results: Annotated[
        str | None,
        typer.Option(help="Folder on the server for logs, reports and the model; APP-out if left out."),
    ] = None,
    max_rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds that a search may take on the real clients.", show_default=False)
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="Bytes that its messages may carry.", show_default=False)
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Write a Flower app: it trains a study's winner or strategy.kind on real clients, or detects and chooses there."""
    prepare(verbose)
    user_folders()
    from fedscout.engine.errors import ConfigurationError
    from fedscout.engine.model.flat_model import new_model
    from fedscout.experiments.deployment.agreement import Agreement
    from fedscout.experiments.deployment.app_folder import FEWEST_CLIENTS, Program, check_new, write_app
    from fedscout.experiments.deployment.study_winner import winner_of
    from fedscout.experiments.trained.trained_model import what_is_kept
    from fedscout.strategies import parse_strategy

    check_new(out)
    chooses = choose is not None or max_rounds is not None or max_bytes is not None
    if study is None:
        config = read_settings(settings, config_file, verbose)
        strategy = config.strategy
    else:
        if config_file:
            raise ConfigurationError("--from takes its configuration from the study; leave out -c")
        config, strategy = winner_of(study, settings or [])
    if strategy and chooses:
        raise ConfigurationError(
            Fault(
                "--choose and --max-…",
                f"be left out where {('--from' if study else 'strategy.kind')} says what is trained",
            )
        )
    agreement = Agreement.of_study(config)
    kept = None
    if strategy:
        kept = what_is_kept(parse_strategy(strategy), new_model(agreement.factory, seed=0).layout)
    program = Program(
        strategy or None,
        "rules" if choose is None else choose.value,
        max_rounds,
        max_bytes,
        min_clients or config.federation.num_seen or FEWEST_CLIENTS,
        results,
    )
    written = write_app(out, agreement, program)
    show(f"{written}: an app for `flwr run`; its README.md has the commands")
    if kept is not None:
        show(f"note: {kept}")
