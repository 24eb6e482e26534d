"""One screen of 80 × 24 for any study, verdict first."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.report import ROWS_BELONG_TOGETHER
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.experiments.reports.console import PlainConsole
from fedscout.experiments.reports.naming import Naming
from fedscout.experiments.reports.paragraph import paragraph
from fedscout.experiments.reports.study_screen import Cost, StudyScreen
from fedscout.search.measure import ACCURACY
from fedscout.search.study.study import StudyOutcome
from tests.experiments.reports.test_verdict import ALIKE, SKEWED, by_kind, found
from tests.search.studies import Measured, completed, failed

LONG = "federation with a very long name, " * 5
COMMAND = " \\\n  ".join(["fedscout train " + "x" * 50, *["strategy." + "y" * 50] * 4])
STEPS = (("Train", COMMAND), ("Export", "fedscout app"), ("Report", "fedscout report"), ("More", "-v"))


def screen(outcome: StudyOutcome, report: HeterogeneityReport | None = None, **parts: Any) -> StudyScreen:
    given: dict[str, Any] = {"federation": LONG, "naming": Naming(), "cost": Cost(9, 0, 12.4), "next_steps": STEPS}
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


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("report", [None, ALIKE, SKEWED], ids=["undiagnosed", "alike", "skewed"])
def test_a_screen_is_no_larger_than_80_by_24(tmp_path: Path, name: str, report: HeterogeneityReport | None) -> None:
    measured, settings = OUTCOMES[name]
    shown = screen(found(tmp_path, measured, report, **settings), report)
    lines = [*shown.lines()]
    assert len(lines) <= 24
    assert max(line.cell_len for line in lines) <= 80
    file = io.StringIO()
    shown.show(PlainConsole(file=file, width=80))
    assert file.getvalue().splitlines() == [line.plain for line in lines]  # as they are, and none broken


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("report", [None, ALIKE, SKEWED], ids=["undiagnosed", "alike", "skewed"])
def test_what_to_use_how_sure_and_why_are_in_the_first_five_lines(
    tmp_path: Path, name: str, report: HeterogeneityReport | None
) -> None:
    measured, settings = OUTCOMES[name]
    outcome = found(tmp_path, measured, report, **settings)
    first = lines_of(outcome, report)[:5]
    assert first[0].startswith(("Use ", "Best of the search: ", "No trial went through"))
    assert any("Why: " in line for line in first) == (outcome.best is not None)
    if outcome.confirmation is not None:
        assert "fresh seed" in " ".join(" ".join(first).split())
    if outcome.best is not None and outcome.advice is not None:
        assert "rules" in " ".join(first)


@pytest.mark.parametrize("name", OUTCOMES)
def test_where_much_is_to_be_told_the_screen_stays_one(tmp_path: Path, name: str) -> None:
    measured, settings = OUTCOMES[name]
    doubted = SKEWED.model_copy(update={"notes": (f"{ROWS_BELONG_TOGETHER}, as is seen.",)})
    outcome = found(tmp_path, measured, doubted, **settings)
    lines = lines_of(outcome, doubted, dependence=["Test rows have near copies. " * 20], next_steps=STEPS)
    assert len(lines) <= 24
    assert lines[-len(COMMAND.splitlines()) - 3 :][0].startswith("Train")


def test_what_gave_up_early_can_t_be_told(tmp_path: Path) -> None:
    """Of 48 seeds in batches of two; by the first look at which it may give up, any difference is possible."""

    def noisy(spec: TrialSettings) -> Measured:
        return completed(0.5 + 0.2 * ((spec.session.seed + len(spec.strategy.kind)) % 7 - 3) / 3)

    outcome = found(tmp_path, noisy, confirmation_seeds=48, confirmation_batch=2)
    text = " ".join(" ".join(lines_of(outcome)[:5]).split())
    assert "can't be told from FedAvg" in text
    assert "of 48 fresh seeds rule nothing out" in text
    assert "95 %" not in text


def test_the_verdict_is_the_confirmation_s(tmp_path: Path) -> None:
    outcome = found(tmp_path, by_kind(fedmedian=0.75))
    assert outcome.confirmation is not None
    difference = outcome.confirmation.versus["fedavg"]["own"]
    text = " ".join(" ".join(lines_of(outcome)).split())
    assert text.startswith("Use fedmedian. +25.0 points of accuracy")
    assert f"{ACCURACY.number(difference.low or 0)} to {ACCURACY.number(difference.high or 0)}, 3 fresh" in text
    assert "9 trainings" in text
    assert "fedmedian +25.0, fedadam +0.0" in text


def test_what_is_not_better_is_not_to_be_used(tmp_path: Path) -> None:
    text = " ".join(" ".join(lines_of(found(tmp_path, lambda spec: completed(0.5)))).split())
    assert text.startswith("Use FedAvg. ")
    assert "is not better than FedAvg beyond noise: +0.0 points" in text


def test_one_seed_tells_nothing_from_noise(tmp_path: Path) -> None:
    text = " ".join(lines_of(found(tmp_path, by_kind(fedmedian=0.75), confirmation_seeds=1)))
    assert "on 1 fresh seed, and it takes two" in text
    assert "95 %" not in text


def test_the_published_rule_does_not_speak_beside_the_test(tmp_path: Path) -> None:
    text = "\n".join(lines_of(found(tmp_path, by_kind(fedmedian=0.75), SKEWED), SKEWED))
    assert "Label skew" in text
    assert "ublished" not in text
    assert "chance to be" not in text


def test_a_race_says_what_it_never_started(tmp_path: Path) -> None:
    """One training of two rounds has room for one of FedMedian and FedAdam, two trainings for both."""
    raced = found(tmp_path, by_kind(fedmedian=0.75), kind="racing", racing={"trainings": 1, "min_rounds": 2})
    shown = lines_of(raced)
    assert "  1 of 2 strategies never started in the race; search.racing.trainings=2 lets" in shown
    assert shown[shown.index("  each start once") + 1] == ""
    both = found(tmp_path / "both", by_kind(fedmedian=0.75), kind="racing", racing={"trainings": 2, "min_rounds": 2})
    assert not any("never started" in line for line in lines_of(both))


def test_failures_are_counted(tmp_path: Path) -> None:
    assert "  Tried 2, 2 failed" in lines_of(found(tmp_path, diverging))
    nothing = lines_of(found(tmp_path / "all", lambda _: failed("diverged")))
    assert any("FedAvg failed (diverged" in line for line in nothing)


@pytest.mark.parametrize(
    ("cost", "told"),
    [
        (Cost(1, 0, 0.25), "Cost: 1 training, 0.2 s."),
        (Cost(30, 12, 99.6), "Cost: 30 trainings, 12 of them from the log of an earlier run, 100 s."),
        (Cost(41, 0, 9.84, num_short=18), "Cost: 41 trainings (18 of few rounds), 9.8 s."),
        (Cost(30, 30, 1.0), "Cost: 30 trainings, all of them from the log of an earlier run (1.0 s)."),
    ],
)
def test_what_it_cost(cost: Cost, told: str) -> None:
    assert str(cost) == told


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Tried 3: fedadam +1.8, fedmedian +0.9, fedavgm +0.4", "  Tried 3: fedadam +1.8, fedmedian +0.9, …"),
        ("the most frequent class alone gives almost it", "  the most frequent class alone gives …"),
        ("Tried 3: fedadam +1.8", "  Tried 3: fedadam +1.8"),
    ],
)
def test_what_is_cut_ends_behind_a_comma_or_a_word(text: str, kept: str) -> None:
    assert [line.plain for line in paragraph(text, 44, 1)] == [kept]


@pytest.mark.parametrize("text", ["word " * 60, "字" * 200, "w" * 300, "short", "\x1b[2J" * 40])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_paragraph_ends_where_it_must(text: str, most: int) -> None:
    lines = paragraph(text, 40, most)
    assert 1 <= len(lines) <= most
    assert all(line.cell_len <= 40 and "\x1b" not in line.plain for line in lines)
    whole = "".join(line.plain for line in paragraph(text, 40, 99)).replace(" ", "")
    kept = "".join(line.plain for line in lines).replace(" ", "")
    assert kept == whole or (kept.endswith("…") and whole.startswith(kept[:-1]))
