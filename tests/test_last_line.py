"""What was skipped, and why, is the last line of a run of the tests; a test process that dies fails it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")

pytestmark = pytest.mark.slow


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "FEDSCOUT_DATA"}
    return subprocess.run(
        [*PYTEST, *arguments],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_last_line_says_what_was_skipped_and_why() -> None:
    done = run("-n", "2", "-m", "data", "tests/experiments/data/test_bearing.py")
    assert done.returncode == 0, done.stdout
    *_, closing, last = done.stdout.splitlines()
    assert closing.startswith("3 skipped")
    assert last == "skipped: 3 as FEDSCOUT_DATA names no folder"


def test_a_test_process_that_dies_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_dies.py").write_text("import os\n\ndef test_dies():\n    os._exit(0)\n")
    done = run("-n", "2", f"--rootdir={REPOSITORY}", str(tmp_path))
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout.splitlines()[-1]
