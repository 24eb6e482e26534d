"""Arguments and preparation shared by several commands."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from fedscout.engine.runtime.files import mounted, storage_at
from fedscout.experiments.text import tell

if TYPE_CHECKING:
    from fedscout.experiments.config import StudyConfig


FAILED = 1
"""Exit status if the requested work was started but nothing succeeded."""


def complete(incomplete: str) -> list[str]:
    """Return configuration keys with this prefix, for shell completion."""
    from fedscout.experiments.config import known_keys

    return [f"{name}=" for name in (*known_keys(), "strategy.kind", "selection.kind") if name.startswith(incomplete)]


Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE | FILE.yaml]...",
        help="Configuration, such as federation.dataset=wine; later settings override earlier ones.",
        autocompletion=complete,
        show_default=False,
    ),
]


def out_folder(place: str | Path) -> Path:
    """Return a path unchanged; for a URI, a local folder whose files are synchronized while the command runs."""
    if isinstance(place, Path) or "://" not in place:  # a default is a path
        return Path(place)
    storage = storage_at(place)
    if isinstance(storage, Path):
        return storage
    return click.get_current_context().with_resource(mounted(storage, storage.path.rpartition("/")[2]))


FOLDER = "FOLDER | URI"

StudyFolder = Annotated[
    Path, typer.Argument(parser=out_folder, metavar=FOLDER, help="Folder of a study or a sweep.", show_default=False)
]
ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file that the arguments override.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        parser=out_folder,
        metavar=FOLDER,
        help="Folder of the results, or URI such as s3://bucket/name; existing results are continued.",
    ),
]
Rows = Annotated[str | None, typer.Option(help="Rows (methods) of the experiment, comma-separated; all by default.")]
Columns = Annotated[
    str | None, typer.Option(help="Columns (federations) of the experiment, comma-separated; all by default.")
]
Seeds = Annotated[
    int | None, typer.Option(min=2, help="Number of seeds; by default that of the YAML experiment.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Show the diagnosis and the verdict in full, and Ray's and Flower's own messages."
    ),
]


def read_settings(settings: list[str] | None, file: Path | None, verbose: bool) -> StudyConfig:
    """Return the configuration, after preparing the process.

    Raises:
        ConfigurationError: With every fault.
    """
    prepare(verbose)
    from fedscout.experiments.config import load_config

    return load_config(settings or [], file)


def prepare(verbose: bool) -> None:
    """Prepare the process before heavy imports."""
    from fedscout.engine.runtime.ray import prepare_environment

    prepare_environment(verbose)
    _show_own_messages()


def _show_own_messages() -> None:
    """Log the package's own messages to standard error, one line each."""

    class _OneLineEach(logging.Handler):
        """Prints to the current standard error, which may have been replaced since the start."""

        def emit(self, record: logging.LogRecord) -> None:
            tell(self.format(record))

    logger = logging.getLogger("fedscout")
    if not logger.handlers:
        logger.addHandler(_OneLineEach())
        logger.propagate = False
        logger.setLevel(logging.INFO)


def names(text: str | None) -> tuple[str, ...] | None:
    """Return comma-separated names, or None for None."""
    return None if text is None else tuple(name.strip() for name in text.split(","))
