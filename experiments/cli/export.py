"""`fedscout export`: a study for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedscout.experiments.cli.options import FOLDER, out_folder, prepare, user_folders
from fedscout.experiments.visible import show, tell


class Target(StrEnum):
    """Programs that a study can be exported to."""

    optuna = "optuna"
    mlflow = "mlflow"
    tensorboard = "tensorboard"
    wandb = "wandb"


TABLES = ("csv", "json", "jsonl", "parquet", "table", "xlsx", "excel", "pandas")


def _target(given: str) -> Target:
    """Return the program of a name; a table needs none.

    Raises:
        BadParameter: If there is none of that name.
    """
    if given in (*Target,):
        return Target(given)
    tables = "; the log is a table already: fedscout trials OUT [--json], or pandas.read_parquet(OUT/trials)"
    hint = tables if given.lower() in TABLES else ""
    raise typer.BadParameter(f"must be one of {', '.join(Target)}, got {given!r}{hint}")


To = Annotated[Target, typer.Option("--to", help="The program.", parser=_target, metavar=f"[{'|'.join(Target)}]")]
At = Annotated[
    str | None,
    typer.Option(
        "--path",
        help="A file of Optuna studies (.db for SQLite, else a journal), a tracking URI of MLflow, a folder for "
        "TensorBoard or wandb; in OUT/exports if left out.",
        show_default=False,
    ),
]


def export(
    out: Annotated[
        Path, typer.Argument(parser=out_folder, metavar=FOLDER, help="Folder of a study.", show_default=False)
    ],
    to: To = Target.optuna,
    path: At = None,
) -> None:
    """Export a study's trials, finished or not, to Optuna's dashboard, MLflow, TensorBoard or Weights & Biases."""
    prepare(verbose=False)
    user_folders()
    from fedscout.engine.runtime.folder_lock import refuse_links
    from fedscout.experiments.reports.exports.logged_study import read_study

    refuse_links(out)
    study = read_study(out)
    for fault in study.faults:
        tell(fault)
    folder = out / "exports"
    match to:
        case Target.optuna:
            from fedscout.experiments.reports.exports.optuna_export import export_to_optuna

            place = path or str(folder / "optuna.log")
            written = export_to_optuna(study, Path(place))
            viewer = f"optuna-dashboard {_address(Path(place))}"
        case Target.mlflow:
            from fedscout.experiments.reports.exports.mlflow_export import export_to_mlflow

            place = path or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
            written = export_to_mlflow(study, place)
            viewer = f"mlflow ui --backend-store-uri {place}"
        case Target.tensorboard:
            from fedscout.experiments.reports.exports.tensorboard_export import export_to_tensorboard

            place = path or str(folder / "tensorboard")
            written = export_to_tensorboard(study, Path(place))
            viewer = f"tensorboard --logdir {place}"
        case Target.wandb:
            from fedscout.experiments.reports.exports.wandb_export import export_to_wandb

            place = path or str(folder / "wandb")
            written = export_to_wandb(study, Path(place))
            viewer = f"wandb sync --sync-all {Path(place) / study.name}"
    show(f"{written} trial{'' if written == 1 else 's'} of {study.name} written to {place}")
    show(f"To see them: {viewer}")


def _address(path: Path) -> str:
    from fedscout.experiments.reports.exports.optuna_export import SQLITE_SUFFIXES

    return f"sqlite:///{path}" if path.suffix.lower() in SQLITE_SUFFIXES else str(path)
