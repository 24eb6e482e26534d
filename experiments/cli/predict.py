"""`fedscout predict`: what a trained model says of new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedscout.engine.errors import Fault
from fedscout.experiments.cli.options import prepare, user_folders
from fedscout.experiments.visible import show, visible

SUFFIXES = (".csv", ".parquet")


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a training (fedscout train --out).", show_default=False)],
    table: Annotated[
        str, typer.Argument(help="Table with the columns of the training, or folder of pictures.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A file, .csv or .parquet; left out, CSV is printed.", show_default=False),
    ] = None,
    group: Annotated[
        int | None, typer.Option(help="Whose model, where each group of clients has one: from 0.", show_default=False)
    ] = None,
    code: Annotated[
        str | None, typer.Option(help="Import path of the model, where it is code of your own.", show_default=False)
    ] = None,
) -> None:
    """Print what a trained model says of each row: class and probabilities, or the quantity."""
    prepare(verbose=False)
    user_folders()
    from fedscout.engine.errors import ConfigurationError
    from fedscout.experiments.trained.prediction import load

    if out is not None and out.suffix.lower() not in SUFFIXES:
        raise ConfigurationError(Fault("--out", f"end in {' or '.join(SUFFIXES)}", out))
    found = load(model, code).predict(table, group)
    if out is None:
        sys.stdout.write(visible(found.to_csv(index=False)))
        return
    from fedscout.engine.runtime.atomic_file import write_atomically

    as_csv = out.suffix.lower() == ".csv"
    write_atomically(out, lambda path: found.to_csv(path, index=False) if as_csv else found.to_parquet(path))
    show(f"{len(found)} row{'' if len(found) == 1 else 's'} written to {out}")
