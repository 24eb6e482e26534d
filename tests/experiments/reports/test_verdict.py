"""What a study says first: what to use, by how much better, how sure, and why."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from fedscout.detectors.report import ROWS_BELONG_TOGETHER, CalibratedFinding, HeterogeneityReport
from fedscout.engine.data.federation import UNNAMED, Names
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.experiments.reports import study_console as console
from fedscout.experiments.reports.console import PlainConsole, paragraph
from fedscout.experiments.text import visible
from fedscout.search.config import SearchConfig
from fedscout.search.recommenders.rules import DRAWN
from fedscout.search.study import StudyOutcome, run_study
from fedscout.search.warm_start import WarmProposal, WarmStart
from tests.search.recommenders.reports import report_of
from tests.search.studies import NUM_CLIENTS, SEED, Measured, ScriptedRunner, completed, failed, open_ledger

SETTINGS = {"strategies": ("fedmedian", "fedadam"), "budget": 2, "confirmation_seeds": 3, "tuned_baseline": False}
ALIKE = report_of(rows=(160,) * NUM_CLIENTS, distances=(1.0,) * NUM_CLIENTS)
SKEWED = report_of(divergence=0.5, rows=(160,) * NUM_CLIENTS, distances=(1.0,) * NUM_CLIENTS, num_classes=10)


def found(
    folder: Path,
    outcome: Callable[[TrialSettings], Measured],
    report: HeterogeneityReport | None = None,
    **settings: Any,
) -> StudyOutcome:
    config = SearchConfig.model_validate({**SETTINGS, **settings})
    return run_study(config, open_ledger(folder, ScriptedRunner(outcome)), report)


def by_kind(**means: float) -> Callable[[TrialSettings], Measured]:
    """Return trials whose accuracy is that of their kind, 0.5 if none is given."""
    return lambda spec: completed(means.get(spec.strategy.kind, 0.5))


def test_the_reason_is_that_of_what_is_advised_not_of_what_was_lucky_in_the_search(tmp_path: Path) -> None:
    """Of two that are confirmed, the one that was best on the search's seed is as bad as FedAvg on all others."""
    kinds = ("fedadam", "fedyogi")

    def outcome(spec: TrialSettings) -> Measured:
        lucky = spec.session.seed == SEED and spec.strategy.kind == "fedadam"
        return completed(0.9 if lucky else 0.75 if spec.strategy.kind == "fedyogi" else 0.5)

    settings = {"strategies": kinds, "informed": True, "budget": 4, "confirmation_top": 4}
    study = found(tmp_path, outcome, SKEWED, **settings)
    assert study.best.spec.kind == "fedadam"
    (advised,) = [one for one in study.first_generation if console.headline(study) == f"Use {one.spec}."]
    assert advised.spec.kind == "fedyogi"
    assert console.reason(study).endswith(f". {advised.explanation}")


# Why a study tried what it advises: who proposed it, and what the rules say.


def study(
    folder: Path, outcome: Callable[[TrialSettings], Measured], report: Any = SKEWED, **more: Any
) -> StudyOutcome:
    return found(folder, outcome, report, **{"informed": True, "budget": 4, **more})


def tells(outcome: StudyOutcome, explanation: str | None = None) -> None:
    """Hold that the reason names the rules' advice, and ends with this explanation or else with that of the rules."""
    said = console.reason(outcome)
    assert str(outcome.advice.spec) in said
    assert said.endswith(explanation or outcome.advice.reasons[0].explanation)


def test_what_was_proposed_first_tells_its_own_reason_and_what_the_rules_say_instead(tmp_path: Path) -> None:
    kinds = ("fedadam", "fedavgm", "fedyogi")
    again = study(tmp_path / "plain", by_kind(), strategies=kinds)
    kind = again.advice.spec.kind
    other = next(one for one in again.first_generation if one.explanation != DRAWN and one.spec.kind != kind)
    tells(study(tmp_path / "other", by_kind(**{other.spec.kind: 0.75}), strategies=kinds), other.explanation)


def test_what_was_never_trained_came_before_nothing(tmp_path: Path) -> None:
    """The search draws from the whole space, of which another FedAdam than the rules' is the best."""
    outcome = study(tmp_path, by_kind(fedadam=0.75), informed=False)
    assert outcome.advice.spec.kind == "fedadam"
    assert outcome.advice.spec not in [trial.spec for trial in outcome.trials]
    tells(outcome)


def test_without_a_diagnosis_no_rule_is_named(tmp_path: Path) -> None:
    for name, outcome in (("found", by_kind(fedmedian=0.75)), ("no other", by_kind())):
        assert "rules" not in console.reason(study(tmp_path / name, outcome, None))


