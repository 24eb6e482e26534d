"""Checks of a study's configuration against its federation before it starts, and its metric, measure and objective.

`check` collects the faults of all: the metric, the simulated clock and its deadline, the precision of the model's
layers, the table of client settings, the rows from which clients take part, and the selection policies, each of which
needs enough eligible clients.

A table of client settings must fit the federation and must be the only thing that chooses clients' learning rate, batch
size and epochs. Its clients must not hold rows that it was tuned on, as its settings would partly be memorised. A table
names these rows: a share of a data set that the server held, and the keys that determine it. Clients of the same data
set hold none of them if the same keys give the server at least these rows again.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_table import METRICS, SettingsLookup
from fedscout.engine.contracts.config import ADDED_TERMS, LocalTraining
from fedscout.engine.data.federation import Federation, num_part_rows
from fedscout.engine.errors import ConfigurationError, Fault, StrategyError, first_line
from fedscout.engine.grid.replies import WORST_OF
from fedscout.engine.grid.selection import able_clients, least_seconds
from fedscout.engine.messages.calls import Cohort, FederationFacts, Session
from fedscout.engine.messages.keys import BYTES_A_VALUE
from fedscout.engine.metrics import ACCURACY, OF_CLASSES, OF_QUANTITIES, Mae, Metric, add
from fedscout.engine.trials.record import TrialSettings
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.data.dataset import DatasetRequest
from fedscout.experiments.federation_config import FederationConfig
from fedscout.experiments.reinforcement import ENVIRONMENTS
from fedscout.search.client_settings import ClientSettingsConfig
from fedscout.search.config import HAS_TARGET, ObjectiveName
from fedscout.search.objective import MEASURES, Measure, Objective, reward
from fedscout.strategies import SelectionSpec, named_selection, parse_selection, parse_strategy
from fedscout.strategies.custom import imported
from fedscout.strategies.methods.averaging import FedAvgSpec
from fedscout.strategies.specification import CLIENT_PARAMETERS, StrategySpec

logger = logging.getLogger("fedscout")

NEEDS_DEVICES = (
    "federation.scenario must include devices or latency, such as {kind: latency, clients: all, mean_seconds: 10}"
)


def check(
    config: StudyConfig,
    federation: Federation,
    cohort: Cohort,
    specs: Sequence[StrategySpec],
    policies: Sequence[SelectionSpec | None],
    detection: bool = False,
) -> None:
    """Check a study's configuration against its federation, before anything is trained or written.

    Args:
        config: The study's configuration.
        federation: The federation with its rows.
        cohort: The facts of the participating clients.
        specs: The strategies that may be trained, beginning with that of the first trial.
        policies: The selection policies that may be used; None leaves sampling to the strategy.
        detection: Whether the detectors query clients about their data.

    Raises:
        ConfigurationError: With every fault.
    """
    faults: dict[str, None] = {}
    checks: tuple[Callable[[], object], ...] = (
        partial(metric_of, config.metric_name, federation),
        partial(check_loss_terms, config, federation),
        partial(check_clock, config, federation, specs[0]),
        *(partial(check_durations, federation, spec) for spec in specs[1:]),
        partial(check_not_all_abstain, config, federation, specs[0]),
        partial(check_precision, config.training.local(), federation),
        partial(check_client_settings, config, federation, detection),
        partial(check_able_clients, config, federation, cohort, specs[0], policies),
    )
    for check_one in checks:
        try:
            check_one()
        except ConfigurationError as error:
            faults |= dict.fromkeys(error.faults)
    if faults:
        raise ConfigurationError(list(faults))


def check_clock(config: StudyConfig, federation: Federation, spec: StrategySpec) -> None:
    """Check that the study's time settings are satisfiable.

    Args:
        config: The study's configuration.
        federation: Its clients.
        spec: The strategy to train; for a search FedAvg, its first trial.

    Raises:
        ConfigurationError: If the objective or the strategy needs a simulated clock and there is none, or if every
            client's shortest possible round exceeds the deadline.
    """
    if config.search.objective == "time_to_accuracy" and not federation.devices:
        raise ConfigurationError.of(
            "search.objective", f"not be time_to_accuracy without a simulated clock: {NEEDS_DEVICES}"
        )
    check_durations(federation, spec)
    deadline = config.training.simulated_deadline_seconds
    if deadline is None or not federation.devices:
        return
    seen = _seen(federation)
    seconds = least_seconds(driver_facts(federation), session_of(config, spec))[seen]
    if seconds.min() > deadline:
        fastest = seen[int(np.argmin(seconds))]
        raise ConfigurationError.of(
            "training.simulated_deadline_seconds",
            "be at least the duration of the fastest client's round",
            f"{deadline:g}, but client {fastest} takes at least {seconds.min():.3g} s",
        )


def check_durations(federation: Federation, spec: StrategySpec) -> None:
    """Check that there is a clock if the strategy, built in or the user's own, needs the clients' durations.

    Raises:
        ConfigurationError: If there is no clock.
    """
    if spec.needs().durations and not federation.devices:
        raise ConfigurationError.of("strategy.kind", f"not be {spec.label} without a simulated clock: {NEEDS_DEVICES}")


def plain_seconds(config: StudyConfig, federation: Federation) -> float:
    """Return an upper bound on the mean duration of a FedAvg round with all clients, at most the deadline.

    The slowest of n clients takes at most max (least) + max (mean) · H_n on average, where H_n = 1 + 1/2 + … + 1/n: the
    last term is the mean of the maximum of n exponential delays that all have the largest mean.
    """
    seen = _seen(federation)
    largest_minimum = float(least_seconds(driver_facts(federation), session_of(config, FedAvgSpec()))[seen].max())
    largest_mean = max(
        (federation.devices[client].mean_seconds for client in seen if client in federation.devices), default=0
    )
    seconds = largest_minimum + largest_mean * float((1 / np.arange(1, len(seen) + 1)).sum())
    deadline = config.training.simulated_deadline_seconds
    return seconds if deadline is None else min(seconds, deadline)


def _seen(federation: Federation) -> list[int]:
    return [client for client in range(federation.num_clients) if client not in federation.unseen]


def session_of(config: StudyConfig, spec: StrategySpec) -> Session:
    """Return the session of a specification, which determines the duration of its rounds."""
    session = config.training.session(config.seed, config.search.validation_fraction)
    return replace(session, training=spec.local_training(session.training), algorithm=spec.client_algorithm())


def driver_facts(federation: Federation) -> FederationFacts:
    """Return a driver's facts of a federation that is not placed on hosts yet."""
    from fedscout.engine.models.flat import new_model  # torch, which others do without

    return FederationFacts(
        num_clients=federation.num_clients,
        client_rows=federation.partition.sizes,
        num_classes=federation.num_classes,
        layout=new_model(federation.model, seed=0).layout,
        devices=federation.devices,
        holds_rows=federation.task is None,
        unseen=federation.unseen,
        grouped=federation.groups is not None,
        least_training_rows=federation.release.least_rows,
    )


