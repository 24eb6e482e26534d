"""Checks of a study's configuration before it starts, and the choice between local and Ray execution.

The checks cover the selection policies (each must be applicable and have enough eligible clients), the simulated clock
and its deadline, the precision of the model's layers, metric and objective, and the language model.

With `engine.grid=auto`, `host_if_sooner` estimates whether the work finishes sooner in this process or on Ray. Ray
takes seconds to start and some milliseconds per round, but distributes the rounds over processors. The smallest client
trains one local epoch in this process, twice; then, if this process may be faster, all clients do, or up to a thousand
of them. The measured time is scaled to all rows and rounds. It is the CPU time of this process, which other load on the
machine affects little. Seconds are logged only if all clients were timed, because the smallest client alone gives no
good estimate. Results are bit-identical in both places, so a wrong estimate costs only time. Configured hosts, and time
limits, which stop clients that hang, require Ray.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import TYPE_CHECKING

import numpy as np

from fedscout.detectors import CLIENT_QUERIES
from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, Fault, StrategyError
from fedscout.engine.grid.replies import WORST_OF, tried_round
from fedscout.engine.grid.selection import able_clients, least_seconds
from fedscout.engine.messages.calls import Cohort, FederationFacts, SelectionPolicy, Session
from fedscout.engine.messages.keys import BYTES_A_VALUE
from fedscout.engine.metrics import ACCURACY, OF_CLASSES, OF_QUANTITIES, Mae, Metric, Sums, add
from fedscout.engine.trials.record import TrialSettings
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.reinforcement import ENVIRONMENTS
from fedscout.experiments.studies.client_settings import client_table_of
from fedscout.search.config import HAS_TARGET, ObjectiveName, RecommenderConfig
from fedscout.search.language_model import NAME, RecordedChat, Transcript, has_key, key_of, server_of
from fedscout.search.objective import MEASURES, Measure, Objective, reward
from fedscout.search.recommenders.language_model import LanguageModel
from fedscout.search.study import ASKS_A_LANGUAGE_MODEL
from fedscout.strategies import SelectionSpec, named_selection, parse_selection
from fedscout.strategies.methods.averaging import FedAvgSpec
from fedscout.strategies.specification import StrategySpec

if TYPE_CHECKING:
    from fedscout.engine.client.host import ClientHost


NEEDS_DEVICES = (
    "federation.scenario must hold devices or latency, such as {kind: latency, clients: all, mean_seconds: 10}"
)


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
    if "time_to_accuracy" in config.search.objectives and not federation.devices:
        raise ConfigurationError(
            Fault("search.objective", f"not be time_to_accuracy without a simulated clock: {NEEDS_DEVICES}")
        )
    check_durations(federation, spec)
    deadline = config.training.simulated_deadline_seconds
    if deadline is None or not federation.devices:
        return
    seen = _seen(federation)
    seconds = least_seconds(driver_facts(federation), session_of(config, spec))[seen]
    if seconds.min() > deadline:
        fastest = seen[int(np.argmin(seconds))]
        raise ConfigurationError(
            Fault(
                "training.simulated_deadline_seconds",
                "be at least what a client's round takes",
                f"{deadline:g}: the fastest, client {fastest}, takes {seconds.min():.3g} s or more",
            )
        )


def check_durations(federation: Federation, spec: StrategySpec) -> None:
    """Check that there is a clock if the strategy, built in or the user's own, needs the clients' durations.

    Raises:
        ConfigurationError: If there is no clock.
    """
    if spec.needs().durations and not federation.devices:
        raise ConfigurationError(
            Fault("strategy.kind", f"not be {spec.label} without a simulated clock: {NEEDS_DEVICES}")
        )


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
        corrupted_clients=(),
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
    return None if config.selection is None else parse_selection(config.selection)


def selection_of(config: StudyConfig, cohort: Cohort) -> SelectionSpec | None:
    """Return the selection policy used when the strategy names none; None leaves sampling to the strategy.

    Raises:
        StrategyError: If it is not a policy, or if a requested policy is not applicable to these clients.
    """
    policy = named_selection(None, own_selection(config), cohort)
    _check_labels(config, cohort, [policy, named_selection((config.strategy or {}).get("selection"), policy, cohort)])
    return policy


def searched_policies(config: StudyConfig, cohort: Cohort) -> list[SelectionSpec]:
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
        raise ConfigurationError(
            Fault(
                "training.scored_clients", f"be at most {federation.num_seen}, the clients that take part", num_scored
            )
        )
    for selection in policies:
        if selection is None:
            continue
        session = replace(session_of(config, spec), client_table=client_table_of(config, federation))
        trial = TrialSettings(spec, 1, cohort.num_sampled, session, selection=selection)
        facts, policy = driver_facts(federation), selection.build(cohort)
        num_able = int(np.count_nonzero(able_clients(facts, trial.session, policy)))
        if num_able < cohort.num_sampled:
            raise ConfigurationError(
                Fault(
                    f"selection.kind={selection.label}",
                    f"have the {cohort.num_sampled} clients to choose from that training.fraction_train asks for",
                    f"{num_able} of {cohort.num_clients} that can ever train{_reasons(facts, trial.session, policy)}",
                )
            )


def _reasons(facts: FederationFacts, session: Session, policy: SelectionPolicy) -> str:
    """Return why the other clients can't train."""
    in_time = able_clients(facts, replace(session, deadline_seconds=None), policy)
    num_late = np.count_nonzero(in_time & ~able_clients(facts, session, policy))
    num_abstaining = facts.num_seen - np.count_nonzero(in_time)
    reasons = []
    if num_abstaining:
        least = facts.least_training_rows
        reasons.append(f"{num_abstaining} train on fewer rows than federation.min_release={least} and abstain")
    if num_late:
        reasons.append(f"{num_late} take longer than training.simulated_deadline_seconds={session.deadline_seconds:g}")
    return ": " + ", ".join(reasons)


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
        raise ConfigurationError(
            Fault(
                "training.precision",
                (
                    f"be float32 for this model, whose layers fail in {training.precision} with "
                    f"{type(error).__name__}: {' '.join(str(error).split())}"
                ),
            )
        ) from error


