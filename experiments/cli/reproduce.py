"""`fedscout reproduce`: published tables and figures, measured again and set beside the published numbers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedscout.experiments.cli.options import AsJson, prepare
from fedscout.experiments.visible import show, tell

ALL, LIST = "all", "list"


class ScaleName(StrEnum):
    """How large a study is run."""

    laptop = "laptop"
    published = "published"


What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE/TABLE | SOURCE | all | list | KEY=VALUE]...",
        help="Studies, or all, and keys that hold for every training, such as engine.grid=ray.",
        show_default=False,
    ),
]


def reproduce(
    what: What = None,
    scale: Annotated[ScaleName, typer.Option(help="Of the federations, rounds and seeds.")] = ScaleName.laptop,
    seeds: Annotated[
        int | None, typer.Option(min=2, help="In place of each study's own number.", show_default=False)
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of trials and tables; what it holds is not trained again.")
    ] = Path("runs/reproduction"),
    as_json: AsJson = False,
) -> None:
    """Run published studies again, their numbers beside ours; without a name, list them."""
    prepare(verbose=False)
    from fedscout.experiments.reports.console import show_json
    from fedscout.experiments.reproduction.reproduction_tables import study_lines
    from fedscout.experiments.reproduction.run_reproduction import reproduce as run_again
    from fedscout.experiments.reproduction.run_reproduction import studies_named
    from fedscout.experiments.reproduction.sources.source_table import SOURCES

    names = [text for text in what or () if "=" not in text]
    settings = [text for text in what or () if "=" in text]
    if names in ([], [LIST]):
        _list(as_json)
        return
    wanted = studies_named(SOURCES, [] if names == [ALL] else names, scale.value)
    found = []
    for study in run_again(SOURCES, wanted, scale.value, settings, out, seeds, note=tell):
        found.append(study)
        if not as_json:
            show("\n".join([*study_lines(study), ""]))
    if as_json:
        show_json({"studies": [study.model_dump(mode="json") for study in found], "out": str(out)})


def _list(as_json: bool) -> None:
    from fedscout.experiments.reports.console import show_json
    from fedscout.experiments.reports.markdown_table import markdown_table
    from fedscout.experiments.reproduction.sources.source_table import SOURCES

    listed = [
        {
            "study": f"{source.name}/{study.name}",
            "also": [f"{source.name}/{name}" for name in study.also],
            "title": study.title,
            "scales": list(study.measurements),
        }
        for source in SOURCES
        for study in source.studies
    ]
    if as_json:
        show_json({"studies": listed})
        return
    rows = [[one["study"], ", ".join(one["also"]), one["title"], ", ".join(one["scales"])] for one in listed]
    show("\n".join(markdown_table(["study", "also", "what is compared", "scales"], rows)))
