"""`fedscout --help` answers in under 0.7 seconds."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 0.7
ATTEMPTS = 12


def test_help_answers_in_under_seven_tenths_of_a_second() -> None:
    # The same start as the installed command makes. The best of several runs is the program's own time: the first
    # reads files from the disk and compiles, and any may wait for a core that another process holds.
    command = [sys.executable, "-c", "import sys; from experiments.cli.main import main; sys.exit(main())", "--help"]
    best_seconds = float("inf")
    for _ in range(ATTEMPTS):
        start = time.perf_counter()
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
        best_seconds = min(best_seconds, time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
        assert "Usage" in done.stdout
        if best_seconds < LIMIT_SECONDS:
            break

    assert best_seconds < LIMIT_SECONDS
