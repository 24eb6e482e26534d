"""Exports of a study to Optuna, MLflow, TensorBoard and Weights & Biases.

A study is read from its folder, which is not changed and may be in use by a running study. Every trial is a `Run`, and
`WRITERS` names a writer of runs for each program.

Optuna: the search becomes an Optuna study for Optuna's dashboard and plots. Parameters are the strategy and its
parameters, with the range of the values that were tried; a trial has only those of its own strategy. FedAvg and the
trials of the search become trials. Trials on other seeds (confirmation) or with another learning rate (tuned baseline)
do not, as their fitness is not comparable. A trial with fewer rounds than the study's is marked as pruned.

MLflow: a study is an experiment and a trial is a run with metrics over rounds. A trial that already exists, identified
by its tag, is skipped, so that exporting a resumed study adds the new trials.

TensorBoard: a trial is a run with curves over rounds and hyperparameters. A trial exported before is rewritten.

Weights & Biases: a trial is an offline run, whose files `wandb sync` uploads. The run's id is the trial's, so that
exporting and uploading again replaces the earlier run. Nothing is recorded of the process, the machine or the working
directory, which are the export's alone.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscout.engine.errors import LogError, UserError, first_line
from fedscout.engine.trials.record import SCORES_WHERE_KNOWN, Trial
from fedscout.experiments.config import flattened
from fedscout.experiments.studies.result import StoredStudy
from fedscout.experiments.text import extra_module

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

CURVES = ("accuracy", "clean_accuracy", *SCORES_WHERE_KNOWN, "clean_metric", "loss", "clean_loss", "train_loss")


@dataclass(frozen=True)
class Run:
    """A trial as tracking programs take it.

    Attributes:
        name: Unique in its study, such as `00012-fedadam-3f2a`.
        trial: The record in the log.
        settings: Strategy, parameters, the clients' learning rate and seed by flat names.
        rounds: Finite measurements by name, of each round from 1.
    """

    name: str
    trial: Trial
    settings: Mapping[str, Any]
    rounds: Mapping[int, Mapping[str, float]]


def name_of(study: StoredStudy) -> str:
    """Return the name of a study's exports, which begins with the data set and is valid as a folder name."""
    return f"{Path(study.config.federation.dataset).stem}-{study.claim['config_hash'][:8]}"


def runs_of(study: StoredStudy) -> Iterator[Run]:
    """Yield all trials, including confirmation."""
    for trial in study.trials:
        strategy = "".join(letter if letter.isalnum() else "-" for letter in trial.strategy)
        values = {"strategy": trial.strategy, **flattened(trial.parameters), "learning_rate": trial.learning_rate}
        settings = {
            name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for name, value in (values | {"seed": trial.seed}).items()
            if value is not None
        }
        rounds: dict[int, dict[str, float]] = {}
        for measure in CURVES:
            for number, value in enumerate(trial.rounds.get(measure, ()), start=1):
                if math.isfinite(value):
                    rounds.setdefault(number, {})[measure] = value
        yield Run(f"{trial.trial:05d}-{strategy}-{trial.key[:4]}", trial, settings, rounds)


def export(study: StoredStudy, program: str, place: str) -> int:
    """Write a study for a program of `WRITERS`, and return the number of trials.

    Raises:
        ConfigurationError: If the program's package is not installed.
        LogError: If nothing can be written to this place, or if there is nothing to write.
    """
    if not study.trials:
        why = f": {study.faults[0]}" if study.faults else ""
        raise LogError.of("the folder", "hold a study's log", f"{study.folder} without a readable trial{why}")
    try:
        return WRITERS[program](study, place)
    except UserError:
        raise
    except Exception as error:  # whatever a program's package raises for a place that is not its own
        given = f"{place}: {type(error).__name__}: {first_line(error)}"
        raise LogError.of("--path", f"be a place that {program} can write to", given) from error


LOGARITHMIC = 30.0
"""Numbers that span a larger factor are on a logarithmic scale."""

ATTRIBUTES = ("trial", "phase", "generation", "seed", "learning_rate", "own_fitness", "clean_fitness", "error")


def _write_optuna(study: StoredStudy, place: str) -> int:
    """Write an SQLite file; other studies in it are kept."""
    import optuna

    from fedscout.search.searchers.optuna import quiet_optuna

    trials = list(optuna_trials(study))
    if not trials:
        raise LogError.of("the folder", "hold trials of a search", f"{study.folder} with only other trials")
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    with quiet_optuna():
        storage = optuna.storages.RDBStorage(f"sqlite:///{place}")
        with suppress(KeyError):  # without an earlier export
            optuna.delete_study(study_name=name_of(study), storage=storage)
        exported = optuna.create_study(study_name=name_of(study), storage=storage, direction="maximize")
        exported.set_metric_names(["fitness"])
        exported.set_user_attr("federation", study.trials[0].study)
        exported.add_trials(trials)
        storage.remove_session()
        storage.engine.dispose()
    return len(trials)


