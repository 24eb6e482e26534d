"""`fedscout mcp`: the program as tools for agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedscout.experiments.cli.options import prepare


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
        raise ConfigurationError(f"--root must be a folder, got {root}")
    extra_module("mcp", "mcp", "fedscout mcp needs the package mcp")
    from fedscout.experiments.agents.mcp_server import mcp_server

    mcp_server(root.resolve(), own_code).run("stdio")
