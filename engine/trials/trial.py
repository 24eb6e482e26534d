"""One trial: runs a strategy with a seed for a number of rounds and returns the scores of every round.

The rounds are driven here through the strategy's `configure_*` and `aggregate_*`, not by Flower's `Strategy.start`,
which can't resume, stop on NaN, or evaluate other clients than it trains. A strategy sees the same as under `start`:
the configurations are created once and passed to every round, so its changes to them persist, and a round without
messages or without a model keeps the previous model. Only a strategy that overrides `start` is run by its own.

A round's record is the score of the model after it in either case, so a trial of n rounds has n records. Fitness is the
mean score over the last five rounds: the accuracy, weighted over clients, or the session's metric. A round whose model
gives non-finite outputs has the score NaN; it is left out of means, and a trial that ends with one has failed. A failed
trial has fitness 0 and keeps its reason.

`time_limit` interrupts user code in Python. A thread signals the main thread when the time is over, and repeats the
signal until the block ends. The handler raises KeyboardInterrupt, which `except Exception` does not catch and which
Ray's calls propagate, unlike any other exception. Only the main thread handles signals: both the command line and Ray
tasks run trials there. In other threads, and on code that stays inside a library's C functions, the limit has no
effect.

**Own start.** A strategy that overrides `Strategy.start` of Flower is measured as any other strategy. The record of
round r is the score of the model that it passes to `evaluate_fn(r, model)`, as Flower's own `start` does after every
round; that of the last round is the score of the model that `start` returns. If it counts its rounds anew, for example
by calling Flower's `start` twice, the numbers continue. A round that leaves the model unchanged is recorded as skipped.
If `start` ends early, its model is the model of all remaining rounds. A strategy that leaves out a round is rejected:
its fitness would be a mean over other rounds than that of other strategies.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy
from threadpoolctl import threadpool_limits

from fedscout.engine.arrays import FloatArray
from fedscout.engine.data.federation import round_seconds
from fedscout.engine.errors import EngineError, TrialError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.replies import Evaluation
from fedscout.engine.messages.calls import ReportsNotes
from fedscout.engine.messages.contents import claim_task_identity, clients_text, metrics_of, view_record
from fedscout.engine.messages.keys import NUM_EXAMPLES_KEY, ROUND_KEY, SIMULATED_SECONDS_KEY
from fedscout.engine.models.layout import IntegerSlot
from fedscout.engine.seeds import global_random_kept, seed_global_random
from fedscout.engine.trials import state as trial_state
from fedscout.engine.trials.checkpoint import CheckpointStore, PlainState
from fedscout.engine.trials.record import Trial, TrialSettings

RETRY_SECONDS = 1.0
"""Seconds after which code that survives the interruption is interrupted again."""

_SIGNAL = signal.SIGVTALRM
"""Signal of a CPU timer, which is otherwise unused; SIGALRM is often taken."""


@contextmanager
def time_limit(seconds: float | None, reason: str) -> Iterator[None]:
    """Interrupt the block when its time is over.

    Args:
        seconds: The time limit; None means none.
        reason: Text of the error.

    Raises:
        TrialError: When the time is over.
    """
    main = threading.main_thread()
    if seconds is None or threading.current_thread() is not main or signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
        yield
        return
    over = threading.Event()
    interrupted: list[bool] = []

    def end(*_: object) -> None:
        if not over.is_set():
            interrupted.append(True)
            raise KeyboardInterrupt

    def watch(wait: float) -> None:
        while not over.wait(wait):
            signal.pthread_kill(main.ident or 0, _SIGNAL)
            wait = RETRY_SECONDS

    previous_handler = signal.signal(_SIGNAL, end)
    watcher = threading.Thread(target=watch, args=[seconds], name="time limit", daemon=True)
    watcher.start()
    try:
        yield
    except BaseException as error:
        if interrupted:
            raise TrialError(reason) from error
        raise
    finally:
        over.set()
        watcher.join()
        signal.signal(_SIGNAL, previous_handler)


GRACE_SECONDS = 1.0
"""A trial checks its time limit between calls; this long after the limit it is interrupted."""

OnRound = Callable[[int], None]
"""Called with the number of finished rounds, for progress displays."""


def run_trial(
    settings: TrialSettings, grid: HostGrid[Any], store: CheckpointStore | None = None, on_round: OnRound | None = None
) -> Trial:
    """Run one trial to its end, resuming from its checkpoint if there is one.

    Args:
        settings: Settings of the trial.
        grid: A grid made with `settings.session`; not shared with another trial.
        store: Stores checkpoints; None disables them.
        on_round: Called after each round.

    Raises:
        EngineError: If hosts were lost permanently; any failure of the trial itself is part of its result.
    """
    claim_task_identity()
    with threadpool_limits(limits=1), trial_state.cheap_collections(), global_random_kept():
        try:
            rounds = _Rounds(settings, grid, store or CheckpointStore(None), on_round)
        except EngineError:
            raise
        except (Exception, SystemExit) as error:  # parameters that do not fit, a constructor of a user's that raises
            reason = f"could not start: {type(error).__name__}: {error}"
            return Trial.of(settings, status="failed", error=reason)
        try:
            return rounds.run()
        finally:
            grid.close()


class _Rounds:
    """The rounds of one trial over one grid."""

    def __init__(
        self, settings: TrialSettings, grid: HostGrid[Any], store: CheckpointStore, on_round: OnRound | None
    ) -> None:
        self._clock = trial_state.TrialClock(settings.timeout_seconds)
        self._settings = settings
        self._seed = settings.session.seed
        self._grid = grid
        self._store = store
        self._tell = on_round or (lambda _: None)
        self._state, self._plain = self._begin()
        if store.restore(settings.checkpoint, self._plain) and self._state.server_round > settings.num_rounds:
            self._state, self._plain = self._begin()  # that was the end of a longer trial
        grid.client_states = self._state.client_states
        grid.far_clients = self._state.far_clients
        self._clock.seconds = self._state.seconds
        self._scores = trial_state.TrialScores(grid, self._state, self._clock, settings.session)
        self._choice = trial_state.ClientChoice(settings, self._state, grid)
        self._integers = {name for name, slot in grid.facts.layout.entries.items() if isinstance(slot, IntegerSlot)}
        self._overrides_start = type(self._state.strategy).start is not Strategy.start  # which can't go on from a round

    def _begin(self) -> tuple[trial_state.TrialState, PlainState]:
        """Return the state before the first round, and the serialiser of that state."""
        state = trial_state.first_state(self._settings, self._grid)
        return state, PlainState(state, (Evaluation,))

    def run(self) -> Trial:
        """Run all remaining rounds."""
        failure = None
        seconds = self._settings.timeout_seconds
        try:
            limit = None if seconds is None else seconds + GRACE_SECONDS
            with time_limit(limit, f"the trial took longer than {seconds or 0:g} s"):
                if self._overrides_start:
                    self._run_own_start()
                else:
                    for server_round in range(self._state.server_round + 1, self._settings.num_rounds + 1):
                        self._round(server_round)
                self._clock.begin()
                self._scores.ask_now()
                self._clock.lap("evaluate")
            self._scores.refuse_missing()
        except EngineError:
            raise
        except (Exception, SystemExit) as error:  # user code may raise anything; the study goes on
            failure = self._reason(error)
            failure = self._score_last_round() or failure
        self._count_time()
        if failure is None and not self._settings.is_full and not self._overrides_start:
            ended = replace(self._state, seconds={})  # the process that resumes it counts its own
            self._save(ended)
        return self._trial(failure)

    def _round(self, server_round: int) -> None:
        strategy, state, clock = self._state.strategy, self._state, self._clock
        self._grid.server_round = server_round
        config = ConfigRecord(state.train_config | {ROUND_KEY: server_round})
        arrays = view_record(state.arrays)
        clock.begin()
        seed_global_random(self._seed, "train", server_round)
        nodes = self._choice.nodes(server_round, arrays)
        messages = list(strategy.configure_train(server_round, arrays, config, nodes))
        self._choice.check(nodes, messages)
        state.train_config = dict(config)
        clock.lap("configure")
        self._scores.ask_with_training(arrays)
        replies = list(self._grid.send_and_receive(messages, timeout=clock.left(server_round)))
        self._scores.take()
        durations = self._grid.take_durations()
        duration = round_seconds(durations.values(), self._settings.session.deadline_seconds)
        failures = self._grid.take_train_failures()
        state.dropped |= failures
        self._choice.tell(durations, duration)
        train_loss = _train_loss(replies)
        clock.left(server_round)
        clock.lap("train")
        seed_global_random(self._seed, "aggregate", server_round)
        aggregated, metrics = _model_and_metrics(strategy, strategy.aggregate_train(server_round, replies))
        del replies  # maybe a model a client
        if self._settings.session.needs.durations and metrics is not None:
            duration = float(cast(float, metrics.get(SIMULATED_SECONDS_KEY, duration)))
        self._count_simulated(duration)
        if aggregated is None:
            self._skip(server_round, len(messages), failures)
        else:
            state.take_model(aggregated, server_round, self._integers)
            self._models()  # refuses one that is not ours
        state.unscored = (server_round, train_loss)
        clock.lap("aggregate")
        if self._settings.session.needs.sees_evaluation:
            self._evaluate(server_round)
            clock.lap("evaluate")
        state.finish(server_round, self._grid.take_bytes())
        state.client_states = self._grid.client_states
        state.far_clients = self._grid.far_clients
        self._tell(server_round)
        if self._store.due(server_round) and server_round < self._settings.num_rounds:
            self._count_time()
            self._save(state)
            clock.lap("checkpoint")

    def _count_simulated(self, seconds: float) -> None:
        """Add a round's duration to the simulated clock, if there is one."""
        if self._grid.facts.devices:
            self._clock.add("simulated", seconds)
            self._state.rounds.setdefault("seconds", []).append(seconds)

    def _skip(self, server_round: int, num_messages: int, failures: Mapping[str, str]) -> None:
        """Record a round that keeps the previous model.

        Raises:
            TrialError: If too many rounds were skipped.
        """
        name = type(self._state.strategy).__name__
        reason = f"{name} returned no model from {num_messages} clients, {len(failures)} of them failed"
        self._state.skipped[server_round] = f"{reason}: {next(iter(failures.values()))}" if failures else reason
        self._check_lost_rounds()

    def _check_lost_rounds(self) -> None:
        """Check that not too many rounds kept the previous model.

        Raises:
            TrialError: If more than half of the rounds were skipped with failed clients, or all of them were skipped.
        """
        skipped, num_rounds = self._state.skipped, self._settings.num_rounds
        lost = {int(place.partition(":")[0]) for place in self._state.dropped} & skipped.keys()
        if 2 * len(lost) > num_rounds or len(skipped) == num_rounds:
            first = min(lost or skipped)
            raise TrialError(
                f"{len(lost or skipped)} of {num_rounds} rounds were lost, round {first}: {skipped[first]}"
            )

    def _evaluate(self, server_round: int) -> None:
        """Score every client, then let a strategy that needs it evaluate by its own messages."""
        self._scores.ask_now()
        strategy, state = self._state.strategy, self._state
        seed_global_random(self._seed, "evaluate", server_round)
        config = ConfigRecord(state.evaluate_config)
        messages = list(strategy.configure_evaluate(server_round, view_record(state.arrays), config, self._grid))
        state.evaluate_config = dict(config)
        replies = list(self._grid.send_and_receive(messages, timeout=self._clock.left(server_round)))
        seed_global_random(self._seed, "aggregate-evaluate", server_round)
        strategy.aggregate_evaluate(server_round, replies)

    def _run_own_start(self) -> None:
        """Run a strategy that overrides `start`, and record its rounds as those of any other.

        Raises:
            TrialError: If `start` returns no model, or has not evaluated the model of every round.
        """
        state, grid, num_rounds = self._state, self._grid, self._settings.num_rounds
        name = type(state.strategy).__name__
        evaluated: dict[int, Evaluation] = {}
        last_round = before = trainings = 0
        grid.counts_rounds = True
        seed_global_random(self._seed, "start", 0)

        def score(arrays: ArrayRecord, server_round: int) -> Evaluation:
            if durations := grid.take_durations():
                self._count_simulated(round_seconds(durations.values(), self._settings.session.deadline_seconds))
            state.take_model(arrays, server_round, self._integers)
            state.server_round = server_round
            return self._scores.of(server_round)

        def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            nonlocal last_round, before, trainings
            # It starts counting again, for example if it calls Flower's start twice, unless it rescores an old model.
            if server_round < last_round and (server_round == 0 or grid.server_round > trainings):
                before += last_round
            last_round, number, trainings = server_round, before + server_round, grid.server_round
            if number > num_rounds:
                raise TrialError(f"{name}.start must train {num_rounds} rounds, got round {number} to evaluate")
            evaluation = evaluated[number] = score(arrays, number)
            if number:
                self._tell(number)
            loss = evaluation.weighted(evaluation.losses)
            return MetricRecord(
                {"accuracy": evaluation.accuracy, "loss": loss, "num-examples": int(evaluation.num_examples.sum())}
            )

        try:
            result = state.strategy.start(
                grid=grid,
                initial_arrays=view_record(state.arrays),
                num_rounds=num_rounds,
                timeout=self._settings.timeout_seconds or WITHOUT_LIMIT_SECONDS,
                train_config=ConfigRecord(dict(state.train_config)),
                evaluate_config=ConfigRecord(dict(state.evaluate_config)),
                evaluate_fn=evaluate_fn,
            )
        finally:
            state.dropped |= grid.take_train_failures()
        if not result.arrays:
            raise TrialError(f"{name}.start returned no model{_failures_text([*state.dropped.values()])}")
        last = max(evaluated, default=0)
        if not last or any(r not in evaluated for r in range(1, last)):
            rounds = ", ".join(map(str, sorted(evaluated.keys() - {0})))
            raise TrialError(
                f"{name}.start must call evaluate_fn(round, arrays) after each of its {num_rounds} rounds, got calls "
                f"for the rounds {rounds or 'none'}"
            )
        final = score(result.arrays, num_rounds)
        evaluated |= dict.fromkeys(range(last + 1, num_rounds), final) | {num_rounds: final}
        for r in range(1, num_rounds + 1):
            if r <= last and evaluated[r] is evaluated.get(r - 1):  # known, as the model was the same
                failures = [reason for place, reason in state.dropped.items() if place.startswith(f"{r}:")]
                state.skipped[r] = f"{name}.start kept the previous model{_failures_text(failures)}"
            self._scores.keep(evaluated[r], r, float("nan"))
        state.finish(num_rounds, grid.take_bytes())
        self._check_lost_rounds()

    def _save(self, state: trial_state.TrialState) -> None:
        if self._store.folder is not None:
            state = replace(state, client_states=self._grid.state_values())
            self._store.save(self._settings.checkpoint, state, self._plain)

    def _count_time(self) -> None:
        """Add the wall time and the hosts' compute time since the last call."""
        self._clock.count_total()
        self._clock.add("hosts", self._grid.take_compute_seconds())

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, TrialError):
            return str(error)
        return f"round {self._state.server_round + 1}: {type(error).__name__}: {error}"

    def _score_last_round(self) -> str | None:
        """Score the last round of a failed trial; return the reason if that fails, as it came first."""
        if self._clock.is_over:
            return None
        try:
            self._scores.ask_now()
        except TrialError as error:
            return str(error)
        return None

    def _trial(self, failure: str | None) -> Trial:
        """Return the record of the trial as far as it ran."""
        state, last = self._state, self._state.last_evaluation
        clients: dict[str, tuple[float, ...]] = {}
        if last is not None and last.clean is not None:
            columns = {
                "num_examples": last.num_examples,
                "accuracy": last.accuracies,
                "clean_accuracy": last.clean.accuracies,
                "metric": last.metrics,
                "clean_metric": last.clean.metrics,
            }
            measured = {name: tuple(column.tolist()) for name, column in columns.items() if column is not None}
            trained = self._choice.rounds_of(last.clients)
            clients = {"id": last.clients, **measured, **({} if trained is None else {"rounds": trained})}
        models = self._models() if failure is None else []
        kept_vectors = [vector for vector, _ in models] if self._settings.keep_model else []
        return Trial.of(
            self._settings,
            status="completed" if failure is None else "failed",
            error=failure,
            vector=np.stack(kept_vectors) if len(kept_vectors) > 1 else next(iter(kept_vectors), None),
            rounds=self._measured(),
            clients=clients,
            bytes_down=state.bytes_a_round("down"),
            bytes_up=state.bytes_a_round("up"),
            dropped_clients=state.dropped,
            skipped_rounds={str(r): reason for r, reason in sorted(state.skipped.items())},
            notes=tuple(self._notes([self._seen(clients) for _, clients in models])),
            seconds=state.seconds,
        )

    def _measured(self) -> dict[str, tuple[float, ...]]:
        """Return the values of every scored round, by measure."""
        measured = {measure: tuple(values) for measure, values in self._state.rounds.items()}
        num_scored = len(measured.get("accuracy", ()))
        seconds = measured.pop("seconds", ())[:num_scored]  # known before the round's model is scored
        return {**measured, "seconds": seconds} if num_scored and len(seconds) == num_scored else measured

    def _models(self) -> list[tuple[FloatArray, Sequence[int]]]:
        """Return the current models and the clients of each."""
        return self._grid.models(view_record(self._state.arrays))

    def _seen(self, clients: Sequence[int]) -> Sequence[int]:
        """Return the clients that take part in training."""
        unseen = self._grid.facts.unseen
        return [client for client in clients if client not in unseen] if unseen else clients

    def _notes(self, groups: Sequence[Sequence[int]]) -> Iterator[str]:
        """Yield notes where the strategy behaves differently from what its author or the study may expect.

        Args:
            groups: The participating clients of each model.
        """
        num_first, num_sampled = self._grid.first_trained, self._settings.num_sampled
        kept_note = trial_state.kept_model(self._settings.session.algorithm, self._grid.facts.layout)
        if self._settings.keep_model and kept_note is not None:
            yield kept_note
        yield from self._grid.memory_notes
        if unread_keys := self._grid.unread_entries:
            yield f"it sends {', '.join(unread_keys)}, which clients do not read (docs/custom_strategy.md)"
        if self._state.policy is None and num_first is not None and num_first != num_sampled:
            yield f"it trains {num_first} of {self._grid.facts.num_seen} clients in its first round, not {num_sampled}"
        yield from self._choice.notes()
        yield from self._scores.notes()
        yield from trial_state.table_notes(self._settings, self._grid)
        if len(groups) > 1:
            yield f"it has {len(groups)} models, for the clients {'; '.join(map(clients_text, groups))}"
        num_models = len({*range(1, self._state.server_round + 1)} - self._state.skipped.keys())
        yield from self._settings.strategy.notes_after(trial_state.cohort_of(self._settings, self._grid), num_models)
        if isinstance(self._state.strategy, ReportsNotes):
            yield from self._state.strategy.trial_notes()


