"""Counts of label skew found where clients withhold small classes."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.experiments.benchmarks.detection.withheld_labels import (
    Alarms,
    by_dirichlet,
    count_alarms,
    from_shares,
    one_client,
)


def test_the_upper_end_without_any_alarm_is_the_closed_form() -> None:
    """1 − .025^(1/n)."""
    none = Alarms(labels="", sizes="", skewed=False, min_release=5, found=0, federations=40, share_withheld=0.0)
    assert none.upper == pytest.approx(1 - 0.025 ** (1 / 40))


def test_like_clients_and_one_that_differs_are_told_apart() -> None:
    alike = count_alarms("a", "6 × 30", from_shares((0.95, 0.05)), 5, 5, skewed=False)
    assert (alike.found, alike.federations) == (0, 5)
    assert 0 < alike.share_withheld < 0.3
    assert count_alarms("b", "6 × 30", one_client, 5, 5, skewed=True).found >= 4
    assert count_alarms("c", "6 × 30", from_shares((0.95, 0.05)), 5, 1, skewed=False).share_withheld == 0


def test_draws_have_the_clients_rows() -> None:
    generator = np.random.default_rng(0)
    for draw in (from_shares((0.5, 0.5)), by_dirichlet(0.3), one_client):
        assert draw(generator, 0, 30).sum() == 30
