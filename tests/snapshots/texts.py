"""The texts that users read, as they are now: refusals, help and screens, each one file of this folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from tests.experiments.reports.test_verdict import OUTCOMES, SKEWED, found, lines_of
from tests.snapshots.refusals import refusals

FOLDER = Path(__file__).parent
WIDTH = 80


@contextmanager
def _narrow() -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


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

    with _narrow():
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
