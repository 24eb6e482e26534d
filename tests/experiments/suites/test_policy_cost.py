"""The times of selection policies: which are parts of which, and one a turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.experiments import suites
from fedscout.experiments.grids.cells import CellContext
from fedscout.experiments.grids.experiment import read_experiment
from fedscout.experiments.suites.selection_policies import PolicyCosts

EXPERIMENT = read_experiment(Path(suites.__file__).parent / "selection" / "cost.yaml")


@pytest.mark.slow
def test_policies_are_timed(tmp_path: Path) -> None:
    quick = ("training.num_rounds=3", "training.local_epochs=1", "federation.num_clients=10")
    values = PolicyCosts(["oort"]).measure(EXPERIMENT, CellContext(tmp_path, quick, 2)).values
    by_column = {column: of_turns for (_, column), of_turns in values.items()}
    own, many, most = (by_column[name] for name in ("own time, ms", "3,550 clients, ms", "longest there, ms"))
    assert len(own) == 2
    assert all(milliseconds is not None and milliseconds > 0 for milliseconds in own)
    assert all(0 < median <= longest for median, longest in zip(many, most, strict=True))  # type: ignore[operator]
