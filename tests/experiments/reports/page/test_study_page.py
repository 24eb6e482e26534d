"""The page of a study: its numbers are the log's, whatever is missing is said, and it stays small and quick."""

from __future__ import annotations

import errno
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.errors import EngineError, LogError
from fedscout.engine.trials.log import read_trials
from fedscout.experiments.charts import ON_FRONT, thinned
from fedscout.experiments.reports import page
from fedscout.experiments.reports.page import page_of, report_of_finished, study_page, write_report
from fedscout.experiments.reports.page_study import losers_sentence
from fedscout.experiments.reports.page_tables import (
    Page,
    client_table,
    read_study_files,
    rows_of,
    searched,
    strategy_name,
)
from fedscout.strategies import parse_strategy
from tests.experiments.reports.page.written_study import write_study
from tests.kits.refusals import refused

SPECIFICATIONS = re.compile(r'<script type="application/json" id="specifications">(.*?)</script>', re.DOTALL)


def specifications(path: Path) -> dict[str, Any]:
    found = SPECIFICATIONS.search(path.read_text())
    assert found is not None
    return json.loads(found[1])


def values_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    layers = chart.get("layer", [chart])
    held = [one.get("data", chart.get("data", {})) for one in layers]
    named = chart.get("datasets", {})
    return [row for data in held for row in data.get("values", named.get(data.get("name", ""), []))]