def own_selection(config: StudyConfig) -> SelectionSpec | None:
    """Return the configured selection policy, applicable or not; None without one.

    Raises:
        StrategyError: If it is not a policy.
    """
    if config.selection is None:
        return None
    with _faults_of("selection"):
        return parse_selection(config.selection)


def own_strategy(config: StudyConfig, cohort: Cohort) -> StrategySpec:
    """Return the configured strategy, which must fit the participating clients.

    Raises:
        StrategyError: If it is none, or does not fit.
    """
    with _faults_of("strategy"):
        return parse_strategy(config.strategy or {}, cohort)


@contextmanager
def _faults_of(section: str) -> Iterator[None]:
    """Name the configuration's key in an error on a specification, in place of its own `kind`."""
    try:
        yield
    except StrategyError as error:
        faults = [
            Fault(f"{section}.kind", fault.must, fault.given, fault.hint) if fault.key == "kind" else fault
            for fault in error.faults
        ]
        raise StrategyError(faults) from error


def selection_of(config: StudyConfig, cohort: Cohort) -> SelectionSpec | None:
    """Return the selection policy used when the strategy names none; None leaves sampling to the strategy.

    Raises:
        StrategyError: If it is not a policy, or if a requested policy is not applicable to these clients.
    """
    policy = named_selection(None, own_selection(config), cohort)
    _check_labels(config, cohort, [policy, named_selection((config.strategy or {}).get("selection"), policy, cohort)])
    return policy


def searched_policies(config: StudyConfig, cohort: Cohort) -> list[SelectionSpec | None]:
    """Return the policies that the search chooses from; none if the study's policy is fixed.

    The study's own policy keeps its parameters.

    Raises:
        StrategyError: As `selection_of`.
    """
    study_policy = selection_of(config, cohort)
    policies = [named_selection(kind, study_policy, cohort) for kind in config.search.selection or ()]
    _check_labels(config, cohort, policies)
    return policies


