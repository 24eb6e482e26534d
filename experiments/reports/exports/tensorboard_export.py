"""A study's trials as TensorBoard events: a run per trial, with curves over rounds and hyper-parameters.

A trial that was exported before is written anew.
"""

from __future__ import annotations

import json
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


def export_to_tensorboard(study: LoggedStudy, path: Path) -> int:
    """Write all trials, confirmation included, into a folder of the study's name, and return how many these are.

    Raises:
        ConfigurationError: If TensorBoard is not installed.
        LogError: If the folder can't be written.
    """
    export_module("tensorboard", "tensorboard")
    writer_class = export_module("torch.utils.tensorboard", "tensorboard").SummaryWriter
    try:
        for record in study.records:
            folder = path / study.name / trial_name(record)
            if folder.is_dir():
                shutil.rmtree(folder)
            with writer_class(log_dir=str(folder)) as writer:
                _write(writer, record)
    except OSError as error:
        raise LogError(not_written(path, error)) from error
    return len(study.records)


def _write(writer: Any, record: Trial) -> None:
    when = record.finished_at.timestamp()
    for name, number, value in curves_of(record):
        writer.add_scalar(name, value, number, walltime=when)
    facts = {"phase": record.phase, "status": record.status, "error": record.error or ""}
    writer.add_text("trial", json.dumps(facts), 0, walltime=when)
    settings = {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)  # as TensorBoard takes them
        for name, value in settings_of(record).items()
    }
    writer.add_hparams(settings, {"fitness": record.fitness}, run_name=".")
