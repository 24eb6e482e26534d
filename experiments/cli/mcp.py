"""`fedscout mcp`: the program as tools for agents."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedscout.engine.errors import Fault
from fedscout.experiments.cli.options import FAILED, prepare
from fedscout.experiments.visible import tell


def mcp(
    root: Annotated[
        Path, typer.Option("--root", help="Working directory; no file outside it is named by an agent.")
    ] = Path(),
    own_code: Annotated[
        bool, typer.Option("--own-code", help="Let settings name strategies and models by import path.")
    ] = False,
) -> None:
    """Serve describe, detect, recommend and studies to an agent, by the Model Context Protocol on standard input."""
    prepare(verbose=False)
    from fedscout.engine.errors import ConfigurationError
    from fedscout.experiments.extras import extra_module

    if not root.is_dir():
        raise ConfigurationError(Fault("--root", "be a folder", root))
    if sys.stdin is None or sys.stdout is None:
        raise ConfigurationError("fedscout mcp speaks on standard input and output, of which one is closed")
    extra_module("mcp", "mcp", "fedscout mcp needs the package mcp")
    from fedscout.experiments.agents.mcp_server import mcp_server

    try:
        mcp_server(root.resolve(), own_code).run("stdio")
    except BaseExceptionGroup as group:
        if group.split((BrokenPipeError, ConnectionError))[1] is not None:
            raise
        with Path(os.devnull).open("wb") as nowhere:  # what could not be written would be tried again at exit
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        tell("the agent has closed the pipe")
        raise typer.Exit(FAILED) from None
