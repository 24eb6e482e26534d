"""A study's search as an Optuna study, so that Optuna's dashboard and plots show it.

Parameters are `strategy` and `<strategy>.<parameter>`, with the ranges from which the search drew them; a trial has
those of its own strategy only. The clients' parameters, which all strategies share, go by their own names. A range is
widened to hold what was tried beyond it.

FedAvg and the trials of the search become trials. Those of other seeds (the confirmation) or of another learning rate
(the tuned baseline) do not: their fitness can't be compared. A trial of fewer rounds than the study's is a pruned one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscout.engine.errors import Fault, LogError, first_line
from fedscout.engine.runtime.atomic_file import not_written, write_atomically
from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.reports.exports.logged_study import LoggedStudy
from fedscout.experiments.studies.client_selection import own_selection
from fedscout.experiments.studies.workflow import cohort_of
from fedscout.search.searchers.optuna_searcher import quiet_optuna, values_of
from fedscout.search.study.earlier_studies import full_rounds
from fedscout.search.study.study import planned_space
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

SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
PHASES = ("baseline", "search")
STRATEGY = "strategy"
ATTRIBUTES = ("trial", "phase", "generation", "seed", "learning_rate", "own_fitness", "clean_fitness")


def export_to_optuna(study: LoggedStudy, path: Path) -> int:
    """Write a study into a file of Optuna studies, in place of what it holds of the study, and return how many trials.

    The file is SQLite's if its suffix is one of `SQLITE_SUFFIXES`, else an Optuna journal; other studies in it stay.

    Raises:
        LogError: If the study is no search, or if the file can't be written or is no file of Optuna studies.
    """
    trials = list(optuna_trials(study))
    if not trials:
        raise LogError(Fault("the folder", "hold a search", f"{study.path} with other trials only"))

    def write(temporary: Path) -> None:
        if path.exists():
            shutil.copyfile(path, temporary)
        _write(study, trials, temporary, is_sqlite=path.suffix.lower() in SQLITE_SUFFIXES)

    try:
        with quiet_optuna():
            write_atomically(path, write)
    except OSError as error:
        raise LogError(not_written(path, error)) from error
    except Exception as error:  # whatever reading a foreign file leads to
        if not path.exists():
            raise
        wanted = f"{path} must be a file of Optuna studies, or not be there, got another"
        raise LogError(f"{wanted}: {first_line(error)}") from error
    return len(trials)


def optuna_trials(study: LoggedStudy) -> Iterator[FrozenTrial]:
    """Yield the trials of the search, FedAvg first."""
    shown = [record for record in study.records if record.phase in PHASES]
    specs = [_spec(record) for record in shown]
    cohort = cohort_of(study.config, study.num_clients)
    own = own_selection(study.config)
    space = planned_space(study.config.search, cohort, study.config.training.local(), own)
    labels = tuple(dict.fromkeys([*space.kinds, *(spec.label for spec in specs)]))
    baseline = [record.num_rounds for record in shown if record.phase == "baseline"]
    num_rounds = full_rounds(study.config.training.model_dump(), baseline)
    for record, spec in zip(shown, specs, strict=True):
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
    for name, found in ranges.items():
        if name in values:
            shown = name if name in space.client_ranges else f"{spec.label}.{name}"
            parameters[shown] = values[name]
            distributions[shown] = _distribution(found, values[name])
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
    trial.datetime_complete = _local(record.finished_at)
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


def _local(time: datetime) -> datetime:
    """Return a time as Optuna keeps them: local, without a zone."""
    return time.astimezone().replace(tzinfo=None)


def _write(study: LoggedStudy, trials: list[FrozenTrial], path: Path, is_sqlite: bool) -> None:
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
