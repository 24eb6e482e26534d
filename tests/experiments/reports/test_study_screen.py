"""One screen of 80 × 24 for any study, verdict first."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.trials.record import TrialSettings
from fedscout.experiments.reports.console import PlainConsole, paragraph
from fedscout.experiments.reports.progress import Cost
from fedscout.experiments.reports.study_console import StudyScreen
from fedscout.experiments.text import visible
from fedscout.search.objective import ACCURACY
from fedscout.search.study import StudyOutcome
from tests.experiments.reports.test_verdict import ALIKE, SKEWED, by_kind, found
from tests.search.studies import Measured, completed, failed

LONG = "federation with a very long name, " * 5
COMMAND = " \\\n  ".join(["fedscout train " + "x" * 50, *["strategy." + "y" * 50] * 4])
STEPS = (("Train", COMMAND), ("Export", "fedscout app"), ("Report", "fedscout report"), ("More", "-v"))


def screen(outcome: StudyOutcome, report: HeterogeneityReport | None = None, **parts: Any) -> StudyScreen:
    given: dict[str, Any] = {"federation": LONG, "cost": Cost(9, 0, 12.4), "next_steps": STEPS}
    return StudyScreen(outcome, report, **{**given, **parts})


def lines_of(*parts: Any, **more: Any) -> list[str]:
    return [line.plain for line in screen(*parts, **more).lines()]


def diverging(spec: TrialSettings) -> Measured:
    return failed("diverged " * 30) if spec.strategy.kind != "fedavg" else completed(0.5)


OUTCOMES: dict[str, tuple[Callable[[TrialSettings], Measured], dict[str, Any]]] = {
    "better": (by_kind(fedmedian=0.75), {}),
    "fedavg is best": (by_kind(fedmedian=0.25, fedadam=0.25), {}),
    "no difference": (lambda spec: completed(0.5), {}),
    "one seed": (by_kind(fedmedian=0.75), {"confirmation_seeds": 1}),
    "not confirmed": (by_kind(fedmedian=0.75), {"confirmation_seeds": 0}),
    "tuned": (by_kind(fedmedian=0.75), {"tuned_baseline": True}),
    "several that are level": (by_kind(fedmedian=0.75, fedadam=0.75), {"confirmation_top": 2}),
    "failures": (diverging, {}),
    "nothing went through": (lambda spec: failed("diverged " * 30), {}),
    "long names": (
        by_kind(**{"fedadam+fedprox": 0.75}),
        {"strategies": ("fedadam+fedprox", "fedyogi+fedprox"), "budget": 4},
    ),
}


def test_it_says_that_rows_belong_together(tmp_path: Path) -> None:
    note = "Test rows have near copies among the training rows."
    assert f"  {note}" in lines_of(found(tmp_path, by_kind(fedmedian=0.75)), dependence=[note])


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("report", [None, ALIKE, SKEWED], ids=["undiagnosed", "alike", "skewed"])
def test_lines_fit_and_nothing_is_cut(tmp_path: Path, name: str, report: HeterogeneityReport | None) -> None:
    measured, settings = OUTCOMES[name]
    notes = ["Test rows have near copies. " * 20]
    shown = screen(found(tmp_path, measured, report, **settings), report, dependence=notes)
    lines = [*shown.lines()]
    assert max(line.cell_len for line in lines) <= 80
    words = " ".join(line.plain for line in lines).split()
    assert not any("…" in word for word in words)
    text = " ".join(words)
    assert " ".join(notes[0].split()) in text
    assert " ".join(LONG.split()) in text
    file = io.StringIO()
    shown.show(PlainConsole(file=file, width=80))
    assert file.getvalue().splitlines() == [line.plain for line in lines]  # as they are, and none broken


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("report", [None, ALIKE, SKEWED], ids=["undiagnosed", "alike", "skewed"])
def test_the_verdict_comes_first_then_the_reason_then_the_cost(
    tmp_path: Path, name: str, report: HeterogeneityReport | None
) -> None:
    measured, settings = OUTCOMES[name]
    outcome = found(tmp_path, measured, report, **settings)
    lines = lines_of(outcome, report)
    assert lines[0].startswith(("Use ", "Best of the search: ", "No trial completed"))
    starts = [
        next((at for at, line in enumerate(lines) if word in line), None) for word in ("Why: ", "Cost: ", "Train ")
    ]
    assert (starts[0] is not None) == (outcome.best is not None)
    known = [at for at in starts if at is not None]
    assert known == sorted(known)
    if outcome.confirmation is not None:
        assert outcome.confirmation.scores_text in " ".join(" ".join(lines[: known[0]]).split())


def test_what_gave_up_early_can_t_be_told(tmp_path: Path) -> None:
    """Of 48 seeds in batches of two; by the first look at which it may give up, any difference is possible."""

    def noisy(spec: TrialSettings) -> Measured:
        return completed(0.5 + 0.2 * ((spec.session.seed + len(spec.strategy.kind)) % 7 - 3) / 3)

    outcome = found(tmp_path, noisy, confirmation_seeds=48, confirmation_batch=2)
    assert outcome.confirmation is not None
    assert outcome.confirmation.stopped_for_futility
    text = " ".join(" ".join(lines_of(outcome)).split())
    assert f"{len(outcome.confirmation.seeds)} of 48 fresh seeds" in text
    assert "95 %" not in text


def test_the_verdict_is_the_confirmation_s(tmp_path: Path) -> None:
    outcome = found(tmp_path, by_kind(fedmedian=0.75))
    assert outcome.confirmation is not None
    difference = outcome.confirmation.versus["fedavg"]["own"]
    text = " ".join(" ".join(lines_of(outcome)).split())
    assert text.startswith("Use fedmedian. ")
    assert "accuracy 75.0 % against 50.0 %" in text
    assert f"{ACCURACY.number(difference.low or 0)} to {ACCURACY.number(difference.high or 0)}, 3 fresh" in text
    assert "9 trainings" in text
    assert "fedmedian +25.0, fedadam +0.0" in text


def test_the_published_rule_does_not_speak_beside_the_test(tmp_path: Path) -> None:
    text = "\n".join(lines_of(found(tmp_path, by_kind(fedmedian=0.75), SKEWED), SKEWED))
    assert "Label skew" in text
    assert "ublished" not in text


def test_a_race_says_what_it_never_started(tmp_path: Path) -> None:
    """One training of two rounds has room for one of FedMedian and FedAdam, two trainings for both."""
    raced = found(tmp_path, by_kind(fedmedian=0.75), kind="racing", racing={"trainings": 1, "min_rounds": 2})
    shown = lines_of(raced)
    assert [line for line in shown if "1 of 2 strategies" in line and "search.racing.trainings=2" in line]
    both = found(tmp_path / "both", by_kind(fedmedian=0.75), kind="racing", racing={"trainings": 2, "min_rounds": 2})
    assert not any("search.racing.trainings" in line for line in lines_of(both))


@pytest.mark.parametrize(
    ("cost", "told"),
    [
        (Cost(1, 0, 0.25), "Cost: 1 training, 0.2 s."),
        (Cost(30, 12, 99.6), "Cost: 30 trainings, 12 of them from the log of an earlier run, 100 s."),
        (Cost(41, 0, 9.84, num_short=18), "Cost: 41 trainings (18 with fewer rounds), 9.8 s."),
        (Cost(30, 30, 1.0), "Cost: 30 trainings, all of them from the log of an earlier run (1.0 s)."),
    ],
)
def test_what_it_cost(cost: Cost, told: str) -> None:
    assert str(cost) == told


@pytest.mark.parametrize("text", ["word " * 60, "字" * 200, "w" * 300, "short", "\x1b[2J" * 40])
def test_a_paragraph_holds_the_whole_text_in_lines_that_fit(text: str) -> None:
    lines = paragraph(text, 40)
    assert all(line.cell_len <= 40 and "\x1b" not in line.plain for line in lines)
    assert "".join(line.plain for line in lines).replace(" ", "") == visible(text).replace(" ", "")
