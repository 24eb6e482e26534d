"""`fedscout simulate`: a simulated federation that looks like a diagnosed one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedscout.experiments.cli.options import AsJson, ConfigFile, Settings, Verbose, prepare

Like = Annotated[
    Path, typer.Option("--like", help="Report of the diagnosed federation: report.json of fedscout detect or run.")
]
Folder = Annotated[
    Path,
    typer.Option("--out", "-o", help="Folder for federation.yaml, which every command takes, and comparison.json."),
]


def simulate(
    like: Like,
    out: Folder,
    settings: Settings = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Build a federation of proxy data that looks like a diagnosed one, such as --like report.json."""
    prepare(verbose)
    from fedscout.experiments.reports.console import out_console, show_json
    from fedscout.experiments.reports.look_alike_console import show_look_alike
    from fedscout.experiments.reports.progress import TrialProgress

    progress = TrialProgress()
    with progress.live():
        from fedscout.experiments.studies.simulating import simulate as build

        simulated = build(like, settings or [], config_file, out, progress.display(), verbose)
    if as_json:
        show_json({**simulated.comparison.model_dump(mode="json"), "out": str(simulated.folder)})
        return
    show_look_alike(out_console(), simulated)
