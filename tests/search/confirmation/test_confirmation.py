"""Confirmation: fresh paired seeds, both views, and a verdict in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.search.config import SearchConfig, View
from fedscout.search.confirmation.confirmation import (
    Candidate,
    Confirmation,
    confirm,
    confirmation_seeds,
    contestant,
)
from fedscout.search.confirmation.intervals import SequentialDesign, paired_difference
from fedscout.search.confirmation.runs import rise
from tests.search.studies import Measured, ScriptedRunner, failed, of_rounds, study

SEEDS = (11, 12, 13)
BASELINE = (0.50, 0.60, 0.70)


def contender(role: str, own: Sequence[float], clean: Sequence[float] | None = None) -> Candidate:
    return Candidate(
        role=role,  # type: ignore[arg-type]
        name="krum(num_malicious_nodes=1)" if role == "challenger" else "fedavg",
        strategy="krum" if role == "challenger" else "fedavg",
        parameters={},
        learning_rate=0.2,
        own=tuple(own),
        clean=tuple(own if clean is None else clean),
        failures={},
    )


def confirmation(own: Sequence[float], clean: Sequence[float] | None = None, view: View = "own") -> Confirmation:
    contestants = [contender("challenger", own, clean), contender("fedavg", BASELINE[: len(own)])]
    return confirm(SEEDS[: len(own)], contestants, view)


def shifted(*shifts: float) -> list[float]:
    return [score + shift for score, shift in zip(BASELINE, shifts, strict=False)]


@pytest.mark.parametrize("count", [0, 1, 5, 300])
def test_seeds_are_distinct_and_not_the_search_s(count: int) -> None:
    for seed in (0, 1, 2**31 - 1):
        seeds = confirmation_seeds(seed, count)
        assert len(set(seeds)) == count
        assert seed not in seeds
        assert all(0 <= fresh < 2**31 for fresh in seeds)


def test_a_number_that_is_the_search_s_seed_or_was_drawn_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([5, 5, 2**31 + 7, 3, 7, 2**32 + 9])
    monkeypatch.setattr("fedscout.search.confirmation.confirmation.integer", lambda *_: next(drawn))
    assert confirmation_seeds(3, 3) == (5, 7, 9)


def test_seeds_are_a_function_of_the_search_s_and_more_of_them_begin_the_same() -> None:
    assert confirmation_seeds(3, 5) == confirmation_seeds(3, 9)[:5]
    assert not set(confirmation_seeds(3, 5)) & set(confirmation_seeds(4, 5))


def test_differences_are_by_seed_for_each_baseline_and_view() -> None:
    challenger = contender("challenger", shifted(0.1, 0.2, 0.15), shifted(0.0, 0.01, -0.01))
    baselines = [contender("fedavg", BASELINE), contender("tuned-fedavg", [0.8, 0.8, 0.8])]
    found = confirm(SEEDS, [challenger, *baselines], "own")
    assert set(found.versus) == {"fedavg", "tuned-fedavg"}
    for baseline in baselines:
        for view in ("own", "clean"):
            expected = paired_difference(challenger.scores(view), baseline.scores(view))
            assert found.versus[baseline.role][view] == expected


def test_rivals_are_compared_with_the_pick_and_with_fedavg() -> None:
    """One is level with the pick, one clearly worse, one got two seeds alone; none of them is a baseline."""
    pick, fedavg = contender("challenger", shifted(0.1, 0.11, 0.09)), contender("fedavg", BASELINE)
    scores = {"level": shifted(0.1, 0.09, 0.11), "worse": shifted(-0.1, -0.11, -0.09), "early": shifted(0.1, 0.1)}
    rivals = [contender("contender", own).model_copy(update={"name": name}) for name, own in scores.items()]
    design = SequentialDesign(max_seeds=3, batch=2, num_challengers=4)
    found = confirm(SEEDS, [pick, fedavg, *rivals], "own", design)
    assert set(found.versus) == {"fedavg"}
    assert found.versus["fedavg"]["own"] == design.against_baseline(pick.own, BASELINE)
    assert [(one.name, one.dropped) for one in found.rivals] == [("level", False), ("worse", True), ("early", True)]
    for one, own in zip(found.rivals, scores.values(), strict=True):
        assert one.behind == design.against_challenger(pick.own, own)
        assert one.versus_fedavg == design.against_baseline(own, BASELINE)


def test_the_view_decides() -> None:
    better_own, worse_clean = shifted(0.1, 0.11, 0.09), shifted(-0.1, -0.11, -0.09)
    assert confirmation(better_own, worse_clean, "own").verdict == "better"
    assert confirmation(better_own, worse_clean, "clean").verdict == "worse"


@pytest.mark.parametrize(("shift", "reference"), [(0.05, "tuned-fedavg"), (0.0, "fedavg"), (-0.05, "fedavg")])
@pytest.mark.parametrize(("gain", "verdict"), [(0.1, "better"), (-0.1, "worse")])
def test_the_verdict_is_on_the_strongest_reference_and_names_it(
    shift: float, reference: str, gain: float, verdict: str
) -> None:
    """The stronger of the two on these seeds; FedAvg of equals."""
    challenger = contender("challenger", shifted(*(max(shift, 0) + gain + each for each in (0.0, 0.01, -0.01))))
    tuned = contender("tuned-fedavg", shifted(shift, shift, shift)).model_copy(update={"learning_rate": 0.8})
    found = confirm(SEEDS, [challenger, contender("fedavg", BASELINE), tuned], "own")
    assert (found.reference, found.verdict) == (reference, verdict)
    assert found.versus[reference]["own"].mean == pytest.approx(gain)
    assert set(found.versus) == {"fedavg", "tuned-fedavg"}


def test_a_rival_that_beats_fedavg_but_not_the_reference_is_dropped() -> None:
    pick, rival = contender("challenger", shifted(0.3, 0.31, 0.29)), contender("contender", shifted(0.1, 0.11, 0.09))
    level = contender("contender", shifted(0.3, 0.29, 0.31))
    baselines = [contender("fedavg", BASELINE), contender("tuned-fedavg", shifted(0.2, 0.2, 0.2))]
    found = confirm(SEEDS, [pick, *baselines, rival, level], "own", SequentialDesign(max_seeds=3, num_challengers=3))
    assert [one.dropped for one in found.rivals] == [True, False]
    assert found.rivals[0].versus_fedavg.mean == pytest.approx(0.1)


# Differences of 0.1 ± 0.01 over three seeds: s/√3 = 0.01/√3, times t(0.975; 2) = 4.3027 gives ± 2.5 points.
@pytest.mark.parametrize(
    ("shifts", "verdict", "mean", "half_width"),
    [
        ((0.10, 0.11, 0.09), "better", 0.1, 0.02484),
        ((-0.10, -0.11, -0.09), "worse", -0.1, 0.02484),
        ((0.00, 0.01, -0.01), "no difference", 0.0, 0.02484),
        ((0.10,), "not confirmed", 0.1, None),
    ],
)
def test_verdict_and_interval(shifts: tuple[float, ...], verdict: str, mean: float, half_width: float | None) -> None:
    found = confirmation(shifted(*shifts))
    difference = found.versus["fedavg"]["own"]
    assert found.verdict == verdict
    assert (found.advised == "FedAvg") == (verdict != "better")
    assert difference.mean == pytest.approx(mean, abs=1e-12)
    ends = None if half_width is None else pytest.approx((mean - half_width, mean + half_width), abs=1e-5)
    assert (None if difference.low is None else (difference.low, difference.high)) == ends


def test_what_is_not_known_of_a_contestant_is_none(make_record) -> None:  # type: ignore[no-untyped-def]
    plain, own = make_record(own=0.5), replace(make_record(own=0.5), round_global_accuracy=(0.25, 0.75))
    unknown = contestant("fedavg", [plain])
    assert (unknown.global_accuracy, unknown.bytes_up) == (None, None)
    failed = replace(own, status="failed", bytes_up=None)
    known = contestant("challenger", [replace(own, bytes_up=8.0), failed]).model_dump(mode="json")
    assert (known["global_accuracy"], known["bytes_up"]) == ([0.5, 0.0], 8.0)


# -- What is said beside a verdict: rising curves, guessing, the ceiling, few test rows; and nothing where nothing is


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
