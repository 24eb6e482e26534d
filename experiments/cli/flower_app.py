"""`fedscout app`: a Flower app for real clients."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

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
        By, typer.Option("--choose", help="Without --from: how the driver chooses once it has detected.")
    ] = By.rules,
    max_rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds that a search may take on the real clients.", show_default=False)
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="Bytes that its messages may carry.", show_default=False)
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Write a Flower app: it trains a study's winner on real clients, or detects, chooses and trains there."""
    prepare(verbose)
    user_folders()
    from fedscout.engine.errors import ConfigurationError
    from fedscout.engine.model.flat_model import new_model
    from fedscout.experiments.deployment.agreement import Agreement
    from fedscout.experiments.deployment.app_folder import app_name, write_app
    from fedscout.experiments.deployment.study_winner import winner_of
    from fedscout.experiments.trained.trained_model import what_is_kept
    from fedscout.strategies import parse_strategy

    app_name(out)
    kept = None
    if study is None:
        agreement = Agreement.of_study(read_settings(settings, config_file, verbose))
        written = write_app(out, agreement, None, choose.value, max_rounds, max_bytes)
    else:
        if config_file or choose is not By.rules or max_rounds or max_bytes:
            raise ConfigurationError("--from takes what is trained from the study; leave out -c, --choose and --max-…")
        config, strategy = winner_of(study, settings or [])
        agreement = Agreement.of_study(config)
        kept = what_is_kept(parse_strategy(strategy), new_model(agreement.factory, seed=0).layout)
        written = write_app(out, agreement, strategy)
    show(f"{written}: an app for `flwr run`; its README.md has the commands")
    if kept is not None:
        show(f"note: {kept}")
