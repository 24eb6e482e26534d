"""Ending Ray in good order: Ctrl-C waits until Ray has started, and no process of it outlives the command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def interruption_held_back() -> Iterator[None]:
    """Let Ctrl-C take effect when the block is over.

    Ray's start is not made to be cut short: it hangs on a lock, or swallows the exception and goes on.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may set a handler, and gets Ctrl-C
        yield
        return
    asked: list[int] = []
    kept = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, kept)
    if asked:
        raise KeyboardInterrupt


@contextmanager
def children_ended_by(end: Callable[[], object]) -> Iterator[None]:
    """End what the block started, at first by asking, then for certain.

    Some of Ray's processes notice late that they should end: its agents not before they have started.

    Args:
        end: Asks them to.
    """
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    own = psutil.Process()
    before = set(own.children())
    try:
        yield
    finally:
        started = [one for child in set(own.children()) - before for one in (child, *child.children(recursive=True))]
        try:
            end()
        finally:
            for process in started:
                with suppress(psutil.Error):
                    process.kill()
