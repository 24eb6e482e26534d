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

    if not root.is_dir():
        raise ConfigurationError(f"--root must be a folder, got {root}")
    try:
        from fedscout.experiments.agents.mcp_server import mcp_server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "mcp":
            raise
        raise ConfigurationError("fedscout mcp needs the package mcp: pip install 'fedscout[mcp]'") from error
    mcp_server(root.resolve(), own_code).run("stdio")
