"""`fedscout plot`: the pictures of a report as files, for papers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedscout.experiments.cli.options import FOLDER, out_folder, prepare
from fedscout.experiments.visible import show


class FileFormat(StrEnum):
    """What a picture's file may be."""

    png = "png"
    pdf = "pdf"
    svg = "svg"


Format = Annotated[FileFormat, typer.Option("--format", help="Of the files.")]
What = Annotated[
    str | None,
    typer.Option("--what", help="Name of one picture, such as learning-curves; all if left out.", show_default=False),
]


def plot(
    out: Annotated[
        Path,
        typer.Argument(parser=out_folder, metavar=FOLDER, help="Folder of a study or a sweep.", show_default=False),
    ],
    file_format: Format = FileFormat.png,
    what: What = None,
) -> None:
    """Write the pictures of a study's or a sweep's report into OUT/figures, as PNG, PDF or SVG."""
    prepare(verbose=False)
    from fedscout.experiments.reports.page.figure_files import write_figures

    for path in write_figures(out, file_format.value, what):
        show(str(path))
