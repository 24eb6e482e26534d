"""What is said beside a verdict: rising curves, guessing, the ceiling, few test rows; and nothing where nothing is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.search.config import SearchConfig
from fedscout.search.confirmation.confirmation import Confirmation
from fedscout.search.confirmation.runs import rise
from tests.search.studies import Measured, ScriptedRunner, failed, of_rounds, study

ROUNDS = 20


def curves(fedmedian: Sequence[float], fedavg: Sequence[float], rows: int = 10_000) -> Callable[..., Measured]:
    """Return trials of these accuracies after each round, tested on so many rows."""

    def outcome(spec: TrialSettings) -> Measured:
        scores = fedavg if spec.strategy.kind == "fedavg" else fedmedian
        return {**of_rounds(scores), "client_num_examples": (rows,)}

    return outcome


def confirmed(folder: Path, outcome: Callable[..., Measured], guessing: float = 0.1, seeds: int = 3) -> Confirmation:
    config = SearchConfig(strategies=("fedmedian",), budget=1, confirmation_seeds=seeds, tuned_baseline=False)
    found = study(folder, ScriptedRunner(outcome), config, guessing=guessing, num_rounds=ROUNDS).confirmation
    assert found is not None
    return found


def level(score: float) -> list[float]:
    return [score] * ROUNDS


def test_nothing_is_said_where_there_is_nothing_to_say(tmp_path: Path) -> None:
    found = confirmed(tmp_path, curves(level(0.8), level(0.7)))
    assert (found.caveats, found.verdict) == ((), "better")
    assert found.sentence.endswith("3 seeds.")


def test_a_curve_that_still_rises(tmp_path: Path) -> None:
    """FedAvg gains a point a round, so that five rounds are five points above the five before."""
    rising = [0.5 + 0.01 * number for number in range(ROUNDS)]
    found = confirmed(tmp_path, curves(level(0.8), rising))
    (told,) = found.caveats
    assert [value for value in ("20 rounds", "FedAvg by 5.0 points", "last 5 rounds") if value not in told] == []
    assert found.sentence.endswith(told)


def test_a_rise_within_noise_or_of_little_is_none(tmp_path: Path) -> None:
    slow = [0.5 + 0.001 * number for number in range(ROUNDS)]
    assert confirmed(tmp_path / "slow", curves(slow, level(0.4))).caveats == ()

    def noisy(spec: TrialSettings) -> Measured:
        """Of three seeds, one rises by twelve points at the end."""
        late = 0.12 if spec.session.seed % 3 == 0 else 0.0
        return curves([*[0.6] * 15, *[0.6 + late] * 5], level(0.4))(spec)

    assert not any("rises" in told for told in confirmed(tmp_path / "noisy", noisy).caveats)


def test_guessing_is_shown_where_nothing_is_learnt(tmp_path: Path) -> None:
    (near,) = confirmed(tmp_path / "near", curves(level(0.45), level(0.41)), guessing=0.4).caveats
    assert "40.0 %" in near
    # a tenth of the way from guessing to one is 0.06
    assert confirmed(tmp_path / "far", curves(level(0.47), level(0.41)), guessing=0.4).caveats == ()
    assert confirmed(tmp_path / "unknown", curves(level(0.01), level(0.01)), guessing=0.0).caveats == ()


@pytest.mark.parametrize(("rows", "score"), [(10_000, 0.996), (10, 0.981)])
def test_the_ceiling(tmp_path: Path, rows: int, score: float) -> None:
    """Half a point, or a test row of one seed where that is more, is left."""
    found = confirmed(tmp_path, curves(level(score), level(score), rows))
    (ceiling,) = found.caveats
    assert f"{100 * score:.1f} %" in ceiling


def test_at_the_ceiling_nothing_is_said_of_a_rise(tmp_path: Path) -> None:
    rising = [0.5 + 0.01 * number for number in range(ROUNDS)]
    found = confirmed(tmp_path, curves(rising, level(0.999), 10_000))
    assert len(found.caveats) == 1


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
    assert found.guessing == guessing
    if found.no_verdict:
        assert "training.metric=balanced_accuracy" in found.no_verdict
        assert found.advised == "FedAvg"
    assert confirmed(tmp_path / "room", curves(level(0.981), level(0.981), rows=50)).caveats == ()


@pytest.mark.slow
def test_a_difference_of_few_test_rows(tmp_path: Path) -> None:
    """The difference counts if it is claimed: a row of four is 25 points, more than any noise here."""
    few = confirmed(tmp_path / "few", curves(level(0.75), level(0.5), rows=4), seeds=30)
    assert few.verdict == "better"
    (told,) = few.caveats
    assert "25.0 points" in told
    assert "1.0 rows" in told
    many = confirmed(tmp_path / "many", curves(level(0.75), level(0.5), rows=40), seeds=30)
    assert (many.verdict, many.caveats) == ("better", ())


def test_failures_say_nothing_of_curves(tmp_path: Path, make_record: Callable[..., Trial]) -> None:
    assert rise(make_record(error="diverged"), "own") is None
    assert rise(make_record(own=0.5, num_rounds=1), "own") is None
    record = replace(make_record(num_rounds=1), round_accuracy=(0.1, 0.2, 0.7), round_clean_accuracy=(0.1, 0.2, 0.3))
    assert rise(record, "own") == pytest.approx(0.5)
    assert rise(record, "clean") == pytest.approx(0.1)

    def on_one_seed_only(spec: TrialSettings) -> Measured:
        return curves(level(0.8), level(0.7))(spec) if spec.session.seed % 2 else failed("no")

    assert confirmed(tmp_path, on_one_seed_only).caveats == ()
