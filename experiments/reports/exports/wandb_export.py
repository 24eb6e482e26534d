"""A study's trials as runs of Weights & Biases, offline: files that `wandb sync` sends, and nothing sent before.

A run's id is its trial's, so a study that is exported and sent again takes the place of what was sent.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fedscout.engine.errors import LogError
from fedscout.engine.runtime.atomic_file import not_written
from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.reports.exports.logged_study import (
    LoggedStudy,
    curves_of,
    export_module,
    settings_of,
    trial_name,
)

ID_DIGITS = 16
QUIET = {"console": "off", "silent": True, "disable_git": True, "save_code": False, "x_disable_stats": True}
"""Nothing is recorded of the process, the machine or the working directory, as the export is none of the study's."""


def export_to_wandb(study: LoggedStudy, path: Path) -> int:
    """Write all trials, confirmation included, into a folder of the study's name, and return how many these are.

    Raises:
        ConfigurationError: If wandb is not installed.
        LogError: If the folder can't be written.
    """
    wandb = export_module("wandb", "wandb")
    folder = path / study.name
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        raise LogError(not_written(path, error)) from error
    try:
        for record in study.records:
            _write(wandb, record, study.name, folder)
    finally:
        wandb.teardown()  # ends the process that writes the files, once it has
    return len(study.records)


def _write(wandb: Any, record: Trial, project: str, folder: Path) -> None:
    run = wandb.init(
        project=project,
        name=trial_name(record),
        id=record.key[:ID_DIGITS],
        group=record.phase,
        dir=str(folder),
        mode="offline",
        reinit="create_new",
        config=settings_of(record),
        settings=wandb.Settings(**QUIET, x_disable_meta=True),
    )
    rounds: dict[int, dict[str, float]] = {}
    for name, number, value in curves_of(record):
        rounds.setdefault(number, {})[name] = value
    for number, values in sorted(rounds.items()):
        run.log(values, step=number)
    run.summary.update({"fitness": record.fitness, "status": record.status, "error": record.error or ""})
    run.finish(exit_code=1 if record.status == "failed" else 0)
