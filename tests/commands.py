"""Commands run to their end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]


def ran(
    *command: str | Path, cwd: Path = REPOSITORY, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that reads nothing in this environment and what is given; whether it failed is in its code."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def ran_python(*arguments: str, cwd: Path = REPOSITORY, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run this Python with these arguments, where it finds the program whatever the folder."""
    return ran(sys.executable, *arguments, cwd=cwd, timeout=timeout, PYTHONPATH=str(REPOSITORY / "src"))


def output_of(module: str, *arguments: str, timeout: float) -> list[str]:
    """Return the lines that a module prints, which is run as a program and ends with all that it started."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            for one in [*started, process]:
                one.kill()
    assert process.returncode == 0, err[-3000:]
    return out.splitlines()