def test_an_earlier_study_is_named(tmp_path: Path) -> None:
    outcome = study(tmp_path, by_kind(fedmedian=0.75), None)
    proposal = WarmProposal(strategy={"kind": "fedmedian"}, study="runs/like", gain=0.1)
    told = console.reason(replace(outcome, warm_start=WarmStart(studies=(), proposals=(proposal,))))
    assert told.endswith("runs/like.")


def test_the_rules_answer_is_told_where_it_is_fedavg_too(tmp_path: Path) -> None:
    tells(study(tmp_path, by_kind(fedmedian=0.25), ALIKE, strategies=("fedavg", "fedmedian")))


# One screen of 80 × 24 for any study, verdict first.


LONG = "federation with a very long name, " * 5
COMMAND = " \\\n  ".join(["fedscout train " + "x" * 50, *["strategy." + "y" * 50] * 4])
STEPS = (("Train", COMMAND), ("Export", "fedscout app"), ("Report", "fedscout report"), ("More", "-v"))


def screen(
    outcome: StudyOutcome, report: HeterogeneityReport | None = None, dependence: Any = ()
) -> console.StudyScreen:
    return console.StudyScreen(
        outcome, report, LONG, "Cost: 9 trainings, 12 s.", next_steps=STEPS, dependence=dependence
    )


def lines_of(outcome: StudyOutcome, report: HeterogeneityReport | None = None) -> list[str]:
    return [line.plain for line in screen(outcome, report).lines()]


def by_rate(spec: TrialSettings) -> Measured:
    """Return trials of which FedAvg's at four times the step is better than any other strategy, at one step worse."""
    rate = spec.session.training.learning_rate
    return completed({0.2: 0.5, 0.8: 0.8}.get(rate, 0.3) if spec.strategy.kind == "fedavg" else 0.7)


def noisy(spec: TrialSettings) -> Measured:
    return completed(0.5 + 0.2 * ((spec.session.seed + len(spec.strategy.kind)) % 7 - 3) / 3)


