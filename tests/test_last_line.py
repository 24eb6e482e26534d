"""What was skipped, and why, is the last line of a run of the tests; a test process that dies fails it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.commands import REPOSITORY, ran

pytestmark = pytest.mark.slow

run = partial(ran, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", without=("FEDSCOUT_DATA",))


def test_the_last_line_says_what_was_skipped_and_why() -> None:
    done = run("-n", "2", "-m", "data", "tests/experiments/data/test_bearing.py")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "skipped: 1 as FEDSCOUT_DATA names no folder"


def test_a_test_process_that_dies_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_dies.py").write_text("import os\n\ndef test_dies():\n    os._exit(0)\n")
    done = run("-n", "2", f"--rootdir={REPOSITORY}", str(tmp_path))
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout.splitlines()[-1]
