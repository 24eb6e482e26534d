"""A trial interrupted after any round and resumed ends with the same bits; what a trial leaves alone."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import random
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg, FedAvgM
from numpy.lib.format import write_array

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import TrialError
from fedscout.engine.metrics import MacroF1, Mae
from fedscout.engine.seeds import global_random_kept, seed_global_random
from fedscout.engine.trials.checkpoint import CheckpointStore, PlainState, _write, read_checkpoint
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import LocalRunner
from fedscout.engine.trials.state import cheap_collections
from fedscout.engine.trials.trial import run_trial, time_limit
from tests.engine import choices, federations
from tests.engine.grid.test_local_grid import WatchedGrid
from tests.engine.trials.test_trial import Whole

NUM_ROUNDS = 4


class Clipped(DifferentialPrivacyServerSideAdaptiveClipping):
    """Flower's wrapper, which adapts its bound from round to round, around one that has momentum."""

    def __init__(self, **counts: Any) -> None:
        inner = FedAvgM(**counts, server_learning_rate=0.9, server_momentum=0.7)
        super().__init__(inner, 0.01, counts["min_train_nodes"], initial_clipping_norm=0.5)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return super().aggregate_train(server_round, [reply for reply in replies if reply.has_content()])


class Wilful(FedAvg):
    """A strategy of a user's own, with memory of many kinds; `test_plain_state` has all of them."""

    def __init__(self, **counts: Any) -> None:
        super().__init__(**counts, train_metrics_aggr_fn=lambda contents, key: MetricRecord({"n": len(contents)}))
        self.dice = random.Random(5)
        self.generator = np.random.default_rng(6)
        self.recent: deque[float] = deque(maxlen=2)
        self.average: dict[str, Any] | None = None

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        values = {name: array.numpy() for name, array in arrays.items()}
        if self.average is not None:
            values = {name: 0.5 * value + 0.5 * self.average[name] for name, value in values.items()}
        shake = self.generator.normal(0, 0.01) + self.dice.gauss(0, 0.01) + sum(self.recent)
        self.average = {name: np.float32(value + shake) for name, value in values.items()}
        self.recent.append(shake)
        return ArrayRecord({name: Array(value) for name, value in self.average.items()}), metrics


CHOICES = {
    "fedavg": choices.FEDAVG,
    "fedadam": choices.FEDADAM,
    "fedavgm": choices.FEDAVGM,
    "fedmedian": choices.FLOWER_CHOICES["fedmedian"],
    "with client states": replace(choices.FEDAVG, algorithm=choices.Variates()),
    "around another": choices.Choice(Clipped, wants=choices.INDIVIDUAL),
    "with memory of many kinds": choices.Choice(Wilful, wants=choices.INDIVIDUAL),
    "individual": choices.FLOWER_CHOICES["multikrum"],
    "individual with loss": choices.FLOWER_CHOICES["qfedavg"],
    "named, with its own evaluation": replace(
        choices.FLOWER_CHOICES["fedmedian"],
        wants=replace(choices.FLOWER_CHOICES["fedmedian"].wants, sees_evaluation=True),
    ),
}


class Interruption(BaseException):
    """Like KeyboardInterrupt: not an error of the trial."""


def interrupt_in(server_round: int) -> Callable[[int], None]:
    """Return what stops a trial in a round, after its evaluation and before its checkpoint."""

    def stop(done: int) -> None:
        if done == server_round:
            raise Interruption

    return stop


def run(
    spec: TrialSettings, host: ClientHost, store: CheckpointStore | None = None, stop_in: int | None = None
) -> tuple[Trial, list[int]]:
    """Run a trial; return its result and the rounds that were trained."""
    grid = WatchedGrid(host, session=spec.session)
    result = run_trial(spec, grid, store, None if stop_in is None else interrupt_in(stop_in))
    return result, sorted({call.config["server-round"] for method, call in grid.calls_made if method == "train"})


def assert_same(first: Trial, second: Trial) -> None:
    """Everything but the time it took."""
    assert (first.status, first.error, first.dropped_clients) == (second.status, second.error, second.dropped_clients)
    np.testing.assert_equal(choices.rounds_of(first), choices.rounds_of(second))  # NaN is what was not measured
    assert np.array_equal(first.vector, second.vector)
    assert first.clients["id"]
    for name in ("id", "num_examples", "accuracy", "clean_accuracy", "metric", "clean_metric"):
        np.testing.assert_equal(first.clients.get(name), second.clients.get(name))
    for name in ("metric", "clean_metric", "worst_clients"):
        np.testing.assert_equal(first.rounds.get(name), second.rounds.get(name))


