"""From configuration to federation, with the data that come with scikit-learn."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedscout.detectors import DetectionConfig
from fedscout.engine.data.client import Privacy, Release
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import DataError
from fedscout.experiments.federation import build_federation, data_digest
from fedscout.experiments.federation_config import FederationConfig, ModelConfig, PartitionConfig
from fedscout.experiments.scenarios.table import SCENARIOS
from tests.kits.refusals import refused


def build(config: FederationConfig | None = None) -> Federation:
    return build_federation(config or FederationConfig(), ModelConfig())


def own_rows(federation: Federation, client: int) -> tuple[np.ndarray, np.ndarray]:
    own = federation.client_data(client).own
    return own.take(np.arange(len(own)))


def clean_rows(federation: Federation, client: int) -> tuple[np.ndarray, np.ndarray]:
    clean = federation.client_data(client).clean
    return clean.take(np.arange(len(clean)))


def test_demo() -> None:
    federation = build()
    assert federation.num_clients == 10
    assert federation.features.shape == (1797, 64)
    assert federation.num_classes == 10
    assert federation.partition.sizes.sum() == 1797
    assert federation.partition.sizes.min() >= 5
    assert not federation.transforms
    assert federation.affected_clients == ()
    assert federation.facts["num_rows_assigned"] == 1797
    assert federation.name == "digits, dirichlet 0.1, 10 clients"


@pytest.mark.parametrize("scenario", [None, *SCENARIOS])
def test_equal_configurations_build_equal_federations(scenario: str | None) -> None:
    first, again, other = (build(FederationConfig(scenario=scenario, seed=seed)) for seed in (4, 4, 5))
    assert first.name == again.name
    np.testing.assert_array_equal(first.partition.rows, again.partition.rows)
    assert (first.partition.rows[:100] != other.partition.rows[:100]).any()
    for client in range(first.num_clients):
        for left, right in zip(own_rows(first, client), own_rows(again, client), strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_only_transformed_clients_differ_from_their_clean_view(scenario: str) -> None:
    federation = build(FederationConfig(dataset="wine", scenario=scenario, num_clients=4))
    for client in range(4):
        own, clean = own_rows(federation, client), clean_rows(federation, client)
        differs = any((left != right).any() for left, right in zip(own, clean, strict=True))
        assert differs == (client in federation.transforms) == federation.client_data(client).corrupted
        rows = federation.partition.client(client)
        np.testing.assert_array_equal(clean[0], federation.features[rows])
        np.testing.assert_array_equal(clean[1], federation.labels[rows])


def test_corrupted_client_as_the_host_sees_it() -> None:
    federation = build(FederationConfig(dataset="breast_cancer", scenario="corrupted_client", num_clients=4))
    (features, labels), (clean_features, clean_labels) = own_rows(federation, 2), clean_rows(federation, 2)
    noise = features.astype(np.float64) - clean_features

    assert noise.mean() == pytest.approx(1.0, abs=5 * 0.5 / np.sqrt(noise.size) + 1e-6)
    assert noise.std() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(2 * noise.size) + 1e-6)
    np.testing.assert_array_equal(labels, 1 - clean_labels)


def test_noise_on_digits_is_in_their_unit() -> None:
    federation = build(FederationConfig(scenario="corrupted_client"))
    unit = np.sqrt(federation.features.astype(np.float64).var(axis=0).mean())
    noise = own_rows(federation, 2)[0].astype(np.float64) - clean_rows(federation, 2)[0]
    assert noise.mean() / unit == pytest.approx(1.0, abs=5 * 0.5 / np.sqrt(noise.size) + 1e-6)


def test_noisy_labels_are_three_in_ten() -> None:
    federation = build(FederationConfig(scenario="noisy_labels", num_clients=6))
    num_rows = federation.partition.sizes[2]
    assert (own_rows(federation, 2)[1] != clean_rows(federation, 2)[1]).sum() == round(0.3 * num_rows)


def test_federation_travels() -> None:
    federation = build(FederationConfig(scenario="corrupted_client"))
    twin = pickle.loads(pickle.dumps(federation))
    for left, right in zip(own_rows(twin, 2), own_rows(federation, 2), strict=True):
        np.testing.assert_array_equal(left, right)
    assert twin.model == federation.model


def test_more_clients_than_rows() -> None:
    config = FederationConfig(dataset="wine", partition=PartitionConfig(kind="iid"), num_clients=179)
    with refused(DataError, key="federation.num_clients", given="179"):
        build(config)


def test_natural_partition_of_data_without_clients() -> None:
    with refused(DataError, key="federation.partition.kind", names="federation.client_column"):
        build(FederationConfig(partition=PartitionConfig(kind="natural")))


def test_clients_too_small_to_answer_are_on_record() -> None:
    config = FederationConfig(dataset="wine", partition=PartitionConfig(kind="iid"), num_clients=40, min_release=5)
    # 178 rows for 40 clients: 18 clients of five, 22 of four.
    assert build(config).facts["num_clients_below_min_release"] == 22


@pytest.mark.data
def test_wine_quality_by_color(data_folder: Path) -> None:
    config = FederationConfig(
        dataset="wine_quality", client_column="color", partition=PartitionConfig(kind="natural"), folder=data_folder
    )
    federation = build(config)
    assert federation.partition.sizes.tolist() == [1599, 4898]
    assert federation.facts["client_names"] == ("red", "white")


@pytest.mark.data
def test_label_skew_of_the_bearings(data_folder: Path) -> None:
    config = FederationConfig(dataset="bearing", scenario="label_skew", num_clients=4, folder=data_folder)
    federation = build(config)
    # 530/2.2 = 240.9 rows a client; shares of healthy snapshots as published.
    assert federation.partition.sizes.tolist() == [240] * 4
    counts = [int((federation.labels[federation.partition.client(client)] == 0).sum()) for client in range(4)]
    assert counts == [216, 168, 120, 24]


def test_the_data_digest_depends_on_rows_labels_and_deal() -> None:
    one = build_federation(FederationConfig(dataset="wine", num_clients=3), ModelConfig())
    assert data_digest(one) == data_digest(
        build_federation(FederationConfig(dataset="wine", num_clients=3), ModelConfig())
    )
    features, labels = one.features.copy(), one.labels.copy()
    features[0, 0] += 1
    labels[0] = (labels[0] + 1) % one.num_classes
    others = [
        replace(one, features=features),
        replace(one, labels=labels),
        build_federation(FederationConfig(dataset="wine", num_clients=3, seed=1), ModelConfig()),
    ]
    assert len({data_digest(federation) for federation in [one, *others]}) == 4


def test_what_clients_let_out_is_configured() -> None:
    config = FederationConfig(dataset="wine", min_release=7, small_clients="abstain")
    privacy = DetectionConfig(epsilon=2.0, delta=1e-4, noise="secure").privacy
    assert build_federation(config, ModelConfig(), privacy).release == Release(7, "abstain", Privacy(2.0, 1e-4, True))
    assert DetectionConfig().privacy is None
    assert build().release == Release(5, "train", None)
