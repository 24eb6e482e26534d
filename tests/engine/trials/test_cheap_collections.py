"""Collections inside the block pass over what was alive before it."""

from __future__ import annotations

import gc
import weakref

import pytest

from fedscout.engine.trials.state import cheap_collections


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
