"""Calibrated outliers: exchanged models, their false-alarm rate, and the joint decision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedscout.detectors import outliers
from fedscout.detectors.outliers import (
    FEWEST_DRAWS,
    MOST_DRAWS,
    Comparison,
    decide_outliers_calibrated,
    exchange_p_values,
    explain_model_differences,
    model_test,
    row_parts,
)
from fedscout.detectors.report import CalibratedFinding, ClientEvidence, DetectionConfig
from fedscout.detectors.statistics import ClientTest
from fedscout.engine.data.federation import Names
from tests.detectors.rates import fewest_alarms, most_alarms

RATE = 0.05


def compared(*distances: float, diverged: tuple[int, ...] = ()) -> Comparison:
    known = {client: value for client, value in enumerate(distances) if client not in diverged}
    return Comparison(known, known, diverged, np.zeros(1, np.float32))


def decide(
    models: ClientTest | None, *labels: ClientTest, explained: str | None = None, least: float = 0.1
) -> CalibratedFinding:
    settings = DetectionConfig(false_alarm_rate=3 * RATE, disagreement_effect=least, distance_effect=least)
    return decide_outliers_calibrated(labels, models, explained, settings)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("clients", [3, 4, 10, 100])
def test_model_alarms_keep_to_the_rate(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances of any distribution, here heavy on the right; each part another draw.

    The fewest permutations do: the p-value of a permutation test keeps to its rate with any number of them.
    """
    monkeypatch.setattr(outliers, "MOST_DRAWS", FEWEST_DRAWS)
    generator = np.random.default_rng(clients)
    federations = 300
    alarms = sum(
        smallest([compared(*np.exp(generator.exponential(size=clients))) for _ in range(6)]) <= RATE
        for _ in range(federations)
    )
    assert fewest_alarms(federations, RATE) <= alarms <= most_alarms(federations, RATE)


def smallest(parts: list[Comparison]) -> float:
    return min(of_parts(parts).p_values.values())


def of_parts(parts: list[Comparison]) -> ClientTest:
    found = model_test(parts, parts, RATE)
    assert found is not None
    return found


def test_three_clients_by_enumeration() -> None:
    """One of three is farthest in each of three parts, the others are alike: it is again in 3 of 27 permutations.

    The largest mean of the others' is reached by every permutation.
    """
    p_values = exchange_p_values(np.array([[0.0, 0.0, 1.0]] * 3), rate=0.0)
    assert p_values[2] == pytest.approx(1 / 9, abs=0.01)
    assert p_values[:2].tolist() == [1.0, 1.0]


def test_one_attacker_does_not_hide_the_next() -> None:
    """Against all, the second is one of two: the first one's distances come to the top of most permutations."""
    values = np.random.default_rng(0).normal(size=(3, 20)) * 0.1
    values[:, 3], values[:, 7] = 9.0, 1.0
    first = exchange_p_values(values, rate=0.0)
    assert first[[3, 7]].max() > 0.1
    assert exchange_p_values(values, rate=0.02)[[3, 7]].max() < 0.02
    assert exchange_p_values(values, rate=first[3])[7] < 0.02  # it reaches the rate
    assert exchange_p_values(values, rate=np.nextafter(first[3], 0))[7] == first[7]


def test_the_others_are_compared_again_as_long_as_they_are_most_and_three() -> None:
    """The last client stands out among those left over: of six three, or of three two."""
    halves, pair = np.zeros((8, 6)), np.zeros((8, 3))
    halves[:, :3], halves[:, 5] = 9.0, 1.0
    pair[:, 0], pair[:, 2] = 9.0, 1.0
    for values in (halves, pair):
        p_values = exchange_p_values(values, rate=0.05)
        assert p_values[0] <= 0.05
        assert p_values[-1] > 0.5


def test_no_p_value_is_zero() -> None:
    """What is observed is one of the permutations."""
    values = np.zeros((8, 30))
    values[:, 4] = 1.0
    assert exchange_p_values(values, rate=0.0).min() == 1 / (1 + MOST_DRAWS)