def check_able_clients(
    config: StudyConfig,
    federation: Federation,
    cohort: Cohort,
    spec: StrategySpec,
    policies: Iterable[SelectionSpec | None],
) -> None:
    """Check that there are enough clients to score a model, and enough eligible clients for each policy.

    Args:
        config: The study's configuration.
        federation: Its clients.
        cohort: The facts of the participating clients.
        spec: The strategy to train; for a search FedAvg, its first trial.
        policies: The selection policies; None, which leaves sampling to the strategy, is skipped.

    Raises:
        ConfigurationError: If fewer clients can ever train than a round samples, or if more are scored than there are.
    """
    if (num_scored := config.training.scored_clients or 0) > federation.num_seen:
        raise ConfigurationError.of(
            "training.scored_clients", f"be at most the number of clients, {federation.num_seen}", num_scored
        )
    for selection in filter(None, policies):
        session = replace(session_of(config, spec), client_table=client_table_of(config, federation))
        trial = TrialSettings(spec, 1, cohort.num_sampled, session, selection=selection)
        num_able = int(np.count_nonzero(able_clients(driver_facts(federation), trial.session, selection.build(cohort))))
        if num_able < cohort.num_sampled:
            raise ConfigurationError.of(
                f"selection.kind={selection.label}",
                f"have at least {cohort.num_sampled} eligible clients, as training.fraction_train requires",
                f"{num_able} of {cohort.num_clients}",
                "federation.min_release and training.simulated_deadline_seconds exclude clients",
            )


def check_not_all_abstain(config: StudyConfig, federation: Federation, spec: StrategySpec) -> None:
    """Check that some client has enough rows to train and some to be scored; rows in groups are not counted.

    Raises:
        ConfigurationError: If all abstain.
    """
    if federation.groups is not None or federation.task is not None:
        return
    least, session, sizes = federation.release.least_rows, session_of(config, spec), federation.partition.sizes
    parts = num_part_rows(sizes[_seen(federation)], session.test_fraction, session.validation_fraction)
    largest = {part: int(parts[part].max()) for part in ("train", "test")}
    if min(largest.values()) < least:
        raise ConfigurationError.of(
            "federation.small_clients",
            f"leave clients that train and are scored, with federation.min_release={least} rows of each part or more",
            f"abstain and at most {largest['train']} training and {largest['test']} test rows per client",
        )


def _check_labels(config: StudyConfig, cohort: Cohort, policies: Iterable[SelectionSpec | None]) -> None:
    """Check that no policy measures losses on labels if the clients are reinforcement-learning clients.

    Raises:
        StrategyError: If one does.
    """
    for spec in policies if config.federation.dataset in ENVIRONMENTS else ():
        if spec is not None and spec.build(cohort).observes.losses:
            raise StrategyError(spec.without_labels)


def check_precision(training: LocalTraining, federation: Federation) -> None:
    """Check that the model's layers compute in bfloat16 if configured; a user's module may fail.

    Args:
        training: The clients' local training.
        federation: The federation with its rows.

    Raises:
        ConfigurationError: With the error that the model raised.
    """
    if not training.is_narrow:
        return
    import torch

    from fedscout.engine.models.flat import PROBE_ROWS, new_model

    model, rows = new_model(federation.model, seed=0), torch.zeros(PROBE_ROWS, *federation.features.shape[1:])
    try:
        with torch.random.fork_rng(devices=[]):
            model.module.train()
            model.narrow_outputs(rows).sum().backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # a user's module may raise anything
        raise ConfigurationError.of(
            "training.precision",
            f"be float32 for this model, whose layers fail in {training.precision} with "
            f"{type(error).__name__}: {' '.join(str(error).split())}",
        ) from error


def check_loss_terms(config: StudyConfig, federation: Federation) -> None:
    """Check that terms added to the loss, which are of classes, have classes.

    Raises:
        ConfigurationError: If the task has none.
    """
    if config.training.is_weighed and federation.task_name != "classification":
        terms = {name: value for name in ADDED_TERMS if (value := getattr(config.training, name))}
        raise ConfigurationError.of("training", f"add no terms to the loss for {federation.task_name}", terms)


