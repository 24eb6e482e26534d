"""Signals, orphan processes and memory of this process.

Ending in good order: a signal waits until Ray has started, ends the command once, and leaves no process behind.

The first of Ctrl-C (SIGINT), SIGTERM and SIGHUP raises KeyboardInterrupt in the main thread, so that every `with` on
the way cleans up; those that follow are ignored, because `timeout`, a batch system or a closed terminal send several.
It is a KeyboardInterrupt whatever the signal, as Ray's calls pass on no other exception of a handler. Should cleaning
up take longer than `GRACE_SECONDS`, as it does if the signal also went to Ray's own processes, the process ends
without it. A signal that the caller has switched off, as `nohup` does, stays off.

Ray sets handlers of its own for SIGTERM while it starts: two of Python, that would cut its start short, and at last
one of absl in C++, that prints a stack and lets the process die. The former are refused, the latter is replaced by ours
when Ray has started; in between, while the process connects to its Ray, SIGTERM ends it at once.

Processes that outlive a killed command: known by a mark in their environment, ended by the next run of its folder.

When a process is killed with -9, the kernel ends Ray's daemons with it; workers notice within seconds, while Ray's
agents wait for a minute for a server that is gone. All of them inherited a random mark from the process that started
them, so they can't be mistaken for anybody else's. Processes of a cluster that was only connected to do not bear it:
there, Ray itself ends the work of a driver that died.

Memory that a process keeps once it has it: a layer's outputs, freed and asked for again in every step.

The C library gives a freed block at the end of its heap back to the system as soon as that is some megabytes long, and
the system hands it out again page by page, zeroed, which can take longer than what is computed in it. Elsewhere than
with glibc, nothing is changed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

MARK = "FEDSCOUT_RUN"
OWN_MARK = secrets.token_hex(16)
"""Of this process."""

WAIT_SECONDS = 5.0

logger = logging.getLogger("fedscout")


def mark_children() -> None:
    """Let all that this process starts from now on bear its mark."""
    os.environ[MARK] = OWN_MARK
    os.environ["SPT_NOENV"] = "1"  # or Ray's agents would write their title over their environment


def end_orphans(pid: int, mark: str) -> int:
    """End what a dead process started on this machine, and return how many; none while one of its id is alive."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    with suppress(psutil.NoSuchProcess):
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return 0
    num_ended = end_marked(mark)
    if num_ended:
        logger.info("ended %d processes that the killed process %d had started", num_ended, pid)
    return num_ended


def end_marked(mark: str, seconds: float = WAIT_SECONDS) -> int:
    """End all other processes that bear a mark; return how many.

    All are found before the first is killed: a driver aborts when it misses its raylet, and would leave the rest.

    Args:
        mark: The mark.
        seconds: To wait until they are gone, at most.
    """
    import psutil

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
    for process in found:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=seconds)
    return len(found)


ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 20.0


def _in_main_thread() -> bool:
    """Whether this thread may set handlers; signals are handled there alone."""
    return threading.current_thread() is threading.main_thread()


_received: list[int] = []
"""Ending signals that came to this process while a block listened, in order."""


@contextmanager
def ended_by_signals() -> Iterator[list[int]]:
    """Interrupt the block at the first ending signal; then they are ignored, as the process is about to exit.

    Yields:
        The signals that came, in order; empty as long as there was none.
    """
    _received.clear()
    if not _in_main_thread():
        yield _received
        return

    def end(number: int, _: FrameType | None) -> None:
        _received.append(number)
        if len(_received) == 1:
            watch = threading.Timer(GRACE_SECONDS, end_at_once, how_it_ended(number))
            watch.daemon = True
            watch.start()
            raise KeyboardInterrupt

    listened = [number for number in ENDING_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    kept = {number: signal.signal(number, end) for number in listened}
    try:
        yield _received
    finally:
        for number, handler in kept.items() if not _received else ():
            signal.signal(number, handler)


def how_it_ended(number: int) -> tuple[int, str]:
    """Return the exit code of a command that a signal ended, 128 + number, and a line that says so."""
    how = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    return 128 + number, f"{how}; the same command goes on where this one stopped"


_CLEARED = "\r\x1b[2K\x1b[?25h"
"""What removes a progress line and brings the cursor back."""


def end_at_once(code: int, line: str) -> None:
    """End with a last line, without cleaning up, but for processes; a lock ends with the process that holds it.

    A signal that came before is why, whatever else was noticed: who ends a command may end its Ray's processes, too.
    """
    if _received:
        code, line = how_it_ended(_received[0])
    with suppress(OSError):
        print(f"{_CLEARED if sys.stderr.isatty() else ''}fedscout: {line}", file=sys.stderr, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # other threads go on for a moment
    try:
        end_marked(OWN_MARK, seconds=0)  # Ray's driver, which is here, would abort meanwhile
    finally:
        os._exit(code)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Let ending signals take effect when the block is over, and let the block set no handlers of its own for them.

    Ray's start is not made to be cut short: it hangs on a lock, or swallows the exception and goes on.
    """
    if not _in_main_thread():
        yield
        return
    asked: list[int] = []
    kept = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    set_handler = signal.signal

    def set_other_handler(number: int, handler: Any) -> Any:
        return kept[signal.Signals(number)] if number in kept else set_handler(number, handler)

    for number, handler in kept.items():
        if handler is not signal.SIG_IGN:
            set_handler(number, lambda number, _: asked.append(number))
    signal.signal = set_other_handler  # type: ignore[assignment]  # narrower hints
    try:
        yield
    finally:
        signal.signal = set_handler
        for number, handler in kept.items():
            set_handler(number, handler)
        for first in asked[:1]:  # also if the block failed: then because processes of it got the signal, too
            signal.raise_signal(first)


_apart: list[bool] = []


def _leave_the_group() -> None:
    if _apart:
        os.setpgid(0, 0)


os.register_at_fork(after_in_child=_leave_the_group)


@contextmanager
def children_apart() -> Iterator[None]:
    """Give each process that the block starts a process group of its own.

    A terminal, `timeout` or a batch system signals a whole group. Ray's daemons would die of it while this process
    still needs them to end in good order. Works for children that are forked with a `preexec_fn`, as Ray's are.
    """
    _apart.append(True)
    try:
        yield
    finally:
        _apart.pop()


@contextmanager
def children_ended_by(end: Callable[[], object]) -> Iterator[None]:
    """End what the block started, at first by asking, then for certain.

    Some of Ray's processes notice late that they should end: its agents not before they have started.
    """
    import psutil  # Ray brings it along

    own = psutil.Process()
    before = set(own.children())
    try:
        yield
    finally:
        started = []
        for child in set(own.children()) - before:
            with suppress(psutil.NoSuchProcess):
                started += [child, *child.children(recursive=True)]
        try:
            end()
        finally:
            for process in started:
                with suppress(psutil.Error):
                    process.kill()


KEPT_BYTES = 2**29
"""Free bytes at the heap's end that stay with the process."""

LARGEST_BLOCK_BYTES = 2**25
"""Larger blocks, such as whole models, come from the system and go back to it; the most that glibc itself chooses."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> bool:
    """Have this process keep what it frees; return whether the C library has agreed."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return bool(set_option(_MMAP_THRESHOLD, LARGEST_BLOCK_BYTES) and set_option(_TRIM_THRESHOLD, KEPT_BYTES))
