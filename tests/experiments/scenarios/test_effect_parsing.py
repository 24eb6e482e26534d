"""Effects in the configuration: how they are written, which mistakes are told, and that they survive being written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.scenarios.labels import LabelFlipEffect
from fedscout.experiments.scenarios.table import EFFECTS


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


def test_a_file_and_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "federation:\n  partition: {kind: iid}\n  scenario:\n"
        "    - {kind: feature_noise, clients: [2], mean: 1, std: 0.5}\n"
        "    - {kind: label_flip, clients: 0.3, rate: 0.2}\n"
    )
    noise, flips = scenario_of(file=file)
    assert (noise.kind, noise.clients, noise.mean, noise.std) == ("feature_noise", (2,), 1.0, 0.5)
    assert (flips.kind, flips.clients, flips.rate) == ("label_flip", 0.3, 0.2)
    assert load_config([], file).federation.partition.kind == "iid"


def test_beside_effects_the_partition_is_as_without() -> None:
    config = load_config(["federation.scenario={kind: poisoning}"]).federation
    assert (config.partition.kind, config.num_clients) == ("dirichlet", 10)


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
        ("5", "", "iid, label_skew"),
        ("[poisoning]", ".0", "got 'poisoning'"),
        ("{rate: 1}", ".0.kind", "feature_noise, label_flip"),
        ("{kind: flood}", ".0.kind", "feature_noise, label_flip"),
        ("{kind: [1]}", ".0.kind", "feature_noise, label_flip"),
        ("{kind: feature_noise}", ".0.std", "feature_noise"),
        ("{kind: feature_noise, std: -1}", ".0.std", "to 0, got -1"),
        ("{kind: feature_noise, std: .inf}", ".0.std", "got inf"),
        ("{kind: label_flip}", ".0", "rate, or alpha and beta"),
        ("{kind: label_flip, rate: 1.5}", ".0.rate", "to 1, got 1.5"),
        ("{kind: label_flip, alpha: 1}", ".0", "rate, or alpha and beta"),
        ("{kind: label_flip, rate: 0.1, beta: 1}", ".0", "rate, or alpha and beta"),
        ("{kind: label_flip, rate: 0.1, rat: 1}", ".0", "kind, clients, num_clients, rate, alpha, beta, got 'rat'"),
        ("{kind: sign_flip, factor: 0}", ".0.factor", "than 0, got 0"),
        ("{kind: scaled_update, factor: -2}", ".0.factor", "than 0, got -2"),
        ("{kind: gaussian_update, std: -1}", ".0.std", "to 0, got -1"),
        ("{kind: little_is_enough, z: -1}", ".0.z", "to 0, got -1"),
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


def test_mistakes_beside_the_scenario_are_told_as_well() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_config(["federation.scenario={kind: flood}", "federation.num_clients=0", "seed=-1"])
    assert len(caught.value.faults) == 3
