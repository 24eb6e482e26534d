"""Signals, orphan processes and freed memory of this process.

Signals: the first SIGINT (Ctrl-C), SIGTERM or SIGHUP raises KeyboardInterrupt in the main thread, so that every `with`
block cleans up; later ones are ignored, because `timeout`, a batch system or a closed terminal send several. It is a
KeyboardInterrupt for every signal, as Ray's calls propagate no other exception of a handler. If cleaning up takes
longer than `GRACE_SECONDS`, as it does if the signal also reached Ray's own processes, the process exits without it. A
signal that the caller ignores, as `nohup` does, stays ignored. A signal during Ray's start is delivered after it. Ray
installs its own handlers for SIGTERM while it starts: two in Python that would abort its start, and finally one of absl
in C++ that prints a stack trace and lets the process die. The former are blocked, the latter is replaced by ours after
Ray has started; in between, while the process connects to its Ray, SIGTERM kills it at once.

Orphans: when a process is killed with SIGKILL, the kernel ends Ray's daemons with it; workers notice within seconds,
while Ray's agents wait a minute for a server that is gone. All of them inherited a random mark in their environment
from the process that started them, so the next run of its folder can safely identify and kill them. Processes of a
cluster that was only connected to lack the mark: there, Ray itself ends the work of a dead driver.

Freed memory: the C library returns a free block at the end of its heap to the system once it is some megabytes long,
and the system hands it out again page by page, zeroed, which can take longer than the computation in it. With glibc
`keep_freed_memory` prevents this; with other C libraries nothing is changed.
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
"""The mark of this process."""

WAIT_SECONDS = 5.0

logger = logging.getLogger("fedscout")


def mark_children() -> None:
    """Set this process's mark in the environment of all processes that it starts from now on."""
    os.environ[MARK] = OWN_MARK
    os.environ["SPT_NOENV"] = "1"  # or Ray's agents would write their title over their environment


def end_orphans(pid: int, mark: str) -> int:
    """Kill the processes that a dead process started, and return their number; 0 while its process id is in use."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    with suppress(psutil.NoSuchProcess):
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return 0
    num_ended = end_marked(mark)
    if num_ended:
        logger.info("ended %d processes that the killed process %d had started", num_ended, pid)
    return num_ended


def end_marked(mark: str, seconds: float = WAIT_SECONDS) -> int:
    """Kill all other processes with a mark; return their number.

    All are found before the first is killed: a driver aborts when it loses its raylet, and would leave the rest.

    Args:
        mark: The mark.
        seconds: Maximum time to wait until they are gone.
    """
    import psutil

    marked = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                marked.append(process)
    for process in marked:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(marked, timeout=seconds)
    return len(marked)


ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 20.0


def _in_main_thread() -> bool:
    """Return whether this thread may set signal handlers, which only the main thread may."""
    return threading.current_thread() is threading.main_thread()


_received: list[int] = []
"""Ending signals that came to this process while a block listened, in order."""


@contextmanager
def ended_by_signals() -> Iterator[list[int]]:
    """Interrupt the block at the first ending signal and ignore later ones, as the process is about to exit.

    Yields:
        The signals received, in order; empty until the first.
    """
    _received.clear()
    if not _in_main_thread():
        yield _received
        return

    def end(number: int, _: FrameType | None) -> None:
        _received.append(number)
        if len(_received) == 1:
            watch = threading.Timer(GRACE_SECONDS, end_at_once, signal_exit(number))
            watch.daemon = True
            watch.start()
            raise KeyboardInterrupt

    handled_signals = [number for number in ENDING_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, end) for number in handled_signals}
    try:
        yield _received
    finally:
        for number, handler in previous_handlers.items() if not _received else ():
            signal.signal(number, handler)


def signal_exit(number: int) -> tuple[int, str]:
    """Return the exit code of a command ended by a signal, 128 + number, and a message."""
    how = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    return 128 + number, f"{how}; run the same command again to resume"


_CLEAR_LINE = "\r\x1b[2K\x1b[?25h"
"""Removes a progress line and restores the cursor."""


def end_at_once(code: int, line: str) -> None:
    """Exit with a last message, without cleanup except for killing marked processes; locks end with the process.

    An earlier signal takes precedence as the reason, as whoever ends a command may also end its Ray processes.
    """
    if _received:
        code, line = signal_exit(_received[0])
    with suppress(OSError):
        print(f"{_CLEAR_LINE if sys.stderr.isatty() else ''}fedscout: {line}", file=sys.stderr, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # other threads go on for a moment
    try:
        end_marked(OWN_MARK, seconds=0)  # Ray's driver, which is here, would abort meanwhile
    finally:
        os._exit(code)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Delay ending signals until the block is over, and prevent the block from setting handlers for them.

    Ray's start can't be interrupted safely: it hangs on a lock, or swallows the exception and continues.
    """
    if not _in_main_thread():
        yield
        return
    delayed: list[int] = []
    previous = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    set_handler = signal.signal

    def set_other_handler(number: int, handler: Any) -> Any:
        return previous[signal.Signals(number)] if number in previous else set_handler(number, handler)

    for number, handler in previous.items():
        if handler is not signal.SIG_IGN:
            set_handler(number, lambda number, _: delayed.append(number))
    signal.signal = set_other_handler  # type: ignore[assignment]  # narrower hints
    try:
        yield
    finally:
        signal.signal = set_handler
        for number, handler in previous.items():
            set_handler(number, handler)
        for first in delayed[:1]:  # also if the block failed: then because processes of it got the signal, too
            signal.raise_signal(first)


_own_group: list[bool] = []


def _enter_own_group() -> None:
    if _own_group:
        os.setpgid(0, 0)


os.register_at_fork(after_in_child=_enter_own_group)


@contextmanager
def own_process_groups() -> Iterator[None]:
    """Put each process that the block starts into its own process group.

    A terminal, `timeout` or a batch system signals a whole group, which would kill Ray's daemons while this process
    still needs them for an orderly end. Works for children that are forked with a `preexec_fn`, as Ray's are.
    """
    _own_group.append(True)
    try:
        yield
    finally:
        _own_group.pop()


@contextmanager
def end_children_with(end: Callable[[], object]) -> Iterator[None]:
    """End the processes that the block started: call `end`, then kill those that remain.

    Some of Ray's processes react late to the request to end: its agents only after they have started.
    """
    import psutil  # Ray brings it along

    this_process = psutil.Process()
    before = set(this_process.children())
    try:
        yield
    finally:
        started = []
        for child in set(this_process.children()) - before:
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
    """Let this process keep the memory that it frees; return whether the C library accepted the setting."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return bool(set_option(_MMAP_THRESHOLD, LARGEST_BLOCK_BYTES) and set_option(_TRIM_THRESHOLD, KEPT_BYTES))
