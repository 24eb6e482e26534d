"""The texts that users read, as they are now: refusals, help and screens, each one file of this folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

import click

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config import load_config
from tests.experiments.reports.test_verdict import OUTCOMES, SKEWED, found, lines_of

FOLDER = Path(__file__).parent
WIDTH = 80


ARGUMENTS = (
    *("foo", "nokey=1", "trainin.batch_size=1", "training.batchsize=1"),
    *("training.batch_size=0", "training.batch_size=abc", "training.learning_rate=-1", "training.learning_rate=nan"),
    *("training.optimizer=sdg", "training.momentum=1", "training=1", "seed=abc", "seed=-1"),
    *("federation.dataset=1", "federation.num_clients=0", "federation.num_clients=two", "federation.scenario=1.5"),
    *("federation.partition.kind=dirichle", "federation.partition.alpha=0", "federation.min_release=-1"),
    *("federation.max_rows=0", "federation.columns=1.5", "federation.missing_values=drop"),
    *("search.kind=genetik", "search.num_trials=0"),
    *("search.client_ranges.batch_size=1.5", "search.client_ranges.batch_size.low=1"),
    *("model.kind=1", "runtime.num_hosts=0"),
)


def refusals() -> str:
    """Return each argument and the lines of its refusal."""
    told = []
    for argument in ARGUMENTS:
        try:
            load_config([argument])
        except ConfigurationError as error:
            told.append("\n".join([argument, *(f"    {fault}" for fault in error.faults)]))
        else:
            told.append(f"{argument}\n    (accepted here)")
    return "\n".join(told) + "\n"


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command with its name, then those below it."""
    yield name, command
    if isinstance(command, click.Group):
        for below in sorted(command.commands):
            yield from commands(command.commands[below], f"{name} {below}")


def help_pages() -> str:
    """Return what `--help` says of every command."""
    from typer.testing import CliRunner

    from fedscout.experiments.cli.program import app

    with patch.dict(os.environ, COLUMNS=str(WIDTH)):
        import typer

        pages = []
        for name, _ in commands(typer.main.get_command(app), "fedscout"):
            told = CliRunner().invoke(app, [*name.split()[1:], "--help"], prog_name="fedscout")
            pages.append("\n".join(line.rstrip() for line in told.output.strip("\n").splitlines()))
    return "\n\n".join(pages) + "\n"


def screens() -> str:
    """Return the screens of made-up studies of a federation with label skew."""
    told = []
    for name, (measured, settings) in OUTCOMES.items():
        with tempfile.TemporaryDirectory() as folder:
            lines = lines_of(found(Path(folder), measured, SKEWED, **settings), SKEWED)
        told.append("\n".join([f"# {name}", *(line.rstrip() for line in lines)]))
    return "\n\n".join(told) + "\n"


TEXTS: Mapping[str, Callable[[], str]] = {"refusals": refusals, "help": help_pages, "screens": screens}


def file_of(name: str) -> Path:
    """Return where a text is kept."""
    return FOLDER / f"{name}.txt"
