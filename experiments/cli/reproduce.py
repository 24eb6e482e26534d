"""`fedscout reproduce`: published tables and figures, reproduced and compared with the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedscout.experiments.cli.options import FOLDER, AsJson, out_folder, prepare
from fedscout.experiments.text import show, tell

if TYPE_CHECKING:
    from fedscout.experiments.grids.catalogue import Entry

LIST, ALL = "list", "all"
PUBLISHED = Path(__file__).parents[1] / "published"


class ScaleName(StrEnum):
    """Scale of a reproduced study."""

    laptop = "laptop"
    published = "published"


What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE/TABLE | SOURCE | all | KEY=VALUE]...",
        help="Studies, or all, and keys for every training, such as engine.grid=ray.",
        show_default=False,
    ),
]
TrialsOut = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        parser=out_folder,
        metavar=FOLDER,
        help="Folder of trials and tables; existing trials are reused.",
    ),
]


def reproduce(
    what: What = None,
    scale: Annotated[ScaleName, typer.Option(help="Size of federations, rounds and seeds.")] = ScaleName.laptop,
    seeds: Annotated[
        int | None, typer.Option(min=2, help="Number of seeds; each study's own by default.", show_default=False)
    ] = None,
    out: TrialsOut = Path("runs/reproduction"),
    as_json: AsJson = False,
) -> None:
    """Reproduce published studies and compare with their numbers; without a name, list them."""
    prepare(verbose=False)
    from fedscout.experiments.grids.catalogue import Run, catalogue, entries_named, run_entries
    from fedscout.experiments.grids.comparison import result_lines
    from fedscout.experiments.reports.console import show_json

    entries = catalogue(PUBLISHED)
    names = [text for text in what or () if "=" not in text]
    settings = tuple(text for text in what or () if "=" in text)
    if names in ([], [LIST]):
        _list(entries, as_json)
        return
    command = "fedscout reproduce {entry.name}"
    request = Run(command, settings, None if scale is ScaleName.laptop else scale.value, seeds, note=tell)
    results = []
    for result in run_entries(entries, entries_named(entries, [] if names == [ALL] else names), out, request):
        results.append(result)
        if not as_json:
            show("\n".join([*result_lines(result), ""]))
    if as_json:
        show_json({"studies": [result.model_dump(mode="json") for result in results], "out": str(out)})


def _list(entries: Sequence[Entry], as_json: bool) -> None:
    from fedscout.experiments.reports.console import markdown_table, show_json

    listed = [
        {"study": entry.name, "also": [f"{entry.source}/{name}" for name in entry.also], "title": entry.read().title}
        for entry in entries
    ]
    if as_json:
        show_json({"studies": listed})
        return
    rows = [
        [entry_document["study"], ", ".join(entry_document["also"]), entry_document["title"]]
        for entry_document in listed
    ]
    show("\n".join(markdown_table(["study", "also", "what is compared"], rows)))