def assert_all_same(first: Trial, second: Trial) -> None:
    """What was sent, too, and how those do who use another model."""
    assert_same(first, second)
    for name in ("global_accuracy", "new_client_accuracy", "seconds"):
        assert first.rounds.get(name) == second.rounds.get(name)
    assert (first.bytes_down, first.bytes_up) == (second.bytes_down, second.bytes_up)


def assert_going_on(spec: TrialSettings, host: ClientHost, folder: Path, stopped_in: int) -> tuple[Trial, Trial]:
    """Hold a trial that is interrupted in the first round and in this one against one that is not; return both."""
    store = CheckpointStore(folder / "checkpoints", every_rounds=1)
    expected, _ = run(spec, host)
    for stop in {1, stopped_in}:
        with pytest.raises(Interruption):
            run(spec, host, store, stop_in=stop)
    resumed, trained = run(spec, host, store)
    assert trained == list(range(stopped_in, spec.num_rounds + 1))
    assert_all_same(resumed, expected)
    return resumed, expected


UNEVEN = federations.uneven_federation()
VARIATES = replace(choices.FEDAVG, algorithm=choices.Variates())
of_four = partial(choices.spec_of, num_rounds=NUM_ROUNDS)


def stepping(optimizer: str) -> LocalTraining:
    return LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.01, optimizer=optimizer)


CASES: dict[str, tuple[Federation, TrialSettings]] = {
    **{name: (UNEVEN, of_four(choice, num_sampled=5)) for name, choice in CHOICES.items()},
    **{
        f"dropout and {name}": (
            federations.uneven_federation(federations.dropping),
            of_four(choices.FEDAVG, training=stepping(name)),
        )
        for name in ("rmsprop", "adadelta")
    },
    "a metric and the worst clients": (
        federations.uneven_federation(federations.normalised),
        of_four(VARIATES, metric=MacroF1(), worst_clients=True),
    ),
    "a quantity": (federations.quantities(), of_four(VARIATES, metric=Mae())),
    "clients that play": (federations.guessing_federation(), of_four(choices.FEDAVG)),
    "a clock": (federations.timed_federation(), of_four(choices.FEDAVG, num_sampled=5, deadline_seconds=9.0)),
    "unseen clients": (replace(UNEVEN, unseen=frozenset((1, 5))), of_four(choices.FEDAVG, num_sampled=3)),
}


@pytest.mark.sampled(18)
@pytest.mark.parametrize("stopped_in", range(1, NUM_ROUNDS + 1))
@pytest.mark.parametrize("name", CASES)
def test_a_resumed_trial_is_an_uninterrupted_one(tmp_path: Path, name: str, stopped_in: int) -> None:
    federation, spec = CASES[name]
    assert_going_on(spec, ClientHost(federation, federations.QUERIES), tmp_path, stopped_in)


@pytest.mark.parametrize(("every_rounds", "num_rounds", "rest"), [(3, 9, [7, 8, 9]), (1, 3, [1, 2, 3])])
def test_only_the_rounds_since_the_last_checkpoint_are_repeated(
    host: ClientHost, tmp_path: Path, every_rounds: int, num_rounds: int, rest: list[int]
) -> None:
    """Checkpoints after rounds 3 and 6, stopped in round 8; one of more rounds than are asked for is not used."""
    store = CheckpointStore(tmp_path, every_rounds)
    with pytest.raises(Interruption):
        run(choices.spec_of(choices.FEDADAM, num_rounds=9), host, store, stop_in=8)

    resumed, trained = run(choices.spec_of(choices.FEDADAM, num_rounds=num_rounds), host, store)

    assert trained == rest
    assert_same(resumed, run(choices.spec_of(choices.FEDADAM, num_rounds=num_rounds), host)[0])


class Planted:
    """A pickle of it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def flipped(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 16]) + whole[-8:])


def of_another_version(path: Path) -> None:
    """Write what a version left that kept other things."""
    document, arrays = read_checkpoint(path)
    document["form"] = "0" * 64
    _write(document, arrays, path)


def with_pickle(path: Path) -> None:
    """Write a whole file in which a pickle lies where an array belongs."""
    stream = BytesIO()
    write_array(stream, np.frombuffer(b'["array", 0]', np.uint8))
    np.save(stream, np.array([Planted(f"touch {path.parent / 'ran'}")]), allow_pickle=True)
    path.write_bytes(hashlib.sha256(stream.getvalue()).digest() + stream.getvalue())


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "foreign": lambda path: path.write_bytes(b"PAR1 another file"),
    "a bit": flipped,
    "another version": of_another_version,
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Planted(f"touch {path.parent / 'ran'}"))),
    "a pickle in an array": with_pickle,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_can_t_be_used_is_ignored_and_reported(
    host: ClientHost, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = choices.spec_of(choices.FEDADAM, num_rounds=3)
    store = CheckpointStore(tmp_path, every_rounds=1)
    with pytest.raises(Interruption):
        run(spec, host, store, stop_in=3)
    path = store.path(spec.key)
    DAMAGES[damage](path)

    result, trained = run(spec, host, store)

    assert trained == [1, 2, 3]
    assert_same(result, run(spec, host)[0])
    (line,) = (record.getMessage() for record in caplog.records if record.name == "fedscout")
    assert str(path) in line
    assert not (tmp_path / "ran").exists()


class WithFile(FedAvg):
    """Holds what can't be stored."""

    def __init__(self, **counts: Any) -> None:
        super().__init__(**counts)
        self.log = Path(os.devnull).open("w")  # noqa: SIM115

    def __del__(self) -> None:
        self.log.close()