def metric_of(name: str, federation: Federation) -> Metric | None:
    """Return the metric in addition to accuracy; None if the metric is accuracy.

    Raises:
        ConfigurationError: If the metric does not fit the task.
    """
    if federation.task is not None:
        allowed, context = [ACCURACY], "for reinforcement learning, where the environment defines the score"
    elif federation.targets is not None:
        allowed, context = [*OF_QUANTITIES], "for regression"
    else:
        allowed, context = [ACCURACY, *OF_CLASSES], "for classification"
    if name not in allowed:
        raise ConfigurationError.of("training.metric", f"be {' or '.join(allowed)} {context}", name)
    return None if name == ACCURACY else {**OF_CLASSES, **OF_QUANTITIES}[name]()


def objective_of(config: StudyConfig, federation: Federation) -> Objective | None:
    """Return the objective of the fitness; None for the mean score."""
    return None if config.search.objective == "accuracy" else _objective(config, federation)


def _objective(config: StudyConfig, federation: Federation | None) -> Objective:
    """Return the objective; without a federation, the cost of a plain round, needed only to measure it, is unset."""
    name = config.search.objective
    objective = Objective(name, config.training.num_rounds, config.search.target or 1.0)
    cost = {"bytes_to_target": _plain_bytes, "time_to_accuracy": plain_seconds}.get(name)
    if federation is None or cost is None:
        return objective
    return replace(objective, plain_cost=cost(config, federation))


def _plain_bytes(config: StudyConfig, federation: Federation) -> float:
    """Return the bytes that plain FedAvg sends and receives per round."""
    num_values = driver_facts(federation).layout.size
    return float(2 * BYTES_A_VALUE * num_values * config.training.num_sampled(federation.num_seen))


def measure_of_study(config: StudyConfig, federation: Federation | None = None) -> Measure:
    """Return the measure of a study's fitness.

    The scale of the mean absolute error is computed from the federation's rows.
    """
    score = MEASURES[config.metric_name]
    if kind := ENVIRONMENTS.get(config.federation.dataset):
        score = reward(kind.score_name, kind.largest_score)
    if config.metric_name == Mae.name and federation is not None and federation.targets is not None:
        targets = federation.targets[federation.partition.rows]
        score = score.model_copy(update={"best": float(np.abs(targets - targets.mean()).mean())})
    return _objective(config, federation).measure(score)


