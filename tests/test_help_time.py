"""`fedscout --help` answers in under 0.7 seconds of a processor."""

from __future__ import annotations

import resource
import sys

from tests.commands import ran

LIMIT_SECONDS = 0.7
ATTEMPTS = 4


def seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_answers_in_under_seven_tenths_of_a_second() -> None:
    # The same start as the installed command makes. The best of several runs, as the first compiles; processor seconds,
    # as any may wait for a core that another process holds.
    start_of_command = "import sys; from fedscout.experiments.cli.main import main; sys.exit(main())"
    best_seconds = float("inf")
    for _ in range(ATTEMPTS):
        start = seconds_of_children()
        done = ran(sys.executable, "-c", start_of_command, "--help", timeout=60)
        best_seconds = min(best_seconds, seconds_of_children() - start)
        assert done.returncode == 0, done.stderr
        assert "Usage" in done.stdout
        if best_seconds < LIMIT_SECONDS:
            break

    assert best_seconds < LIMIT_SECONDS