def _model_and_metrics(strategy: Strategy, returned: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Return the result of `aggregate_train`.

    Raises:
        TrialError: If it does not follow Flower's Strategy interface.
    """
    match returned:
        case (ArrayRecord() | None as aggregated, MetricRecord() | None as metrics):
            return aggregated, metrics
    kinds = ", ".join(type(part).__name__ for part in returned) if isinstance(returned, tuple) else ""
    raise TrialError(
        f"{type(strategy).__name__}.aggregate_train must return (ArrayRecord or None, MetricRecord or None), as "
        f"Flower's Strategy requires, got {f'({kinds})' if kinds else type(returned).__name__}"
    )


def _train_loss(replies: list[Message]) -> float:
    """Return the weighted mean of the clients' training losses, NaN if there are none."""
    metrics = [metrics_of(reply) for reply in replies if reply.has_content()]
    weights = np.array([entry[NUM_EXAMPLES_KEY] for entry in metrics], dtype=np.float64)
    losses = np.array([entry["loss"] for entry in metrics], dtype=np.float64)
    return float(np.dot(losses, weights) / weights.sum()) if weights.sum() else float("nan")


WITHOUT_LIMIT_SECONDS = 3600.0
"""Flower's own default."""


def _failures_text(reasons: Sequence[str]) -> str:
    return f", clients failed {len(reasons)} times: {reasons[0]}" if reasons else ""
