"""Effects on a federation as the hosts see it: in order, on any partition, and on nobody else."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fedscout.engine.data.devices import Device
from fedscout.engine.data.federation import Federation
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig

CLIENTS = 4
NOISE = {"kind": "feature_noise", "mean": 3.0, "std": 1.0}
DROP = {"kind": "feature_drop", "share": 0.5}


def build(*effects: dict[str, Any], **federation: Any) -> Federation:
    keys = {"dataset": "wine", "num_clients": CLIENTS, "partition": {"kind": "iid"}, **federation}
    if effects:
        keys["scenario"] = list(effects)
    return build_federation(FederationConfig.model_validate(keys), ModelConfig())


def view(federation: Federation, client: int, clean: bool = False) -> tuple[np.ndarray, np.ndarray]:
    data = federation.client_data(client)
    samples = data.clean if clean else data.own
    return samples.take(np.arange(len(samples)))


def assert_same_client(left: Federation, right: Federation, client: int) -> None:
    for one, other in zip(view(left, client), view(right, client), strict=True):
        np.testing.assert_array_equal(one, other)


def empty_features(federation: Federation, client: int) -> int:
    return int((view(federation, client)[0] == 0).all(axis=0).sum())


@pytest.mark.parametrize("partition", [{"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.5}])
def test_others_keep_their_data_to_the_last_bit(partition: dict[str, Any]) -> None:
    plain = build(partition=partition)
    stacked = build(
        {**NOISE, "clients": [1]},
        {"kind": "poisoning", "clients": [1]},
        {"kind": "dropout", "clients": "all", "probability": 0.2},
        partition=partition,
    )
    np.testing.assert_array_equal(stacked.partition.rows, plain.partition.rows)
    np.testing.assert_array_equal(stacked.partition.offsets, plain.partition.offsets)
    assert stacked.affected_clients == (1,)
    for client in (0, 2, 3):
        assert not stacked.client_data(client).corrupted
        assert_same_client(stacked, plain, client)
    for clean, own in zip(view(stacked, 1, clean=True), view(plain, 1), strict=True):
        np.testing.assert_array_equal(clean, own)


def test_noise_and_flips_are_as_strong_as_asked() -> None:
    federation = build({**NOISE, "clients": [0]}, {"kind": "label_flip", "clients": [0, 1], "rate": 0.25})
    (features, labels), (clean_features, clean_labels) = view(federation, 0), view(federation, 0, clean=True)
    noise = features.astype(np.float64) - clean_features
    # Standard errors of a mean, σ/√n, and of a deviation, σ/√(2n); sums are rounded to float32.
    assert noise.mean() == pytest.approx(3.0, abs=5 / np.sqrt(noise.size) + 1e-6)
    assert noise.std() == pytest.approx(1.0, abs=5 / np.sqrt(2 * noise.size) + 1e-6)
    assert (labels != clean_labels).sum() == round(0.25 * len(labels))
    assert (view(federation, 1)[1] != view(federation, 1, clean=True)[1]).sum() == round(
        0.25 * federation.partition.sizes[1]
    )


def test_effects_go_in_order() -> None:
    num_dropped = round(0.5 * 13)
    assert empty_features(build(NOISE, DROP), 2) == num_dropped  # the noise is dropped, too
    assert empty_features(build(DROP, NOISE), 2) == 0  # what was dropped is noise now


def test_label_effects_compose_in_order() -> None:
    swap = {"kind": "concept_shift", "permutation": [1, 0, 2]}
    shift = {"kind": "poisoning"}
    before = view(build(), 2)[1]
    swapped = np.array([1, 0, 2])
    np.testing.assert_array_equal(view(build(swap, shift), 2)[1], (swapped[before] + 1) % 3)
    np.testing.assert_array_equal(view(build(shift, swap), 2)[1], swapped[(before + 1) % 3])


def test_a_client_s_parameters_differ_by_stacking() -> None:
    federation = build(
        {"kind": "label_flip", "clients": [0], "rate": 0.1},
        {"kind": "label_flip", "clients": [3], "rate": 0.5},
        {"kind": "latency", "clients": "all", "mean_seconds": 1},
        {"kind": "latency", "clients": [3], "shift_seconds": 2, "mean_seconds": 30},
        {"kind": "dropout", "clients": [1, 3], "probability": 0.1},
        {"kind": "dropout", "clients": [3], "probability": 0.9},
    )
    assert federation.affected_clients == (0, 3)
    usual = Device(shift_seconds=0, mean_seconds=1)
    assert federation.devices == {0: usual, 1: usual, 2: usual, 3: Device(shift_seconds=2, mean_seconds=30)}
    assert federation.dropout == {1: 0.1, 3: 0.9}


def test_equal_seeds_give_equal_clients_and_others_do_not() -> None:
    effects = ({**NOISE, "clients": 0.5}, {"kind": "label_flip", "clients": "all", "alpha": 2, "beta": 5})
    first, again, other = (build(*effects, seed=seed) for seed in (3, 3, 4))
    assert first.facts["effects"] == again.facts["effects"]
    for client in range(CLIENTS):
        assert_same_client(first, again, client)
    assert first.facts["effects"][1]["rates"] != other.facts["effects"][1]["rates"]


@pytest.mark.parametrize(
    ("published", "effect"),
    [
        ("noisy_labels", {"kind": "label_flip", "rate": 0.3}),
        ("label_poisoning", {"kind": "poisoning"}),
        ("corrupted_client", {"kind": "corrupted"}),
    ],
)
def test_published_scenarios_on_the_same_rows_are_the_effect_on_an_iid_partition(
    published: str, effect: dict[str, Any]
) -> None:
    config = FederationConfig(dataset="wine", num_clients=CLIENTS, scenario=published, seed=3)
    scenario, stacked = build_federation(config, ModelConfig()), build(effect, seed=3)
    np.testing.assert_array_equal(stacked.partition.rows, scenario.partition.rows)
    assert stacked.transforms == scenario.transforms
    assert stacked.affected_clients == scenario.affected_clients
    for client in range(CLIENTS):
        assert_same_client(scenario, stacked, client)


def test_what_came_about_is_on_record_and_is_json() -> None:
    federation = build(
        {**NOISE, "clients": 0.5},
        {"kind": "label_flip", "clients": "all", "alpha": 2, "beta": 5},
        {"kind": "concept_shift", "shared": False, "clients": [0, 1]},
        DROP,
        {"kind": "latency", "mean_seconds": 1, "per_row": True, "clients": "all"},
    )
    records = json.loads(json.dumps(federation.facts["effects"]))
    kinds = ["feature_noise", "label_flip", "concept_shift", "feature_drop", "latency"]
    assert [record["kind"] for record in records] == kinds
    assert records[3]["dropped_features"] == round(0.5 * 13)
    assert records[4]["mean_seconds"] == federation.partition.sizes.tolist()
    flips = build({"kind": "label_flip", "clients": "all", "alpha": 2, "beta": 5})
    wrong = [int((view(flips, client)[1] != view(flips, client, clean=True)[1]).sum()) for client in range(CLIENTS)]
    assert flips.facts["effects"] == [records[1]]
    assert records[1]["flipped_rows"] == wrong


def test_the_name_tells_partition_and_effects() -> None:
    federation = build(NOISE, {"kind": "poisoning"}, partition={"kind": "dirichlet", "alpha": 0.5})
    assert federation.name == "wine, dirichlet 0.5 with feature_noise + poisoning, 4 clients"
