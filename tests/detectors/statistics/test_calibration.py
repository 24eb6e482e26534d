"""What calibrated decisions share: correction over clients, tails of quadratic forms, words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fedscout.detectors.report import CalibratedFinding, ClientEvidence, DetectionConfig
from fedscout.detectors.statistics import ClientTest, decide, holm, largest, moment_matched_tail, p_text

LEAST = 0.5


def told(
    known: dict[int, tuple[float, float]], describe: Callable[[int, ClientEvidence], str], remark: str = ""
) -> CalibratedFinding:
    """Return what is decided of clients' p-values and effects, of which `LEAST` suffices."""
    p_values, effects = ({client: pair[place] for client, pair in known.items()} for place in (0, 1))
    test = ClientTest(p_values, effects, {}, "labels", "a test")
    return decide("outliers", [(test, LEAST)], 0.01, describe, remark)


def test_holm_by_hand() -> None:
    """Ascending .01 .02 .03 .5 times 4 3 2 1 is .04 .06 .06 .5, none below the one before."""
    np.testing.assert_allclose(holm(np.array([0.02, 0.5, 0.01, 0.03])), [0.06, 0.5, 0.04, 0.06])
    np.testing.assert_allclose(holm(np.array([0.6, 0.9])), [1.0, 1.0])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(deadline=None)
def test_holm_lies_between_no_correction_and_bonferroni(values: list[float]) -> None:
    p_values = np.array(values)
    corrected = holm(p_values)
    assert (corrected >= p_values).all()
    assert (corrected <= np.minimum(1, p_values * len(p_values)) + 1e-15).all()
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(corrected[order]) >= 0).all()


@pytest.mark.parametrize("freedom", [1, 3, 200])
@pytest.mark.parametrize("scale", [0.5, 1.0, 7.0])
def test_a_scaled_chi_squared_is_matched_exactly(freedom: int, scale: float) -> None:
    """c χ²_f has the moments c f, 2 c² f and 8 c³ f, so three of them give it back."""
    values = scale * chi2.ppf([0.01, 0.5, 0.95, 0.9999], freedom)
    tail = moment_matched_tail(values, scale * freedom, 2 * scale**2 * freedom, 8 * scale**3 * freedom)
    np.testing.assert_allclose(tail, [0.99, 0.5, 0.05, 0.0001], rtol=1e-6)


def test_a_federation_divides_its_rate_among_the_detectors() -> None:
    assert 3 * DetectionConfig(false_alarm_rate=0.05).detector_rate == pytest.approx(0.05)


def test_a_decision_tells_of_the_flagged_client_that_stands_out_most() -> None:
    """Client 5 is the surer one, yet its effect did not suffice."""
    known = {5: (0.001, 0.01), 3: (0.004, 0.9), 1: (0.5, 0.1)}
    finding = told(known, lambda client, own, _: f"{client}: {own.effect}")
    assert (finding.detected, finding.flagged_clients, finding.p_value, finding.effect) == (True, (3,), 0.004, 0.9)
    assert finding.method == "a test"
    assert "3: 0.9 (p = 0.004" in finding.sentence


def test_flagged_clients_come_in_their_order() -> None:
    known = {5: (0.001, 0.9), 1: (0.5, 0.1), 3: (0.004, 0.9)}
    assert told(known, lambda *_: "").flagged_clients == (3, 5)


def test_who_is_at_both_limits_is_flagged() -> None:
    assert told({1: (0.01, LEAST), 2: (0.0101, LEAST), 3: (0.01, 0.99 * LEAST)}, lambda *_: "").flagged_clients == (1,)


def test_without_a_flag_the_likeliest_is_told_and_of_equals_the_larger_effect() -> None:
    finding = told({1: (0.2, 0.1), 2: (0.2, 0.3), 3: (0.9, 0.8)}, lambda client, *_: f"Client {client}", "More.")
    assert (finding.p_value, finding.effect, finding.detected) == (0.2, 0.3, False)
    assert "Client 2" in finding.sentence
    assert finding.sentence.endswith("More.")


def test_words() -> None:
    assert p_text(0.00009) == "p < 0.0001"
    assert largest(np.array([0.1, 0.5, 0.3, 0.5]), limit=0.2, count=3) == (1, 3, 2)
    assert largest(np.array([0.2, 0.5, 0.1]), limit=0.2, count=3) == (1,)
    assert largest(np.ones(50), limit=0.2, count=3) == (0, 1, 2)
