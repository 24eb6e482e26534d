"""The label-skew detector: closed forms, orderings and its client half."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from fedscout.detectors.label_skew import ReleasedCounts, decide_label_skew, label_counts
from fedscout.detectors.report import Finding
from fedscout.engine.data.client import Samples
from tests.detectors.federations import inputs, samples


def decide(counts: Mapping[int, np.ndarray], threshold: float) -> Finding:
    return decide_label_skew(ReleasedCounts.whole(counts), threshold)


def counts_of(shares: tuple[float, ...], rows: int = 1000) -> dict[int, np.ndarray]:
    return {client: np.array([round(rows * s), round(rows * (1 - s))]) for client, s in enumerate(shares)}


def test_published_shares() -> None:
    """The global share is 0.55 and JS(s ‖ 0.55) = H((s + 0.55)/2) − (H(s) + H(0.55))/2.

    That is 0.118, 0.017, 0.002 and 0.179: the first and the last client lie above 0.1.
    """

    def js(share: float) -> float:
        def h(x: float) -> float:
            return float(-x * np.log2(x) - (1 - x) * np.log2(1 - x))

        return h((share + 0.55) / 2) - (h(share) + h(0.55)) / 2

    finding = decide(counts_of((0.9, 0.7, 0.5, 0.1)), threshold=0.1)
    assert finding.value == pytest.approx(0.1789, abs=5e-5)
    assert finding.client_values == pytest.approx({0: js(0.9), 1: js(0.7), 2: js(0.5), 3: js(0.1)})
    assert finding.detected
    assert finding.flagged_clients == (0, 3)
    assert "0.1789" in finding.sentence
    assert "yes" in finding.sentence


def test_the_sentence_names_the_farthest_client_and_all_that_are_flagged() -> None:
    """With 10, 6, 2 and 7 of ten rows in the first class, clients 5 and 2 are the farthest from the 25 of 40."""
    counts = {7: np.array([6, 4]), 2: np.array([10, 0]), 9: np.array([7, 3]), 5: np.array([2, 8])}
    finding = decide(counts, threshold=0.1)
    assert finding.flagged_clients == (2, 5)
    assert max(finding.client_values, key=finding.client_values.__getitem__) == 2
    assert "(client 2;" in finding.sentence
    assert "clients 2, 5" in finding.sentence
    none = decide({client: counts[client] for client in (7, 9)}, threshold=0.1)
    assert "(client 9;" in none.sentence
    assert none.sentence.count("client ") == 1


def test_a_client_at_the_threshold_is_not_above_it() -> None:
    counts = counts_of((0.9, 0.1))
    value = decide(counts, threshold=0.1).value
    at, below = (decide(counts, threshold) for threshold in (value, np.nextafter(value, 0)))
    assert (at.detected, at.flagged_clients) == (False, ())
    assert (below.detected, below.flagged_clients) == (True, (0, 1))


def test_equal_clients_have_none() -> None:
    finding = decide(counts_of((0.4, 0.4, 0.4)), threshold=0.1)
    assert finding.value == pytest.approx(0, abs=1e-15)
    assert not finding.detected
    assert finding.flagged_clients == ()
    assert "no." in finding.sentence


def test_federations_are_ordered_as_published() -> None:
    """IID below the bearing shares below a strong Dirichlet, as in the published rows."""
    generator = np.random.default_rng(0)
    iid = dict(enumerate(generator.multinomial(2000, [0.1] * 10, size=4)))
    dirichlet = {c: generator.multinomial(2000, generator.dirichlet([0.1] * 10)) for c in range(4)}
    values = [decide(c, 0.1).value for c in (iid, counts_of((0.9, 0.7, 0.5, 0.1)), dirichlet)]
    assert values == sorted(values)
    assert values[0] < 0.01


def test_larger_clients_weigh_more_in_the_global_distribution() -> None:
    counts = {0: np.array([10_000, 0]), 1: np.array([0, 10])}
    finding = decide(counts, threshold=0.1)
    assert finding.flagged_clients == (1,)


def test_the_order_of_clients_does_not_matter() -> None:
    counts = counts_of((0.9, 0.7, 0.5, 0.1))
    assert decide(dict(reversed(counts.items())), 0.1) == decide(counts, 0.1)


def test_one_client_can_not_be_compared() -> None:
    finding = decide({3: np.array([5, 5])}, threshold=0.1)
    assert not finding.measured
    assert not finding.detected
    assert "got 1" in finding.sentence


def test_client_counts_its_own_rows_and_absent_classes() -> None:
    everyone = samples(np.zeros((6, 1)), np.array([0, 1, 2, 2, 1, 1]))
    own = Samples(everyone.features, everyone.labels, np.array([5, 2, 3, 1]))
    assert label_counts(inputs(own, num_classes=4))["counts"].values.tolist() == [0, 2, 2, 0]