def metric_of(name: str, federation: Federation) -> Metric | None:
    """Return the metric in addition to accuracy; None if the metric is accuracy.

    Raises:
        ConfigurationError: If the metric does not fit the task.
    """
    if federation.task is not None:
        allowed, context = [ACCURACY], "where clients play: their score is the environment's"
    elif federation.targets is not None:
        allowed, context = [*OF_QUANTITIES], "where a quantity is predicted"
    else:
        allowed, context = [ACCURACY, *OF_CLASSES], "where classes are predicted"
    if name not in allowed:
        raise ConfigurationError(Fault("training.metric", f"be {' or '.join(allowed)} {context}", name))
    return None if name == ACCURACY else {**OF_CLASSES, **OF_QUANTITIES}[name]()


def objectives_of(config: StudyConfig, federation: Federation) -> tuple[Objective, ...]:
    """Return the objectives: that of the fitness, then others of a Pareto front; empty for the mean score."""
    search = config.search
    if search.objectives == ("accuracy",):
        return ()
    return tuple(_objective(name, config, federation) for name in search.objectives)


def _objective(name: ObjectiveName, config: StudyConfig, federation: Federation | None) -> Objective:
    """Return an objective; without a federation, the cost of a plain round, needed only to measure it, is unset."""
    objective = Objective(name, config.training.num_rounds, config.search.target or 1.0)
    if federation is None or name not in PLAIN_COSTS:
        return objective
    return replace(objective, plain_cost=PLAIN_COSTS[name](config, federation))


def _plain_bytes(config: StudyConfig, federation: Federation) -> float:
    """Return the bytes that plain FedAvg sends and receives per round."""
    from fedscout.engine.models.flat import new_model  # torch, which others do without

    num_values = new_model(federation.model, seed=0).layout.size
    return float(2 * BYTES_A_VALUE * num_values * config.training.num_sampled(federation.num_seen))


PLAIN_COSTS: Mapping[ObjectiveName, Callable[[StudyConfig, Federation], float]] = {
    "bytes_to_target": _plain_bytes,
    "time_to_accuracy": plain_seconds,
}
"""What a round of plain FedAvg costs, by the objective that counts it."""


def measures_of_study(config: StudyConfig, federation: Federation | None = None) -> list[Measure]:
    """Return the measure of each objective of a study; the first one is that of the fitness.

    The scale of the mean absolute error is computed from the federation's rows.
    """
    score, search = MEASURES[config.metric_name], config.search
    if kind := ENVIRONMENTS.get(config.federation.dataset):
        score = reward(kind.score_name, kind.largest_score)
    if config.metric_name == Mae.name and federation is not None and federation.targets is not None:
        targets = federation.targets[federation.partition.rows]
        score = score.model_copy(update={"best": float(np.abs(targets - targets.mean()).mean())})
    return [_objective(name, config, federation).measure(score) for name in search.objectives]


def constant_answer(federation: Federation, metric: Metric | None, objective: ObjectiveName = "accuracy") -> float:
    """Return the fitness of always predicting the majority class of all clients' rows; 0 without classes."""
    if federation.task is not None or federation.targets is not None or objective in HAS_TARGET:
        return 0.0
    if objective == "worst_clients":
        return _constant_answer_of_worst_clients(federation, metric)
    if metric is None:
        return federation.majority_share
    counts = _label_counts(federation, federation.partition.rows)
    sums = _sums_of_constant(metric, counts, int(counts.argmax()))
    return 0.0 if sums is None else metric.value(sums)


