"""A study's trials as MLflow runs: an experiment per study, a run per trial with metrics over rounds.

A trial that is there already, told by its tag, is left as it is; so a study that went on adds what is new.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedscout.engine.errors import LogError, first_line
from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.reports.exports.logged_study import (
    LoggedStudy,
    curves_of,
    export_module,
    settings_of,
    trial_name,
)

KEY = "fedscout_trial"
SQLITE = "sqlite:///"
METRICS_A_BATCH = 1000
PARAMETERS_A_BATCH = 100
LONGEST_VALUE = 6000


def export_to_mlflow(study: LoggedStudy, tracking_uri: str) -> int:
    """Log all trials that MLflow does not have yet, confirmation included, and return how many these are.

    The tracking URI is one such as `sqlite:///mlflow.db`, or the address of a server.

    Raises:
        ConfigurationError: If MLflow is not installed.
        LogError: If MLflow refuses.
    """
    mlflow = export_module("mlflow", "mlflow")
    entities = export_module("mlflow.entities", "mlflow")
    exceptions = export_module("mlflow.exceptions", "mlflow")
    try:
        if tracking_uri.startswith(SQLITE):
            Path(tracking_uri.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
        client = mlflow.MlflowClient(tracking_uri=tracking_uri)
        experiment = client.get_experiment_by_name(study.name)
        identity = client.create_experiment(study.name) if experiment is None else experiment.experiment_id
        known = _known(client, identity)
        missing = [record for record in study.records if trial_name(record) not in known]
        for record in missing:
            _log(client, entities, identity, record)
    except (exceptions.MlflowException, OSError) as error:
        wanted = f"--path must be a tracking URI that MLflow can write to, got {tracking_uri}"
        raise LogError(f"{wanted}: {first_line(error)}") from error
    return len(missing)


def _known(client: Any, experiment: str) -> set[str]:
    """Return the trials that MLflow has; runs that an earlier export did not finish are deleted."""
    known: set[str] = set()
    token = None
    while True:
        page = client.search_runs([experiment], page_token=token)
        for run in page:
            if run.info.end_time is None and KEY in run.data.tags:
                client.delete_run(run.info.run_id)
            elif KEY in run.data.tags:
                known.add(run.data.tags[KEY])
        token = page.token
        if not token:
            return known


def _log(client: Any, entities: Any, experiment: str, record: Trial) -> None:
    end = round(1000 * record.finished_at.timestamp())
    start = end - round(1000 * (record.seconds.get("total") or 0.0))
    tags = {KEY: trial_name(record), "phase": record.phase, "generation": str(record.generation)}
    if record.error:
        tags["error"] = record.error[:LONGEST_VALUE]
    run = client.create_run(experiment, start_time=start, tags=tags, run_name=trial_name(record)).info.run_id
    parameters = [entities.Param(name, _text(value)) for name, value in settings_of(record).items()]
    for few in _batches(parameters, PARAMETERS_A_BATCH):
        client.log_batch(run, params=few)
    metrics = [entities.Metric("fitness", record.fitness, end, 0)]
    metrics += [entities.Metric(name, value, end, number) for name, number, value in curves_of(record)]
    for few in _batches(metrics, METRICS_A_BATCH):
        client.log_batch(run, metrics=few)
    client.set_terminated(run, status="FAILED" if record.status == "failed" else "FINISHED", end_time=end)


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:LONGEST_VALUE]


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
