"""The federation's configuration: defaults that make the demo, and contradictions that are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fedscout.experiments.data.loaders.table import DATASETS
from fedscout.experiments.federation_config import FederationConfig, ModelConfig, PartitionConfig
from fedscout.experiments.models.table import MODELS
from fedscout.experiments.partitions.table import PARTITIONS
from fedscout.experiments.scenarios.table import SCENARIOS


def test_defaults_are_the_demo() -> None:
    config = FederationConfig()
    assert (config.dataset, config.num_clients, config.seed, config.min_release) == ("digits", 10, 0, 5)
    assert config.partition == PartitionConfig(kind="dirichlet", alpha=0.1, min_size=5)
    assert config.scenario is None
    assert ModelConfig() == ModelConfig(kind="auto", hidden=None)


def test_alpha_alone_is_of_the_default_partition() -> None:
    assert FederationConfig(partition=PartitionConfig(alpha=2.0)).partition.kind == "dirichlet"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_alone_keeps_the_number_of_clients(scenario: str) -> None:
    config = FederationConfig(scenario=scenario)
    assert config.partition.kind is None
    assert config.num_clients == 10
    assert FederationConfig(scenario=scenario, num_clients=4).num_clients == 4


@pytest.mark.parametrize("partition", [{"kind": "dirichlet"}, {"kind": "iid"}, {"kind": "natural"}, {"alpha": 0.5}])
def test_scenario_beside_a_partition_is_refused(partition: dict[str, Any]) -> None:
    (key, value), *_ = partition.items()
    with pytest.raises(ValidationError, match=f"{key}={value} with scenario=label_skew"):
        FederationConfig.model_validate({"scenario": "label_skew", "partition": partition})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"scenario": "label_poisoning"},
        {"partition": {"kind": "natural"}, "client_column": "color", "dataset": "wine_quality"},
        {"partition": {"kind": "iid"}, "num_clients": 3, "folder": "/somewhere"},
        {"partition": {"kind": "counts", "counts": [[5, 0], [0, 5]]}},
        {"partition": {"kind": "counts", "counts": "counts.csv"}},
    ],
)
def test_reads_back_what_it_wrote(given: dict[str, Any]) -> None:
    config = FederationConfig.model_validate(given)
    assert FederationConfig.model_validate(config.model_dump()) == config
    assert FederationConfig.model_validate_json(config.model_dump_json()) == config


def test_natural_clients_are_counted_by_the_data_unless_given() -> None:
    natural = PartitionConfig(kind="natural")
    assert FederationConfig(partition=natural).num_clients is None
    assert FederationConfig(partition=natural, num_clients=10).num_clients == 10


def test_counts_fix_the_number_of_clients() -> None:
    counts = PartitionConfig(kind="counts", counts=((5, 5), (5, 5)))
    assert FederationConfig(partition=counts).num_clients is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"kind": "iid", "alpha": 0.5}, r"kind=iid .*alpha=0.5"),
        ({"class_share": 0.2}, r"kind=dirichlet .*alpha, min_size, self_balancing.*class_share=0.2"),
        ({"kind": "natural", "min_size": 6}, r"kind=natural .*min_size=6"),
    ],
)
def test_settings_that_the_kind_does_not_read_are_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        FederationConfig.model_validate({"partition": given})


@pytest.mark.parametrize("counts", [[[5, 1], [3]], [[-1]], [[1.5]], [[True]], [], [[]], [5], "", 7, [["5"]]])
def test_counts_must_be_a_matrix(counts: Any) -> None:
    with pytest.raises(ValidationError, match=r"partition\.counts"):
        FederationConfig.model_validate({"partition": {"kind": "counts", "counts": counts}})


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


@pytest.mark.parametrize(
    "given", [{"kind": "transformer"}, {"hidden": []}, {"hidden": [0]}, {"hidden": [64, "wide"]}, {"depth": 3}]
)
def test_model_faults(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ModelConfig.model_validate(given)


def test_values_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        FederationConfig().seed = 3  # type: ignore[misc]


def test_schemas_list_the_members() -> None:
    text = str(FederationConfig.model_json_schema()) + str(ModelConfig.model_json_schema())
    assert all(repr(name) in text for name in (*DATASETS, *SCENARIOS, *PARTITIONS, *MODELS))


@pytest.mark.parametrize("scenario", [None, "label_skew"])
@pytest.mark.parametrize("unseen", [-1, 4, 5])
def test_unseen_clients_leave_one_to_train(scenario: str | None, unseen: int) -> None:
    assert FederationConfig(num_clients=4, scenario=scenario, unseen_clients=3).num_seen == 1
    with pytest.raises(ValidationError, match="unseen_clients") as caught:
        FederationConfig(num_clients=4, scenario=scenario, unseen_clients=unseen)
    assert (f"of 4 clients to train, got {unseen}" in str(caught.value)) == (unseen > 0)
