"""What is printed of a sweep: the gain that its verdicts are on."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fedscout.experiments.reports.console import PlainConsole
from fedscout.experiments.reports.sweep_console import show_sweep
from fedscout.experiments.sweeps.results import groups_of
from fedscout.experiments.sweeps.run import SweepOutcome
from fedscout.search.objective import ACCURACY
from tests.experiments.sweeps.test_summary import row

PICK: dict[str, Any] = {"accuracy": 0.75, "verdict": "no difference"}
TO_FEDAVG = {"difference": 0.25, "difference_low": 0.125, "difference_high": 0.375}
TO_TUNED = {"gain": 0.0625, "gain_low": -0.125, "gain_high": 0.1875}


@pytest.mark.parametrize("tuned", [False, True])
def test_the_gain_is_on_the_stronger_fedavg_where_it_was_tuned(tmp_path: Path, tuned: bool) -> None:
    rows = [row(0.1, 0, "fedavg", accuracy=0.5), *([row(0.1, 0, "tuned fedavg", accuracy=0.6875)] if tuned else [])]
    rows.append(row(0.1, 0, "challenger", **PICK, **TO_FEDAVG, **(TO_TUNED if tuned else {})))
    groups = groups_of(rows, ["alpha", "seed"])
    file = io.StringIO()
    show_sweep(
        PlainConsole(file=file, width=200),
        SweepOutcome(tmp_path, pa.table({}), groups, "accuracy", ACCURACY, studies=()),
    )
    text = file.getvalue()
    assert ("+6.2" in text and "[-12.5, +18.8]" in text) is tuned
    assert ("+25.0" in text and "[+12.5, +37.5]" in text) is not tuned
    assert ("stronger FedAvg" in text) is tuned