def constant_answer(federation: Federation, metric: Metric | None, objective: ObjectiveName = "accuracy") -> float:
    """Return the fitness of always predicting the majority class of all clients' rows; 0 without classes.

    For the worst clients, it is the mean score over the worst tenth of the clients, each scored on its rows.
    """
    if federation.task_name != "classification" or objective in HAS_TARGET:
        return 0.0
    all_counts = _label_counts(federation, federation.partition.rows)
    label = int(all_counts.argmax())
    if objective != "worst_clients":
        return _constant_score(metric, all_counts, label)
    clients = (_label_counts(federation, federation.partition.client(client)) for client in _seen(federation))
    scores = [_constant_score(metric, counts, label, of_client=True) for counts in clients if counts.any()]
    scores = sorted(score for score in scores if not math.isnan(score))
    return fmean(scores[: -(-len(scores) // WORST_OF)]) if scores else 0.0


def _label_counts(federation: Federation, rows: IntArray) -> IntArray:
    return np.bincount(federation.labels[rows], minlength=federation.num_classes)


def _constant_score(metric: Metric | None, counts: IntArray, label: int, of_client: bool = False) -> float:
    """Return the score if all rows, counted by class, are predicted as one class; without a metric, the accuracy."""
    total = int(counts.sum())
    if metric is None or not total:
        return float(counts[label] / total) if total else 0.0
    output = np.eye(len(counts), dtype=np.float32)[[label]]
    sums = add(metric.statistics(output, np.array([truth])) * count for truth, count in enumerate(counts) if count)
    assert sums is not None
    return metric.value_of_client(sums) if of_client else metric.value(sums)


SAME_ROWS = {"folder", "max_file_bytes", "max_file_rows", "min_release"}
"""Keys of a data set that change none of its rows."""


def check_proxy_rows(provenance: Mapping[str, Any], federation: FederationConfig, name: str) -> None:
    """Check that no client may hold rows that a table was tuned on.

    Args:
        provenance: Of the table; accepted if it describes no proxy rows.
        federation: Of the clients.
        name: Of the table, for the message.

    Raises:
        ConfigurationError: With the keys that would fix it.
    """
    proxy, stored = provenance.get("proxy"), (provenance.get("config") or {}).get("federation")
    if not isinstance(proxy, Mapping) or not isinstance(stored, Mapping) or proxy.get("synthetic") is not None:
        return
    if proxy.get("dataset") != federation.dataset:
        return
    if provenance.get("dataset") != federation.dataset:
        given = f"the data set {federation.dataset}, from which its proxy rows are taken"
        raise ConfigurationError.of("clients", f"hold no row that {name} was tuned on", given)
    study_settings = federation.model_dump(mode="json")
    keys = [key for key in DatasetRequest.model_fields if key not in SAME_ROWS]
    table_settings = {key: stored[key] for key in [*keys, "server_rows", "server_dataset", "seed"] if key in stored}
    differing = [key for key, value in table_settings.items() if study_settings[key] != value]
    if differing:
        required = " ".join(f"federation.{key}={_text(table_settings[key])}" for key in differing)
        actual = " ".join(f"federation.{key}={_text(study_settings[key])}" for key in differing)
        raise ConfigurationError.of(
            "clients", f"hold no row that {name} was tuned on", actual, f"with {required} the server holds these rows"
        )


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


def client_table_of(config: StudyConfig, federation: Federation) -> SettingsLookup | None:
    """Return the table that clients receive; None if all clients train with the same settings.

    Raises:
        ConfigurationError: If it can't be read or does not fit this federation.
    """
    settings = config.client_settings
    if settings.kind is None:
        return None
    if federation.task_name != "classification" or federation.num_classes < 2:
        given = f"{federation.task_name} of {federation.num_classes} classes"
        raise ConfigurationError.of("client_settings.kind=table", "be used for classification of two classes", given)
    return lookup_of(settings, federation.num_classes)


def lookup_of(settings: ClientSettingsConfig, num_classes: int) -> SettingsLookup:
    """Return the configured table of client settings, with its metric.

    Raises:
        ConfigurationError: If it can't be read or is for another number of classes.
    """
    table, provenance = settings.read()
    classes = provenance.get("num_classes", num_classes)
    if classes != num_classes:
        must = f"be a table for {num_classes} classes, as in this federation"
        raise ConfigurationError.of("client_settings.path", must, f"{settings.path}, a table for {classes}")
    folder = "" if settings.metric in METRICS else folder_of_metric(settings.metric, num_classes)
    return SettingsLookup(table, settings.metric, folder, settings.epsilon)


def check_client_settings(config: StudyConfig, federation: Federation, detection: bool = False) -> None:
    """Check that a table is usable before any training, and log warnings about a usable one.

    Args:
        config: The study's configuration.
        federation: The study's federation.
        detection: Whether the detectors query clients about their data.

    Raises:
        ConfigurationError: As `client_table_of`.
    """
    if client_table_of(config, federation) is None:
        return
    path, (_, provenance) = config.client_settings.path, config.client_settings.read()
    check_proxy_rows(provenance, config.federation, str(path))
    if detection:
        logger.warning(
            "detection queries clients for aggregates of their data, which a table of client settings does not need; "
            "fedscout search and train query nothing"
        )


def check_alone(config: StudyConfig) -> None:
    """Check that nothing but the table chooses clients' rates, batches or epochs.

    Raises:
        ConfigurationError: With the settings that do.
    """
    if config.client_settings.kind is None:
        return
    documents = [config.strategy or {}, *config.search.customs]
    names = sorted({name for document in documents for name in CLIENT_PARAMETERS if document.get(name) is not None})
    names += [f"search.client_ranges.{name}" for name, value in config.search.client_ranges if value is not None]
    if names:
        must = "be the only setting of clients' learning rates, batch sizes and epochs"
        raise ConfigurationError.of("client_settings.kind=table", must, ", ".join(names))


def folder_of_metric(metric: str, num_classes: int) -> str:
    """Return the folder of a user's own metric, after checking it on a client with one row of each class.

    Raises:
        UserError: If it can't be imported, or does not return a finite number.
    """
    function = imported(metric)
    try:
        found = f"returned {(value := float(function(np.ones(num_classes, np.int64), num_classes)))}"
        is_finite = math.isfinite(value)
    except Exception as error:  # user code may raise anything
        found, is_finite = f"raised {type(error).__name__}: {first_line(error)}", False
    if not is_finite:
        must = "be a function of (class counts, rows) that returns a finite number"
        raise ConfigurationError.of("client_settings.metric", must, f"{metric}, which {found}")
    module = metric.partition(":")[0]
    file = getattr(sys.modules[module], "__file__", None)
    return "" if file is None else str(Path(file).resolve().parents[module.count(".")])
