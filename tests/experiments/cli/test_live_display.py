"""What is seen while a study runs: a display in a terminal, lines in a pipe, and what Ctrl-C leaves."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import SMALL, Cli
from tests.experiments.cli.processes import REPOSITORY, Command

_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def seen_in_a_terminal(folder: Path, *arguments: str) -> str:
    """Return all that a command writes to a terminal of 80 × 24."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    unset = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PYTHONPATH": str(REPOSITORY / "src"), "TERM": "xterm-256color"}
    written = bytearray()
    module = [sys.executable, "-m", "fedscout.experiments.cli.main", *arguments]
    with subprocess.Popen(module, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux's way to say that the other side has closed it
                break
            if not piece:
                break
            written += piece
    os.close(ours)
    assert process.returncode == 0, written
    return written.decode()


@pytest.mark.slow
def test_a_terminal_shows_trials_rounds_time_left_and_the_best_and_then_the_screen(tmp_path: Path) -> None:
    written = seen_in_a_terminal(tmp_path, "run", *SMALL, "training.num_rounds=20", "--out", "out")
    text = _SEQUENCES.sub("", written)
    assert re.search(r"running trials .* \d+/8 trials, \d+/160 rounds", text)
    assert re.search(r"about \d+ s left, best so far \w+ 0\.\d{4}", text)
    assert "fedscout: generation" not in text  # which is for pipes
    shown = text[text.index("Use ") :].replace("\r\n", "\n").rstrip("\n").split("\n")
    assert max(map(len, shown)) <= 80
    assert all(len(line) <= 80 for line in text[: text.index("Use ")].replace("\r", "\n").split("\n"))


@pytest.mark.slow
def test_a_pipe_gets_a_line_a_stage_and_a_generation(cli: Cli) -> None:
    done = cli("run", *SMALL, "--out", "out")
    stages = [line.removeprefix("fedscout: ").partition(":")[0] for line in done.err.splitlines()]
    assert stages == ["measuring heterogeneity", "running trials", "generation 1", "generation 2"]
    assert "3/8 trials" in done.err
    assert "4/8 trials" in done.err


@pytest.mark.stress
def test_control_c_says_what_is_kept_and_how_to_go_on(tmp_path: Path, cli: Cli) -> None:
    settings = (*SMALL, "training.num_rounds=60", "search.strategies=[fedmedian, fedadam]")
    with Command(tmp_path, "search", *settings, "--out", "a folder") as command:
        trials = tmp_path / "a folder" / "trials"
        command.wait_until(lambda: trials.is_dir() and len([*trials.glob("*.parquet")]) >= 2)
        os.kill(command.process.pid, signal.SIGINT)
        code, out, err = command.end()
    kept, last = err.splitlines()[-2:]
    assert (code, out) == (130, "")
    assert last.startswith("fedscout: interrupted")
    told = re.fullmatch(r"fedscout: (\d+) finished trials and .* kept in a folder; to continue: (.*)", kept)
    assert told is not None, kept
    assert int(told[1]) == len([*trials.glob("*.parquet")])
    before = {path: path.stat().st_mtime_ns for path in trials.glob("*.parquet")}
    program, *arguments = shlex.split(told[2])
    assert program == "fedscout"
    assert cli(*arguments).code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len([*trials.glob("*.parquet")]) > len(before)
