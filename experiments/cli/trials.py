"""`fedscout trials`: the log of a study as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedscout.engine.errors import Fault
from fedscout.experiments.cli.options import FOLDER, AsJson, out_folder
from fedscout.experiments.visible import show, show_json_text, tell

POLICY = "selection"
"""Stands where some trial has one."""

COLUMNS = [
    "trial",
    "phase",
    "generation",
    "strategy",
    "parameters",
    POLICY,
    "seed",
    "num_rounds",
    "status",
    "fitness",
    "error",
]


def trials(
    out: Annotated[
        Path, typer.Argument(parser=out_folder, metavar=FOLDER, help="Folder of a study.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Show the trials of a study's log."""
    from fedscout.engine.errors import LogError

    folder = out / "trials"
    if not folder.is_dir() or not any(folder.glob("*.parquet")):
        raise LogError(Fault("the folder", "hold a study's log", f"{out} without any trials/*.parquet"))
    import pandas as pd

    from fedscout.engine.trials.trial_log import read_columns
    from fedscout.experiments.studies.stored_study import read_claim

    claim, _ = read_claim(out)
    rows, faults = read_columns(folder, COLUMNS, claim["config_hash"])
    if not rows:
        raise LogError(Fault(f"the log in {folder}", f"be readable: {next(iter(faults.values()))}"))
    for path, reason in faults.items():
        tell(f"{path} can't be used and is left out ({reason})")
    table = pd.DataFrame(rows, columns=COLUMNS)
    if table[POLICY].isna().all():
        table = table.drop(columns=POLICY)
    if as_json:
        show_json_text(table.to_json(orient="records", indent=2))
        return
    show(table.to_string(index=False, na_rep="-", max_colwidth=60))