def test_parts_are_of_one_size_that_all_clients_hold() -> None:
    """Eight parts of the smallest client's rows, of few rows fewer parts, of fewer still none."""
    assert [(part.index, part.num_rows) for part in row_parts([100, 83, 90], 0)] == [(i, 10) for i in range(8)]
    assert [part.num_rows for part in row_parts([17, 18, 18], 0)] == [5, 5, 5]
    assert row_parts([14, 18, 18], 0) == ()
    assert row_parts([100, 100], 0) == ()
    assert row_parts([10, 100, 100], 0)[0].num_rows == 12  # the client of 10 rows takes no part
    assert row_parts([50, 100, 100], 0)[0].num_rows == 6  # half of the median does


def test_two_models_are_not_compared() -> None:
    assert model_test([compared(1.0, 2.0)] * 5, [compared(1.0, 2.0)] * 5, RATE) is None
    assert model_test([], [], RATE) is None
    three = compared(1.0, 2.0, 1.0)
    assert model_test([three], [three] * 2, RATE) is None
    assert model_test([three], [three] * 3, RATE) is not None


def test_a_distance_of_zero_has_no_logarithm() -> None:
    """A model in the middle of all counts as the median one; where the median itself is 0, so does every model."""
    found = of_parts([compared(0.0, 1.0, 1.01, 0.99, 2.0)] * 5)
    assert found.effects[0] == 0
    assert found.effects[4] == pytest.approx(1.0, abs=0.02)
    nothing = of_parts([compared(0.0, 0.0, 0.0, 5.0)] * 5)
    assert set(nothing.effects.values()) == {0.0}


def test_a_far_model_is_found() -> None:
    """Ten clients within two percent, one twice as far in each of five parts: by chance once in 10⁴."""
    distances = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.015, 0.985, 1.005, 2.0]
    found = of_parts([compared(*distances)] * 5)
    finding = decide(found)
    assert finding.flagged_clients == (9,)
    assert finding.effect == pytest.approx(1.0, abs=0.02)
    assert finding.clients[9].source == "models"


def test_models_that_are_not_finite_are_farthest() -> None:
    comparisons = [compared(1.0, 1.04, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0, diverged=(2,))] * 5
    assert decide(of_parts(comparisons)).flagged_clients == (2,)
    once = of_parts([*comparisons[:1], *[compared(1.0, 1.04, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0)] * 4])
    assert decide(once).flagged_clients == ()
    far = of_parts([compared(1.0, 1.0, 1.0, 1.0, 1e12, diverged=(2,))] * 3)
    assert (far.effects[4], far.p_values[4]) == (far.effects[2], far.p_values[2])  # no finite model is farther


def test_models_that_are_not_finite_in_half_of_the_repetitions_are_farthest() -> None:
    whole, lost = compared(1.0, 1.1, 0.9, 1.0, 1.05), compared(1.0, 1.1, 0.9, 1.0, 1.05, diverged=(2,))
    for comparisons, is_lost in (([whole, lost] * 2, True), ([whole, whole, lost], False)):
        found = of_parts(comparisons)
        assert (found.effects[2] > 1e6) == is_lost
        # Else by those in which they were. Without it the median is 1.025, once in three.
        assert is_lost or found.effects[2] == pytest.approx(0.9 * 1.025 ** (1 / 3) - 1)


def test_who_is_missing_in_a_repetition_is_compared_in_the_others() -> None:
    """Twice the median client in the repetition that it is part of, whose scale is another."""
    small, large = compared(1.0, 1.0, 1.0), compared(10.0, 10.0, 10.0, 20.0, 10.0)
    found = model_test([small, large], [large] * 5, RATE)
    assert found.effects == pytest.approx({0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0, 4: 0.0})
    unparted = model_test([large], [small] * 5, RATE)
    assert [unparted.p_values[client] for client in (3, 4)] == [1.0, 1.0]


def test_effects_are_relative_to_the_median_client_over_all_repetitions() -> None:
    """Geometric means over the median distance: 1 / sqrt(8), sqrt(2), sqrt(2); the first is a quarter of the others."""
    found = model_test([compared(1.0, 2.0, 4.0), compared(1.0, 8.0, 4.0)], [compared(1.0, 1.0, 1.0)] * 3, RATE)
    assert found.effects == pytest.approx({0: -0.75, 1: 0.0, 2: 0.0})


