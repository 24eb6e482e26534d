"""A program's own server on this machine, for the time of a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

START_SECONDS = 90.0


@contextmanager
def local_server(command: Callable[[str], list[str]]) -> Iterator[str]:
    """Start a program that lies beside the interpreter, and yield its address; all that it started ends with the block.

    Args:
        command: Of a free port.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    name, *arguments = command(port)
    program = shutil.which(name, path=str(Path(sys.executable).parent))
    assert program is not None
    silent = subprocess.DEVNULL
    process = subprocess.Popen([program, *arguments], stdout=silent, stderr=silent, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def answered(address: str) -> bytes:
    """Return what a server that may still be starting answers."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                content: bytes = answer.read()
                return content
        except (URLError, ConnectionError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
