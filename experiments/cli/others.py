"""Commands on real federations, agents and trained models.

- `fedscout app`: write a Flower app for real clients.
- `fedscout mcp`: serve tools for agents.
- `fedscout predict`: predict new rows with a trained model.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.runtime.files import write_atomically
from fedscout.engine.user_code import user_folders
from fedscout.experiments.cli.options import FAILED, ConfigFile, Settings, Verbose, prepare, read_settings
from fedscout.experiments.text import extra_module, show, tell, visible


def app(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="New or empty folder of the app, whose name is the app's name.")
    ] = Path("federation_app"),
    study: Annotated[Path | None, typer.Option("--from", help="Finished study whose winner is trained.")] = None,
    choose: Annotated[
        Literal["rules", "search"] | None,
        typer.Option("--choose", help="Without a strategy: how the driver chooses one; rules by default."),
    ] = None,
    max_rounds: Annotated[int | None, typer.Option(min=1, help="Most rounds of a search on the real clients.")] = None,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Most bytes sent and received by a search.")] = None,
    verbose: Verbose = False,
) -> None:
    """Write a Flower app that trains a study's winner or strategy.kind on real clients, or chooses a strategy there."""
    prepare(verbose)
    user_folders()
    from fedscout.engine.models.flat import new_model
    from fedscout.experiments.deployment.app import FEWEST_CLIENTS, Program, check_new, write_app
    from fedscout.experiments.deployment.client import Agreement
    from fedscout.experiments.deployment.driver import winner_of
    from fedscout.experiments.trained import what_is_kept
    from fedscout.strategies import parse_strategy

    check_new(out)
    chooses = choose is not None or max_rounds is not None or max_bytes is not None
    if study is None:
        config = read_settings(settings, config_file, verbose)
        strategy = config.strategy
    else:
        if config_file:
            raise ConfigurationError.of("-c", "be left out with --from, which uses the configuration of the study")
        config, strategy = winner_of(study, settings or [])
    if strategy and chooses:
        raise ConfigurationError.of(
            "--choose and --max-…",
            f"be left out with {('--from' if study else 'strategy.kind')}, which determines the strategy",
        )
    agreement, note = Agreement.of_study(config), None
    if strategy:
        note = what_is_kept(parse_strategy(strategy), new_model(agreement.factory, seed=0).layout)
    num_clients = config.federation.num_seen or FEWEST_CLIENTS
    program = Program(strategy or None, choose or "rules", max_rounds, max_bytes, num_clients)
    show(f"The app for `flwr run` is in {write_app(out, agreement, program)}; its README.md lists the commands")
    if note is not None:
        show(f"note: {note}")


def mcp(
    root: Annotated[
        Path, typer.Option("--root", help="Working directory; agents can't name files outside it.")
    ] = Path(),
    own_code: Annotated[
        bool, typer.Option("--own-code", help="Allow settings to name strategies and models by import path.")
    ] = False,
) -> None:
    """Serve describe, detect, recommend and studies to an agent over the Model Context Protocol (stdio)."""
    prepare(verbose=False)
    if not root.is_dir():
        raise ConfigurationError.of("--root", "be a folder", root)
    if sys.stdin is None or sys.stdout is None:
        raise ConfigurationError.of(
            "standard input and output", "be open, as fedscout mcp communicates over them", "a closed one"
        )
    extra_module("mcp", "mcp", "fedscout mcp")
    from fedscout.experiments.agents import mcp_server

    try:
        mcp_server(root.resolve(), own_code).run("stdio")
    except BaseExceptionGroup as group:
        if group.split((BrokenPipeError, ConnectionError))[1] is not None:
            raise
        with Path(os.devnull).open("wb") as nowhere:  # what could not be written would be tried again at exit
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        tell("the agent has closed the pipe")
        raise typer.Exit(FAILED) from None


SUFFIXES = (".csv", ".parquet")


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a training (fedscout train --out).")],
    table: Annotated[str, typer.Argument(help="Table with the columns of the training data, or folder of images.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output file, .csv or .parquet; CSV is printed by default.")
    ] = None,
    group: Annotated[
        int | None, typer.Option(help="Index of the group whose model is used, from 0, if each group has one.")
    ] = None,
    code: Annotated[str | None, typer.Option(help="Import path of the model, if it is user code.")] = None,
) -> None:
    """Print the predictions of a trained model for each row: class and probabilities, or the regression target."""
    prepare(verbose=False)
    user_folders()
    from fedscout.experiments.trained import load

    if out is not None and out.suffix.lower() not in SUFFIXES:
        raise ConfigurationError.of("--out", f"end in {' or '.join(SUFFIXES)}", out)
    predictions = load(model, code).predict(table, group)
    if out is None:
        sys.stdout.write(visible(predictions.to_csv(index=False)))
        return
    as_csv = out.suffix.lower() == ".csv"
    write_atomically(
        out, lambda path: predictions.to_csv(path, index=False) if as_csv else predictions.to_parquet(path)
    )
    show(f"{len(predictions)} row{'' if len(predictions) == 1 else 's'} written to {out}")
