"""The state of a running trial: scores, clock, selection, kept model; what a checkpoint holds.

Where a running trial stands after a round; this is what a checkpoint holds.

The scores of a trial's models: on the round trip that sends a model out for training, or on one of their own.

The time that a trial takes, by phase, and what is left of it.

What is kept of a training whose clients use models of their own, or none in common: told before it and beside it.

Why a user's strategy does not find a record in a message: clients send none of their own making.

Notes of a trial whose clients train by a table: what they tell after all, and how many lie far off.

Garbage collections that cost nothing, around code that asks for many of them.

A strategy that turns each reply's arrays into NumPy's with `keep_input=False`, as Flower's Bulyan and QFedAvg and many
a user's do, ends each time in a full `gc.collect()`: about 0.1 s a client and round with Ray and torch in the process.
Frozen objects are passed over. Measured on two cores on 2026-11-22, ten clients of the digits, Flower's Bulyan and
QFedAvg: rounds of 1.2 s take 12 ms. A block inside another freezes nothing more, and leaves it to that one to thaw.

A selection policy at work in a trial: ahead of each round it says who trains, afterwards it is told what came of it.

The policy replaces the strategy's own sampling: the strategy is shown the chosen nodes alone (`ChosenNodes`) and trains
all that it is shown. One that does not is refused, as its round would be another than the policy is told of.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from math import isnan
from operator import index
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.contracts.client_table import FAR_KEY, SettingsLookup
from fedscout.engine.errors import TrialError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.replies import Evaluation
from fedscout.engine.grid.selection import ChosenNodes, able_clients, expected_seconds, train_all_shown
from fedscout.engine.messages.calls import (
    Assignment,
    ClientTable,
    Cohort,
    FederationFacts,
    RoundSelection,
    SelectionChoice,
    SelectionPolicy,
    Session,
)
from fedscout.engine.messages.contents import FIRST_NODE_ID, holds_several, read_array, train_config, view_record
from fedscout.engine.messages.keys import FLAT_KEY, GROUP_KEY, ROUND_KEY, SEED_KEY
from fedscout.engine.models.layout import ParameterLayout
from fedscout.engine.seeds import stream
from fedscout.engine.text import listed, shown
from fedscout.engine.trials.record import TrialSettings


@dataclass
class TrialState:
    """Where a trial stands.

    Attributes:
        strategy: Keeps what it likes between rounds.
        arrays: The model, or several, as the strategy is handed it.
        train_config: Of messages, as the strategy left it.
        evaluate_config: Likewise.
        server_round: Last round that was finished, 0 before the first.
        client_states: What clients keep, by client.
        rounds: What was measured in every round, by column of the log.
        last_evaluation: Scores after the last round.
        dropped: Reasons of clients that failed in training, by `round:client`.
        skipped: Why the strategy gave no model, by round.
        partly_skipped: Of several models, why it gave none to some clients, by round.
        unmoved: By client, in how many rounds that was so.
        seconds: Spent so far, by phase.
        sent_bytes: Of the train messages of all finished rounds, `down` and `up`.
        unscored: Round and training loss of a model that the next train messages will have scored.
        policy: Chooses who trains, and keeps what it likes between rounds; None leaves that to the strategy.
        trained_rounds: In how many rounds each client has trained, where a policy chooses.
        far_clients: What each said of whether it lies far from every cell of a table of settings, 0 or 1.
        num_choosable: Clients that the policy was built to choose from; who joins later has a number beyond.
    """

    strategy: Strategy
    arrays: dict[str, npt.NDArray[Any]]
    train_config: dict[str, Any]
    evaluate_config: dict[str, Any]
    server_round: int = 0
    client_states: dict[int, Any] = field(default_factory=dict)
    rounds: dict[str, list[float]] = field(default_factory=dict)
    last_evaluation: Evaluation | None = None
    dropped: dict[str, str] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    partly_skipped: dict[int, str] = field(default_factory=dict)
    unmoved: dict[int, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    sent_bytes: dict[str, int] = field(default_factory=dict)
    unscored: tuple[int, float] | None = None
    policy: SelectionPolicy | None = None
    trained_rounds: dict[int, int] = field(default_factory=dict)
    far_clients: dict[int, float] = field(default_factory=dict)
    num_choosable: int = 0

    def take_model(self, record: ArrayRecord, server_round: int, integers: Container[str] = ()) -> None:
        """Take what a strategy returned, as float32 (some of Flower's return float64).

        Args:
            record: The model, or several.
            server_round: Of whose end it is.
            integers: Names of the model's integer buffers, whose mean may be a fraction: they stay as they are.

        Raises:
            TrialError: If it holds NaN or inf.
        """
        arrays: dict[str, npt.NDArray[Any]] = {}
        several = holds_several([*record])
        for name, array in record.items():
            kept_as = None if name in integers or (several and name == GROUP_KEY) else np.float32
            with np.errstate(over="ignore"):
                arrays[name] = np.asarray(read_array(array), dtype=kept_as)
            if not np.isfinite(arrays[name]).all():
                raise TrialError(f"round {server_round}: the aggregated parameters are not finite (diverged)")
        self.arrays = arrays

    def finish(self, server_round: int, sent_bytes: Mapping[str, int]) -> None:
        """End a round, whose train messages carried so much."""
        self.server_round = server_round
        self.sent_bytes = {way: self.sent_bytes.get(way, 0) + count for way, count in sent_bytes.items()}

    def bytes_a_round(self, way: str) -> float | None:
        """Return the mean over the finished rounds, `down` or `up`; None before the first."""
        return self.sent_bytes[way] / self.server_round if self.sent_bytes and self.server_round else None


def cohort_of(settings: TrialSettings, grid: HostGrid[Any]) -> Cohort:
    """Return the facts on which the strategy depends; a shorter training's are those of the full one."""
    training, facts = settings.session.training, grid.facts
    return Cohort(
        facts.num_seen,
        settings.num_sampled,
        training.learning_rate,
        training.optimizer,
        training.momentum,
        facts.layout.layers,
        num_rounds=settings.full_rounds or settings.num_rounds,
        server_rows=facts.server_rows,
        server_labels=facts.server_labels,
        classifies=facts.classifies,
        chosen=settings.selection is not None,
        own_settings=settings.session.client_table is not None,
    )


def _policy(settings: TrialSettings, cohort: Cohort) -> SelectionPolicy | None:
    return None if settings.selection is None else settings.selection.build(cohort)


def first_state(settings: TrialSettings, grid: HostGrid[Any]) -> TrialState:
    """Return a trial before its first round."""
    session, needs = settings.session, settings.session.needs
    vector = grid.initial_vector(session.seed)
    arrays = grid.facts.layout.split(vector) if needs.arrays == "named" else {FLAT_KEY: vector}
    config = train_config(session.training, session.seed, 1, needs.replies, needs.initial_loss)
    del config[ROUND_KEY]  # strategies write it
    cohort = cohort_of(settings, grid)
    return TrialState(
        strategy=settings.strategy.build(cohort),
        policy=_policy(settings, replace(cohort, num_clients=grid.facts.num_clients)),
        arrays=dict(arrays),
        train_config=config,
        evaluate_config={SEED_KEY: session.seed},
        num_choosable=grid.facts.num_clients,
    )


class TrialClock:
    """Runs from when it is made.

    Args:
        timeout_seconds: The time that the trial has; None is as much as it takes.

    Attributes:
        seconds: By phase; a resumed trial goes on from those of its checkpoint.
    """

    def __init__(self, timeout_seconds: float | None) -> None:
        self.seconds: dict[str, float] = {}
        self._timeout = timeout_seconds
        self._deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._counted_until = self._last_lap = time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def begin(self) -> None:
        """A phase begins here."""
        self._last_lap = time.perf_counter()

    def lap(self, phase: str) -> None:
        """A phase ends here, and the next begins."""
        last, self._last_lap = self._last_lap, time.perf_counter()
        self.add(phase, self._last_lap - last)

    def add(self, phase: str, seconds: float) -> None:
        """Add to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def count_total(self) -> None:
        """Add what passed since the last count to the trial's wall time."""
        last, self._counted_until = self._counted_until, time.perf_counter()
        self.add("total", self._counted_until - last)

    def left(self, server_round: int) -> float | None:
        """Return the seconds that are left; None waits.

        Raises:
            TrialError: If none are.
        """
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TrialError(f"round {server_round}: the trial took longer than {self._timeout:g} s")
        return left


class TrialScores:
    """Has the model after each round scored by every client, and keeps what comes of it in the trial's state.

    Args:
        grid: Of the trial.
        state: Says whether its model waits for scores.
        clock: Of the trial.
        session: Says what is measured on which part of the clients' rows.
    """

    def __init__(self, grid: HostGrid[Any], state: TrialState, clock: TrialClock, session: Session) -> None:
        self._grid = grid
        self._state = state
        self._clock = clock
        self._session = session
        self._part = session.evaluate_on

    def ask_with_training(self, arrays: ArrayRecord) -> None:
        """Have the model scored by the train messages that are sent next, if it waits for that.

        Several models are scored at once: there may be some that no message of the round sends.
        """
        if holds_several([*arrays]):
            self.ask_now()
        elif self._state.unscored is not None:
            self._grid.evaluate_with_next_training(arrays)

    def take(self) -> None:
        """Keep the scores of the model that the clients have just been sent, or ask for them."""
        evaluation = self._grid.take_evaluation()
        if evaluation is None:
            self.ask_now()
        elif self._state.unscored is not None:
            self.keep(evaluation, *self._state.unscored)

    def ask_now(self) -> None:
        """Score the model on a round trip of its own, if it waits for scores."""
        if self._state.unscored is not None:
            server_round, train_loss = self._state.unscored
            self._state.unscored = None  # asked once, also if that fails
            self.keep(self.of(server_round), server_round, train_loss)

    def notes(self) -> Iterator[str]:
        """Yield that a finite model gave outputs that are not numbers in some rounds, which have no score."""
        losses, facts = np.array(self._state.rounds.get("round_loss", ())), self._grid.facts
        rounds = 1 + np.flatnonzero(np.isnan(losses))
        if facts.holds_rows and len(rounds):
            normalised = any("BatchNorm" in layer for layer in facts.layout.layers)
            why = "; a server's step beyond its clients can make variances of batch normalisation negative"
            yield (
                f"its outputs were not numbers in {len(rounds)} of {len(losses)} rounds, first in round {rounds[0]}, "
                f"which have no score{why if normalised else ''}"
            )

    def refuse_missing(self) -> None:
        """Go on unless the last round has no score.

        Raises:
            TrialError: If the outputs of its model are not numbers.
        """
        measure = "accuracy" if self._session.metric is None else "metric"
        rounds = [self._state.rounds.get(f"round_{view}{measure}", ()) for view in ("", "clean_")]
        evaluation = self._state.last_evaluation
        if evaluation is not None and evaluation.is_missing and any(isnan(scores[-1]) for scores in rounds if scores):
            raise TrialError(f"round {len(rounds[0])}: the model's outputs are not numbers (diverged)")

    def of(self, server_round: int) -> Evaluation:
        """Return the scores of the model as it is."""
        return self._grid.evaluate_all(view_record(self._state.arrays), self._clock.left(server_round))

    def keep(self, evaluation: Evaluation, server_round: int, train_loss: float) -> None:
        """Write down a round.

        Raises:
            TrialError: If a client could not be evaluated, or none has rows for that.
        """
        self._state.unscored = None
        if evaluation.failures:
            client, reason = next(iter(evaluation.failures.items()))
            raise TrialError(f"round {server_round}: client {client} could not be evaluated: {reason}")
        if not evaluation.num_examples.sum():
            raise TrialError(f"no client has rows to evaluate on ({self._part})")
        if evaluation.of_unseen is not None and not evaluation.of_unseen.num_examples.sum():
            raise TrialError(f"no unseen client has rows to evaluate on ({self._part})")
        measured = {**self._measured(evaluation), "round_train_loss": train_loss}
        for column, value in measured.items():
            self._state.rounds.setdefault(column, []).append(value)
        self._state.last_evaluation = evaluation

    def _measured(self, evaluation: Evaluation) -> dict[str, float]:
        """Return what a round's columns hold.

        Raises:
            TrialError: If the rows have no score by the metric.
        """
        measured = {
            "round_accuracy": evaluation.accuracy,
            "round_clean_accuracy": evaluation.clean_accuracy,
            "round_loss": evaluation.weighted(evaluation.losses),
            "round_clean_loss": evaluation.weighted(evaluation.clean_losses),
        }
        if evaluation.of_received is not None:
            measured["round_global_accuracy"] = evaluation.of_received.accuracy
        if evaluation.of_unseen is not None:
            measured["round_new_client_accuracy"] = evaluation.of_unseen.accuracy
        return {**measured, **self._scores(evaluation)}

    def _scores(self, evaluation: Evaluation) -> dict[str, float]:
        """Return the columns of the session's metric and of the worst clients, as far as they are asked for."""
        session = self._session
        found = {} if session.metric is None else _metrics(evaluation)
        if session.worst_clients:
            found["round_worst_clients"] = evaluation.worst_clients()
            found["round_clean_worst_clients"] = evaluation.worst_clients(clean=True)
        missing = any(isnan(score) for score in found.values()) and not evaluation.is_missing
        if session.metric is not None and missing:
            name = session.metric.name
            raise TrialError(f"the rows to evaluate on ({self._part}) have no {name}: too many have the same label")
        return found


def _metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return the columns of the session's metric, if it has one."""
    found = {
        "round_metric": evaluation.metric,
        "round_clean_metric": evaluation.clean_metric,
        "round_global_metric": None if evaluation.of_received is None else evaluation.of_received.metric,
        "round_new_client_metric": None if evaluation.of_unseen is None else evaluation.of_unseen.metric,
    }
    return {column: value for column, value in found.items() if value is not None}


def kept_model(algorithm: ClientAlgorithm | None, layout: ParameterLayout) -> str | None:
    """Return what model is kept, a sentence; None where it is the one that clients use.

    Args:
        algorithm: What the clients do.
        layout: Of the model.
    """
    if algorithm is None or not (algorithm.personal or algorithm.tunes):
        return None
    if shares_nothing(algorithm, layout):
        return "the model that is kept is the initial one, as all that is trained stays with its client"
    theirs = "what clients have of their own stays with them" if algorithm.personal else "clients tune it for use"
    return f"the model that is kept is the global one, which a new client is given; {theirs}"


def shares_nothing(algorithm: ClientAlgorithm | None, layout: ParameterLayout) -> bool:
    """Return whether all of the model stays with its client, so that none is trained in common."""
    at_home = None if algorithm is None else algorithm.at_home(layout)
    return at_home is not None and bool(at_home.all())


def missing_record(error: BaseException) -> str | None:
    """Return what a message was asked for and what it holds, if that is the error; else None.

    Args:
        error: As it was caught, with its frames.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    content = frames[-1].f_locals.get("self") if isinstance(error, KeyError) and frames else None
    if type(content).__module__ != RecordDict.__module__:  # Flower's views of records by their kind are there as well
        return None
    return (
        f"a message has no record {shown(error.args[0])}, it holds {listed(content or ()) or 'none of that kind'}: "
        "clients send arrays and metrics alone, and nothing of a node's configuration (docs/custom_strategy.md)"
    )


def table_notes(settings: TrialSettings, grid: HostGrid[Any]) -> Iterator[str]:
    """Yield them.

    Args:
        settings: Of the trial.
        grid: On which it ran.
    """
    table = settings.session.client_table
    if table is None:
        return
    if told := list(_told(settings, grid)):
        yield f"something of clients' data goes back, beside models and losses: {'; '.join(told)}"
    if table.table.threshold is not None and grid.far_clients:
        yield _far_note(table, sum(grid.far_clients.values()), len(grid.far_clients))


def _told(settings: TrialSettings, grid: HostGrid[Any]) -> Iterator[str]:
    """Yield what a server learns beyond that of how clients' data lie, or how they train."""
    label, needs, algorithm = settings.strategy.label, settings.session.needs, settings.session.algorithm
    companions = {} if algorithm is None or algorithm.companions_follow else algorithm.companions
    if told := [*sorted(grid.told_sums.keys() - {FAR_KEY}), *sorted(companions)]:
        is_summed = needs.replies == "merged" and settings.num_sampled > 1
        yield f"{label} has them report {', '.join(told)}" + (", of which it reads the round's sum" * is_summed)
    if needs.queries:
        yield f"{label} asks for their {', '.join(needs.queries)}"
    if needs.durations:
        yield f"{label} needs to know how long each takes"
    if settings.selection is not None:
        yield f"the selection policy {settings.selection.label} is told their numbers of rows"


def _far_note(table: SettingsLookup, num_saying: float, num_asked: int) -> str:
    """Return how many clients say that they lie far off, and what could be done."""
    said = f"{num_saying:.0f} of {num_asked} clients say that they are farther than {table.table.threshold:g}"
    noisy = ""
    if table.epsilon is not None:
        meant = min(max(0.0, table.num_far(num_saying, num_asked)), num_asked)
        noisy = f", which means about {meant:.1f} at epsilon {table.epsilon:g}"
    advice = "; fedscout tune-table --refine makes the table finer and wider" if num_saying else ""
    return f"{said} from every cell of their table{noisy}{advice}"


_INSIDE = ContextVar("inside a block", default=False)


@contextmanager
def cheap_collections() -> Iterator[None]:
    """Keep everything that is alive on entry out of the collections inside the block."""
    if _INSIDE.get():
        yield
        return
    token = _INSIDE.set(True)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _INSIDE.reset(token)


class ClientChoice:
    """Who trains in the rounds of one trial.

    Args:
        settings: Of the trial.
        state: Holds the policy, if there is one, and the strategy that it chooses for.
        grid: Of the trial.

    Raises:
        TrialError: If there is a policy and the strategy drives its rounds itself, or clients have no labelled rows on
            which the losses could be measured that the policy wants.
    """

    def __init__(self, settings: TrialSettings, state: TrialState, grid: HostGrid[Any]) -> None:
        self._settings = settings
        self._state = state
        self._grid = grid
        self._num_chosen = self._num_asked = 0
        self._facts: FederationFacts | None = None
        if settings.selection is not None:
            self._refuse_impossible(settings.selection)
            train_all_shown(state.strategy)

    def nodes(self, server_round: int, arrays: ArrayRecord) -> Grid:
        """Return the grid as the strategy is to see it in a round whose model this is."""
        policy, selection = self._state.policy, self._settings.selection
        if policy is None or selection is None:
            return self._grid
        table = self._table(policy, selection.label)
        generator = stream(self._settings.session.seed, "selection", server_round)
        num_asked = min(self._settings.num_sampled, len(table.clients))
        chosen = _checked(policy.choose(server_round, table, num_asked, generator), table, selection.label)
        if server_round > 1:  # in the first a policy may ask everybody
            self._num_chosen, self._num_asked = len(chosen), num_asked
        assigned = _checked_assignments(policy.assign(table, chosen), chosen, selection.label)
        others = set(table.clients.tolist()) - {*chosen} if policy.observes.everybody else ()
        self._grid.reports.watched = RoundSelection(policy.observes, tuple(sorted(others)), assigned)
        if others and holds_several([*arrays]):
            self._grid.measure(arrays)
        return cast(Grid, ChosenNodes(self._grid, chosen))

    def check(self, nodes: Grid, messages: Iterable[Message]) -> None:
        """Return if a round's messages go to all that were chosen, or to nobody.

        Raises:
            TrialError: If the strategy made a choice of its own among them.
        """
        if not isinstance(nodes, ChosenNodes):
            return
        asked, shown = {message.metadata.dst_node_id for message in messages}, {*nodes.get_node_ids()}
        if asked and asked != shown:
            assert self._settings.selection is not None
            raise TrialError(
                f"{type(self._state.strategy).__name__} must train all {len(shown)} clients that "
                f"selection.kind={self._settings.selection.label} chose, it asked {len(asked)}: it samples by itself"
            )

    def tell(self, seconds: Mapping[int, float], round_seconds: float) -> None:
        """Tell the policy what a round brought.

        Args:
            seconds: Simulated, of each client that was asked.
            round_seconds: Of the round.
        """
        if self._state.policy is None:
            return
        report = self._grid.reports.take(self._grid.server_round, seconds, round_seconds)
        for client in report.clients[report.trained].tolist():
            self._state.trained_rounds[client] = self._state.trained_rounds.get(client, 0) + 1
        self._state.policy.observe(report)

    def rounds_of(self, clients: Iterable[int]) -> tuple[int, ...] | None:
        """Return in how many rounds each client has trained; None without a policy."""
        trained = self._state.trained_rounds
        return None if self._state.policy is None else tuple(trained.get(client, 0) for client in clients)

    def notes(self) -> Iterator[str]:
        """Yield that the policy goes on to choose more or fewer than are asked for."""
        num_later = self._grid.facts.num_clients - self._state.num_choosable
        if self._state.policy is not None and num_later > 0:
            yield f"{num_later} clients joined after the first round, from which the policy does not choose"
        if self._num_chosen != self._num_asked:
            label = "" if self._settings.selection is None else self._settings.selection.label
            yield f"selection.kind={label} chose {self._num_chosen} clients in the last round, not {self._num_asked}"

    def _table(self, policy: SelectionPolicy, label: str) -> ClientTable:
        """Return the clients that can be reached, without those that could never train.

        Raises:
            TrialError: If nobody could.
        """
        nodes = np.array([*self._grid.get_node_ids()], np.int64)  # who has joined is in the facts then
        facts = self._grid.facts
        if facts is not self._facts:
            self._facts, self._expected = facts, expected_seconds(facts, self._grid.session)
            self._able = able_clients(facts, self._grid.session, policy)
        reached = nodes - FIRST_NODE_ID
        clients = reached[reached < self._state.num_choosable]
        clients = clients[self._able[clients]]
        if not len(clients):
            raise TrialError(
                f"selection.kind={label} must have clients to choose from, got none: all of the {len(nodes)} train on "
                "too few rows to take part, or take longer than the deadline"
            )
        columns = clients, facts.client_rows[clients], self._expected[clients]
        for column in columns:
            column.flags.writeable = False  # a policy's choice is checked against what it was shown
        return ClientTable(*columns)

    def _refuse_impossible(self, selection: SelectionChoice) -> None:
        assert self._state.policy is not None
        if type(self._state.strategy).start is not Strategy.start:
            name = type(self._state.strategy).__name__
            raise TrialError(f"selection.kind={selection.label} can't choose for {name}, which brings its own start")
        if self._state.policy.observes.losses and not (self._grid.facts.holds_rows and self._grid.facts.classifies):
            raise TrialError(f"selection.kind={selection.label} must have clients with labels, to measure losses on")


def _checked(chosen: Any, table: ClientTable, label: str) -> Sequence[int]:
    """Return who was chosen, ascending.

    Raises:
        TrialError: If that is nobody, somebody twice, or somebody who can't be reached, or not told by whole numbers.
    """
    told = [*chosen] if isinstance(chosen, Iterable) else [chosen]
    try:
        clients = [index(client) for client in told]
    except TypeError:
        raise TrialError(f"selection.kind={label} must choose clients by their numbers, got {shown(told)}") from None
    if not clients or len({*clients}) < len(clients) or not np.isin(clients, table.clients).all():
        raise TrialError(
            f"selection.kind={label} must choose different clients of the {len(table.clients)} that can be reached, "
            f"got {shown(clients)}"
        )
    return sorted(clients)


def _checked_assignments(assigned: Any, chosen: Sequence[int], label: str) -> Mapping[int, Assignment]:
    """Return what chosen clients do otherwise.

    Raises:
        TrialError: If that is anything but an `Assignment` for some of those that were chosen.
    """
    fits = isinstance(assigned, Mapping) and all(isinstance(each, Assignment) for each in assigned.values())
    if not fits or not {*assigned} <= {*chosen}:
        raise TrialError(
            f"selection.kind={label} must assign an Assignment to some of the clients {shown(chosen)} that it chose, "
            f"got {shown(assigned)}"
        )
    return dict(assigned)
