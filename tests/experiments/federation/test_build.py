"""From configuration to federation, with the data that come with scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedscout.detectors import DetectionConfig
from fedscout.engine.data.client import Privacy, Release
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.data.dataset import Dataset
from fedscout.experiments.data.loaders.table import DATASETS
from fedscout.experiments.federation import build_federation, data_digest, draw_unseen
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.partitions.table import PARTITIONS
from fedscout.experiments.scenarios.table import SCENARIOS
from tests.kits.refusals import refused


def build(config: FederationConfig | None = None) -> Federation:
    return build_federation(config or FederationConfig(), ModelConfig())


def own_rows(federation: Federation, client: int, view: str = "own") -> tuple[np.ndarray, np.ndarray]:
    rows = getattr(federation.client_data(client), view)
    return rows.take(np.arange(len(rows)))


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
        own, clean = own_rows(federation, client), own_rows(federation, client, "clean")
        differs = any((left != right).any() for left, right in zip(own, clean, strict=True))
        assert differs == (client in federation.transforms) == federation.client_data(client).corrupted
        rows = federation.partition.client(client)
        np.testing.assert_array_equal(clean[0], federation.features[rows])
        np.testing.assert_array_equal(clean[1], federation.labels[rows])


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


# The federation's configuration: defaults that make the demo, and contradictions that are refused.


COUNTS = [[[5, 1], [3]], [[-1]], [[1.5]], [[True]], [], [[]], [5], "", 7, [["5"]]]
PUBLISHED = [{"kind": "dirichlet"}, {"kind": "iid"}, {"kind": "natural"}, {"alpha": 0.5}]


@pytest.mark.parametrize(
    ("partition", "others", "named"),
    [
        ({"kind": "iid", "alpha": 0.5}, {}, r"kind=iid .*alpha=0.5"),
        ({"class_share": 0.2}, {}, r"kind=dirichlet .*alpha, min_size.*class_share=0.2"),
        ({"kind": "natural", "min_size": 6}, {}, r"kind=natural .*min_size=6"),
        *(({"kind": "counts", "counts": counts}, {}, r"partition\.counts") for counts in COUNTS),
        *((given, {"scenario": "label_skew"}, "with scenario=label_skew") for given in PUBLISHED),
    ],
)
def test_settings_of_a_partition_that_do_not_fit_are_refused(
    partition: dict[str, Any], others: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValidationError, match=named):
        FederationConfig.model_validate({"partition": partition, **others})


def test_all_faults_are_reported_at_once() -> None:
    given = {
        "dataset": "no_such_data",
        "scenario": "flood",
        "partition": {"kind": "pie", "alpha": -1},
        "seed": -1,
        "clients": 4,
    }
    with pytest.raises(ValidationError) as caught:
        FederationConfig.model_validate(given)
    places = {".".join(map(str, error["loc"])) for error in caught.value.errors()}
    assert places == {"dataset", "scenario", "partition.kind", "partition.alpha", "seed", "clients"}
    text = str(caught.value)
    assert all(name in text for name in (*DATASETS, *SCENARIOS, *PARTITIONS))


@pytest.mark.parametrize("scenario", [None, "label_skew"])
@pytest.mark.parametrize("unseen", [-1, 4, 5])
def test_unseen_clients_leave_one_to_train(scenario: str | None, unseen: int) -> None:
    assert FederationConfig(num_clients=4, scenario=scenario, unseen_clients=3).num_seen == 1
    with pytest.raises(ValidationError, match="unseen_clients") as caught:
        FederationConfig(num_clients=4, scenario=scenario, unseen_clients=unseen)
    assert (f"of 4 clients to train, got {unseen}" in str(caught.value)) == (unseen > 0)


# Who joins after the training.


def test_so_many_are_drawn_by_the_seed_and_more_hold_the_fewer() -> None:
    draws = [draw_unseen(FederationConfig(unseen_clients=count), 10) for count in range(10)]
    assert [len(draw) for draw in draws] == list(range(10))
    assert all(fewer < more for fewer, more in pairwise(draws))
    assert set().union(*(draw_unseen(FederationConfig(unseen_clients=1, seed=seed), 10) for seed in range(99))) == {
        *range(10)
    }


@pytest.mark.parametrize("given", [{"dataset": "wine"}, {"dataset": "cartpole"}])
def test_the_federation_is_otherwise_the_same(given: dict[str, Any]) -> None:
    config = FederationConfig(**given, num_clients=5)
    plain = build_federation(config, ModelConfig())
    held = build_federation(config.model_copy(update={"unseen_clients": 2}), ModelConfig())
    assert (plain.num_clients, plain.num_seen, plain.unseen) == (5, 5, frozenset())
    assert (held.num_clients, held.num_seen, len(held.unseen)) == (5, 3, 2)
    assert np.array_equal(plain.partition.rows, held.partition.rows)
    assert plain.facts == held.facts


def test_none_left_of_natural_clients_is_refused() -> None:
    """Whose number only the data tell."""
    rows = np.arange(30, dtype=np.float32).reshape(30, 1)
    natural = Dataset("own", rows, np.arange(30) % 2, ("a", "b"), ("x",), "here", 1.0, np.repeat(["k", "l", "m"], 10))
    config = FederationConfig.model_validate({"partition": {"kind": "natural"}, "unseen_clients": 3})
    with refused(ConfigurationError, key="federation.unseen_clients", given="3"):
        build_federation(config, ModelConfig(), dataset=natural)
