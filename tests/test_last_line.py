"""What was skipped, and why, is the last line of a run of the tests."""

from __future__ import annotations

import sys

import pytest

from tests.commands import ran

pytestmark = pytest.mark.slow


def test_the_last_line_says_what_was_skipped_and_why() -> None:
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "-m", "data")
    done = ran(*command, "tests/experiments/data/test_bearing.py", without=("FEDSCOUT_DATA",))
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "skipped: 1 as FEDSCOUT_DATA names no folder"
