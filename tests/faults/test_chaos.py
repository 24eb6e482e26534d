"""The chaos run itself, short."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.chaos import NUM_TRIALS, chaos, plan
from tests.faults.conftest import trial_files


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(290)
def test_a_study_killed_at_random_comes_out_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {kill.kind for kill in plan(random.Random(3), 50, 3600)} == {"trial", "host", "driver"}
    told = chaos(tmp_path, seed=6, num_kills=6, rounds_per_trial=30)

    assert " 6 kills " in told
    assert capsys.readouterr().out.count("kill ") == 6
    assert len(trial_files(tmp_path / "out")) == NUM_TRIALS
