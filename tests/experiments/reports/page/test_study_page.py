"""The page of a study: its numbers are the log's, whatever is missing is said, and it stays small and quick."""

from __future__ import annotations

import errno
import json
import re
import shlex
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.engine.errors import ConfigurationError, EngineError, LogError
from fedscout.engine.runtime.files import json_text
from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.record import Trial
from fedscout.experiments.charts import thinned
from fedscout.experiments.config import load_config
from fedscout.experiments.reports import page
from fedscout.experiments.reports.page import study_page, write_figures, write_report
from fedscout.experiments.reports.page_study import searched, strategy_name
from fedscout.experiments.reports.page_sweep import sweep_page
from fedscout.experiments.studies.result import read_study
from fedscout.experiments.sweeps.run import TABLE_COLUMNS
from tests.experiments.reports.page.written_study import write_study
from tests.kits.refusals import refused

SPECIFICATIONS = re.compile(r'<script type="application/json" id="specifications">(.*?)</script>', re.DOTALL)


def specifications(path: Path) -> dict[str, Any]:
    found = SPECIFICATIONS.search(path.read_text())
    return json.loads(found[1])


def change_result(folder: Path, part: str, **changes: Any) -> None:
    result = json.loads((folder / "result.json").read_text())
    result[part] |= changes
    (folder / "result.json").write_text(json.dumps(result))


def values_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    layers = chart.get("layer", [chart])
    held = [one.get("data", chart.get("data", {})) for one in layers]
    named = chart.get("datasets", {})
    return [row for data in held for row in data.get("values", named.get(data.get("name", ""), []))]


@pytest.mark.parametrize("strategy", ["mine:Mean", "of_another_version"])
def test_a_strategy_that_is_not_the_program_s_is_called_as_in_the_log(strategy: str) -> None:
    parameters = {"share": 0.5, **({"path": strategy} if ":" in strategy else {})}
    searched = Trial(strategy=strategy, parameters=parameters, phase="search", selection="oort")
    assert strategy_name(searched) == f"{strategy}(share=0.5)"
    assert strategy_name(replace(searched, phase="train")) == f"{strategy}(share=0.5, selection=oort)"


