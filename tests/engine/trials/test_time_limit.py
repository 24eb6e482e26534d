"""What a trial leaves alone: global generators, memory, others' time; and trials one after the other."""

from __future__ import annotations

import gc
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.errors import TrialError
from fedscout.engine.seeds import global_random_kept, seed_global_random
from fedscout.engine.trials.runner import LocalRunner
from fedscout.engine.trials.state import cheap_collections
from fedscout.engine.trials.trial import time_limit
from tests.engine.choices import FEDADAM, FEDAVG, Choice, RaisingFedAvg, spec_of
from tests.engine.trials.test_resume import assert_same

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


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_errors_of_the_block_come_through(error: type[BaseException]) -> None:
    with pytest.raises(error), time_limit(LONG, "never"):
        raise error


def test_what_ends_in_time_is_left_alone_and_so_is_what_follows() -> None:
    threads = threading.active_count()
    with time_limit(None, "never"):
        assert threading.active_count() == threads
    with time_limit(0.05, "never"):
        pass
    assert threading.active_count() == threads
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL
    time.sleep(0.1)


def test_limits_do_not_nest() -> None:
    """The outer one holds: the inner code is a part of what it limits."""
    with pytest.raises(TrialError, match="outer"), time_limit(0.05, "outer"), time_limit(0.01, "inner"):
        time.sleep(LONG)


def test_other_threads_are_not_limited() -> None:
    done = []

    def work() -> None:
        with time_limit(0.01, "never"):
            time.sleep(0.05)
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


# -- Flower's sampling is seeded for each call, and leaves no trace after a trial --------------------------------------


def drawn(seed: int, purpose: str, server_round: int) -> list[float]:
    """Draw from Python's generator, and from NumPy's as Flower's differentially private strategies do."""
    with global_random_kept():
        seed_global_random(seed, purpose, server_round)
        return [*random.sample(range(1000), 20), *np.random.normal(size=3)]  # noqa: NPY002


def draw_and_fail() -> None:
    with global_random_kept():
        seed_global_random(0, "train", 1)
        random.random()
        np.random.random()  # noqa: NPY002
        raise ZeroDivisionError


def test_inside_the_draws_depend_on_seed_purpose_and_round() -> None:
    reference = drawn(1, "train", 5)
    random.random()

    assert drawn(1, "train", 5) == reference
    others = [drawn(2, "train", 5), drawn(1, "evaluate", 5), drawn(1, "train", 6)]
    assert all(other[0] != reference[0] and other[-1] != reference[-1] for other in others)


def test_outside_nothing_changes_even_after_an_error() -> None:
    def states() -> tuple[object, list[int]]:
        return random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    before = states()
    drawn(0, "train", 1)
    assert states() == before
    with pytest.raises(ZeroDivisionError):
        draw_and_fail()
    assert states() == before


# -- Collections inside the block pass over what was alive before it ---------------------------------------------------


class Ring:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_what_was_alive_is_passed_over_and_what_is_made_inside_is_collected() -> None:
    gc.collect()
    old, before = Ring(), gc.get_freeze_count()
    watched_old = weakref.ref(old)

    with cheap_collections():
        del old
        watched_new = weakref.ref(Ring())
        gc.collect()
        assert watched_old() is not None
        assert watched_new() is None

    gc.collect()
    assert watched_old() is None
    assert gc.get_freeze_count() <= before


def test_a_block_inside_another_thaws_nothing_and_keeps_nothing() -> None:
    with cheap_collections():
        frozen, between = gc.get_freeze_count(), Ring()
        watched = weakref.ref(between)
        with cheap_collections():
            del between
            gc.collect()
            assert watched() is None
        assert 0 < gc.get_freeze_count() <= frozen  # fewer, where something that was frozen ended since
    assert gc.get_freeze_count() == 0


def test_an_error_inside_does_not_keep_them_frozen() -> None:
    def fail() -> None:
        with cheap_collections():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert gc.get_freeze_count() == 0


# -- Trials in this process, one after the other; on Ray they are held to the same results in `test_ray_grid` ----------


SPECS = [
    spec_of(choice, phase=str(number))
    for number, choice in enumerate((FEDAVG, FEDADAM, Choice(RaisingFedAvg), FEDAVG, FEDAVG))
]


def test_results_come_in_order_with_their_rounds(host: ClientHost) -> None:
    told: list[Mapping[str, int]] = []

    results = list(LocalRunner(host).run(SPECS, told.append))

    assert [position for position, _ in results] == [0, 1, 2, 3, 4]
    assert [result.status for _, result in results] == ["completed", "completed", "failed", "completed", "completed"]
    assert told[:3] == [{SPECS[0].key: done} for done in (1, 2, 3)]
    assert {SPECS[2].key: 1} in told
    assert {SPECS[2].key: 2} not in told
    assert_same(results[0][1], results[3][1])
