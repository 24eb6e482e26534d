"""Exports of a study to Optuna, MLflow, TensorBoard and Weights & Biases.

A study is read from its folder, which is not changed and may be in use by a running study.

Optuna: the search becomes an Optuna study for Optuna's dashboard and plots. Parameters are `strategy` and
`<strategy>.<parameter>`, with the ranges of the search space; a trial has only those of its own strategy. Client
parameters, which all strategies share, keep their names. A range is widened to include values tried beyond it. FedAvg
and the trials of the search become trials. Trials on other seeds (confirmation) or with another learning rate (tuned
baseline) do not, as their fitness is not comparable. A trial with fewer rounds than the study's is marked as pruned.

MLflow: a study is an experiment and a trial is a run with metrics over rounds. A trial that already exists, identified
by its tag, is skipped, so that exporting a resumed study adds the new trials.

TensorBoard: a trial is a run with curves over rounds and hyperparameters. A trial exported before is rewritten.

Weights & Biases: a trial is an offline run, whose files `wandb sync` uploads. The run's id is the trial's, so that
exporting and uploading again replaces the earlier run.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscout.engine.errors import LogError, first_line
from fedscout.engine.runtime.files import not_written, write_atomically
from fedscout.engine.trials.log import read_records
from fedscout.engine.trials.record import SCORES_WHERE_KNOWN, Trial
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.studies.checks import own_selection
from fedscout.experiments.studies.run_folder import read_claim
from fedscout.experiments.studies.workflow import cohort_of
from fedscout.experiments.text import extra_module
from fedscout.search.searchers.optuna import quiet_optuna, values_of
from fedscout.search.study import planned_space
from fedscout.search.warm_start import full_rounds
from fedscout.strategies import (
    ChoiceRange,
    IntegerRange,
    Range,
    RealRange,
    SearchSpace,
    StrategySpec,
    parse_strategy,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


CURVES = ("accuracy", "clean_accuracy", *SCORES_WHERE_KNOWN, "clean_metric", "loss", "clean_loss", "train_loss")


@dataclass(frozen=True)
class LoggedStudy:
    """A study with its trials by number, possibly still running, and why log files could not be used."""

    path: Path
    config: StudyConfig
    config_hash: str
    records: tuple[Trial, ...]
    faults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A unique name that is valid as a folder name: the data set and the start of the hash."""
        return f"{Path(self.config.federation.dataset).stem}-{self.config_hash[:8]}"

    @property
    def num_clients(self) -> int:
        """Number of participating clients; for natural clients, those that were evaluated."""
        configured = self.config.federation.num_seen
        return configured or max((len(record.client) for record in self.records), default=0) or 1


def read_study(path: Path) -> LoggedStudy:
    """Return the study in a folder.

    Raises:
        LogError: If the folder holds none, or one of another version.
    """
    claim, config = read_claim(path)
    config_hash = str(claim["config_hash"])
    records, unread = read_records(path / "trials", config_hash)
    faults = [f"{file} can't be used and is left out ({reason})" for file, reason in unread.items()]
    if not records:
        why = f": {faults[0]}" if faults else ""
        raise LogError.of("the folder", "hold a study's log", f"{path} without a readable trial{why}")
    return LoggedStudy(path, config, config_hash, tuple(records), tuple(faults))


def trial_name(record: Trial) -> str:
    """Return the name of a trial, unique in its study, such as `00012-fedadam-3f2a`."""
    strategy = "".join(letter if letter.isalnum() else "-" for letter in record.strategy)
    return f"{record.trial:05d}-{strategy}-{record.key[:4]}"


def settings_of(record: Trial) -> dict[str, Any]:
    """Return the settings of a trial as a flat dictionary: strategy, parameters, clients' learning rate, seed."""
    flat: dict[str, Any] = {"strategy": record.strategy}
    for name, value in record.parameters.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        elif value is not None:
            flat[name] = value
    return flat | {"learning_rate": record.learning_rate, "seed": record.seed}


def curves_of(record: Trial) -> Iterator[tuple[str, int, float]]:
    """Yield measure, round (from 1) and value of each measurement; non-finite values are skipped."""
    for name in CURVES:
        for number, value in enumerate(getattr(record, f"round_{name}") or (), start=1):
            if math.isfinite(value):
                yield name, number, value


def export_module(module: str, target: str) -> Any:
    """Return an imported module of the target program, which the extra of the same name installs.

    Raises:
        ConfigurationError: If it is not installed; the message says how to install it.
    """
    return extra_module(module, target, f"--to {target}")


SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
PHASES = ("baseline", "search")
STRATEGY = "strategy"
ATTRIBUTES = ("trial", "phase", "generation", "seed", "learning_rate", "own_fitness", "clean_fitness")