def test_the_verdict_names_pick_interval_cost_and_loser(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out")
    result = json.loads((folder / "result.json").read_text())["confirmation"]
    shown = study_page(folder)
    assert result["candidates"][0]["name"] in shown.headline
    text = " ".join(shown.lead)
    low, high = (result["versus"]["own"][end] for end in ("low", "high"))
    assert f"{100 * low:+.1f} to {100 * high:+.1f}" in text
    assert "11.0 points" in text  # 0.80, 0.81, 0.82 against 0.70
    (loser,) = [sentence for sentence in shown.lead if "Client 3 " in sentence]
    assert "-10.0 points" in loser
    (cost,) = [what for what, label in shown.figures if label == "13 trainings"]
    assert "6.5 s" in cost
    assert "195.0 kB" in cost  # 13 × 10 × 1.5 kB


@pytest.mark.slow
def test_curves_are_those_of_the_log_and_clients_before_and_after_means_over_paired_seeds(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out")
    log, charts = read_trials(folder).set_index("trial"), specifications(write_report(folder))
    curves = {row["trial"]: row for row in values_of(charts["learning-curves"])}
    assert set(curves) == set(log.index[log["phase"] != "confirmation"])
    for number, row in curves.items():
        assert row["round"] == list(range(1, 11))
        assert row["score"] == pytest.approx(log.loc[number, "round_accuracy"], abs=1e-5)
    clients = {row["client"]: (row["before"], row["after"], row["worse"]) for row in values_of(charts["client-scores"])}
    assert clients["0"] == (pytest.approx(0.7), pytest.approx(0.81), "0 of 3 seeds")
    assert clients["3"] == (pytest.approx(0.6), pytest.approx(0.5), "3 of 3 seeds")


@pytest.mark.slow
def test_clients_and_classes_are_called_by_their_names(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out")
    names = ["North", "South", "East", "<West>"]
    change_result(folder, "federation", client_names=names)
    charts = specifications(write_report(folder))
    for name in ("class-map", "client-rows", "label-divergences", "client-scores"):
        assert {row["client"] for row in values_of(charts[name]) if "client" in row} == {*names}, name
    assert "Client <West> " in " ".join(study_page(folder).lead)
    assert "<West>" not in re.sub(r"<script.*?</script>", "", (folder / "report.html").read_text(), flags=re.DOTALL)


def test_an_unfinished_study_without_detection_says_what_is_missing(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out", finished=False, diagnosed=False)
    shown = study_page(folder)
    assert "fedadam(" in shown.headline
    missing = {section.name for section in shown.sections if section.missing}
    assert {"federation", "diagnosis", "confirmation"} <= missing
    assert write_report(folder).is_file()


@pytest.mark.parametrize("change", [{"versus": {}}, {"candidates": []}, {"versus": {"clean": None}}], ids=str)
def test_a_confirmation_that_compares_nothing_is_told(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = write_study(tmp_path / "out")
    change_result(folder, "confirmation", **change)
    (search,) = [section for section in study_page(folder).sections if section.name == "search"]
    assert any("result.json" in sentence for sentence in search.sentences)


@pytest.mark.slow
def test_no_word_of_others_becomes_code(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"
    folder = write_study(tmp_path / "out", class_names=(evil, "dog"), name=evil)
    text = write_report(folder).read_text()
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "\u202e" not in text
    classes = {row["class"] for row in values_of(specifications(folder / "report.html")["class-map"])}
    assert classes == {evil.replace("\u202e", "\\u202e"), "dog"}


@pytest.mark.slow
def test_a_full_disk_loses_the_report_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_study(tmp_path / "out")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr("fedscout.engine.runtime.files.write_atomically", full)
    with pytest.raises(EngineError):
        write_report(folder)
    with caplog.at_level("WARNING", logger="fedscout"):
        assert page.report_of_finished(folder) is None
    assert len(caplog.messages) == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_thinned_curves_keep_both_ends_and_no_value_of_their_own() -> None:
    scores = [number / 7 for number in range(500)]
    rounds, kept = thinned(scores, 40)
    assert len(rounds) == 40
    assert (rounds[0], rounds[-1]) == (1, 500)
    assert kept == [scores[number - 1] for number in rounds]
    assert thinned(scores[:3], 40) == ([1, 2, 3], scores[:3])


@pytest.mark.stress
@pytest.mark.parametrize(("num_trials", "num_rounds", "seconds", "size"), [(100, 100, 3, 1.5e6), (5000, 200, 99, 2e6)])
def test_a_page_is_quick_and_small(
    tmp_path: Path, num_trials: int, num_rounds: int, seconds: float, size: float
) -> None:
    folder = write_study(tmp_path / "out", num_trials=num_trials, num_rounds=num_rounds)
    write_report(write_study(tmp_path / "small"))  # libraries are loaded, Vega's code is in the cache
    started = time.process_time()
    assert write_report(folder).stat().st_size < size
    assert time.process_time() - started < seconds


def test_a_page_of_many_trials_draws_the_highlighted_and_others_of_every_fitness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MAX_DRAWN", 120)
    folder = write_study(tmp_path / "out", num_trials=200, num_rounds=20)
    study = read_study(folder)
    trials, drawn = searched(study), page._drawn_trials(searched(study))
    assert len(drawn) == page.MAX_DRAWN + (trials["role"] != "").sum()
    assert set(trials[trials["role"] != ""]["trial"]) <= set(drawn["trial"])
    assert {*drawn["fitness"].agg(["min", "max"])} == {*trials["fitness"].agg(["min", "max"])}
    assert abs(drawn["fitness"].median() - trials["fitness"].median()) < 0.005


# Pictures as files, and several studies on one page.


MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<svg"}


@pytest.mark.slow
@pytest.mark.parametrize(("file_format", "name"), [("svg", None), ("png", "client-scores"), ("pdf", "client-scores")])
def test_pictures_of_the_page_become_files(tmp_path: Path, file_format: Any, name: str | None) -> None:
    folder = write_study(tmp_path / "out")
    files = write_figures(folder, file_format, name)
    names = [picture.name for picture in study_page(folder).pictures] if name is None else [name]
    assert files == [folder / "figures" / f"{name}.{file_format}" for name in names]
    assert all(file.read_bytes().startswith(MAGIC[file_format]) for file in files)


def test_a_picture_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    with refused(ConfigurationError, key="--what"):
        write_figures(write_study(tmp_path / "out"), "png", "curves")


# The command of a report has the digest of the study that it is of.


SETTINGS = [
    [],
    ["federation.num_clients=7", "federation.partition.alpha=0.5", "seed=3"],
    ["federation.dataset=my data/it's.csv", 'federation.label="true"', "federation.partition.kind=iid"],
    ["federation.scenario=[{kind: label_flip, clients: [2], rate: 0.4}]", "model.hidden=[64, 32]"],
    ["search.kind=racing", "search.strategies=[fedavg, fedadam]", "training.metric=macro_f1"],
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_command_makes_the_same_configuration(tmp_path: Path, settings: list[str]) -> None:
    config = load_config(settings)
    study = read_study(write_study(tmp_path / "out"))
    claim = {"config": config.identity(), "config_hash": config.digest()}
    command = page.command_of(replace(study, claim=claim))
    words = shlex.split(command)
    assert words[:2] == ["fedscout", "run"]
    assert load_config(words[2:]).digest() == config.digest()
    unknown = {"config": {"training": {"no_such_key": 1}}, "config_hash": "0"}
    assert page.command_of(replace(study, claim=unknown)) is None


# The page of a sweep: cells are the table's, and one whose interval contains zero advises FedAvg.


AXES = ("federation.partition.alpha", "federation.num_clients")


def write_sweep(folder: Path, is_tuned: bool = False) -> Path:
    """Write four studies: FedAdam gains 5 points where alpha is 0.1, and nothing that is certain where it is 1.

    With `is_tuned`, FedAdam gains 1 point on FedAvg at its tuned rate where alpha is 0.1, and loses 3 where it is 1.
    """
    rows: list[dict[str, Any]] = []
    for alpha, clients in product((0.1, 1.0), (4, 10)):
        accuracy = 0.75 if alpha < 1 else 0.71
        gain, half, verdict = (0.05, 0.02, "better") if alpha < 1 else (0.01, 0.02, "no difference")
        if is_tuned:
            gain, half, verdict = (0.01, 0.01, "no difference") if alpha < 1 else (-0.03, 0.01, "worse")
        found = {"gain": gain, "gain_low": gain - half, "gain_high": gain + half, "verdict": verdict}
        name = f"alpha_{alpha},num_clients_{clients}"
        shared = {**dict.fromkeys(TABLE_COLUMNS), AXES[0]: alpha, AXES[1]: clients, "study": name, "config_hash": name}
        shared |= {
            "status": "completed",
            "measure": "accuracy",
            "path": f"studies/{name}",
            "num_trials": 8,
            "seconds": 2.0,
        }
        if is_tuned:
            rows.append(shared | {"chooser": "tuned fedavg", "strategy": "fedavg", "accuracy": accuracy - gain})
        rows.append(shared | {"chooser": "fedavg", "strategy": "fedavg", "accuracy": 0.7})
        rows.append(shared | {"chooser": "challenger", "strategy": "fedadam", "accuracy": accuracy, **found})
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
    shown = sweep_page(folder)
    assert "0 of 4 " in shown.headline
    (table,) = (section.table for section in shown.sections if section.name == "settings")
    assert "tuned FedAvg" in table.headings


def test_a_sweep_without_a_table_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json_text({"axes": list(AXES), "fixed": {}}))
    with refused(LogError, key="the folder"):
        write_report(tmp_path)