def test_a_strategy_with_a_file_goes_on(host: ClientHost, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = choices.spec_of(choices.Choice(WithFile))

    result, _ = run(spec, host, CheckpointStore(tmp_path / "checkpoints", every_rounds=1))

    assert result.status == "completed"
    assert_same(result, run(choices.spec_of(choices.FEDAVG), host)[0])
    (line,) = (record.getMessage() for record in caplog.records if record.name == "fedscout")
    assert all(named in line for named in (spec.key[:12], "strategy.log", "TextIOWrapper"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@dataclass
class Standing:
    """What is kept."""

    round: int = 0


def test_checkpoints_are_due_every_so_many_rounds_and_can_be_discarded(tmp_path: Path) -> None:
    """With what a killed process was writing of them."""
    store, fresh = CheckpointStore(tmp_path / "new", every_rounds=3), Standing()
    plain = PlainState(fresh)
    assert [server_round for server_round in range(1, 10) if store.due(server_round)] == [3, 6, 9]
    assert not store.restore("a", plain)
    for key, done in (("a", 3), ("b", 6)):
        store.save(key, Standing(done), plain)
        (tmp_path / "new" / f".{key}.checkpoint.4711.tmp").write_bytes(b"half")
        assert store.restore(key, plain)
        assert fresh.round == done
    document, arrays = read_checkpoint(tmp_path / "new" / "a.checkpoint")
    assert (document["state"], arrays) == ({"round": 3}, [])
    for _ in range(2):
        store.discard("a")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"b.checkpoint", ".b.checkpoint.4711.tmp"}
    (tmp_path / "new" / "b.checkpoint").write_bytes(b"half")
    assert not any(store.restore(key, plain) for key in "ab")


# -- A trial that goes on where a shorter one ended gives the bits of one that was never cut ---------------------------


def rung(choice: choices.Choice, num_rounds: int) -> TrialSettings:
    """Return a trial of fewer rounds that leaves its end behind."""
    return choices.spec_of(choice, num_rounds=num_rounds, num_sampled=5, is_full=False)


def whole(choice: choices.Choice) -> TrialSettings:
    return choices.spec_of(choice, num_rounds=6, num_sampled=5)


@pytest.mark.parametrize("name", CHOICES)
def test_rungs_add_up_to_a_straight_training(host: ClientHost, tmp_path: Path, name: str) -> None:
    choice = CHOICES[name]
    store = CheckpointStore(tmp_path)

    first, trained_first = run(rung(choice, 2), host, store)
    second, trained_second = run(rung(choice, 3), host, store)
    third, trained_third = run(whole(choice), host, store)

    assert (trained_first, trained_second, trained_third) == ([1, 2], [3], [4, 5, 6])
    straight, _ = run(whole(choice), host)
    assert_same(third, straight)
    assert choices.rounds_of(first) == choices.rounds_of(straight)[:2]
    assert_same(second, run(choices.spec_of(choice, num_rounds=3, num_sampled=5), host)[0])


def test_a_rung_that_ended_but_was_not_logged_is_repeated_without_training(host: ClientHost, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    first, _ = run(rung(choices.FEDADAM, 3), host, store)

    again, trained = run(rung(choices.FEDADAM, 3), host, store)

    assert trained == []
    assert choices.rounds_of(again) == choices.rounds_of(first)


def test_a_failed_rung_and_a_whole_trial_leave_nothing(host: ClientHost, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    diverging = choices.Choice(choices.FEDADAM.flower, {"eta": 1e38})
    failed, _ = run(rung(diverging, 3), host, store)
    assert failed.status == "failed"
    run(whole(choices.FEDAVG), host, store)
    assert list(tmp_path.iterdir()) == []


def test_a_strategy_with_a_start_of_its_own_keeps_none_and_runs_whole(host: ClientHost, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    run(rung(choices.Choice(Whole), 2), host, store)
    assert list(tmp_path.iterdir()) == []
    result, _ = run(whole(choices.Choice(Whole)), host, store)
    straight, _ = run(whole(choices.Choice(Whole)), host)
    assert np.array_equal(result.vector, straight.vector)
    assert list(result.rounds["accuracy"]) == list(straight.rounds["accuracy"])


def test_the_runner_forgets_by_the_name_of_the_state(host: ClientHost, tmp_path: Path) -> None:
    runner = LocalRunner(host, CheckpointStore(tmp_path))
    ((_, first),) = runner.run([rung(choices.FEDAVG, 2)])
    ((_, second),) = runner.run([whole(choices.FEDAVG)])
    assert choices.rounds_of(first) == choices.rounds_of(second)[:2]
    runner.forget(whole(choices.FEDAVG).checkpoint)
    assert list(tmp_path.iterdir()) == []


# -- What a trial leaves alone: global generators, memory, others' time; and trials one after the other ----------------


LONG = 60.0


def compute() -> None:
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        sum(range(1000))


def careless() -> None:
    while True:
        with suppress(Exception):
            time.sleep(LONG)


@pytest.mark.parametrize("code", [partial(time.sleep, LONG), compute, partial(threading.Event().wait, LONG), careless])
def test_what_takes_too_long_is_interrupted(code: Callable[[], None]) -> None:
    started = time.monotonic()
    with pytest.raises(TrialError, match="too long"), time_limit(0.05, "it took too long"):
        code()
    assert time.monotonic() - started < LONG


def test_code_that_survives_the_interruption_gets_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscout.engine.trials.trial.RETRY_SECONDS", 0.05)
    survived = []

    def stubborn() -> None:
        for _ in range(2):
            try:
                time.sleep(LONG)
            except BaseException:
                survived.append(True)
        time.sleep(LONG)

    with pytest.raises(TrialError), time_limit(0.05, "it took too long"):
        stubborn()
    assert survived == [True, True]


def test_what_ends_in_time_is_left_alone_and_so_is_what_follows() -> None:
    threads = threading.active_count()
    with time_limit(None, "never"):
        assert threading.active_count() == threads
    with pytest.raises(ZeroDivisionError), time_limit(0.05, "never"):
        raise ZeroDivisionError
    assert threading.active_count() == threads
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL
    time.sleep(0.1)


def test_limits_do_not_nest_and_other_threads_have_none() -> None:
    """The outer one holds: the inner code is a part of what it limits."""
    with pytest.raises(TrialError, match="outer"), time_limit(0.05, "outer"), time_limit(0.01, "inner"):
        time.sleep(LONG)

    def work() -> bool:
        with time_limit(0.01, "never"):
            time.sleep(0.05)
            return True

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result()


def test_global_draws_depend_on_seed_purpose_and_round() -> None:
    """Python's generator, and NumPy's, from which Flower's differentially private strategies draw."""

    def drawn(seed: int, purpose: str, server_round: int) -> tuple[float, float]:
        with global_random_kept():
            seed_global_random(seed, purpose, server_round)
            return random.random(), float(np.random.normal())  # noqa: NPY002

    reference = drawn(1, "train", 5)
    assert drawn(1, "train", 5) == reference
    for other in (drawn(2, "train", 5), drawn(1, "evaluate", 5), drawn(1, "train", 6)):
        assert other[0] != reference[0]
        assert other[1] != reference[1]


class Ring:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_collections_inside_the_block_pass_over_what_was_alive_before_it() -> None:
    """And what is made inside is collected, in a block inside another as well; an error leaves nothing frozen."""
    gc.collect()
    old = Ring()
    watched_old = weakref.ref(old)
    with suppress(Interruption), cheap_collections():
        del old
        between, frozen = Ring(), gc.get_freeze_count()
        watched = weakref.ref(between)
        with cheap_collections():
            del between
            gc.collect()
            assert (watched() is None, watched_old() is None) == (True, False)
        assert 0 < gc.get_freeze_count() <= frozen  # fewer, where something that was frozen ended since
        raise Interruption
    gc.collect()
    assert watched_old() is None
    assert gc.get_freeze_count() == 0


# -- Trials in this process, one after the other; on Ray they are held to the same results in `test_ray_grid` ----------


def test_results_come_in_order_with_their_rounds(host: ClientHost) -> None:
    told: list[Mapping[str, int]] = []
    run_of = (choices.FEDAVG, choices.Choice(choices.RaisingFedAvg), choices.FEDAVG)
    first, failing, third = (choices.spec_of(choice, phase=str(number)) for number, choice in enumerate(run_of))
    results = list(LocalRunner(host).run([first, failing, third], told.append))
    statuses = [(position, result.status) for position, result in results]
    assert statuses == [(0, "completed"), (1, "failed"), (2, "completed")]
    assert told[:4] == [*({first.key: done} for done in (1, 2, 3)), {failing.key: 1}]
    assert {failing.key: 2} not in told
    assert_same(results[0][1], results[2][1])
