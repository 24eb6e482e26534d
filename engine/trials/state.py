"""The state of a running trial: models, scores, clock, client selection and notes.

- `TrialState` is the state after a round, and the content of a checkpoint.
- `TrialScores` scores the model after each round, either with the train messages that send the model out or on a round
  trip of its own.
- `TrialClock` measures the time by phase and the time left.
- `ClientChoice` applies a client selection policy. The policy replaces the strategy's own sampling: the strategy sees
  only the selected nodes (`ChosenNodes`) and must train all of them; one that does not is rejected, as its round would
  differ from the one reported to the policy.
- `cheap_collections` freezes live objects against garbage collection. A strategy that converts each reply's arrays to
  NumPy with `keep_input=False`, as Flower's Bulyan and QFedAvg and many user strategies do, runs a full `gc.collect()`
  each time: about 0.1 s per client and round with Ray and torch in the process. Frozen objects are skipped. Measured
  on two cores on 2026-11-22 with ten clients of the digits data, Flower's Bulyan and QFedAvg: rounds of 1.2 s take 12
  ms.
- `kept_model` and `table_notes` tell the user which model is kept and what a table of client settings discloses.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from math import isnan
from operator import index
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.contracts.client_table import FAR_KEY, SettingsLookup
from fedscout.engine.errors import TrialError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.replies import Evaluation
from fedscout.engine.grid.selection import ChosenNodes, able_clients, expected_seconds, train_all_shown
from fedscout.engine.messages import calls
from fedscout.engine.messages.contents import FIRST_NODE_ID, holds_several, read_array, train_config, view_record
from fedscout.engine.messages.keys import FLAT_KEY, GROUP_KEY, ROUND_KEY, SEED_KEY
from fedscout.engine.models.layout import ParameterLayout
from fedscout.engine.seeds import stream
from fedscout.engine.text import shown
from fedscout.engine.trials.record import TrialSettings


@dataclass
class TrialState:
    """The state of a trial after a round.

    Attributes:
        strategy: The strategy, with whatever state it holds between rounds.
        arrays: The model, or several, in the form in which the strategy receives it.
        train_config: The configuration of train messages, as the strategy left it.
        evaluate_config: Likewise for evaluate messages.
        server_round: Last finished round, 0 before the first.
        client_states: The clients' persistent states, by client.
        rounds: The values of every round, by measure.
        last_evaluation: Scores after the last round.
        dropped: Failure reasons of clients in training, by `round:client`.
        skipped: Why the strategy returned no model, by round.
        seconds: Seconds so far, by phase.
        sent_bytes: Bytes of the train messages (`down`) and replies (`up`) of all finished rounds.
        unscored: Round and training loss of a model that the next train messages will score.
        policy: The client selection policy with its state; None leaves the selection to the strategy.
        trained_rounds: The number of rounds in which each client trained, if there is a policy.
        far_clients: Each client's report whether it is far from every cell of a settings table, 0 or 1.
        num_choosable: Number of clients from which the policy selects; clients that join later have larger numbers.
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
    seconds: dict[str, float] = field(default_factory=dict)
    sent_bytes: dict[str, int] = field(default_factory=dict)
    unscored: tuple[int, float] | None = None
    policy: calls.SelectionPolicy | None = None
    trained_rounds: dict[int, int] = field(default_factory=dict)
    far_clients: dict[int, float] = field(default_factory=dict)
    num_choosable: int = 0

    def take_model(self, record: ArrayRecord, server_round: int, integers: Container[str] = ()) -> None:
        """Store a model that a strategy returned, as float32 (some of Flower's strategies return float64).

        Args:
            record: The model, or several.
            server_round: The round that produced it.
            integers: Names of the model's integer buffers, whose mean may be fractional: they keep their type.

        Raises:
            TrialError: If it holds NaN or inf.
        """
        arrays: dict[str, npt.NDArray[Any]] = {}
        several = holds_several([*record])
        for name, array in record.items():
            dtype = None if name in integers or (several and name == GROUP_KEY) else np.float32
            with np.errstate(over="ignore"):
                arrays[name] = np.asarray(read_array(array), dtype=dtype)
            if not np.isfinite(arrays[name]).all():
                raise TrialError(f"round {server_round}: the aggregated parameters are not finite (diverged)")
        self.arrays = arrays

    def finish(self, server_round: int, sent_bytes: Mapping[str, int]) -> None:
        """Finish a round, adding the bytes that its messages carried."""
        self.server_round = server_round
        self.sent_bytes = {way: self.sent_bytes.get(way, 0) + count for way, count in sent_bytes.items()}

    def bytes_a_round(self, way: str) -> float | None:
        """Return the mean bytes per finished round, `down` or `up`; None before the first."""
        return self.sent_bytes[way] / self.server_round if self.sent_bytes and self.server_round else None


