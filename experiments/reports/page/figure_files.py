"""The pictures of a page as files, rendered by vl-convert without a browser."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fedscout.engine.errors import ConfigurationError, EngineError, Fault
from fedscout.engine.runtime.atomic_file import not_written, write_atomically
from fedscout.engine.runtime.folder_lock import refuse_links
from fedscout.experiments.chart_style import FileFormat, drawn
from fedscout.experiments.reports.page.page_parts import Picture
from fedscout.experiments.reports.page.write_report import page_in

FIGURES = "figures"
WIDTH = 560
"""Pixels of a figure's plot, axes and legend beside it."""


def write_figures(folder: Path, file_format: FileFormat, name: str | None = None) -> list[Path]:
    """Write the pictures of a study or a sweep.

    Args:
        folder: Of the study or the sweep.
        file_format: Of the files.
        name: Of one picture; None writes all.

    Raises:
        LogError: If the folder holds neither.
        ConfigurationError: If it has no such picture.
        EngineError: If a file can't be written.
    """
    refuse_links(folder)
    pictures = {picture.name: picture for picture in page_in(folder).pictures}
    if name is not None and name not in pictures:
        known = ", ".join(pictures) or "none"
        raise ConfigurationError(Fault("--what", f"be a picture of {folder}, which are {known}", hint=f"got {name}"))
    wanted = pictures.values() if name is None else [pictures[name]]
    return [_written(picture, folder / FIGURES / f"{picture.name}.{file_format}", file_format) for picture in wanted]


def _written(picture: Picture, path: Path, file_format: FileFormat) -> Path:
    content = rendered(picture, file_format)
    try:
        write_atomically(path, partial(Path.write_bytes, data=content))
    except OSError as error:
        raise EngineError(not_written(path, error)) from error
    return path


def rendered(picture: Picture, file_format: FileFormat) -> bytes:
    """Return the bytes of a picture's file, on a white ground."""
    return drawn(picture.chart.properties(width=WIDTH), file_format)
