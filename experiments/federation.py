"""Construction of a federation from its configuration: data set, partition, scenario, model, unseen clients.

An environment gives a federation of reinforcement-learning clients. Their rows serve only as weights: every client has
the same number.

Unseen clients join after training. They are sampled by the federation's seed, so that all trials of a study leave out
the same ones, and not taken from the end, as partitions and natural clients are ordered by class or name. They are the
first of one permutation, so `federation.unseen_clients=3` leaves out those of `=2` and one more. The scenario may
affect some of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.data.client import Partition, Privacy, Release
from fedscout.engine.data.federation import Federation, SplitKind
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.seeds import stream
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.data.dataset import Dataset
from fedscout.experiments.data.loaders.table import load_dataset
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.models.request import ModelRequest
from fedscout.experiments.models.table import build_model, embedding_source
from fedscout.experiments.partitions.labels import PartitionRequest, PartitionResult
from fedscout.experiments.partitions.table import PARTITIONS
from fedscout.experiments.reinforcement import ENVIRONMENTS
from fedscout.experiments.scenarios.effects import EffectRequest, ScenarioPlan
from fedscout.experiments.scenarios.table import SCENARIOS, stack_effects
from fedscout.experiments.server_rows import sample_rows, with_server, without_small_clients


def draw_unseen(federation: FederationConfig, num_clients: int) -> frozenset[int]:
    """Return the unseen clients.

    Args:
        federation: Configuration with their number and the seed.
        num_clients: Number of all clients.

    Raises:
        ConfigurationError: If no client would be left to train.
    """
    if federation.unseen_clients >= num_clients:
        raise ConfigurationError.of(
            "federation.unseen_clients",
            f"leave at least one of {num_clients} clients to train",
            federation.unseen_clients,
        )
    order = stream(federation.seed, "unseen-clients").permutation(num_clients)
    return frozenset(order[: federation.unseen_clients].tolist())


ROWS_A_CLIENT = 10


def build_reinforcement_federation(federation: FederationConfig, model: ModelConfig) -> Federation:
    """Return the federation of a reinforcement-learning environment.

    Raises:
        ConfigurationError: If a value of the configuration is wrong, or has no meaning without rows.
    """
    _check_no_row_settings(federation)
    num_clients = federation.num_clients
    assert num_clients is not None
    environment = ENVIRONMENTS[federation.dataset]
    task = environment.build(num_clients, federation.physics)
    settings = model.model_copy(update={"kind": "dqn"}) if model.kind == "auto" else model
    factory = build_model(ModelRequest(environment.feature_shape, len(environment.action_names), settings))
    num_rows = num_clients * ROWS_A_CLIENT
    partition = Partition(np.arange(num_rows), np.arange(num_clients + 1) * ROWS_A_CLIENT)
    plan = _scenario(federation, partition, environment.feature_shape)
    changed = len(task.affected_clients)
    return Federation(
        name=f"{federation.dataset}, {num_clients} clients" + (f", {changed} with other physics" if changed else ""),
        features=np.zeros((num_rows, *environment.feature_shape), np.float32),
        labels=np.zeros(num_rows, np.int64),
        num_classes=len(environment.action_names),
        partition=partition,
        model=factory,
        seed=federation.seed,
        affected_clients=tuple(sorted({*task.affected_clients, *plan.affected_clients})),
        release=Release(federation.min_release),
        class_names=environment.action_names,
        facts={
            "model": str(factory),
            "score_name": environment.score_name,
            "largest_score": environment.largest_score,
            **environment.facts,
            **plan.facts,
        },
        dropout=plan.dropout,
        devices=plan.devices,
        attacks=plan.attacks,
        task=task,
        unseen=draw_unseen(federation, num_clients),
    )


def _check_no_row_settings(federation: FederationConfig) -> None:
    """Check that no setting about rows is given."""
    usual = FederationConfig(dataset=federation.dataset)
    of_rows = ("label", "client_column", "group_column", "split", "text_column", "folder", "server_rows")
    given_settings = [
        f"federation.{name}={given}"
        for name in (*of_rows, "server_dataset", "small_clients")
        if (given := getattr(federation, name)) != getattr(usual, name)
    ]
    if federation.partition != usual.partition:
        given_settings.append("federation.partition")
    if isinstance(federation.scenario, str):
        given_settings.append(f"federation.scenario={federation.scenario}")
    if given_settings:
        raise ConfigurationError.of(
            f"federation.dataset={federation.dataset} has no rows, so these",
            f"be left out: {', '.join(given_settings)}",
            hint="federation.physics makes clients differ",
        )


def _scenario(federation: FederationConfig, partition: Partition, feature_shape: tuple[int, ...]) -> ScenarioPlan:
    """Return the dropout, devices and attacks of a scenario; effects on rows are rejected."""
    if not federation.scenario or isinstance(federation.scenario, str):
        return ScenarioPlan()
    labels = np.zeros(len(partition.rows), np.int64)
    request = EffectRequest(partition, labels, 1, feature_shape, federation.seed)
    changes_partition = any(effect.changes_partition for effect in federation.scenario)
    plan = ScenarioPlan() if changes_partition else stack_effects(federation.scenario, request)
    if changes_partition or plan.transforms:
        kinds = ", ".join(effect.kind for effect in federation.scenario)
        raise ConfigurationError.of(
            "federation.scenario",
            "hold only latency, devices, dropout and attacks on updates with "
            f"federation.dataset={federation.dataset}, which has no rows",
            kinds,
        )
    if any(attack.colluders for attacks in plan.attacks.values() for attack in attacks):
        raise ConfigurationError.of(
            "federation.scenario",
            f"not include little_is_enough with federation.dataset={federation.dataset}: its clients "
            "learn from their replay buffers, which colluding attackers can't read",
        )
    return plan


def build_federation(
    federation: FederationConfig, model: ModelConfig, privacy: Privacy | None = None, dataset: Dataset | None = None
) -> Federation:
    """Return the federation that a configuration describes. Equal arguments and files give equal federations.

    Args:
        federation: Data set, partition and scenario. Its seed determines partition and corruption.
        model: Model of the clients.
        privacy: Privacy guarantee for queries; None for none.
        dataset: Loaded data set; None loads the configured one.

    Raises:
        ConfigurationError: If a value of the configuration is wrong.
        DataError: If the data can't be read or partitioned as configured.
    """
    if federation.dataset in ENVIRONMENTS:
        return build_reinforcement_federation(federation, model)
    dataset = dataset or load_dataset(federation)
    if dataset.targets is not None and federation.server_rows is not None:
        raise ConfigurationError.of(
            "federation.server_rows",
            "be left out for regression: all methods that use the server's rows need classes",
            federation.server_rows,
        )
    dataset = without_small_clients(dataset, federation.min_client_rows)
    dataset = sample_rows(dataset, federation.max_rows, stream(federation.seed, "rows"))
    dataset, server = with_server(dataset, federation)
    shape = dataset.features.shape[1:]
    quantity = dataset.targets is not None
    num_outputs = 1 if quantity else dataset.num_classes
    request = ModelRequest(shape, num_outputs, model, dataset.kind, dataset.vocabulary_size, quantity)
    factory = build_model(request)
    deal, plan = _deal_and_plan(federation, dataset)
    sizes = deal.partition.sizes
    if federation.min_release > sizes.max():
        raise ConfigurationError.of(
            "federation.min_release",
            f"be at most {sizes.max()}, the rows of the largest of {len(sizes)} clients",
            federation.min_release,
            "otherwise no client could answer a query",
        )
    is_held = np.zeros(dataset.num_rows, np.bool_)
    is_held[deal.partition.rows] = True  # a partition may give a row to several clients
    num_used = int(np.count_nonzero(is_held))
    return Federation(
        name=f"{dataset.name}, {_partition_text(federation)}, {deal.partition.num_clients} clients",
        features=dataset.features,
        labels=dataset.labels,
        num_classes=dataset.num_classes,
        partition=deal.partition,
        model=factory,
        transforms=plan.transforms,
        embedding=embedding_source(federation.embedding, request, factory),
        dropout=plan.dropout,
        devices=plan.devices,
        attacks=plan.attacks,
        seed=federation.seed,
        affected_clients=plan.affected_clients,
        server=server,
        release=Release(federation.min_release, federation.small_clients, privacy),
        feature_names=dataset.feature_names,
        class_names=dataset.class_names,
        groups=dataset.groups,
        split=federation.split_kind,
        targets=dataset.targets,
        target_name=str(dataset.facts.get("label", "the target")) if quantity else "",
        reading={
            "kind": dataset.kind,
            "feature_shape": shape,
            "feature_names": dataset.feature_names,
            "vocabulary_size": dataset.vocabulary_size,
            "encoding": dataset.encoding,
        },
        unseen=draw_unseen(federation, deal.partition.num_clients),
        facts={
            **dataset.facts,
            **deal.facts,
            **plan.facts,
            **_dependence(dataset, federation.split_kind),
            "source": dataset.source,
            "feature_unit": dataset.feature_unit,
            "data_kind": dataset.kind,
            "model": str(factory),
            "num_rows_assigned": num_used,
            "num_rows_unassigned": dataset.num_rows - num_used,
            "smallest_client": int(sizes.min()),
            "largest_client": int(sizes.max()),
            "num_clients_below_min_release": int(np.count_nonzero(sizes < federation.min_release)),
        },
    )


def built_study(config: StudyConfig, federation: Federation | None = None) -> tuple[StudyConfig, Federation]:
    """Return a study's configuration with the task that is found in the data, and its federation.

    Args:
        config: Configuration of the study.
        federation: The federation if it is built already; None builds it.

    Raises:
        UserError: As for `build_federation`.
    """
    built = federation or build_federation(config.federation, config.model, config.detection.privacy)
    return config.with_task(built.targets is not None), built


def _dependence(dataset: Dataset, split: SplitKind) -> dict[str, Any]:
    """Return facts on rows that depend on each other; empty if none are known."""
    facts: dict[str, Any] = {"series": dataset.series} if dataset.series else {}
    if dataset.groups is not None:
        facts["num_groups"] = int(np.count_nonzero(np.bincount(dataset.groups)))
    return {**facts, **({} if split == "random" else {"split": split})}


def _deal_and_plan(federation: FederationConfig, dataset: Dataset) -> tuple[PartitionResult, ScenarioPlan]:
    """Return the partition and the scenario plan."""
    partition_request = PartitionRequest(
        labels=dataset.labels,
        num_clients=federation.num_clients,
        generator=stream(federation.seed, "partition"),
        settings=federation.partition,
        features=dataset.features,
        deviations=dataset.deviations,
        client_ids=dataset.client_ids,
        data_kind=dataset.kind,
    )
    scenario = federation.scenario
    dealer = SCENARIOS[scenario] if isinstance(scenario, str) else PARTITIONS[str(federation.partition.kind)]
    deal = dealer.deal(partition_request)
    request = EffectRequest(
        partition=deal.partition,
        labels=dataset.labels,
        num_classes=dataset.num_classes,
        feature_shape=dataset.features.shape[1:],
        seed=federation.seed,
        data_kind=dataset.kind,
        feature_unit=dataset.feature_unit,
        predicts_quantity=dataset.targets is not None,
    )
    if isinstance(scenario, str):
        plan = SCENARIOS[scenario].plan(deal, request)
    else:
        plan = stack_effects(scenario, request) if scenario else ScenarioPlan()
    return deal if plan.partition is None else replace(deal, partition=plan.partition), plan


def _partition_text(federation: FederationConfig) -> str:
    if isinstance(federation.scenario, str):
        return f"scenario {federation.scenario}"
    alpha = f" {federation.partition.alpha:g}" if federation.partition.kind == "dirichlet" else ""
    effects = " + ".join(effect.kind for effect in federation.scenario or ())
    return f"{federation.partition.kind}{alpha}" + (f" with {effects}" if effects else "")


def data_digest(federation: Federation) -> str:
    """Return the SHA-256 of the rows, their labels and the partition.

    Groups and regression targets are included where there are any. Corruption is determined by the configuration and
    these.
    """
    digest = hashlib.sha256()
    partition, server = federation.partition, federation.server
    arrays: list[npt.NDArray[Any] | None] = [federation.features, federation.labels, partition.rows, partition.offsets]
    if server is not None:
        arrays += [server.features, server.labels]
    arrays += [federation.groups, federation.targets]
    for array in arrays:
        if array is not None:
            digest.update(f"{array.dtype} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
