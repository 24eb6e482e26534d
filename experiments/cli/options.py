"""The arguments that several commands share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import click
import typer

from fedscout.experiments.text import visible_line

if TYPE_CHECKING:
    from fedscout.experiments.config import StudyConfig


FAILED = 1
"""Exit status where what was asked for was begun, and nothing went through."""


def complete(incomplete: str) -> list[str]:
    """Return keys of the configuration, or values of a key, that begin so, for the shell."""
    from fedscout.experiments.config import known_keys, named_values

    if (key := _key_before()) is not None:
        return [value for value in named_values(key) if value.startswith(incomplete)]
    key, equals, begun = incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in named_values(key) if value.startswith(begun)]
    return [f"{name}=" for name in (*known_keys(), "strategy.kind", "selection.kind") if name.startswith(incomplete)]


def _key_before() -> str | None:
    """Return the key of a value in bash, to which `key=value` is three words, of which it replaces the last alone."""
    words, place = os.environ.get("COMP_WORDS", "").split(), os.environ.get("COMP_CWORD", "")
    if not place.isdecimal():
        return None
    before, present = words[: int(place)], words[int(place) : int(place) + 1]
    if present == ["="]:
        return before[-1] if before else None
    return before[-2] if before[-1:] == ["="] and len(before) > 1 else None


Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE | FILE.yaml]...",
        help="Configuration, such as federation.dataset=wine; later ones win.",
        autocompletion=complete,
        show_default=False,
    ),
]


def out_folder(place: str | Path) -> Path:
    """Return a path as it is, and for a URI a folder whose files are kept there while the command runs."""
    from fedscout.engine.runtime.storage import is_address, mounted, storage_at

    if isinstance(place, Path) or not is_address(place):  # a default is a path
        return Path(place)
    storage = storage_at(place)
    if isinstance(storage, Path):
        return storage
    return click.get_current_context().with_resource(mounted(storage, storage.path.rpartition("/")[2]))


FOLDER = "FOLDER | URI"

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file under all arguments.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        parser=out_folder,
        metavar=FOLDER,
        help="Folder of the study, or URI such as s3://bucket/name; continued if it holds one.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Only the result, as JSON, on standard output.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show all that is known, and Ray's and Flower's own messages.")
]


def read_settings(settings: list[str] | None, file: Path | None, verbose: bool) -> StudyConfig:
    """Prepare the process and read the configuration.

    Raises:
        ConfigurationError: With every fault that was found.
    """
    prepare(verbose)
    from fedscout.experiments.config import load_config

    return load_config(settings or [], file)


def prepare(verbose: bool) -> None:
    """Prepare the process, before anything heavy is imported."""
    from fedscout.engine.runtime.ray import prepare_environment

    prepare_environment(verbose)
    _show_own_messages()


def _show_own_messages() -> None:
    """Let this program's own warnings reach standard error, one line each."""
    import logging

    class _PresentStandardError(logging.StreamHandler[TextIO]):
        """Writes to what standard error is now, which may not be what it was at the start."""

        def emit(self, record: logging.LogRecord) -> None:
            self.stream = sys.stderr
            super().emit(record)

    class _OneLine(logging.Formatter):
        """Keeps a message, whatever stands in it, from steering the terminal."""

        def format(self, record: logging.LogRecord) -> str:
            return visible_line(super().format(record))

    logger = logging.getLogger("fedscout")
    if not logger.handlers:
        handler = _PresentStandardError()
        handler.setFormatter(_OneLine("fedscout: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.INFO)


def names(text: str | None) -> tuple[str, ...] | None:
    """Return what commas separate; None is None."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def user_folders() -> tuple[str, ...]:
    """Return the folders where a user's own strategies are looked for: the working directory, last on the path."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    return (folder,)
