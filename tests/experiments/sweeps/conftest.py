"""A small sweep in this process, shared by the tests that only read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.experiments.sweeps.run import SweepOutcome
from tests.experiments.cli.conftest import cli
from tests.experiments.sweeps.sweeps import AXES, small, sweep_here

__all__ = ["cli"]


@pytest.fixture(scope="session")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> SweepOutcome:
    """The sweep of `AXES`, to its end. Not to be written into."""
    out: Path = tmp_path_factory.mktemp("sweep") / "out"
    return sweep_here(small(*AXES), out)