def export_to_optuna(study: LoggedStudy, path: Path) -> int:
    """Write a study into a file of Optuna studies, replacing an earlier export, and return the number of trials.

    The file is an SQLite database if its suffix is in `SQLITE_SUFFIXES`, else an Optuna journal; other studies in it
    are kept.

    Raises:
        LogError: If the study is no search, or if the file can't be written or is no file of Optuna studies.
    """
    trials = list(optuna_trials(study))
    if not trials:
        raise LogError.of("the folder", "hold trials of a search", f"{study.path} with only other trials")

    def write(temporary: Path) -> None:
        if path.exists():
            shutil.copyfile(path, temporary)
        _write_optuna(study, trials, temporary, is_sqlite=path.suffix.lower() in SQLITE_SUFFIXES)

    try:
        with quiet_optuna():
            write_atomically(path, write)
    except OSError as error:
        raise LogError(not_written(path, error)) from error
    except Exception as error:  # whatever reading a foreign file leads to
        if not path.exists():
            raise
        must = "be a file of Optuna studies or a new file"
        raise LogError.of(path, must, first_line(error)) from error
    return len(trials)


def optuna_trials(study: LoggedStudy) -> Iterator[FrozenTrial]:
    """Yield the trials of the search, FedAvg first."""
    records = [record for record in study.records if record.phase in PHASES]
    specs = [_spec(record) for record in records]
    cohort = cohort_of(study.config, study.num_clients)
    selection = own_selection(study.config)
    space = planned_space(study.config.search, cohort, study.config.training.local(), selection)
    labels = tuple(dict.fromkeys([*space.kinds, *(spec.label for spec in specs)]))
    baseline = [record.num_rounds for record in records if record.phase == "baseline"]
    num_rounds = full_rounds(study.config.training.model_dump(), baseline)
    for record, spec in zip(records, specs, strict=True):
        yield _trial(record, spec, space, labels, num_rounds)


def _trial(
    record: Trial, spec: StrategySpec, space: SearchSpace, labels: tuple[str, ...], num_rounds: int
) -> FrozenTrial:
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState, create_trial

    parameters: dict[str, Any] = {STRATEGY: spec.label}
    distributions: dict[str, BaseDistribution] = {STRATEGY: CategoricalDistribution(labels)}
    values = spec.search_values()
    ranges = space.parameters_of(spec.label, values) if spec.label in space.kinds else {}
    for name, parameter_range in ranges.items():
        if name in values:
            full_name = name if name in space.client_ranges else f"{spec.label}.{name}"
            parameters[full_name] = values[name]
            distributions[full_name] = _distribution(parameter_range, values[name])
    failed = record.status == "failed"
    finished = TrialState.COMPLETE if record.num_rounds >= num_rounds else TrialState.PRUNED
    trial = create_trial(
        state=TrialState.FAIL if failed else finished,
        values=None if failed else values_of(record),
        params=parameters,
        distributions=distributions,
        user_attrs=_attributes(record),
        intermediate_values={
            number: score for number, score in enumerate(record.scores() or (), start=1) if not isnan(score)
        },
    )
    trial.datetime_complete = _naive_local_time(record.finished_at)
    trial.datetime_start = trial.datetime_complete - timedelta(seconds=record.seconds.get("total") or 0.0)
    return trial


def _distribution(found: Range, value: Any) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(found, ChoiceRange):
        return CategoricalDistribution(tuple(dict.fromkeys([*found.choices, value])))
    low, high = min(found.low, value), max(found.high, value)
    log = found.log and low > 0
    if isinstance(found, IntegerRange):
        return IntDistribution(int(low), int(high), log=log)
    assert isinstance(found, RealRange)
    return FloatDistribution(low, high, log=log)


def _attributes(record: Trial) -> dict[str, Any]:
    return {
        **{name: getattr(record, name) for name in ATTRIBUTES},
        "seconds": record.seconds.get("total"),
        **({"error": record.error} if record.error else {}),
    }


def _spec(record: Trial) -> StrategySpec:
    kind = "custom" if "path" in record.parameters else record.strategy
    return parse_strategy({"kind": kind, **record.parameters})


def _naive_local_time(time: datetime) -> datetime:
    """Return a time as Optuna stores it: local, without a time zone."""
    return time.astimezone().replace(tzinfo=None)