def _constant_answer_of_worst_clients(federation: Federation, metric: Metric | None) -> float:
    """Return the mean score over the worst tenth of the clients, each scored on its rows."""
    majority_label = int(_label_counts(federation, federation.partition.rows).argmax())
    scores = []
    for client in range(federation.num_clients):
        counts = _label_counts(federation, federation.partition.client(client))
        if client in federation.unseen or not counts.sum():
            continue
        sums = None if metric is None else _sums_of_constant(metric, counts, majority_label)
        share = counts[majority_label] / counts.sum()
        scores.append(float(share) if metric is None or sums is None else metric.value_of_client(sums))
    valid_scores = sorted(score for score in scores if not isnan(score))
    return fmean(valid_scores[: -(-len(valid_scores) // WORST_OF)]) if valid_scores else 0.0


def _label_counts(federation: Federation, rows: IntArray) -> IntArray:
    return np.bincount(federation.labels[rows], minlength=federation.num_classes)


def _sums_of_constant(metric: Metric, counts: IntArray, label: int) -> Sums | None:
    """Return a metric's sums if all rows, counted by class, are predicted as one class."""
    predictions = np.zeros((1, len(counts)), np.float32)
    predictions[0, label] = 1.0
    return add(
        metric.statistics(predictions, np.array([true_label])) * count
        for true_label, count in enumerate(counts)
        if count
    )


def check_language_model(config: StudyConfig, folder: Path) -> None:
    """Check that a search by a language model has a key or a record, before anything is built or written.

    With a record of exchanges in the study's folder, a key is needed only for new requests.

    Raises:
        ConfigurationError: If there is neither a key nor a record.
    """
    settings = config.recommender
    if config.search.kind not in ASKS_A_LANGUAGE_MODEL:
        return
    if settings.replay is not None or has_key(settings):
        check_answerer(settings)
    elif not (folder / NAME).exists():
        raise ConfigurationError(
            Fault(
                (
                    f"search.kind={config.search.kind} asks a language model, so the environment "
                    f"variable {settings.api_key_variable}"
                ),
                "hold its key, and is not set",
                hint=(
                    "search.kind=genetic asks none, recommender.replay names a record that answers, and "
                    "a server that needs no key is named by recommender.base_url with "
                    "recommender.api_key_variable=null"
                ),
            )
        )


def check_answerer(settings: RecommenderConfig) -> None:
    """Check the record to replay; without one, the key and the server's address.

    Raises:
        UserError: If there is no record to replay, or neither key nor server.
    """
    if settings.replay is not None:
        Transcript(settings.replay, must_exist=True)
    else:
        key_of(settings)
        server_of(settings)


@contextmanager
def language_model(config: StudyConfig, folder: Path | None) -> Iterator[LanguageModel]:
    """Yield a language model; its connection is opened on first use and closed with the block.

    Exchanges are stored in the folder, if one is given, and looked up there before each request.
    """
    transcript = None if folder is None else Transcript(folder / NAME)
    with RecordedChat(config.recommender, transcript) as chat:
        yield LanguageModel(chat, config.recommender, config.seed)


def language_model_of_study(config: StudyConfig, folder: Path) -> AbstractContextManager[LanguageModel | None]:
    """Return the language model of a study; None if its searcher uses none."""
    return language_model(config, folder) if config.search.kind in ASKS_A_LANGUAGE_MODEL else nullcontext()


RAY_START_SECONDS = 5.0
RAY_ROUND_SECONDS = 0.015
"""Both on two cores, beside imports that this process needs, too; a round's is of calls, replies and scores."""
LOCAL_ROUND_SECONDS = 0.006
"""Of a round here beside the clients' own work: the strategy, messages, scores and the log."""
SHORT_SECONDS = 0.5
"""A round that takes less is tried as it is, with all its epochs, and again: its fixed part is no small one."""
FASTEST_FLOPS_PER_SECOND = 1e11
"""More than a core reaches in training: what takes long at this speed need not be tried."""
MOST_BATCHING_GAINS = 20
"""By which a round may be shorter than the smallest client's time for its rows says.

It trains by itself, and small clients train side by side: 14 to 21 times on two cores with 10 and 30 clients of wine
and 100 of digits, and 81 with 50 of digits, of which the smallest has 5 rows and the largest 95. Where it is more than
this, Ray may be chosen though a round here takes less, which costs time alone.
"""
MOST_TRIED = 1000
"""Of more clients, every n-th by its number of rows is tried."""

logger = logging.getLogger("fedscout")


@dataclass(frozen=True)
class ExpectedWork:
    """The work expected of the clients.

    Attributes:
        session: The session of the training.
        num_rounds: Rounds of all trials together, and of a detection.
        fraction_train: Share of the clients that train per round.
    """

    session: Session
    num_rounds: int
    fraction_train: float = 1.0


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds of the same work in this process and on Ray."""

    local: float
    ray: float

    @classmethod
    def of(cls, round_seconds: float, num_rounds: int, num_hosts: int) -> Estimate:
        """Return the estimate for `num_rounds` rounds that each take `round_seconds` on one processor."""
        shared = num_rounds * (RAY_ROUND_SECONDS + round_seconds / num_hosts)
        return cls(num_rounds * (LOCAL_ROUND_SECONDS + round_seconds), RAY_START_SECONDS + shared)

    @property
    def is_local(self) -> bool:
        """Whether this process is estimated to be faster."""
        return self.local <= self.ray

    def told(self, num_rounds: int) -> str:
        """Return the choice as one line of text, for at most `num_rounds` rounds."""
        seconds = "less than 1 s" if self.local < 1 else f"about {self.local:.0f} s"
        local_text, ray_text = f"{seconds} in this process", f"about {self.ray:.0f} s on Ray"
        chosen, other, grid = (local_text, ray_text, "ray") if self.is_local else (ray_text, local_text, "local")
        return f"up to {num_rounds} rounds take {chosen}, against {other}; engine.grid={grid} overrules this"


UNTRIED = "rounds are long enough to be shared on Ray; engine.grid=local overrules this"


def host_if_sooner(federation: Federation, work: ExpectedWork) -> ClientHost | None:
    """Return a host for all clients in this process, and log the choice; None if Ray is faster.

    Args:
        federation: The federation with its rows.
        work: The expected work.
    """
    from fedscout.engine.client.host import ClientHost  # torch, which a driver of Ray's hosts does without

    host = ClientHost(federation, CLIENT_QUERIES)
    num_hosts = min(num_processors(), federation.num_clients)
    for round_seconds, was_tried in _round_seconds(host, federation, work):
        estimate = Estimate.of(round_seconds, work.num_rounds, num_hosts)
        if was_tried or not estimate.is_local:
            logger.info("%s", estimate.told(work.num_rounds) if was_tried else UNTRIED)
            break
    return host if estimate.is_local else None


def num_processors() -> int:
    """Return the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _round_seconds(host: ClientHost, federation: Federation, work: ExpectedWork) -> Iterator[tuple[float, bool]]:
    """Yield increasingly accurate lower bounds of a round's seconds on one processor, then the measured time.

    The pair's second value is True for the last one. The first bound is from the minimal number of operations, the
    second from the smallest client, timed twice because a process's first work is slow; the last value times all
    clients, which may train batched. So a round is timed only if the work is short or Ray may not be faster.
    """
    sizes = federation.partition.sizes if federation.task is None else np.ones(federation.num_clients, dtype=int)
    if federation.task is None:
        operations = 6.0 * host.facts().layout.size * int(sizes.sum()) * work.session.training.local_epochs
        yield work.fraction_train * operations / FASTEST_FLOPS_PER_SECOND, False
    by_size = np.argsort(sizes, kind="stable")
    order = by_size[~np.isin(by_size, [*federation.unseen])] if federation.unseen else by_size
    smallest_seconds = min(_seconds(host, work, sizes, order[:1].tolist()) for _ in range(2))
    yield smallest_seconds / MOST_BATCHING_GAINS, False
    timed_clients = sorted(order[:: -(-len(order) // MOST_TRIED)].tolist())
    seconds = _seconds(host, work, sizes, timed_clients)
    if seconds < SHORT_SECONDS:
        epochs = work.session.training.local_epochs
        seconds = min(_seconds(host, work, sizes, timed_clients, epochs) for _ in range(2))
    yield seconds, True


def _seconds(host: ClientHost, work: ExpectedWork, sizes: IntArray, clients: list[int], tried_epochs: int = 1) -> float:
    """Return a round's seconds, extrapolated from some clients' local epochs and scoring."""
    session, began = work.session, process_time()
    results = tried_round(host, session, clients, tried_epochs)
    spent = process_time() - began
    scoring = 0.0 if results.evaluation is None else spent * results.evaluation.seconds / results.seconds
    training = (spent - scoring) * session.training.local_epochs / tried_epochs * work.fraction_train
    if session.num_scored is not None:
        scoring *= min(1.0, session.num_scored / len(sizes))
    return (training + scoring) * float(sizes.sum()) / max(1, int(sizes[clients].sum()))
