"""Counts of label skew found where clients withhold small classes."""

from __future__ import annotations

import numpy as np

from fedscout.experiments.suites.detection import by_dirichlet, found_skew, from_shares, one_client


def test_like_clients_and_one_that_differs_are_told_apart() -> None:
    found, withheld = found_skew("a", "6 × 30", from_shares((0.95, 0.05)), 5, 5)
    assert found == (0,) * 5
    assert 0 < withheld < 0.3
    assert sum(found_skew("b", "6 × 30", one_client, 5, 5)[0]) >= 4
    assert found_skew("c", "6 × 30", from_shares((0.95, 0.05)), 5, 1)[1] == 0


def test_draws_have_the_clients_rows() -> None:
    generator = np.random.default_rng(0)
    for draw in (from_shares((0.5, 0.5)), by_dirichlet(0.3), one_client):
        assert draw(generator, 0, 30).sum() == 30
