"""Effects on a federation as the hosts see it: in order, on any partition, and on nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.scenarios.labels import LabelFlipEffect
from fedscout.experiments.scenarios.table import EFFECTS

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


def test_effects_go_in_order() -> None:
    num_dropped = round(0.5 * 13)
    assert empty_features(build(NOISE, DROP), 2) == num_dropped  # the noise is dropped, too
    assert empty_features(build(DROP, NOISE), 2) == 0  # what was dropped is noise now


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
def test_published_scenarios_are_effects_on_an_iid_partition(published: str, effect: dict[str, Any]) -> None:
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


# Effects in the configuration: how they are written, which mistakes are told, and that they survive being written.


def faults(scenario: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load_config([f"federation.scenario={scenario}"])
    return caught.value.faults


def scenario_of(*arguments: str, file: Path | None = None) -> Any:
    return load_config(arguments, file).federation.scenario


def test_one_mapping_is_a_list_of_one() -> None:
    expected = (LabelFlipEffect(rate=0.3),)
    for text in ("{kind: label_flip, rate: 0.3}", "[{kind: label_flip, rate: 0.3}]"):
        assert scenario_of(f"federation.scenario={text}") == expected
    assert scenario_of("federation.scenario.kind=label_flip", "federation.scenario.rate=0.3") == expected


@pytest.mark.parametrize("kind", EFFECTS)
def test_every_kind_survives_being_written_and_read(kind: str) -> None:
    required = {"std": 0.5, "share": 0.5, "mean_seconds": 2, "probability": 0.1, "rate": 0.1, "factor": 2}
    required |= {"seconds_per_step": 1, "quality": 50}
    own = {name: value for name, value in required.items() if name in EFFECTS[kind].model_fields}
    for clients in ("all", [0, 3], 1.0, None):
        text = json.dumps({"kind": kind, "clients": clients, **own})
        config = load_config([f"federation.scenario={text}"])
        assert StudyConfig.model_validate(json.loads(config.model_dump_json())) == config
        assert StudyConfig.model_validate(config.model_dump()) == config
        assert config.digest() != StudyConfig().digest()


def test_the_digest_depends_on_every_key_and_on_the_order_of_effects_but_not_of_clients() -> None:
    texts = [
        "[{kind: poisoning}, {kind: feature_noise, std: 1}]",
        "[{kind: feature_noise, std: 1}, {kind: poisoning}]",
        "[{kind: feature_noise, std: 1.5}, {kind: poisoning}]",
        "[{kind: feature_noise, std: 1.5}, {kind: poisoning, clients: [0, 1]}]",
    ]
    digests = [load_config([f"federation.scenario={text}"]).digest() for text in texts]
    assert len(set(digests)) == len(texts)
    turned = load_config(["federation.scenario=" + texts[3].replace("[0, 1]", "[1, 0]")])
    assert turned.digest() == digests[3]


@pytest.mark.parametrize(
    ("scenario", "place", "named"),
    [
        ("[]", "", "at least one"),
        ("poisoning", "", "iid, label_skew"),
        ("[poisoning]", ".0", "got 'poisoning'"),
        ("{rate: 1}", ".0.kind", "feature_noise, label_flip"),
        ("{kind: flood}", ".0.kind", "feature_noise, label_flip"),
        ("{kind: [1]}", ".0.kind", "feature_noise, label_flip"),
        ("{kind: feature_noise}", ".0.std", "feature_noise"),
        ("{kind: feature_noise, std: .inf}", ".0.std", "got inf"),
        ("{kind: label_flip}", ".0", "rate, or alpha and beta"),
        ("{kind: label_flip, rate: 1.5}", ".0.rate", "to 1, got 1.5"),
        ("{kind: label_flip, rate: 0.1, beta: 1}", ".0", "rate, or alpha and beta"),
        ("{kind: label_flip, rate: 0.1, rat: 1}", ".0", "kind, clients, num_clients, rate, alpha, beta, got 'rat'"),
        ("{kind: dropout, probability: 1}", ".0.probability", "than 1, got 1"),
        ("{kind: feature_drop, share: 0.1, value: max}", ".0.value", "'zero' or 'mean', got"),
        ("{kind: concept_shift, permutation: [0, 0]}", ".0.permutation", "each class"),
        ("{kind: concept_shift, permutation: [1, 0], share: 0.5}", ".0", "shared and share"),
        *(
            (f"{{kind: poisoning, clients: {c}}}", ".0.clients", "list")
            for c in ("2", "true", "0.0", "1.5", "[]", "[-1]")
        ),
        ("{kind: poisoning, clients: [1, 1]}", ".0.clients", "got [1, 1]"),
        ("{kind: poisoning, num_clients: 0}", ".0.num_clients", "to 1, got 0"),
        ("{kind: poisoning, clients: all, num_clients: 2}", ".0", "num_clients"),
    ],
)
def test_a_mistake_is_one_line_at_its_place(scenario: str, place: str, named: str) -> None:
    (found,) = faults(scenario)
    assert found.startswith(f"federation.scenario{place} ")
    assert named in found
    assert "\n" not in found


def test_all_mistakes_are_told_at_once_with_their_places() -> None:
    found = faults("[{kind: label_flip, rate: 2, clients: x}, {kind: flood}, {kind: dropout}, 7]")
    places = [fault.split(" ")[0].removeprefix("federation.scenario.") for fault in found]
    assert places == ["0.clients", "0.rate", "1.kind", "2.probability", "3"]