def _write_optuna(study: LoggedStudy, trials: list[FrozenTrial], path: Path, is_sqlite: bool) -> None:
    import optuna
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    objectives = study.config.search.objectives
    names: list[str] = ["fitness"] if len(objectives) == 1 else [*objectives]
    storage = RDBStorage(f"sqlite:///{path}") if is_sqlite else JournalStorage(JournalFileBackend(str(path)))
    try:
        if study.name in optuna.get_all_study_names(storage):
            optuna.delete_study(study_name=study.name, storage=storage)
        exported = optuna.create_study(study_name=study.name, storage=storage, directions=["maximize"] * len(names))
        exported.set_metric_names(names)
        exported.set_user_attr("federation", study.records[0].study)
        exported.set_user_attr("searcher", study.config.search.kind)
        exported.set_user_attr("config_hash", study.config_hash)
        exported.add_trials(trials)
    finally:
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


KEY = "fedscout_trial"
SQLITE = "sqlite:///"
METRICS_A_BATCH = 1000
PARAMETERS_A_BATCH = 100
LONGEST_VALUE = 6000


def export_to_mlflow(study: LoggedStudy, tracking_uri: str) -> int:
    """Log all trials that MLflow does not have, including confirmation, and return their number.

    The tracking URI is for example `sqlite:///mlflow.db`, or the address of a server.

    Raises:
        ConfigurationError: If MLflow is not installed.
        LogError: If MLflow reports an error.
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
        exported = _exported_trials(client, identity)
        missing = [record for record in study.records if trial_name(record) not in exported]
        for record in missing:
            _log(client, entities, identity, record)
    except (exceptions.MlflowException, OSError) as error:
        must = "be a tracking URI that MLflow can write to"
        raise LogError.of("--path", must, f"{tracking_uri}: {first_line(error)}") from error
    return len(missing)


def _exported_trials(client: Any, experiment: str) -> set[str]:
    """Return the trials that MLflow has; runs left unfinished by an earlier export are deleted."""
    exported: set[str] = set()
    token = None
    while True:
        page = client.search_runs([experiment], page_token=token)
        for run in page:
            if run.info.end_time is None and KEY in run.data.tags:
                client.delete_run(run.info.run_id)
            elif KEY in run.data.tags:
                exported.add(run.data.tags[KEY])
        token = page.token
        if not token:
            return exported


def _log(client: Any, entities: Any, experiment: str, record: Trial) -> None:
    end = round(1000 * record.finished_at.timestamp())
    start = end - round(1000 * (record.seconds.get("total") or 0.0))
    tags = {KEY: trial_name(record), "phase": record.phase, "generation": str(record.generation)}
    if record.error:
        tags["error"] = record.error[:LONGEST_VALUE]
    run = client.create_run(experiment, start_time=start, tags=tags, run_name=trial_name(record)).info.run_id
    parameters = [entities.Param(name, _text(value)) for name, value in settings_of(record).items()]
    for batch in _batches(parameters, PARAMETERS_A_BATCH):
        client.log_batch(run, params=batch)
    metrics = [entities.Metric("fitness", record.fitness, end, 0)]
    metrics += [entities.Metric(name, value, end, number) for name, number, value in curves_of(record)]
    for batch in _batches(metrics, METRICS_A_BATCH):
        client.log_batch(run, metrics=batch)
    client.set_terminated(run, status="FAILED" if record.status == "failed" else "FINISHED", end_time=end)


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:LONGEST_VALUE]


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def export_to_tensorboard(study: LoggedStudy, path: Path) -> int:
    """Write all trials, including confirmation, into a folder named after the study, and return their number.

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
                _write_tensorboard(writer, record)
    except OSError as error:
        raise LogError(not_written(path, error)) from error
    return len(study.records)


def _write_tensorboard(writer: Any, record: Trial) -> None:
    timestamp = record.finished_at.timestamp()
    for name, number, value in curves_of(record):
        writer.add_scalar(name, value, number, walltime=timestamp)
    facts = {"phase": record.phase, "status": record.status, "error": record.error or ""}
    writer.add_text("trial", json.dumps(facts), 0, walltime=timestamp)
    settings = {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)  # as TensorBoard takes them
        for name, value in settings_of(record).items()
    }
    writer.add_hparams(settings, {"fitness": record.fitness}, run_name=".")


ID_DIGITS = 16
QUIET = {"console": "off", "silent": True, "disable_git": True, "save_code": False, "x_disable_stats": True}
"""Nothing is recorded of the process, the machine or the working directory, which are the export's alone."""


def export_to_wandb(study: LoggedStudy, path: Path) -> int:
    """Write all trials, including confirmation, into a folder named after the study, and return their number.

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
            _write_wandb(wandb, record, study.name, folder)
    finally:
        wandb.teardown()  # ends the process that writes the files, once it has
    return len(study.records)


def _write_wandb(wandb: Any, record: Trial, project: str, folder: Path) -> None:
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