@pytest.mark.slow
def test_curves_on_the_page_are_those_of_the_log(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out")
    log = read_trials(folder).set_index("trial")
    drawn = {row["trial"]: row for row in values_of(specifications(write_report(folder))["learning-curves"])}
    assert set(drawn) == set(log.index[log["phase"] != "confirmation"])
    for number, row in drawn.items():
        assert row["round"] == list(range(1, 11))
        assert row["score"] == pytest.approx(log.loc[number, "round_accuracy"], abs=1e-5)


def test_trials_are_called_as_the_verdict_calls_them(tmp_path: Path) -> None:
    study = read_study_files(write_study(tmp_path / "out"))
    assert study.confirmation is not None
    (chosen,) = [row["name"] for row in rows_of(searched(study)) if row["role"] == "chosen"]
    assert chosen == study.confirmation.contestants[0].name


@pytest.mark.parametrize("strategy", ["mine:Mean", "of_another_version"])
def test_a_strategy_that_is_not_the_program_s_is_called_as_in_the_log(strategy: str) -> None:
    parameters = {"share": 0.5, **({"path": strategy} if ":" in strategy else {})}
    assert strategy_name({"strategy": strategy, "parameters": parameters}) == f"{strategy}(share=0.5)"
    trained = {"strategy": strategy, "parameters": parameters, "phase": "train", "selection": "oort"}
    assert strategy_name(trained) == f"{strategy}(share=0.5, selection=oort)"


def one_training(folder: Path, **told: Any) -> Page:
    """Return the page of a folder whose log is one training."""
    study = read_study_files(write_study(folder, num_trials=1, finished=False, diagnosed=False))
    trained = study.trials.iloc[:1].copy()
    for name, value in {"phase": "train", **told}.items():
        trained[name] = [value]
    return page_of(replace(study, trials=trained))


def test_a_training_s_page_says_who_chose_its_clients_and_what_its_rounds_took(tmp_path: Path) -> None:
    told = {"selection": "flash", "client_rounds": [10, 3, 0, 4], "round_seconds": [30.0] * 10}
    page = one_training(tmp_path / "one", **told)
    assert page.headline.startswith("fedavg(selection=flash) ")
    _, policy, clock = page.lead
    assert policy.startswith("flash ")
    assert re.findall(r"\d+", policy) == ["0", "10", "10", "2"]  # trained in 0 to 10 of 10 rounds, client 2 never
    assert "5 min" in clock
    plain = one_training(tmp_path / "two")
    assert plain.headline.startswith("fedavg ")
    assert len(plain.lead) == 1


def test_of_a_search_the_policies_are_told_once(tmp_path: Path) -> None:
    study = read_study_files(write_study(tmp_path / "out"))
    chosen = study.trials.assign(selection=["oort" if trial % 2 else "random" for trial in study.trials["trial"]])
    section = next(one for one in page_of(replace(study, trials=chosen)).sections if one.name == "search")
    assert [sentence for sentence in section.sentences if "oort, random" in sentence]
    assert "fedadam(eta=" in section.sentences[0]
    assert "selection=" not in section.sentences[0]


def test_the_verdict_names_pick_interval_cost_and_loser(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out")
    result = json.loads((folder / "result.json").read_text())["confirmation"]
    page = study_page(folder)
    assert page.headline == f"Use {result['contestants'][0]['name']}."
    text = " ".join(page.lead)
    low, high = (result["versus"]["fedavg"]["own"][end] for end in ("low", "high"))
    assert f"{100 * low:+.1f} to {100 * high:+.1f} points" in text
    assert "11.0 points" in text  # 0.80, 0.81, 0.82 against 0.70
    (loser,) = [sentence for sentence in page.lead if "Client 3 " in sentence]
    assert all(value in loser for value in ("-10.0 points", "3 of 3 seeds"))
    assert ("6.5 s of training, 195 kB sent and received", "13 trainings") in page.figures  # 13 × 10 × 1.5 kB


@pytest.mark.slow
def test_of_two_objectives_the_front_is_what_no_other_trial_beats(tmp_path: Path) -> None:
    """Trial 0 is the worst by the first and the best by the second; the others' second falls as their first does."""
    folder = write_study(tmp_path / "out", num_trials=4, second=(0.6, 0.1, 0.1, 0.1, 0.1))
    log = read_trials(folder).set_index("trial")
    best = int(log.loc[1:4, "fitness"].idxmax())
    charts = specifications(write_report(folder))
    drawn = {row["trial"]: row for row in values_of(charts["front"]) if "trial" in row}
    assert {number for number, row in drawn.items() if row["front"] == ON_FRONT} == {0, best}
    for number, row in drawn.items():
        assert (row["first"], row["second"]) == pytest.approx(tuple(log.loc[number, "objectives"]), abs=1e-5)
    assert {row["name"] for row in drawn.values()} == {"fedavg", *map(name_of, range(1, 5))}
    (caption,) = [picture.caption for picture in study_page(folder).pictures if picture.name == "front"]
    assert "worst tenth" in caption
    assert "front" not in specifications(write_report(write_study(tmp_path / "of one")))


def name_of(number: int) -> str:
    return str(parse_strategy({"kind": "fedadam", "eta": 0.001 * number}))


@pytest.mark.slow
def test_clients_before_and_after_are_means_over_paired_seeds(tmp_path: Path) -> None:
    chart = specifications(write_report(write_study(tmp_path / "out")))["client-scores"]
    drawn = {row["client"]: (row["before"], row["after"], row["worse"]) for row in values_of(chart)}
    assert drawn["0"] == (pytest.approx(0.7), pytest.approx(0.81), "0 of 3 seeds")
    assert drawn["3"] == (pytest.approx(0.6), pytest.approx(0.5), "3 of 3 seeds")


@pytest.mark.slow
def test_clients_and_classes_are_called_by_their_names(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out", class_names=("cat", "dog"))
    names = ["North", "South", "East", "<West>"]
    result = json.loads((folder / "result.json").read_text())
    result["federation"]["client_names"] = names
    (folder / "result.json").write_text(json.dumps(result))
    charts = specifications(write_report(folder))
    for name in ("class-map", "client-rows", "label-divergences", "client-scores"):
        assert {row["client"] for row in values_of(charts[name]) if "client" in row} == {*names}, name
    page = study_page(folder)
    assert "Client <West> has a lower mean score" in " ".join(page.lead)
    assert page.sections[1].table is not None
    assert tuple(page.sections[1].table.rows[0][:3]) == ("Label skew", "yes", "North")
    assert "<West>" not in re.sub(r"<script.*?</script>", "", (folder / "report.html").read_text(), flags=re.DOTALL)


@pytest.mark.slow
def test_the_page_says_that_rows_belong_together(tmp_path: Path) -> None:
    study = read_study_files(write_study(tmp_path / "out"))
    told = "12 of 200 test rows have near copies among the training rows."
    (federation, *_) = page_of(replace(study, result={**(study.result or {}), "dependence": [told]})).sections
    assert federation.sentences[-1] == told
    assert page_of(study).sections[0].sentences == federation.sentences[:-1]


def test_of_few_clients_that_were_scored_all_is_not_said_of_all(tmp_path: Path) -> None:
    study = read_study_files(write_study(tmp_path / "out"))
    facts = {**study.federation, "client_rows": [40, 30, 20, 10, 50]}
    table = client_table(study)
    assert table is not None
    gain = table[0].assign(change=0.1), table[1]
    wider = replace(study, result={**(study.result or {}), "federation": facts})
    of_all, of_scored = (losers_sentence(one, gain) for one in (study, wider))
    assert ("scored" in of_all, "scored" in of_scored) == (False, True)
    assert all(" all 4 " in sentence for sentence in (of_all, of_scored))


def test_an_unfinished_study_without_detection_says_what_is_missing(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out", finished=False, diagnosed=False)
    page = study_page(folder)
    missing = {section.name: " ".join(section.missing) for section in page.sections}
    assert "fedadam(" in page.headline
    assert all(missing[name] for name in ("federation", "diagnosis", "confirmation"))
    assert write_report(folder).is_file()


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


def test_a_folder_without_a_study_is_told_in_a_line(tmp_path: Path) -> None:
    with refused(LogError, key="the folder"):
        write_report(tmp_path)


@pytest.mark.slow
def test_a_full_disk_loses_the_report_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_study(tmp_path / "out")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr("fedscout.experiments.reports.page.write_atomically", full)
    with pytest.raises(EngineError, match="No space"):
        write_report(folder)
    with caplog.at_level("WARNING", logger="fedscout"):
        assert report_of_finished(folder) is None
    assert len(caplog.messages) == 1
    assert "fedscout report" in caplog.messages[0]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_thinned_curves_keep_both_ends_and_no_value_of_their_own() -> None:
    scores = [number / 7 for number in range(500)]
    rounds, kept = thinned(scores, 40)
    assert len(rounds) == 40
    assert (rounds[0], rounds[-1]) == (1, 500)
    assert kept == [scores[number - 1] for number in rounds]
    assert thinned(scores[:3], 40) == ([1, 2, 3], scores[:3])


@pytest.mark.stress
def test_a_hundred_trials_take_three_seconds(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out", num_trials=100, num_rounds=100)
    write_report(write_study(tmp_path / "small"))  # libraries are loaded, Vega's code is in the cache
    started = time.process_time()
    write_report(folder)
    assert time.process_time() - started < 3


@pytest.mark.stress
def test_five_thousand_trials_take_two_megabytes(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out", num_trials=5000, num_rounds=200)
    assert write_report(folder).stat().st_size < 2_000_000


def test_a_page_of_a_thousand_trials_draws_the_highlighted_and_others_of_every_fitness(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "out", num_trials=1000, num_rounds=20)
    study = read_study_files(folder)
    trials, drawn = searched(study), page._drawn_trials(searched(study))
    assert len(drawn) == page.MAX_DRAWN + (trials["role"] != "").sum()
    assert set(trials[trials["role"] != ""]["trial"]) <= set(drawn["trial"])
    assert {*drawn["fitness"].agg(["min", "max"])} == {*trials["fitness"].agg(["min", "max"])}
    assert abs(drawn["fitness"].median() - trials["fitness"].median()) < 0.005
    assert write_report(folder).stat().st_size < 2_000_000
