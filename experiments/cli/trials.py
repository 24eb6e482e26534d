"""`fedscout trials`: the log of a study as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import AsJson

COLUMNS = ["trial", "phase", "generation", "strategy", "parameters", "seed", "status", "fitness", "error"]


def trials(
    out: Annotated[Path, typer.Argument(help="Folder of a study.", show_default=False)], as_json: AsJson = False
) -> None:
    """Show the trials of a study's log."""
    from engine.errors import LogError

    folder = out / "trials"
    if not folder.is_dir() or not any(folder.glob("*.parquet")):
        raise LogError(f"the folder must hold a study's log, got {out} without any trials/*.parquet")
    import pandas as pd
    from pyarrow import ArrowException

    try:
        table = pd.read_parquet(folder).sort_values("trial")[COLUMNS]
    except (ArrowException, KeyError, OSError) as error:
        raise LogError(f"the log in {folder} must be readable: {str(error).splitlines()[0]}") from error
    if as_json:
        print(table.to_json(orient="records", indent=2))
        return
    print(table.to_string(index=False, na_rep="-", max_colwidth=60))