def test_models_do_not_decide_where_clients_are_unlike() -> None:
    found = of_parts([compared(*[1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99, 1.0, 3.0])] * 5)
    finding = decide(found, explained="there is label skew")
    assert not finding.measured
    assert "there is label skew" in finding.sentence


def test_tests_share_the_rate() -> None:
    """A p-value of 0.04 alone is an alarm at 0.05; as one of two tests it counts double, as one of three triple."""
    labels = ClientTest({0: 0.04, 1: 1.0, 2: 1.0}, {0: 0.5, 1: 0.0, 2: 0.0}, {0: (1,)}, "labels", "labels")
    models = ClientTest({0: 1.0, 1: 0.02, 2: 1.0}, {0: 0.0, 1: 0.7, 2: 0.0}, {}, "models", "models")
    alone = decide(None, labels)
    assert alone.flagged_clients == (0,)
    assert alone.clients[0].classes == (1,)
    both = decide(models, labels)
    assert both.flagged_clients == (1,)
    assert both.clients[0] == ClientEvidence(source="labels", p_value=0.08, effect=0.5, flagged=False)
    assert both.clients[1].source == "models"
    assert both.clients[2].p_value == 1.0
    assert decide(models, labels, labels).flagged_clients == ()


def test_labels_and_models_have_effects_of_their_own_to_reach() -> None:
    labels = ClientTest({0: 0.001, 1: 1.0, 2: 1.0}, {0: 0.5, 1: 0.0, 2: 0.0}, {}, "labels", "labels")
    models = ClientTest({0: 1.0, 1: 0.001, 2: 1.0}, {0: 0.0, 1: 0.5, 2: 0.0}, {}, "models", "models")
    for disagreement, distance, flagged in ((0.4, 0.6, (0,)), (0.6, 0.4, (1,))):
        settings = DetectionConfig(disagreement_effect=disagreement, distance_effect=distance)
        assert decide_outliers_calibrated([labels], models, None, settings).flagged_clients == flagged


def test_a_sentence_names_client_and_classes_and_never_more_than_all_rows() -> None:
    labels = ClientTest({0: 0.001, 1: 1.0, 2: 1.0}, {0: 0.5, 1: 0.0, 2: 0.0}, {0: (1, 4)}, "labels", "labels")
    models = ClientTest({0: 1.0, 1: 0.001, 2: 1.0}, {0: 0.0, 1: 0.7, 2: 0.0}, {}, "models", "models")
    nobody = ClientTest({0: 1.0, 1: 1.0, 2: 1.0}, {0: 0.0, 1: 0.0, 2: 0.0}, {}, "labels", "labels")
    names = Names(tuple("xyz"), tuple("abcde"))
    for effect, share in ((0.5, "50%"), (1.6, "100%")):
        strong = replace(labels, effects={0: effect, 1: 0.0, 2: 0.0})
        sentence = decide_outliers_calibrated([strong], None, None, DetectionConfig(), names=names).sentence
        assert all(part in sentence for part in ("client x", share, "classes b and e"))
    far = decide_outliers_calibrated([], models, None, DetectionConfig(), names=names).sentence
    assert "client y" in far
    assert "70%" in far
    assert not any(name in decide(None, nobody).sentence for name in ("client 0", "client 1", "client 2"))
    for compared_or_not in (models, None):
        assert "of skew" in decide(compared_or_not, labels, explained="of skew").sentence


def test_why_models_differ() -> None:
    skew = CalibratedFinding(name="label_skew", rate=RATE, p_value=0.001, detected=True, sentence="")
    none = CalibratedFinding(name="feature_skew", rate=RATE, p_value=0.6, sentence="")
    unknown = CalibratedFinding(name="feature_skew", rate=RATE, sentence="")
    assert explain_model_differences([none]) is None
    for finding, named in ((skew, "label skew"), (skew.model_copy(update={"name": "feature_skew"}), "feature skew")):
        assert named in str(explain_model_differences([none, finding]))
    assert "feature skew was not" in str(explain_model_differences([unknown]))
    assert explain_model_differences([]) is None
