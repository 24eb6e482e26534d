"""`fedscout describe`: what a federation is and how its clients differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedscout.experiments.cli.options import AsJson, ConfigFile, Settings, read_settings

Files = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder for description.json, clients.png and clients.svg.")
]
Counts = Annotated[bool, typer.Option("--counts", help="Shade by rows instead of by share of the client's rows.")]


def describe(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Files = None,
    as_json: AsJson = False,
    counts: Counts = False,
) -> None:
    """Build the federation and show how its clients differ; nothing is trained."""
    config = read_settings(settings, config_file, verbose=False)
    from fedscout.experiments.reports.console import out_console, show_json, show_path
    from fedscout.experiments.reports.page.description_files import check_output, write_description
    from fedscout.experiments.reports.progress import TrialProgress

    if out is not None:
        check_output(out)
    progress = TrialProgress()
    with progress.live():
        progress.stage("data")
        from fedscout.experiments.federations.assembly.build_federation import build_federation
        from fedscout.experiments.federations.description.description import describe_federation

        federation = build_federation(config.federation, config.model)
        description = describe_federation(federation, config.detection, config.seed, config.training.test_fraction)
        written = () if out is None else write_description(description, out, counts)
    if as_json:
        show_json(description.model_dump(mode="json"))
        return
    from fedscout.experiments.reports.description_console import show_description

    console = out_console()
    show_description(console, description, counts)
    if written:
        console.print()
    for label, path in zip(("Description", "Picture", "Picture"), written, strict=False):
        show_path(console, label, path)
