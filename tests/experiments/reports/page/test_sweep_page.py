"""The page of a sweep: cells are the table's, and one whose interval contains zero advises FedAvg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.engine.errors import LogError
from fedscout.engine.runtime.files import json_text
from fedscout.experiments.reports.page import write_report
from fedscout.experiments.reports.page_sweep import sweep_page
from fedscout.experiments.sweeps.results import TABLE_COLUMNS
from tests.experiments.reports.page.test_study_page import specifications, values_of
from tests.kits.refusals import refused

AXES = ("federation.partition.alpha", "federation.num_clients")


def write_sweep(folder: Path, is_tuned: bool = False) -> Path:
    """Write four studies: FedAdam gains 5 points where alpha is 0.1, and nothing that is certain where it is 1.

    With `is_tuned`, FedAdam gains 1 point on FedAvg at its tuned rate where alpha is 0.1, and loses 3 where it is 1.
    """
    rows: list[dict[str, Any]] = []
    for alpha in (0.1, 1.0):
        for clients in (4, 10):
            better = alpha < 1
            name = f"alpha_{alpha},num_clients_{clients}"
            shared = dict.fromkeys(TABLE_COLUMNS) | {
                AXES[0]: alpha,
                AXES[1]: clients,
                "study": name,
                "path": f"studies/{name}",
                "config_hash": name,
                "status": "completed",
                "measure": "accuracy",
                "num_trials": 8,
                "seconds": 2.0,
            }
            fedavg = {"chooser": "fedavg", "strategy": "fedavg", "accuracy": 0.7}
            gain = 0.05 if better else 0.01
            challenger = {
                "chooser": "challenger",
                "strategy": "fedadam",
                "accuracy": 0.7 + gain,
                "difference": gain,
                "difference_low": gain - 0.02,
                "difference_high": gain + 0.02,
                "verdict": "better" if better else "no difference",
            }
            if is_tuned:
                on_tuned = 0.01 if better else -0.03
                fedavg_tuned = {"chooser": "tuned fedavg", "strategy": "fedavg", "accuracy": 0.7 + gain - on_tuned}
                rows.append(shared | fedavg_tuned)
                challenger |= {"gain": on_tuned, "gain_low": on_tuned - 0.01, "gain_high": on_tuned + 0.01}
                challenger["verdict"] = "no difference" if better else "worse"
            rows += [shared | fedavg, shared | challenger]
    (folder / "studies").mkdir(parents=True)
    (folder / "sweep.json").write_text(json_text({"axes": list(AXES), "fixed": {}}))
    pq.write_table(pa.Table.from_pylist(rows), folder / "table.parquet")
    return folder


def test_cells_are_the_tables(tmp_path: Path) -> None:
    drawn = specifications(write_report(write_sweep(tmp_path / "sweep")))
    cells = {(row["x"], row["y"]): row for row in values_of(drawn["gain-map"])}
    assert cells.keys() == {("0.1", "4"), ("0.1", "10"), ("1", "4"), ("1", "10")}
    for (alpha, _), cell in cells.items():
        gain = 5.0 if alpha == "0.1" else 1.0
        assert (cell["gain"], cell["low"], cell["high"]) == pytest.approx((gain, gain - 2, gain + 2))
        assert cell["certain"] == (alpha == "0.1")
        assert cell["advised"] == ("fedadam" if alpha == "0.1" else "fedavg")


def test_what_tuning_alone_gains_is_no_gain_of_the_choice(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "sweep", is_tuned=True)
    cells = values_of(specifications(write_report(folder))["gain-map"])
    assert {(cell["x"], cell["gain"], cell["certain"]) for cell in cells} == {("0.1", 1.0, False), ("1", -3.0, True)}
    page = sweep_page(folder)
    assert "0 of 4 " in page.headline
    assert [sentence for sentence in page.lead if "worse: 2." in sentence]
    assert "tuned" in page.pictures[0].caption
    (table,) = (section.table for section in page.sections if section.name == "settings")
    assert table is not None
    assert "accuracy of FedAvg, tuned rate" in table.headings


def test_the_headline_counts_what_is_certain(tmp_path: Path) -> None:
    page = sweep_page(write_sweep(tmp_path / "sweep"))
    assert "2 of 4 " in page.headline
    assert [sentence for sentence in page.lead if "difference: 2;" in sentence]


def test_a_sweep_without_a_table_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json_text({"axes": list(AXES), "fixed": {}}))
    with refused(LogError, key="the folder"):
        write_report(tmp_path)
