"""Confirmation: fresh paired seeds, both views, and a verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fedscout.search.config import View
from fedscout.search.confirmation.confirmation import (
    Candidate,
    Confirmation,
    confirm,
    confirmation_seeds,
    contestant,
    difference_text,
)
from fedscout.search.confirmation.intervals import SequentialDesign, paired_difference

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
    assert [name in found.sentence for name in scores] == [True, False, False]
    assert "all 4 configurations" in found.sentence
    assert "2, 3 seeds" in found.sentence


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
    assert ("FedAvg at its tuned client rate 0.8" in found.sentence) == (reference == "tuned-fedavg")
    assert set(found.versus) == {"fedavg", "tuned-fedavg"}


def test_a_gain_over_fedavg_alone_is_no_gain() -> None:
    contestants = [contender("challenger", shifted(0.1, 0.11, 0.09)), contender("fedavg", BASELINE)]
    assert confirm(SEEDS, contestants, "own").verdict == "better"
    tuned = contender("tuned-fedavg", shifted(0.1, 0.11, 0.09))
    found = confirm(SEEDS, [*contestants, tuned], "own", SequentialDesign(max_seeds=3, resolution=0.01))
    assert (found.verdict, found.advised) == ("no difference", "FedAvg at its tuned client rate 0.2")


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


def test_difference_in_points() -> None:
    assert difference_text(paired_difference([0.6], [0.5])) == "+10.0 points, no interval from 1 seed"