def cohort_of(settings: TrialSettings, grid: HostGrid[Any]) -> calls.Cohort:
    """Return the facts for building the strategy; a shortened training has those of the full one."""
    training, facts = settings.session.training, grid.facts
    return calls.Cohort(
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


def first_state(settings: TrialSettings, grid: HostGrid[Any]) -> TrialState:
    """Return the state before the first round."""
    session, needs = settings.session, settings.session.needs
    vector = grid.initial_vector(session.seed)
    arrays = grid.facts.layout.split(vector) if needs.arrays == "named" else {FLAT_KEY: vector}
    config = train_config(session.training, session.seed, 1, needs.replies, needs.initial_loss)
    del config[ROUND_KEY]  # strategies write it
    cohort, selection = cohort_of(settings, grid), settings.selection
    with_unseen = replace(cohort, num_clients=grid.facts.num_clients)
    return TrialState(
        strategy=settings.strategy.build(cohort),
        policy=None if selection is None else selection.build(with_unseen),
        arrays=dict(arrays),
        train_config=config,
        evaluate_config={SEED_KEY: session.seed},
        num_choosable=grid.facts.num_clients,
    )


class TrialClock:
    """Measures a trial's time from construction.

    Args:
        timeout_seconds: The time limit of the trial; None means no limit.

    Attributes:
        seconds: By phase; a resumed trial continues from those of its checkpoint.
    """

    def __init__(self, timeout_seconds: float | None) -> None:
        self.seconds: dict[str, float] = {}
        self._timeout = timeout_seconds
        self._deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._counted_until = self._last_lap = time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether the time limit is reached."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def begin(self) -> None:
        """Start a phase."""
        self._last_lap = time.perf_counter()

    def lap(self, phase: str) -> None:
        """End a phase and start the next."""
        last, self._last_lap = self._last_lap, time.perf_counter()
        self.add(phase, self._last_lap - last)

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def count_total(self) -> None:
        """Add the time since the last call to the trial's wall time."""
        last, self._counted_until = self._counted_until, time.perf_counter()
        self.add("total", self._counted_until - last)

    def left(self, server_round: int) -> float | None:
        """Return the remaining seconds; None without a limit.

        Raises:
            TrialError: If no time is left.
        """
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TrialError(f"round {server_round}: the trial took longer than {self._timeout:g} s")
        return left


class TrialScores:
    """Scores the model after each round on every client and stores the results in the trial's state.

    Args:
        grid: The trial's grid.
        state: The trial's state; `unscored` tells whether its model still needs scores.
        clock: The trial's clock.
        session: Defines the measures and the part of the clients' rows.
    """

    def __init__(self, grid: HostGrid[Any], state: TrialState, clock: TrialClock, session: calls.Session) -> None:
        self._grid = grid
        self._state = state
        self._clock = clock
        self._session = session

    def ask_with_training(self, arrays: ArrayRecord) -> None:
        """Let the next train messages also score the model, if it is unscored.

        Several models are scored at once instead, as the round's messages may not send all of them.
        """
        if holds_several([*arrays]):
            self.ask_now()
        elif self._state.unscored is not None:
            self._grid.scores.ask(self._grid.flat_vector(arrays))

    def take(self) -> None:
        """Store the scores that came with the last training, or request them if there are none."""
        evaluation = self._grid.scores.take()
        if evaluation is None:
            self.ask_now()
        elif self._state.unscored is not None:
            self.keep(evaluation, *self._state.unscored)

    def ask_now(self) -> None:
        """Score the model on a round trip of its own, if it is unscored."""
        if self._state.unscored is not None:
            server_round, train_loss = self._state.unscored
            self._state.unscored = None  # asked once, also if that fails
            self.keep(self.of(server_round), server_round, train_loss)

    def notes(self) -> Iterator[str]:
        """Yield a note on rounds without a score, in which a finite model gave non-finite outputs."""
        losses, facts = np.array(self._state.rounds.get("loss", ())), self._grid.facts
        rounds = 1 + np.flatnonzero(np.isnan(losses))
        if facts.holds_rows and len(rounds):
            normalised = any("BatchNorm" in layer for layer in facts.layout.layers)
            hint = "; a server step beyond the clients' models can make batch-normalisation variances negative"
            yield (
                f"its outputs were not finite in {len(rounds)} of {len(losses)} rounds, first in round {rounds[0]}, "
                f"so these rounds have no score{hint if normalised else ''}"
            )

    def refuse_missing(self) -> None:
        """Check that the last round has a score.

        Raises:
            TrialError: If the outputs of its model are not numbers.
        """
        measure = "accuracy" if self._session.metric is None else "metric"
        rounds = [self._state.rounds.get(f"{view}{measure}", ()) for view in ("", "clean_")]
        evaluation = self._state.last_evaluation
        if evaluation is not None and evaluation.is_missing and any(isnan(scores[-1]) for scores in rounds if scores):
            raise TrialError(f"round {len(rounds[0])}: the model's outputs are not finite (diverged)")

    def of(self, server_round: int) -> Evaluation:
        """Return the scores of the current model."""
        return self._grid.evaluate_all(view_record(self._state.arrays), self._clock.left(server_round))

    def keep(self, evaluation: Evaluation, server_round: int, train_loss: float) -> None:
        """Record the measurements of a round.

        Raises:
            TrialError: If a client could not be evaluated, or none has rows to evaluate on.
        """
        self._state.unscored = None
        if evaluation.failures:
            client, reason = next(iter(evaluation.failures.items()))
            raise TrialError(f"round {server_round}: client {client} could not be evaluated: {reason}")
        if not evaluation.num_examples.sum():
            raise TrialError(f"no client has rows to evaluate on ({self._session.evaluate_on})")
        if evaluation.of_unseen is not None and not evaluation.of_unseen.num_examples.sum():
            raise TrialError(f"no unseen client has rows to evaluate on ({self._session.evaluate_on})")
        measured = {**self._measured(evaluation), "train_loss": train_loss}
        for measure, value in measured.items():
            self._state.rounds.setdefault(measure, []).append(value)
        self._state.last_evaluation = evaluation

    def _measured(self, evaluation: Evaluation) -> dict[str, float]:
        """Return a round's values, by measure.

        Raises:
            TrialError: If the metric is undefined on the rows.
        """
        metric, measured, scores = self._session.metric, {}, {}
        views = {
            "": evaluation,
            "clean_": evaluation.clean,
            "global_": evaluation.of_received,
            "new_client_": evaluation.of_unseen,
        }
        for view, scored in views.items():
            if scored is not None:
                measured[f"{view}accuracy"], scores[f"{view}metric"] = scored.accuracy, scored.metric
                if view in ("", "clean_"):
                    measured[f"{view}loss"] = scored.weighted(scored.losses)
        known = {} if metric is None else {name: score for name, score in scores.items() if score is not None}
        if self._session.worst_clients:
            known |= {f"{view}worst_clients": evaluation.worst_clients(clean=bool(view)) for view in ("", "clean_")}
        if metric is not None and any(map(isnan, known.values())) and not evaluation.is_missing:
            raise TrialError(
                f"{metric.name} is undefined on the rows to evaluate on ({self._session.evaluate_on}): "
                "too many have the same label"
            )
        return {**measured, **known}


def kept_model(algorithm: ClientAlgorithm | None, layout: ParameterLayout) -> str | None:
    """Return a sentence on which model is kept; None if it is the one that clients use.

    Args:
        algorithm: The client algorithm.
        layout: The model's layout.
    """
    if algorithm is None or not (algorithm.personal or algorithm.tunes):
        return None
    if shares_nothing(algorithm, layout):
        return "the saved model is the initial one, as all trained parameters stay on the clients"
    clause = "personal parameters stay on the clients" if algorithm.personal else "clients fine-tune it before use"
    return f"the saved model is the global one, which new clients receive; {clause}"


def shares_nothing(algorithm: ClientAlgorithm | None, layout: ParameterLayout) -> bool:
    """Return whether all parameters stay on their client, so that no part of the model is shared."""
    stays_local = None if algorithm is None else algorithm.private_mask(layout)
    return stays_local is not None and bool(stays_local.all())


def table_notes(settings: TrialSettings, grid: HostGrid[Any]) -> Iterator[str]:
    """Yield notes on a table of client settings: additional disclosures and the number of far clients.

    Args:
        settings: Settings of the trial.
        grid: The grid on which it ran.
    """
    table = settings.session.client_table
    if table is None:
        return
    if disclosures := list(_disclosures(settings, grid)):
        yield f"clients disclose information on their data in addition to models and losses: {'; '.join(disclosures)}"
    if table.table.threshold is not None and grid.far_clients:
        yield _far_note(table, sum(grid.far_clients.values()), len(grid.far_clients))


def _disclosures(settings: TrialSettings, grid: HostGrid[Any]) -> Iterator[str]:
    """Yield what else the server learns about the clients' data or how they train."""
    label, needs, algorithm = settings.strategy.label, settings.session.needs, settings.session.algorithm
    auxiliary = {} if algorithm is None or algorithm.auxiliary_is_determined else algorithm.auxiliary
    if reported := [*sorted(grid.reported_sums.keys() - {FAR_KEY}), *sorted(auxiliary)]:
        is_summed = needs.replies == "merged" and settings.num_sampled > 1
        yield f"{label} makes them report {', '.join(reported)}" + (", summed over the round" * is_summed)
    if needs.queries:
        yield f"{label} queries their {', '.join(needs.queries)}"
    if needs.durations:
        yield f"{label} needs their durations"
    if settings.selection is not None:
        yield f"the selection policy {settings.selection.label} receives their numbers of rows"


def _far_note(table: SettingsLookup, num_saying: float, num_asked: int) -> str:
    """Return a note on the number of clients that report being far from the table, with advice."""
    report = f"{num_saying:.0f} of {num_asked} clients report that they are farther than {table.table.threshold:g}"
    correction = ""
    if table.epsilon is not None:
        estimate = min(max(0.0, table.num_far(num_saying, num_asked)), num_asked)
        correction = f", an estimated {estimate:.1f} without the noise of epsilon {table.epsilon:g}"
    advice = "; fedscout tune-table --refine refines and extends the table" if num_saying else ""
    return f"{report} from every cell of their table{correction}{advice}"


_FROZEN = ContextVar("inside a block", default=False)


@contextmanager
def cheap_collections() -> Iterator[None]:
    """Exclude all objects alive on entry from garbage collection inside the block.

    A nested block does nothing: the outermost one freezes and unfreezes.
    """
    if _FROZEN.get():
        yield
        return
    token = _FROZEN.set(True)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _FROZEN.reset(token)


class ClientChoice:
    """Client selection by a policy in the rounds of one trial.

    Args:
        settings: Settings of the trial.
        state: Holds the policy, if any, and the strategy.
        grid: The trial's grid.

    Raises:
        TrialError: If there is a policy and the strategy overrides `start`, or the policy observes losses and clients
            have no labelled rows.
    """

    def __init__(self, settings: TrialSettings, state: TrialState, grid: HostGrid[Any]) -> None:
        self._settings = settings
        self._state = state
        self._grid = grid
        self._facts: calls.FederationFacts | None = None
        if settings.selection is not None:
            self._check_supported(settings.selection)
            train_all_shown(state.strategy)

    def nodes(self, server_round: int, arrays: ArrayRecord) -> Grid:
        """Return the grid that the strategy sees in a round: restricted to the selected clients, given a policy."""
        policy, selection = self._state.policy, self._settings.selection
        if policy is None or selection is None:
            return self._grid
        table = self._table(policy, selection.label)
        generator = stream(self._settings.session.seed, "selection", server_round)
        num_asked = min(self._settings.num_sampled, len(table.clients))
        chosen = _checked_selection(policy.choose(server_round, table, num_asked, generator), table, selection.label)
        assigned = _checked_assignments(policy.assign(table, chosen), chosen, selection.label)
        others = set(table.clients.tolist()) - {*chosen} if policy.observes.include_idle_clients else ()
        self._grid.reports.watched = calls.RoundSelection(policy.observes, tuple(sorted(others)), assigned)
        if others and holds_several([*arrays]):
            self._grid.measure(arrays)
        return cast(Grid, ChosenNodes(self._grid, chosen))

    def check(self, nodes: Grid, messages: Iterable[Message]) -> None:
        """Check that a round's messages go to all selected clients, or to none.

        Raises:
            TrialError: If the strategy sampled a subset of its own.
        """
        if not isinstance(nodes, ChosenNodes):
            return
        sent_to, shown = {message.metadata.dst_node_id for message in messages}, {*nodes.get_node_ids()}
        if sent_to and sent_to != shown:
            assert self._settings.selection is not None
            raise TrialError(
                f"{type(self._state.strategy).__name__} must train all {len(shown)} clients that "
                f"selection.kind={self._settings.selection.label} chose, but trains {len(sent_to)}"
            )

    def tell(self, seconds: Mapping[int, float], round_seconds: float) -> None:
        """Report the outcome of a round to the policy.

        Args:
            seconds: Simulated seconds of each client that was sent a message.
            round_seconds: Simulated seconds of the round.
        """
        if self._state.policy is None:
            return
        report = self._grid.reports.take(self._grid.server_round, seconds, round_seconds)
        for client in report.clients[report.trained].tolist():
            self._state.trained_rounds[client] = self._state.trained_rounds.get(client, 0) + 1
        self._state.policy.observe(report)

    def rounds_of(self, clients: Iterable[int]) -> tuple[int, ...] | None:
        """Return the number of rounds in which each client trained; None without a policy."""
        trained = self._state.trained_rounds
        return None if self._state.policy is None else tuple(trained.get(client, 0) for client in clients)

    def notes(self) -> Iterator[str]:
        """Yield a note on clients that joined too late for the policy."""
        num_later = self._grid.facts.num_clients - self._state.num_choosable
        if self._state.policy is not None and num_later > 0:
            yield f"the policy does not choose from the {num_later} clients that joined after the first round"

    def _table(self, policy: calls.SelectionPolicy, label: str) -> calls.ClientTable:
        """Return the reachable clients, without those that can never train.

        Raises:
            TrialError: If there are none.
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
                f"selection.kind={label} must have clients to choose from, got none: all {len(nodes)} have too few "
                "training rows to take part, or take longer than the deadline"
            )
        columns = clients, facts.client_rows[clients], self._expected[clients]
        for column in columns:
            column.flags.writeable = False  # a policy's choice is checked against what it was shown
        return calls.ClientTable(*columns)

    def _check_supported(self, selection: calls.SelectionChoice) -> None:
        assert self._state.policy is not None
        if type(self._state.strategy).start is not Strategy.start:
            name = type(self._state.strategy).__name__
            raise TrialError(f"selection.kind={selection.label} can't choose for {name}, which has its own start")
        if self._state.policy.observes.losses and not (self._grid.facts.holds_rows and self._grid.facts.classifies):
            raise TrialError(f"selection.kind={selection.label} must have clients with labels, to measure losses on")


def _checked_selection(chosen: Any, table: calls.ClientTable, label: str) -> Sequence[int]:
    """Return the selected clients, ascending.

    Raises:
        TrialError: If there are none, duplicates, unreachable ones, or anything but integers.
    """
    items = [*chosen] if isinstance(chosen, Iterable) else [chosen]
    try:
        clients = [index(client) for client in items]
    except TypeError:
        raise TrialError(f"selection.kind={label} must choose clients by their numbers, got {shown(items)}") from None
    if not clients or len({*clients}) < len(clients) or not np.isin(clients, table.clients).all():
        raise TrialError(
            f"selection.kind={label} must choose different clients of the {len(table.clients)} that can be reached, "
            f"got {shown(clients)}"
        )
    return sorted(clients)


def _checked_assignments(assigned: Any, chosen: Sequence[int], label: str) -> Mapping[int, calls.Assignment]:
    """Return the assignments of the selected clients.

    Raises:
        TrialError: If it is anything but a mapping of some of the selected clients to an `Assignment`.
    """
    is_valid = isinstance(assigned, Mapping) and all(isinstance(each, calls.Assignment) for each in assigned.values())
    if not is_valid or not {*assigned} <= {*chosen}:
        raise TrialError(
            f"selection.kind={label} must assign an Assignment only to clients that it chose, {shown(chosen)}, "
            f"got {shown(assigned)}"
        )
    return dict(assigned)
