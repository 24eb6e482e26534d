"""`fedscout report`: what a folder holds as one page that can be read offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedscout.experiments.cli.options import FOLDER, out_folder, prepare
from fedscout.experiments.visible import show

Compare = Annotated[
    list[Path] | None,
    typer.Option(
        "--compare", help="Folder of another study, beside which it is shown; may be repeated.", show_default=False
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Show it in the browser.")]


def report(
    out: Annotated[
        Path,
        typer.Argument(parser=out_folder, metavar=FOLDER, help="Folder of a study or a sweep.", show_default=False),
    ],
    show_it: Open = False,
    compare: Compare = None,
) -> None:
    """Write a study's or a sweep's report, finished or not: one HTML file with all pictures, in OUT/report.html.

    With --compare it is OUT/comparison.html, of all the studies that are named.
    """
    prepare(verbose=False)
    from fedscout.experiments.reports.page.write_report import write_comparison, write_report

    path = write_comparison([out, *compare]) if compare else write_report(out)
    show(f"Report: {path}")
    if show_it:
        import webbrowser

        webbrowser.open(path.absolute().as_uri())