def optuna_trials(study: StoredStudy) -> Iterator[FrozenTrial]:
    """Yield the trials of the search, FedAvg first."""
    from optuna.trial import TrialState, create_trial

    runs = [run for run in runs_of(study) if run.trial.phase in ("baseline", "search")]
    distributions = _distributions([run.settings for run in runs])
    num_rounds = max((run.trial.num_rounds for run in runs), default=0)
    for run in runs:
        trial, failed = run.trial, run.trial.status == "failed"
        finished = TrialState.COMPLETE if trial.num_rounds == num_rounds else TrialState.PRUNED
        scores = {number: score for number, score in enumerate(trial.scores() or (), 1) if not math.isnan(score)}
        attributes = {name: getattr(trial, name) for name in ATTRIBUTES} | {"seconds": trial.seconds.get("total")}
        exported = create_trial(
            state=TrialState.FAIL if failed else finished,
            value=None if failed else trial.fitness,
            params=dict(run.settings),
            distributions={name: distributions[name] for name in run.settings},
            user_attrs={name: value for name, value in attributes.items() if value is not None},
            intermediate_values=scores,
        )
        exported.datetime_complete = trial.finished_at.astimezone().replace(tzinfo=None)  # local, as Optuna stores it
        exported.datetime_start = exported.datetime_complete - timedelta(seconds=trial.seconds.get("total") or 0.0)
        yield exported


def _distributions(settings: Sequence[Mapping[str, Any]]) -> dict[str, BaseDistribution]:
    """Return a distribution over the values that were tried of each setting."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    distributions: dict[str, BaseDistribution] = {}
    for name in dict.fromkeys(name for each in settings for name in each):
        values = list(dict.fromkeys(each[name] for each in settings if name in each))
        if not {type(value) for value in values} <= {int, float}:
            distributions[name] = CategoricalDistribution(values)
        elif any(isinstance(value, float) for value in values):
            is_log = min(values) > 0 and max(values) >= LOGARITHMIC * min(values)
            distributions[name] = FloatDistribution(min(values), max(values), log=is_log)
        else:
            distributions[name] = IntDistribution(min(values), max(values))
    return distributions


KEY = "fedscout_trial"
LONGEST_VALUE = 6000
"""MLflow's limit."""


def _write_mlflow(study: StoredStudy, uri: str) -> int:
    """Log all trials that MLflow does not have; those left unfinished by an earlier export are repeated."""
    mlflow, entities = (extra_module(name, "mlflow", "--to mlflow") for name in ("mlflow", "mlflow.entities"))
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    client, num_written = mlflow.MlflowClient(tracking_uri=uri), 0
    found = client.get_experiment_by_name(name_of(study))
    experiment = client.create_experiment(name_of(study)) if found is None else found.experiment_id
    for run in runs_of(study):
        if client.search_runs([experiment], f"tags.{KEY} = '{run.name}' and attributes.status != 'RUNNING'"):
            continue
        trial, end = run.trial, round(1000 * run.trial.finished_at.timestamp())
        start = end - round(1000 * (trial.seconds.get("total") or 0.0))
        tags = {KEY: run.name, "phase": trial.phase, "generation": str(trial.generation)}
        tags |= {"error": trial.error[:LONGEST_VALUE]} if trial.error else {}
        identity = client.create_run(experiment, start_time=start, tags=tags, run_name=run.name).info.run_id
        parameters = [entities.Param(name, str(value)[:LONGEST_VALUE]) for name, value in run.settings.items()]
        client.log_batch(identity, params=parameters)
        for number, values in {0: {"fitness": trial.fitness}, **run.rounds}.items():
            metrics = [entities.Metric(name, value, end, number) for name, value in values.items()]
            client.log_batch(identity, metrics=metrics)
        client.set_terminated(identity, "FAILED" if trial.status == "failed" else "FINISHED", end)
        num_written += 1
    return num_written


def _write_tensorboard(study: StoredStudy, place: str) -> int:
    """Write all trials into a folder named after the study."""
    extra_module("tensorboard", "tensorboard", "--to tensorboard")
    writer_class: Any = extra_module("torch.utils.tensorboard", "tensorboard", "--to tensorboard").SummaryWriter
    for run in runs_of(study):
        folder, facts = Path(place, name_of(study), run.name), {"phase": run.trial.phase, "status": run.trial.status}
        if folder.is_dir():
            shutil.rmtree(folder)
        with writer_class(log_dir=str(folder)) as writer:
            for number, values in run.rounds.items():
                for name, value in values.items():
                    writer.add_scalar(name, value, number, walltime=run.trial.finished_at.timestamp())
            writer.add_hparams({**run.settings, **facts}, {"fitness": run.trial.fitness}, run_name=".")
    return len(study.trials)


QUIET = {"console": "off", "silent": True, "disable_git": True, "save_code": False, "x_disable_stats": True}


def _write_wandb(study: StoredStudy, place: str) -> int:
    """Write all trials into a folder named after the study."""
    wandb, folder = extra_module("wandb", "wandb", "--to wandb"), Path(place, name_of(study))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = wandb.Settings(mode="offline", reinit="create_new", x_disable_meta=True, **QUIET)
    try:
        for run in runs_of(study):
            trial = run.trial
            names = {"project": name_of(study), "group": trial.phase, "name": run.name, "id": trial.key[:16]}
            started = wandb.init(**names, dir=str(folder), config=dict(run.settings), settings=settings)
            for number, values in run.rounds.items():
                started.log(dict(values), step=number)
            started.summary.update({"fitness": trial.fitness, "status": trial.status, "error": trial.error or ""})
            started.finish(exit_code=1 if trial.status == "failed" else 0)
    finally:
        wandb.teardown()  # ends the process that writes the files, once it has
    return len(study.trials)


WRITERS: Mapping[str, Callable[[StoredStudy, str], int]] = {
    "optuna": _write_optuna,
    "mlflow": _write_mlflow,
    "tensorboard": _write_tensorboard,
    "wandb": _write_wandb,
}
