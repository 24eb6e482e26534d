"""What is said of an outcome, and the line of progress."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fedscout.engine.trials.record import TrialSettings
from fedscout.experiments.reports.console import PlainConsole, show_path
from fedscout.experiments.reports.details import show_outcome
from fedscout.experiments.reports.progress import TrialProgress
from fedscout.search.config import RacingConfig, SearchConfig
from fedscout.search.ledger import StudyEvents
from fedscout.search.study import run_study
from tests.search.studies import Measured, ScriptedRunner, completed, failed, open_ledger, study

KINDS = ("fedmedian", "fedadam")


def shown(folder: Path, outcome: Callable[[TrialSettings], Measured], num_seeds: int = 3, tuned: bool = False) -> str:
    """Return what is printed of a study with these results, on lines of any length."""
    config = SearchConfig(strategies=KINDS, budget=2, confirmation_seeds=num_seeds, tuned_baseline=tuned)
    file = io.StringIO()
    show_outcome(PlainConsole(file=file, width=400), study(folder, ScriptedRunner(outcome), config))
    return file.getvalue()


def by_kind(fedavg: float, fedmedian: float, fedadam: float) -> Callable[[TrialSettings], Measured]:
    scores = {"fedavg": fedavg, "fedmedian": fedmedian, "fedadam": fedadam}
    return lambda spec: completed(scores[spec.strategy.kind])


SCORES = {"won": by_kind(0.5, 0.75, 0.25), "lost": by_kind(0.75, 0.5, 0.25)}


def told(text: str, *lines: tuple[str, ...]) -> list[str]:
    """Hold that for each of these some line has all of its words; return the gains in points that are told."""
    for words in lines:
        assert [line for line in text.splitlines() if all(word in line for word in words)], (words, text)
    return re.findall(r"(?<=: )[+-][\d.]+ points", text)


def test_a_winner(tmp_path: Path) -> None:
    assert told(shown(tmp_path, SCORES["won"]), ("Best ", "fedmedian, 0.7500")) == ["+25.0 points"] * 2


def test_fedavg_itself(tmp_path: Path) -> None:
    assert told(shown(tmp_path, SCORES["lost"]), ("FedAvg itself ",), ("Keep FedAvg.",)) == ["-25.0 points"] * 2


def test_no_difference(tmp_path: Path) -> None:
    told(shown(tmp_path, lambda spec: completed(0.5)), ("[-0.1, +0.1]",), ("Keep FedAvg.",))


def test_too_few_seeds(tmp_path: Path) -> None:
    told(shown(tmp_path / "one", SCORES["won"], 1), ("two seeds",))
    told(shown(tmp_path / "won", SCORES["won"], 0), ("search.confirmation_seeds", "0"))
    text = shown(tmp_path / "fedavg", SCORES["lost"], 0)
    told(text, ("FedAvg itself ",))
    assert "search.confirmation_seeds" not in text


def test_nothing_went_through(tmp_path: Path) -> None:
    assert shown(tmp_path, lambda spec: failed("round 1: diverged")).count("round 1: diverged") == 3


def test_points_against_fedavg(tmp_path: Path) -> None:
    shown_rows = shown(tmp_path, SCORES["won"], 0).splitlines()[3:6]
    rows = {line.split()[2].partition("(")[0]: line for line in shown_rows}
    assert rows["fedavg"].split()[-1] == "0.5000"
    assert rows["fedmedian"].split()[-2:] == ["0.7500", "+25.0"]
    assert rows["fedadam"].split()[-2:] == ["0.2500", "-25.0"]


def test_both_views_where_they_differ(tmp_path: Path) -> None:
    def outcome(spec: TrialSettings) -> Measured:
        return completed(own=0.5, clean=0.75 if spec.strategy.kind == "fedavg" else 1.0)

    told(shown(tmp_path, outcome), ("own data: +0.0 points",), ("clean data: +25.0 points",))


def test_the_tuned_baseline(tmp_path: Path) -> None:
    def outcome(spec: TrialSettings) -> Measured:
        return completed(spec.session.training.learning_rate)

    text = shown(tmp_path, outcome, tuned=True)
    rates = "0.8: 0.8000 over 2 seeds, 0.4: 0.4000 over 2 seeds, 0.2: 0.2000, 0.1: 0.1000, 0.05: 0.0500"
    gains = told(text, ("6 additional trainings", rates), ("tuned-fedavg", "-60.0 points"), ("Keep FedAvg ", " 0.8."))
    assert gains.count("-60.0 points") == 2


@pytest.mark.parametrize("reason", ["[/usr/lib] is missing", "[bold] is no array", "[red]"])
def test_brackets_of_an_error_are_text(tmp_path: Path, reason: str) -> None:
    assert reason in shown(tmp_path, lambda spec: failed(reason))


def test_brackets_of_a_path_are_text() -> None:
    file = io.StringIO()
    show_path(PlainConsole(file=file, width=20), "Log", Path("/data/[red]/" + "x" * 50))
    assert file.getvalue() == f"Log: /data/[red]/{'x' * 50}\n"


def test_rungs_show_their_rounds_and_are_not_compared_with_full_trainings(tmp_path: Path) -> None:
    config = SearchConfig(
        kind="racing", strategies=KINDS, racing=RacingConfig(trainings=1.5, min_rounds=2), confirmation_seeds=0
    )
    outcome = run_study(
        config,
        open_ledger(tmp_path, ScriptedRunner(lambda spec: completed(0.5, num_rounds=spec.num_rounds)), num_rounds=8),
    )
    file = io.StringIO()
    show_outcome(PlainConsole(file=file, width=200), outcome)
    rows = [line.split() for line in file.getvalue().splitlines() if line.strip()[:1].isdigit()]
    by_rounds = {rounds: [row for row in rows if row[2] == rounds] for rounds in ("2", "8")}
    assert by_rounds["2"]
    assert all(row[-1] == "0.5000" for row in by_rounds["2"])
    assert [row[-1] for row in by_rounds["8"]] == ["0.5000", "+0.0"]  # FedAvg, and who was left of the race


def test_progress_counts_the_rounds_of_rungs(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda spec: completed(0.5, num_rounds=1))
    outcome = run_study(SearchConfig(budget=1, confirmation_seeds=0), open_ledger(tmp_path, runner))
    progress = TrialProgress(num_trials=2, num_rounds=10, rounds_less=8)
    progress.record(outcome.baseline, known=False)
    progress.rounds({"b": 3})
    (task,) = progress._progress.tasks
    assert task.fields["counts"].startswith("1/2 trials, 4/12 rounds")


def test_progress_tells_what_is_left_once_fedavg_has_levelled_off(tmp_path: Path) -> None:
    """Until then it may be 200 rounds a trial, or 10."""
    runner = ScriptedRunner(lambda spec: completed(0.5, num_rounds=10))
    outcome = run_study(SearchConfig(budget=1, confirmation_seeds=0), open_ledger(tmp_path, runner))
    progress = TrialProgress(num_trials=9, num_rounds=200, rounds_less=500, open_ended=True)
    (task,) = progress._progress.tasks
    progress.record(outcome.baseline, known=False)
    progress.rounds({"b": 3})
    assert (task.total, task.fields["counts"]) == (None, "1 trials, 13 rounds")
    progress.rounds({"b": 0})
    progress.display(lambda rounds: (4, rounds // 2)).early_stopping_round(20)
    assert (task.total, task.fields["counts"]) == (80, "1/5 trials, 10/80 rounds")
    progress.rounds({"b": 7})
    assert task.fields["counts"] == "1/5 trials, 17/80 rounds"
    assert task.fields["below"].startswith("about ")


def test_progress_is_silent_where_there_is_no_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    progress = TrialProgress(num_trials=3, num_rounds=2)
    assert not progress.shown
    events = progress.display().trials
    assert events.on_rounds is None  # nobody would see it, so nobody is asked
    with progress.live():
        run_study(
            SearchConfig(strategies=KINDS, budget=2, confirmation_seeds=0),
            open_ledger(tmp_path, ScriptedRunner(lambda spec: completed(0.5)), StudyEvents(on_record=events.on_record)),
        )
    assert capfd.readouterr() == ("", "")


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes rich take standard error for a terminal
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    progress = TrialProgress(num_trials=4, num_rounds=10)
    assert progress.shown
    with progress.live():
        progress.stage("search")
        progress.rounds({"a": 5, "b": 10})
    out, err = capfd.readouterr()
    assert out == ""
    assert "running trials" in err
    assert "0/4 trials, 5/40 rounds" in err
    assert "s left" in err
