"""Suspected rates of wrong labels: closed forms of what clients answer, and federations of known rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedscout.detectors.conversation import hold_together
from fedscout.detectors.detection.client_queries import CLIENT_QUERIES
from fedscout.detectors.detection.feature_exchanges import FeatureMeasurement, measure_features
from fedscout.detectors.detection_config import DetectionConfig
from fedscout.detectors.outliers.label_agreement import Agreement
from fedscout.detectors.outliers.label_noise import SHARED, disagreeing_rows, label_noise
from fedscout.detectors.report import LabelNoise
from fedscout.engine.client.client_host import ClientHost
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.session import Session
from fedscout.experiments.federations.assembly.build_federation import build_federation
from fedscout.experiments.federations.assembly.federation_config import FederationConfig, ModelConfig


def answer(disagreeing: list[int], groups: int = 100, rows_each: int = 10) -> Agreement:
    """Return that of a client with so many groups of each class, of which so many disagree."""
    total = np.full(len(disagreeing), groups)
    nothing = np.zeros(len(disagreeing))
    return Agreement(total * rows_each, total, total - np.array(disagreeing), nothing, 1.0, 1.0, 1.0)


def test_the_last_group_that_disagrees_counts_in_part() -> None:
    assert disagreeing_rows(answer([0, 1, 40, 100])).tolist() == [0, 10 * SHARED, 10 * (39 + SHARED), 1000]


def test_clean_clients_have_the_rates_of_the_others_as_they_are() -> None:
    """No classes overlap, so both ends are the part that disagrees."""
    found = label_noise({0: answer([0, 0]), 1: answer([0, 0]), 2: answer([30, 10])})
    assert found is not None
    expected = (29 + SHARED + 9 + SHARED) / 200
    assert found.clients[2] == pytest.approx((expected, expected))
    assert found.most == pytest.approx(expected / 3)
    assert found.clients[0] == (0, 0)
    assert "at client 2" in found.sentence


def test_overlap_that_all_share_is_no_noise_at_least() -> None:
    found = label_noise(dict.fromkeys(range(5), answer([20, 5])))
    assert found is not None
    assert found.least == 0
    assert found.most == pytest.approx((19 + SHARED + 4 + SHARED) / 200)


def test_the_lower_end_solves_for_the_rate() -> None:
    """Two classes of overlap e = 0.2: of a client with rate ρ disagree e + ρ (1 − 2 e), beside eleven clean ones."""
    rho, fraction = 0.25, 1 - SHARED
    disagreeing = 1000 * (0.2 + rho * 0.6)
    answers = {client: answer([200, 200], groups=1000) for client in range(11)}
    answers[11] = answer([round(disagreeing)] * 2, groups=1000)
    found = label_noise(answers)
    assert found is not None
    assert found.clients[11][0] == pytest.approx(rho, abs=2 * fraction / 1000)
    assert found.clients[0][0] == 0


def test_fewer_than_three_clients_say_nothing() -> None:
    assert label_noise({0: answer([0]), 1: answer([9])}) is None
    assert label_noise({0: answer([0]), 1: answer([9]), 2: answer([0], groups=0)}) is None


def measured(scenario: Any, **federation: Any) -> LabelNoise:
    config = FederationConfig.model_validate({"partition": {"kind": "iid"}, "scenario": scenario, **federation})
    grid = LocalGrid(ClientHost(build_federation(config, ModelConfig()), CLIENT_QUERIES), session=Session())
    clients = tuple(range(config.num_clients or 0))
    found: FeatureMeasurement = hold_together(
        grid, {"features": measure_features(clients, (), DetectionConfig(), clients)}, {}
    )["features"]
    assert found.label_noise is not None
    return found.label_noise


@pytest.mark.parametrize(("dataset", "num_clients"), [("bearing", 10), ("breast_cancer", 6), ("digits", 10)])
def test_rates_of_federations(dataset: str, num_clients: int, request: pytest.FixtureRequest) -> None:
    """None, one client's 30 %, and Beta(15, 85) of all; docs/detection.md has ten seeds."""
    if dataset == "bearing":
        request.getfixturevalue("data_folder")  # skips without files
    federation = {"dataset": dataset, "num_clients": num_clients}
    assert measured(None, **federation).most < 0.05
    one = measured({"kind": "label_flip", "clients": [2], "rate": 0.3}, **federation)
    assert max(one.clients, key=lambda client: one.clients[client]) == 2
    assert one.clients[2] == pytest.approx((0.3, 0.3), abs=0.1)
    every = measured({"kind": "label_flip", "clients": "all", "alpha": 15, "beta": 85}, **federation)
    assert every.least < 0.15
    assert every.most == pytest.approx(0.15, abs=0.06)
