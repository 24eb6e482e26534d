"""Confirmation: fresh paired seeds, both views, and a verdict in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.search.config import SearchConfig, View
from fedscout.search.confirmation.confirmation import Candidate, Confirmation, candidate_of, confirm, confirmation_seeds
from fedscout.search.confirmation.intervals import NEW_DATA, SequentialDesign, paired_difference
from fedscout.search.confirmation.runs import num_tuning_trials, resolution, rise
from fedscout.search.study import StudyOutcome
from fedscout.strategies.methods.robust import KrumSpec
from tests.search import studies

SEEDS = (11, 12, 13)
BASELINE = (0.50, 0.60, 0.70)


def contender(role: str, own: Sequence[float], clean: Sequence[float] | None = None) -> Candidate:
    scores: dict[str, Any] = {"own": tuple(own), "clean": tuple(own if clean is None else clean)}
    common: dict[str, Any] = {"strategy": "krum", "parameters": {}, "learning_rate": 0.2, "failures": {}}
    return Candidate(role=role, name=role, **scores, **common)  # type: ignore[arg-type]


def confirmation(own: Sequence[float], clean: Sequence[float] | None = None, view: View = "own") -> Confirmation:
    candidates = [contender("challenger", own, clean), contender("fedavg", BASELINE[: len(own)])]
    return confirm(SEEDS[: len(own)], candidates, view)


def shifted(*shifts: float) -> list[float]:
    return [score + shift for score, shift in zip(BASELINE, shifts, strict=False)]


def test_seeds_are_distinct_not_the_search_s_and_more_of_them_begin_the_same() -> None:
    for seed in (0, 3, 2**31 - 1):
        seeds = confirmation_seeds(seed, 300)
        assert len({*seeds, seed}) == 301
        assert all(0 <= fresh < 2**31 for fresh in seeds)
        assert confirmation_seeds(seed, 5) == seeds[:5]
    assert confirmation_seeds(3, 0) == ()
    assert not {*confirmation_seeds(3, 5)} & {*confirmation_seeds(4, 5)}


def test_a_number_that_is_the_search_s_seed_or_was_drawn_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([5, 5, 2**31 + 7, 3, 7, 2**32 + 9])
    monkeypatch.setattr("fedscout.search.confirmation.confirmation.integer", lambda *_: next(drawn))
    assert confirmation_seeds(3, 3) == (5, 7, 9)


def test_differences_are_by_seed_in_each_view() -> None:
    challenger = contender("challenger", shifted(0.1, 0.2, 0.15), shifted(0.0, 0.01, -0.01))
    reference = contender("tuned-fedavg", [0.8, 0.8, 0.8])
    found = confirm(SEEDS, [challenger, reference], "own")
    assert found.versus == {
        view: paired_difference(challenger.scores(view), reference.scores(view)) for view in ("own", "clean")
    }


def test_rivals_are_compared_with_the_pick_and_with_the_reference() -> None:
    """One is level with the pick, one clearly worse, one got two seeds alone."""
    pick, fedavg = contender("challenger", shifted(0.1, 0.11, 0.09)), contender("fedavg", BASELINE)
    scores = {"level": shifted(0.1, 0.09, 0.11), "worse": shifted(-0.1, -0.11, -0.09), "early": shifted(0.1, 0.1)}
    runners_up = [contender("contender", own).model_copy(update={"name": name}) for name, own in scores.items()]
    design = SequentialDesign(max_seeds=3, batch=2, num_challengers=4)
    found = confirm(SEEDS, [pick, fedavg, *runners_up], "own", design)
    assert found.versus["own"] == design.against_baseline(pick.own, BASELINE)
    assert [(one.name, one.dropped) for one in found.runners_up] == [("level", False), ("worse", True), ("early", True)]
    for one, own in zip(found.runners_up, scores.values(), strict=True):
        assert one.behind == design.against_challenger(pick.own, own)
        assert one.versus_reference == design.against_baseline(own, BASELINE)


def test_the_view_decides() -> None:
    better_own, worse_clean = shifted(0.1, 0.11, 0.09), shifted(-0.1, -0.11, -0.09)
    assert confirmation(better_own, worse_clean, "own").verdict == "better"
    assert confirmation(better_own, worse_clean, "clean").verdict == "worse"


def test_the_verdict_is_that_of_the_interval() -> None:
    better, worse, level = (0.10, 0.11, 0.09), (-0.10, -0.11, -0.09), (0.00, 0.01, -0.01)
    verdicts = {better: "better", worse: "worse", level: "no difference", (0.10,): "not confirmed"}
    for shifts, verdict in verdicts.items():
        found = confirmation(shifted(*shifts))
        assert (found.verdict, found.advised == "FedAvg") == (verdict, verdict != "better")


def record_of(own: float = 0.0, clean: float = 0.0, error: str | None = None, **fields: Any) -> Trial:
    """Return a trial of one round of Krum, of which a test names what matters to it."""
    status, scores = "failed" if error else "completed", {"fitness": own, "own_fitness": own, "clean_fitness": clean}
    given = {"strategy": "krum", "learning_rate": 0.2, "round_accuracy": (own,), **scores, **fields}
    return Trial(KrumSpec(), status=status, error=error, **studies.by_map(given))


def test_a_failed_trial_counts_as_guessing_and_what_is_not_known_of_a_contestant_is_none() -> None:
    own = record_of(seed=1, own=0.9, clean=0.7, round_global_accuracy=(0.25, 0.75))
    unknown = candidate_of("fedavg", [record_of(own=0.5)])
    assert (unknown.global_accuracy, unknown.bytes_up) == (None, None)
    trials = [replace(own, bytes_up=8.0), replace(own, seed=2, status="failed", error="diverged")]
    known = candidate_of("challenger", trials, guessing=0.4)
    assert (known.own, known.clean, known.failures) == ((0.9, 0.4), (0.7, 0.4), {2: "diverged"})
    assert (known.global_accuracy, known.bytes_up) == ((0.5, 0.4), 8.0)


# -- What is said beside a verdict: rising curves, guessing, the ceiling, few test rows; and nothing where nothing is


ROUNDS = 20


def curves(fedmedian: Sequence[float], fedavg: Sequence[float], rows: int = 10_000) -> Callable[..., studies.Measured]:
    """Return trials of these accuracies after each round, tested on so many rows."""

    def outcome(spec: TrialSettings) -> studies.Measured:
        scores = fedavg if spec.strategy.kind == "fedavg" else fedmedian
        return {**studies.of_rounds(scores), "client_num_examples": (rows,)}

    return outcome


def confirmed(
    folder: Path, outcome: Callable[..., studies.Measured], guessing: float = 0.1, seeds: int = 3
) -> Confirmation:
    config = SearchConfig(strategies=("fedmedian",), budget=1, confirmation_seeds=seeds, tuned_baseline=False)
    return studies.study(
        folder, studies.ScriptedRunner(outcome), config, guessing=guessing, num_rounds=ROUNDS
    ).confirmation


def level(score: float) -> list[float]:
    return [score] * ROUNDS


RISING = [0.5 + 0.01 * number for number in range(ROUNDS)]
"""A point a round, so that five rounds are five points above the five before."""
SLOW = [0.5 + 0.001 * number for number in range(ROUNDS)]


@pytest.mark.parametrize(
    ("pick", "fedavg", "guessing", "rows", "named"),
    [
        (level(0.8), RISING, 0.1, 10_000, "5.0 points"),
        (SLOW, level(0.4), 0.1, 10_000, None),
        (level(0.45), level(0.41), 0.4, 10_000, "40.0 %"),
        (level(0.47), level(0.41), 0.4, 10_000, None),  # a tenth of the way from guessing to one is 0.06
        (level(0.01), level(0.01), 0.0, 10_000, None),  # what guessing would bring is not known
        (level(0.996), level(0.996), 0.1, 10_000, "99.6 %"),  # half a point is left
        (level(0.981), level(0.981), 0.1, 10, "98.1 %"),  # a test row of one seed is left
        (level(0.981), level(0.981), 0.1, 50, None),
        (RISING, level(0.999), 0.1, 10_000, "99.9 %"),  # at the ceiling nothing is said of a rise
    ],
)
def test_what_is_said_beside_a_verdict(
    tmp_path: Path, pick: list[float], fedavg: list[float], guessing: float, rows: int, named: str | None
) -> None:
    found = confirmed(tmp_path, curves(pick, fedavg, rows), guessing=guessing)
    assert len(found.caveats) == (named is not None)
    assert all(named in caveat for caveat in found.caveats)


def test_a_rise_within_noise_is_none(tmp_path: Path) -> None:
    def noisy(spec: TrialSettings) -> studies.Measured:
        """Of three seeds, one rises by twelve points at the end."""
        late = 0.12 if spec.session.seed % 3 == 0 else 0.0
        return curves([*[0.6] * 15, *[0.6 + late] * 5], level(0.4))(spec)

    assert not any("rises" in told for told in confirmed(tmp_path, noisy).caveats)


@pytest.mark.parametrize(
    ("guessing", "pick", "reference", "verdict"),
    [
        (0.79, 0.95, 0.90, "better"),
        (0.80, 0.95, 0.90, "not confirmed"),  # one class has four fifths of the rows
        (0.50, 0.519, 0.51, "not confirmed"),  # both at chance
        (0.50, 0.53, 0.51, "better"),
        (0.00, 0.519, 0.51, "better"),  # chance is not known
    ],
)
def test_no_verdict_is_drawn_on_an_accuracy_that_says_little(
    tmp_path: Path, guessing: float, pick: float, reference: float, verdict: str
) -> None:
    found = confirmed(tmp_path, curves(level(pick), level(reference), 10**6), guessing=guessing)
    assert found.verdict == verdict
    assert bool(found.no_verdict) == (verdict != "better")
    assert (found.advised == "FedAvg") == (verdict != "better")


@pytest.mark.slow
def test_a_difference_of_few_test_rows(tmp_path: Path) -> None:
    """The difference counts if it is claimed: a row of four is 25 points, more than any noise here."""
    few = confirmed(tmp_path / "few", curves(level(0.75), level(0.5), rows=4), seeds=30)
    assert (few.verdict, len(few.caveats)) == ("better", 1)
    many = confirmed(tmp_path / "many", curves(level(0.75), level(0.5), rows=40), seeds=30)
    assert (many.verdict, many.caveats) == ("better", ())


def test_failures_say_nothing_of_curves(tmp_path: Path) -> None:
    assert rise(record_of(error="diverged"), "own") is None
    assert rise(record_of(own=0.5), "own") is None
    record = record_of(round_accuracy=(0.1, 0.2, 0.7), round_clean_accuracy=(0.1, 0.2, 0.3))
    assert rise(record, "own") == pytest.approx(0.5)
    assert rise(record, "clean") == pytest.approx(0.1)

    def on_one_seed_only(spec: TrialSettings) -> studies.Measured:
        return curves(level(0.8), level(0.7))(spec) if spec.session.seed % 2 else studies.failed("no")

    assert confirmed(tmp_path, on_one_seed_only).caveats == ()


# -- Confirming a search: several challengers, seeds in batches, who is dropped, and interruptions ---------------------


KINDS = ("fedmedian", "fedadam", "fedadagrad", "krum")
BATCHES = {"strategies": KINDS, "budget": 8, "confirmation_seeds": 12, "confirmation_batch": 4, "tuned_baseline": False}


def jitter(spec: TrialSettings, size: float) -> float:
    return float(studies.generator_of(spec).normal(0, size))


def by_kind(noise: float = 0.004, **means: float) -> Callable[[TrialSettings], studies.Measured]:
    """Return trials whose accuracy is that of their kind, 0.5 if none is given, and noise."""
    return lambda spec: studies.completed(means.get(spec.strategy.kind, 0.5) + jitter(spec, noise))


def scripted(
    folder: Path, outcome: Callable[[TrialSettings], studies.Measured], **config: Any
) -> tuple[StudyOutcome, int]:
    """Return a study, and how many trials its confirmation took."""
    runner = studies.ScriptedRunner(outcome)
    found = studies.study(folder, runner, SearchConfig(**{**BATCHES, **config}))
    return found, sum(spec.session.seed != studies.SEED for spec in runner.ran)


def test_a_clear_winner_takes_few_seeds(tmp_path: Path) -> None:
    outcome, num_trials = scripted(tmp_path, by_kind(fedadam=0.8))
    found = outcome.confirmation
    assert found.verdict == "better"
    assert len(found.seeds) < 12
    assert num_trials == 2 * len(found.seeds)
    assert found.seeds == confirmation_seeds(studies.SEED, 12)[: len(found.seeds)]
    assert not found.stopped_for_futility


def test_where_nothing_differs_it_gives_up_and_fedavg_is_kept(tmp_path: Path) -> None:
    outcome, num_trials = scripted(tmp_path, by_kind())
    found = outcome.confirmation
    assert (found.verdict, len(found.seeds), num_trials) == ("no difference", 8, 16)
    assert found.stopped_for_futility
    assert found.advised == "FedAvg"


def test_an_early_look_says_no_more_than_what_is_possible(tmp_path: Path) -> None:
    """Of 48 seeds an early look may cost next to no error: its interval is all differences that accuracy has."""
    outcome, _ = scripted(tmp_path, by_kind(noise=0.15), confirmation_seeds=48)
    assert outcome.confirmation.stopped_for_futility
    assert (outcome.confirmation.difference.low, outcome.confirmation.difference.high) == (-1.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("num_rounds", [2, 7])
def test_fedavg_under_another_name_does_not_beat_itself(tmp_path: Path, num_rounds: int) -> None:
    """It drives its own rounds and returns its model at the end; still every trial is measured by its last five."""
    own = {"path": "tests.strategies.flower_programs:DrivesItself"}
    config = SearchConfig(strategies=(), customs=(own,), budget=1, confirmation_seeds=5, tuned_baseline=False)
    outcome = studies.study(tmp_path, studies.local_runner(studies.tiny_federation()), config, num_rounds=num_rounds)
    assert outcome.best.rounds["accuracy"] == outcome.baseline.rounds["accuracy"]
    found = outcome.confirmation
    assert found.verdict == "no difference"
    challenger, fedavg = found.candidates
    assert challenger.own == fedavg.own


@pytest.mark.slow
def test_the_best_few_are_confirmed_and_the_lucky_one_does_not_win_and_gets_no_more_seeds(tmp_path: Path) -> None:
    """The search is fooled by one configuration, which is much worse on all other seeds."""

    def outcome(spec: TrialSettings) -> studies.Measured:
        if spec.strategy.kind == "krum":
            return studies.completed(0.9 if spec.session.seed == studies.SEED else 0.4 + jitter(spec, 0.01))
        return by_kind(fedadam=0.8)(spec)

    many = {**BATCHES, "kind": "random", "budget": 24}
    alone, _ = scripted(tmp_path / "one", outcome, **many)
    assert alone.confirmation.verdict == "worse"

    runner = studies.ScriptedRunner(outcome)
    found = studies.study(tmp_path / "all", runner, SearchConfig(**{**many, "confirmation_top": 24})).confirmation
    seeds = Counter(str(spec.strategy) for spec in runner.ran if spec.session.seed != studies.SEED)
    assert (found.candidates[0].strategy, found.verdict) == ("fedadam", "better")
    lucky = [rival for rival in found.runners_up if rival.name.startswith("krum")]
    assert lucky
    assert all(rival.dropped and seeds[rival.name] < len(found.seeds) for rival in lucky)
    assert {len(one.own) for one in found.candidates} == set(seeds.values())


@pytest.mark.slow
@pytest.mark.parametrize(("top", "step"), [(1, 4), (3, 12)])
def test_a_confirmation_cut_off_anywhere_ends_with_the_same_result(tmp_path: Path, top: int, step: int) -> None:
    outcome = by_kind(0.03, fedadam=0.56, krum=0.3)
    config = SearchConfig(**{**BATCHES, "confirmation_top": top})
    whole = studies.ScriptedRunner(outcome)
    expected = studies.document(studies.study(tmp_path / "whole", whole, config))
    num_trials = len(list((tmp_path / "whole" / "trials").iterdir()))
    first = next(number for number, spec in enumerate(whole.ran) if spec.session.seed != studies.SEED)
    assert num_trials - first > 8  # more than one batch
    for num_kept in range(first, num_trials + 1, step):
        folder, rest = tmp_path / str(num_kept), studies.ScriptedRunner(outcome)
        studies.keep_trials(tmp_path / "whole", folder, range(num_kept).__contains__)
        assert studies.document(studies.study(folder, rest, config)) == expected
        assert len(rest.ran) == num_trials - num_kept


def test_the_scale_s_step_is_one_test_row_of_the_smallest_test() -> None:
    records = [record_of(seed=seed, own=0.5, client_num_examples=(10 * seed, 30)) for seed in (1, 2)]
    records.append(record_of(seed=3, error="round 1: diverged"))
    assert resolution([records[:1], records[1:]]) == 1 / 40
    assert resolution([records[2:]]) == 0


# -- The tuned reference: which rates are trained, which is taken, and when the study's own is ------------------------


CONFIG = SearchConfig(tuning_factors=(0.5, 1.0, 2.0, 4.0), confirmation_seeds=2)
RATE = studies.FACTS.session.training.learning_rate


def by_factor(
    fedavg: Callable[[float, int], float | None], others: float = 0.1
) -> Callable[[TrialSettings], studies.Measured]:
    """Return trials of which FedAvg's are by seed and multiple of the study's rate; None fails."""

    def outcome(spec: TrialSettings) -> studies.Measured:
        if spec.strategy.kind != "fedavg":
            return studies.completed(others)
        score = fedavg(spec.session.training.learning_rate / RATE, spec.session.seed)
        return studies.failed("diverged") if score is None else studies.completed(score)

    return outcome


def peak(at: float) -> Callable[[float, int], float]:
    """Return scores that fall with the ratio of a rate to the best one."""
    return lambda factor, seed: 0.9 - 0.1 * abs(math.log2(factor / at))


def tuned(
    folder: Path, fedavg: Callable[[float, int], float | None], config: SearchConfig = CONFIG
) -> tuple[StudyOutcome, list[TrialSettings]]:
    """Return a study and the trainings that tuned FedAvg."""
    runner = studies.ScriptedRunner(by_factor(fedavg))
    outcome = studies.study(folder, runner, config)
    return outcome, [spec for spec in runner.ran if spec.phase == "tuned-baseline"]


@pytest.mark.parametrize(
    ("at", "factors", "best"),
    [
        (8, [0.25, 4, 2], 4),
        (4, [0.25, 4, 2], 4),
        (2, [0.25, 4, 2], 2),
        (1, [0.25, 4, 0.5], 1),
        (0.5, [0.25, 4, 0.5], 0.5),
        (0.1, [0.25, 4, 0.5], 0.25),
    ],
)
def test_the_ends_are_trained_then_the_rates_towards_the_better(
    tmp_path: Path, at: float, factors: list[float], best: float
) -> None:
    """Of equal ends the nearer one, of those the smaller rate, is the better: five rates take three trainings."""
    found, trained = tuned(tmp_path, peak(at), SearchConfig(confirmation_seeds=2))
    assert [spec.session.training.learning_rate / RATE for spec in trained] == pytest.approx(factors)
    assert found.tuned[0].learning_rate == pytest.approx(best * RATE)
    assert [trial.fitness for trial in found.tuned] == sorted((trial.fitness for trial in found.tuned), reverse=True)
    assert found.best is found.baseline  # tuned FedAvg competes in the confirmation, not in the search
    assert found.confirmation.reference.learning_rate == pytest.approx(best * RATE)
    assert found.confirmation.reference.role == ("fedavg" if best == 1 else "tuned-fedavg")
    assert len(found.confirmation.candidates) == 2


def test_a_rate_that_fails_is_the_last(tmp_path: Path) -> None:
    found, _ = tuned(tmp_path, lambda factor, seed: None if factor > 3 else 0.0)
    assert [trial.status for trial in found.tuned] == ["completed", "completed", "failed"]
    assert found.tuned[0] is found.baseline  # of equals the study's own


@pytest.mark.parametrize(
    ("fresh", "pick", "own", "reference"),
    [
        ((0.8, None), 0.1, 0.6, 1),  # it fails
        ((0.8, None), 0.1, 0.1, 4),
        ((0.4, 0.401), 0.9, 0.6, 1),  # it is worse, and would lose
        ((0.4, 0.401), 0.9, 0.1, 4),
        ((0.4, 0.401), 0.4, 0.6, 4),  # it does not lose: nothing hangs on it
        ((0.7, 0.701), 0.9, 0.8, 4),  # as good as the study's own was
    ],
)
def test_a_rate_that_is_worse_on_fresh_seeds_competes_with_the_study_s_own(
    tmp_path: Path, fresh: tuple[float | None, float | None], pick: float, own: float, reference: int
) -> None:
    """Four times the study's rate is best on the search's seed. No training of the pick is repeated."""
    scores = dict(zip(confirmation_seeds(studies.SEED, 2), fresh, strict=True))

    def fedavg(factor: float, seed: int) -> float | None:
        if factor < 3:
            return 0.7 if seed == studies.SEED else own
        return scores.get(seed, 0.8)

    runner = studies.ScriptedRunner(by_factor(fedavg, pick))
    found = studies.study(tmp_path, runner, CONFIG)
    assert found.tuned[0].learning_rate == pytest.approx(4 * RATE)
    assert found.confirmation.reference.learning_rate == pytest.approx(reference * RATE)
    assert max(Counter(spec.key for spec in runner.ran).values()) == 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 3),
        ({"tuning_factors": (0.5, 2.0)}, 2),
        ({"tuning_factors": (2.0, 3.0, 4.0)}, 3),
        ({"tuning_factors": (0.1, 0.2, 0.5, 2.0)}, 4),
        ({"tuned_baseline": False}, 0),
        ({"confirmation_seeds": 0}, 0),
    ],
)
def test_what_tuning_costs(tmp_path: Path, settings: dict[str, Any], expected: int) -> None:
    """At most; right on every row, FedAvg is not tuned."""
    config = SearchConfig(**settings)
    costs = [len(tuned(tmp_path / str(at), peak(at), config)[1]) for at in (0.1, 10)]
    assert max(costs) == num_tuning_trials(config) == expected
    assert tuned(tmp_path / "perfect", lambda factor, seed: 1.0, config)[1] == []


@pytest.mark.parametrize("is_same", [False, True])
def test_where_every_seed_tests_on_the_same_rows_no_interval_is_for_new_data(tmp_path: Path, is_same: bool) -> None:
    config = SearchConfig(strategies=KINDS, budget=2, confirmation_seeds=2, tuned_baseline=False)
    found = studies.study(tmp_path, studies.ScriptedRunner(by_kind()), config, same_test_rows=is_same).confirmation
    assert (found.design.wider_is == NEW_DATA) == (not is_same)