OUTCOMES: dict[str, tuple[Callable[[TrialSettings], Measured], dict[str, Any]]] = {
    "better": (by_kind(fedmedian=0.75), {}),
    "fedavg is best": (by_kind(fedmedian=0.25, fedadam=0.25), {}),
    "no difference": (lambda spec: completed(0.5), {}),
    "one seed": (by_kind(fedmedian=0.75), {"confirmation_seeds": 1}),
    "not confirmed": (by_kind(fedmedian=0.75), {"confirmation_seeds": 0}),
    "tuned": (by_kind(fedmedian=0.75), {"tuned_baseline": True}),
    "several that are level": (by_kind(fedmedian=0.75, fedadam=0.75), {"confirmation_top": 2}),
    "failures": (lambda spec: completed(0.5) if spec.strategy.kind == "fedavg" else failed("diverged " * 30), {}),
    "nothing went through": (lambda spec: failed("diverged " * 30), {}),
    "long names": (
        by_kind(**{"fedadam+fedprox": 0.75}),
        {"strategies": ("fedadam+fedprox", "fedyogi+fedprox"), "budget": 4},
    ),
    "fedavg at another rate": (by_rate, {"tuned_baseline": True}),
    "gave up early": (noisy, {"confirmation_seeds": 48, "confirmation_batch": 2}),
    "a race": (by_kind(fedmedian=0.75), {"kind": "racing", "racing": {"trainings": 1, "min_rounds": 2}}),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("report", [None, ALIKE, SKEWED], ids=["undiagnosed", "alike", "skewed"])
def test_nothing_on_the_screen_is_cut(tmp_path: Path, name: str, report: HeterogeneityReport | None) -> None:
    """`tests/snapshots` holds the order."""
    measured, settings = OUTCOMES[name]
    notes = ["Test rows have near copies. " * 20]
    outcome = found(tmp_path, measured, report, **settings)
    shown = screen(outcome, report, dependence=notes)
    lines = [*shown.lines()]
    assert max(line.cell_len for line in lines) <= 80
    words = " ".join(line.plain for line in lines).split()
    assert not any("…" in word for word in words)
    whole = [*notes, LONG, *([] if outcome.confirmation is None else [outcome.confirmation.scores_text])]
    assert all(" ".join(text.split()) in " ".join(words) for text in whole)
    file = io.StringIO()
    shown.show(PlainConsole(file=file, width=80))
    assert file.getvalue().splitlines() == [line.plain for line in lines]  # as they are, and none broken


@pytest.mark.parametrize("text", ["word " * 60, "字" * 200, "short", "\x1b[2J" * 40])
def test_a_paragraph_holds_the_whole_text_in_lines_that_fit(text: str) -> None:
    lines = paragraph(text, 40)
    assert all(line.cell_len <= 40 and "\x1b" not in line.plain for line in lines)
    assert "".join(line.plain for line in lines).replace(" ", "") == visible(text).replace(" ", "")


# Three lines of diagnosis: the calibrated answer, a bar of its strength, and who.


@pytest.mark.parametrize(("strength", "drawn"), [(-0.2, ""), (0.03, "▎"), (0.765, "███████▋"), (1.8, "█" * 10)])
def test_a_bar_is_as_long_as_what_it_shows_to_an_eighth(strength: float, drawn: str) -> None:
    assert console.bar(strength) == drawn


def shown(calibrated: CalibratedFinding, names: Names = UNNAMED) -> list[Text]:
    report = report_of(divergence=0.5, outliers=(1,), calibrated=(calibrated,))
    return [*console.diagnosis_lines(report.model_copy(update={"names": names}), 80)]


def outlier_finding(detected: bool) -> CalibratedFinding:
    decided = {"detected": detected, "flagged_clients": (2,) if detected else (), "p_value": 0.9 - 0.8 * detected}
    return CalibratedFinding(name="outliers", rate=0.05, effect=0.25, sentence="told", **decided)


def test_the_calibrated_answer_alone_is_told_where_there_is_one() -> None:
    """The published rule flags client 1; the test no one, or client 2."""
    lines = [line.plain.split() for line in shown(outlier_finding(False))]
    assert [line[2] for line in lines] == ["yes", "no", "no"]
    assert "client" not in lines[-1]
    *_, outlier = (line.plain.split() for line in shown(outlier_finding(True), Names(clients=("a", "b", "c", "d"))))
    assert (outlier[2:4], "25%" in outlier, outlier[-1]) == (["yes", console.bar(0.25)], True, "c")


def test_what_was_not_measured_is_no_no() -> None:
    assert next(console.diagnosis_lines(report_of(divergence=None), 80)).plain.split()[2] == "?"


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_what_rows_that_belong_together_leave_open_is_told_in_a_line(measured: bool, together: bool) -> None:
    note = f"{ROWS_BELONG_TOGETHER}, as they have near copies at the same client."
    report = report_of(divergence=0.5 if measured else None)
    report = report.model_copy(update={"notes": ("Another note.", note) if together else ("Another note.",)})
    lines = [line.plain for line in console.diagnosis_lines(report, 80)]
    assert len(lines) == 3 + (together and not measured)
    assert all("federation.group_column" in line for line in lines[3:])


def test_names_that_steer_a_terminal_are_shown_and_cut() -> None:
    *_, outlier = shown(outlier_finding(True), Names(clients=("a", "b", "\x1b[31m" + "c" * 90, "d")))
    assert "\x1b" not in outlier.plain
    assert outlier.cell_len == 80


@pytest.mark.parametrize("width", range(8, 90))
def test_a_list_of_clients_fits_and_counts_them_all(width: int) -> None:
    line = console.few_clients(UNNAMED, (3, 5, 8, *range(10, 22)), width)
    named, _, rest = line.removeprefix("clients ").partition(" and ")
    others = int(rest.split()[0]) if rest else 0
    assert len(named.split(", ")) + others == 15
    assert len(line) <= width or named == "3"


# What a training tells beside its fitness.


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"fitness": 0.25, "rounds": {"accuracy": (0.25,)}}, {"0.2500"}),
        ({"fitness": 0.25, "own_fitness": 0.25, "clean_fitness": 0.5}, {"0.2500", "0.5000"}),
        ({"fitness": 0.25, "rounds": {"global_accuracy": (0.75,)}}, {"0.2500", "0.7500"}),
        ({"fitness": 0.25, "bytes_down": 1900.0, "bytes_up": 2000.0}, {"0.2500", "1.9 kB", "2.0 kB"}),
        ({"fitness": 0.25, "rounds": {"seconds": (30.0,) * 5}}, {"0.2500", "2.5 min"}),
        ({"status": "failed", "bytes_up": 2000.0}, set()),
    ],
)
def test_a_training_tells_the_scores_bytes_and_time_that_it_has(fields: dict[str, Any], told: set[str]) -> None:
    file = io.StringIO()
    console.show_trial(PlainConsole(file=file, width=200), Trial(**fields))
    assert {*re.findall(r"[\d.]+ (?:kB|min)|\d\.\d{4}", file.getvalue())} == told
