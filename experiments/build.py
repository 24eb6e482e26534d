"""From the configuration to a federation: load, deal, corrupt, choose the model."""

from __future__ import annotations

import hashlib

import numpy as np

from engine.federation import Federation
from engine.seeds import stream
from experiments.datasets import Dataset, load_dataset
from experiments.federation_config import FederationConfig, ModelConfig
from experiments.models import ModelRequest, build_model
from experiments.partitions import PARTITIONS, PartitionRequest
from experiments.scenarios import SCENARIOS, ScenarioPlan, ScenarioRequest


def build_federation(federation: FederationConfig, model: ModelConfig) -> Federation:
    """Build the federation that a configuration describes. Equal arguments and files give equal federations.

    Args:
        federation: Which data, dealt how, corrupted in which way. Its seed fixes partition and corruption.
        model: What the clients train.

    Raises:
        ConfigurationError: If a value of the configuration is wrong.
        DataError: If the data can't be read, or can't be dealt as asked.
    """
    dataset = load_dataset(
        federation.dataset,
        federation.label,
        federation.client_column,
        federation.folder,
        federation.text_column,
        federation.min_release,
    )
    factory = build_model(
        ModelRequest(dataset.features.shape[1:], dataset.num_classes, model, dataset.kind, dataset.vocabulary_size)
    )
    plan = _plan(federation, dataset)
    sizes = plan.partition.sizes
    num_used = int(sizes.sum())
    return Federation(
        name=f"{dataset.name}, {_how_dealt(federation)}, {plan.partition.num_clients} clients",
        features=dataset.features,
        labels=dataset.labels,
        num_classes=dataset.num_classes,
        partition=plan.partition,
        model=factory,
        transforms=plan.transforms,
        seed=federation.seed,
        affected_clients=plan.affected_clients,
        min_release=federation.min_release,
        feature_names=dataset.feature_names,
        class_names=dataset.class_names,
        facts={
            **dataset.facts,
            **plan.facts,
            "source": dataset.source,
            "feature_unit": dataset.feature_unit,
            "num_rows_dealt": num_used,
            "num_rows_not_dealt": dataset.num_rows - num_used,
            "smallest_client": int(sizes.min()),
            "largest_client": int(sizes.max()),
            "num_clients_below_min_release": int(np.count_nonzero(sizes < federation.min_release)),
        },
    )


def _plan(federation: FederationConfig, dataset: Dataset) -> ScenarioPlan:
    generator = stream(federation.seed, "partition")
    if federation.scenario is not None:
        assert federation.num_clients is not None
        return SCENARIOS[federation.scenario](
            ScenarioRequest(
                labels=dataset.labels,
                num_classes=dataset.num_classes,
                num_clients=federation.num_clients,
                generator=generator,
                feature_unit=dataset.feature_unit,
            )
        )
    assert federation.partition.kind is not None
    deal = PARTITIONS[federation.partition.kind](
        PartitionRequest(
            labels=dataset.labels,
            num_clients=federation.num_clients,
            generator=generator,
            settings=federation.partition,
            features=dataset.features,
            deviations=dataset.deviations,
            client_ids=dataset.client_ids,
        )
    )
    return ScenarioPlan(deal.partition, facts=deal.facts)


def _how_dealt(federation: FederationConfig) -> str:
    if federation.scenario is not None:
        return f"scenario {federation.scenario}"
    if federation.partition.kind == "dirichlet":
        return f"dirichlet {federation.partition.alpha:g}"
    return f"{federation.partition.kind}"


def data_digest(federation: Federation) -> str:
    """Return the SHA-256 of the rows, their labels and who holds which: what a study rests on beside its configuration.

    Corruption follows from the configuration and these.
    """
    digest = hashlib.sha256()
    for array in (federation.features, federation.labels, federation.partition.rows, federation.partition.offsets):
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
