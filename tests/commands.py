"""Commands run to their end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]


def environment_without(*beginnings: str) -> dict[str, str]:
    """Return this environment but for variables whose names begin so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(beginnings)}


def ran(
    *command: str | Path,
    cwd: Path = REPOSITORY,
    timeout: float = 120,
    without: tuple[str, ...] = (),
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command that reads nothing, in this environment and what is given; whether it failed is in its code.

    Args:
        command: Program and arguments.
        cwd: Working directory.
        timeout: In seconds.
        without: Beginnings of the names of variables that it does not get.
        environment: Further variables.
    """
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment_without(*without) | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def ran_python(*arguments: str, cwd: Path = REPOSITORY, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run this Python with these arguments, where it finds the program whatever the folder."""
    return ran(sys.executable, *arguments, cwd=cwd, timeout=timeout, PYTHONPATH=str(REPOSITORY / "src"))


def loaded_by(names: set[str], *arguments: str) -> set[str]:
    """Return which of some modules a successful `fedscout` with these arguments loads; without any it is imported."""
    program = (
        "import sys\n"
        "from fedscout.experiments.cli.main import main\n"
        f"sys.argv = ['fedscout', *{arguments!r}]\n"
        "try:\n"
        "    main() if sys.argv[1:] else None\n"
        "except SystemExit as end:\n"
        "    assert end.code in (0, None), end.code\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = ran_python("-c", program, timeout=60)
    assert done.returncode == 0, done.stderr
    return names & {*done.stderr.split()}


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
