"""The files that a description leaves.

OUT/description.json   everything
OUT/clients.png        clients × classes; also clients.svg. Not where clients play episodes: they hold no classes
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from fedscout.engine.errors import LogError
from fedscout.engine.runtime.atomic_file import folder_made, json_text, not_written, remove_quietly, write_beside
from fedscout.engine.runtime.folder_lock import UNUSABLE
from fedscout.experiments.federations.description.description import Description


def check_output(folder: Path) -> None:
    """Check that files can be written to a folder, before any work is done for them. Nothing is made.

    Raises:
        LogError: If the folder, or the one it would be made in, is none or can't be written.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise LogError(UNUSABLE.format(path=folder, reason=f"{there} is no folder"))
    if not os.access(there, os.W_OK | os.X_OK):
        raise LogError(UNUSABLE.format(path=folder, reason="Permission denied"))


def write_description(description: Description, folder: Path, by_count: bool = False) -> tuple[Path, ...]:
    """Write the files, all or none, in place of those of an earlier description.

    Raises:
        LogError: If a file can't be written, as when the disk is full.
    """
    text = json_text(description.model_dump(mode="json"))
    writers: dict[str, Callable[[Path], object]] = {"description.json": lambda path: path.write_text(text)}
    if description.score_name is None:
        from fedscout.experiments.chart_style import drawn
        from fedscout.experiments.reports.page.pictures.federation_map import federation_map

        chart = federation_map(description, by_count)
        writers["clients.png"] = partial(Path.write_bytes, data=drawn(chart, "png"))
        writers["clients.svg"] = partial(Path.write_bytes, data=drawn(chart, "svg"))
    files = {folder / name: write for name, write in writers.items()}
    _write_all_or_none(folder, files)
    return tuple(files)


def _write_all_or_none(folder: Path, files: Mapping[Path, Callable[[Path], object]]) -> None:
    """Write files beside their places, and rename them when all are written; what fails leaves nothing new."""
    new = [path for path in files if not os.path.lexists(path)]
    written: dict[Path, Path] = {}
    path = folder
    try:
        with folder_made(folder):
            try:
                for path, write in files.items():
                    written[path] = write_beside(path, write)
                for path, temporary in written.items():
                    temporary.replace(path)
            except BaseException:
                for each in (*written.values(), *new):
                    remove_quietly(each)
                raise
    except OSError as error:
        raise LogError(UNUSABLE.format(path=folder, reason=not_written(path, error))) from error
