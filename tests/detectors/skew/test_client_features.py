"""How clients' rows lie in feature space: lengths, spreads and gains that are known beforehand."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from fedscout.detectors import HeterogeneityReport
from tests.detectors.federations import federation, gaussian_clients, report_of

Rows = list[tuple[np.ndarray, np.ndarray]]


def detected(clients: Rows, min_release: int = 5) -> HeterogeneityReport:
    source = federation(clients, min_release=min_release)
    return report_of(source, 1, outlier_repetitions=1, outlier_min_flags=1, outlier_rounds=1)


def test_a_shift_is_as_long_as_the_calibrated_effect_and_points_the_same_way_for_clients_that_shift_together() -> None:
    by = {1: 1, 2: 1, 3: -1}
    clients = [
        (rows + by.get(index, 0) * np.array([1.0, -1, 0, 0, 0, 0]), y)
        for index, (rows, y) in enumerate(gaussian_clients([300] * 7))
    ]
    report = detected(clients)
    finding = report.calibrated_finding("feature_skew")
    shifts = {own.client: np.array(own.shift) for own in report.features}
    for client, shift in shifts.items():
        assert_allclose(np.linalg.norm(shift), finding.clients[client].effect, atol=1e-12)
    assert_allclose(
        np.linalg.norm(shifts[1]), np.sqrt(2 / 6), atol=0.1, err_msg="two of six features, by one deviation"
    )
    together = {client: shifts[1] @ shift / np.linalg.norm(shifts[1]) for client, shift in shifts.items()}
    assert together[2] > 0.4
    assert together[3] < -0.4


def test_features_times_a_factor_change_spread_and_gain_by_it_and_noise_the_spread_alone() -> None:
    clients = [(rows - 0.5, y) for rows, y in gaussian_clients([400] * 5)]
    clients[2] = (clients[0][0] * 3, clients[0][1])
    noise = np.random.default_rng(5).normal(size=(400, 6))
    clients[3] = (clients[0][0] + 2 * noise, clients[0][1])
    told = {own.client: own for own in detected(clients).features}
    spreads = [told[client].spread or 0.0 for client in range(5)]
    gains = [told[client].gain or 0.0 for client in range(5)]
    assert_allclose(spreads[2] / spreads[0], 3, rtol=1e-4, err_msg="float32 rows")
    assert_allclose(gains[2] / gains[0], 3, rtol=1e-4)
    assert_allclose(spreads[3] / spreads[0], np.sqrt(5), rtol=0.05)
    assert_allclose(gains[3] / gains[0], 1, atol=0.35)


def test_a_client_of_one_class_has_no_gain_and_like_clients_hardly_a_shift() -> None:
    clients = gaussian_clients([200] * 4)
    rows, labels = clients[3]
    clients[3] = (rows[labels == 1], labels[labels == 1])
    told = {own.client: own for own in detected(clients).features}
    assert told[3].gain is None
    assert all(own.gain is not None for client, own in told.items() if client != 3)
    assert all(np.linalg.norm(own.shift) < 0.15 for own in told.values())


def test_a_report_without_it_can_be_read_and_is_written_as_before() -> None:
    report = detected(gaussian_clients([40, 50, 60]))
    old = report.model_dump(mode="json")
    del old["features"]
    read = HeterogeneityReport.model_validate(old)
    assert read.features == ()
    assert "features" not in read.model_dump(mode="json")


def test_nothing_is_told_of_a_client_that_withholds() -> None:
    assert [own.client for own in detected(gaussian_clients([60, 3, 50, 40])).features] == [0, 2, 3]
