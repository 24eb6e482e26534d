"""Construction of a federation from its configuration: data set, partition, scenario, model, unseen clients.

An environment gives a federation of reinforcement-learning clients. Their rows serve only as weights: every client has
the same number.

Unseen clients join after training. They are sampled by the federation's seed, so that all trials of a study leave out
the same ones, and not taken from the end, as partitions and natural clients are ordered by class or name. They are the
first of one permutation, so `federation.unseen_clients=3` leaves out those of `=2` and one more. The scenario may
affect some of them.

Samples of a data set, and rows held by the server only.

Samples: a data set without its smallest natural clients, or a random sample of rows. Classes without a remaining row
are dropped and the others renumbered; the number of dropped ones is on record. Statistics computed by the loader
(standardisation, vocabulary) are those of all rows.

Server rows held out of the clients' data set are taken before partitioning, so that no client can hold one of them.
Classes have their shares of all rows: in a random order, the i-th of a class's n rows has rank (i − 1/2)/n, and the
rows of lowest rank are the server's (Webster's method of apportionment). The last row of each class stays with the
clients, so both sides have the same classes. For one seed, a smaller sample is a subset of a larger one. Rows of one
group (`federation.group_column`) stay together, as in a client's split: distilling on a patient's first visit would
leak information about the second. Groups are visited in a random order in which every stretch has its share of each
class, a group's class being its most frequent one, and taken as long as each brings the number of rows closer to the
requested one and leaves the clients a row of each class. If no group is small enough, the smallest admissible one is
taken. A row that occurs twice in the data set may be on both sides; `num_duplicate_rows` counts those.

Server rows from another data set, such as a public one with the same columns, are read like the clients' data, with
their label, dropped columns and limits. They must be of the same kind and shape and, for tables, have the same columns
in the same order. Labels are matched by class name; a class that the clients' data lack is rejected if the server keeps
labels, and a class that the server's data lack is accepted. Each side is scaled by its own rows: a table is
standardised by its own means and deviations, pixels have the scale of images. So no information about the clients' rows
reaches the server, but an overall shift or another spread of the server's columns is removed; and few rows yield an
imprecise scale. Token numbers depend on each data set's own vocabulary, so tokens are rejected. There is no check that
clients do not hold these rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Partition, Privacy, Release
from fedscout.engine.data.federation import Federation, ServerData, SplitKind, spread_over_classes
from fedscout.engine.errors import ConfigurationError, DataError, UserError
from fedscout.engine.seeds import stream
from fedscout.engine.text import listed
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.data.dataset import Dataset, distinct_texts, duplicate_rows, present_classes
from fedscout.experiments.data.loaders.table import load_dataset
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.models.request import ModelRequest
from fedscout.experiments.models.table import build_model, embedding_source
from fedscout.experiments.partitions.labels import PartitionRequest, PartitionResult
from fedscout.experiments.partitions.table import PARTITIONS
from fedscout.experiments.reinforcement import ENVIRONMENTS
from fedscout.experiments.scenarios.effects import EffectRequest, ScenarioPlan
from fedscout.experiments.scenarios.table import SCENARIOS, stack_effects


def without_small_clients(dataset: Dataset, min_client_rows: int) -> Dataset:
    """Return a data set without the natural clients that have too few rows; unchanged if there are none.

    Args:
        dataset: All rows.
        min_client_rows: Minimum number of rows of a client to keep.

    Raises:
        DataError: If it exceeds one and there are no natural clients, or no client has enough rows.
    """
    if min_client_rows <= 1:
        return dataset
    if dataset.client_ids is None:
        raise DataError.of(
            "federation.min_client_rows",
            f"be left out, as data set {dataset.name!r} has no natural clients or "
            "federation.client_column does not name them",
            min_client_rows,
        )
    names, owners = distinct_texts(dataset.client_ids)
    sizes = np.bincount(owners)
    large = sizes >= min_client_rows
    if not large.any():
        raise DataError.of(
            "federation.min_client_rows",
            f"be at most {sizes.max()}, the rows of the largest client of data set {dataset.name!r}",
            min_client_rows,
        )
    if large.all():
        return dataset
    rows = np.flatnonzero(large[owners])
    return taken(
        dataset,
        rows,
        num_small_clients_left_out=len(names) - int(np.count_nonzero(large)),
        num_rows_of_small_clients=dataset.num_rows - len(rows),
    )


def sample_rows(dataset: Dataset, max_rows: int | None, generator: np.random.Generator) -> Dataset:
    """Return a data set of at most `max_rows` rows; unchanged if it has no more, or `max_rows` is None.

    Rows are drawn uniformly, regardless of labels and natural clients, and stay in order. For one seed, a smaller
    sample is a subset of a larger one.

    Args:
        dataset: All rows.
        max_rows: Maximum number of rows, >= 2.
        generator: Draws them.

    Raises:
        DataError: If rows of fewer than two classes were drawn.
    """
    if max_rows is None or dataset.num_rows <= max_rows:
        return dataset
    rows = np.sort(generator.permutation(dataset.num_rows)[:max_rows])
    return taken(dataset, rows, num_rows_not_sampled=dataset.num_rows - max_rows)


def taken(dataset: Dataset, rows: IntArray, **facts: int) -> Dataset:
    """Return a data set of selected rows, with additional facts.

    Args:
        dataset: All rows.
        rows: Rows to keep, in order.
        facts: Facts to record.

    Raises:
        DataError: If they are of fewer than two classes.
    """
    labels, class_names = present_classes(dataset.name, dataset.labels[rows], dataset.class_names)
    features = dataset.features[rows]
    lost = dataset.facts.get("num_classes_left_out", 0) + dataset.num_classes - len(class_names)
    return replace(
        dataset,
        features=features,
        labels=labels,
        class_names=class_names,
        client_ids=None if dataset.client_ids is None else dataset.client_ids[rows],
        groups=None if dataset.groups is None else dataset.groups[rows],
        targets=None if dataset.targets is None else dataset.targets[rows],
        facts={
            **dataset.facts,
            "num_rows": len(rows),
            "num_duplicate_rows": duplicate_rows(features, labels),
            "num_classes_left_out": lost,
            **facts,
        },
    )


ROWS_KEY = "federation.server_rows"


def without_server_rows(
    dataset: Dataset, amount: float | None, labelled: bool, generator: np.random.Generator
) -> tuple[Dataset, ServerData | None]:
    """Return the clients' part of a data set and the server's; all and None if `amount` is None.

    Args:
        dataset: All rows.
        amount: A number of rows, >= 1, or a share of all, in (0, 1), rounded to at least one row; met as closely as
            whole groups allow.
        labelled: Whether the server keeps their labels.
        generator: Draws them.

    Raises:
        DataError: If the clients would be left without a row of each class.
    """
    if amount is None:
        return dataset, None
    num_rows = _number(amount, dataset)
    max_server_rows = dataset.num_rows - dataset.num_classes
    if num_rows > max_server_rows:
        raise DataError.of(
            ROWS_KEY,
            f"be at most {max_server_rows} of the {dataset.num_rows} rows of data set {dataset.name!r}, to "
            f"leave the clients a row of each class",
            num_rows,
        )
    if dataset.groups is None:
        drawn = stratified(dataset.labels, num_rows, generator)
    else:
        drawn = _whole_groups(dataset, dataset.groups, num_rows, generator)
    is_server = np.zeros(dataset.num_rows, np.bool_)
    is_server[drawn] = True
    server = ServerData(dataset.features[is_server], dataset.labels[is_server] if labelled else None)
    facts = {"num_server_rows": server.num_rows, "server_labels": labelled}
    clients = taken(dataset, np.flatnonzero(~is_server))
    return replace(clients, facts={**clients.facts, **facts}), server


def _number(amount: float, dataset: Dataset) -> int:
    return max(1, round(amount * dataset.num_rows)) if amount < 1 else int(amount)


def stratified(labels: IntArray, num_rows: int, generator: np.random.Generator) -> IntArray:
    """Return rows drawn in proportion to the classes, each class's last row after all others, shape `(num_rows,)`."""
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    sizes = np.repeat(counts, counts)
    ranks = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    sort_keys = np.where(ranks + 1 < sizes, (ranks + 0.5) / sizes, np.inf)
    return order[np.argsort(sort_keys, kind="stable")[:num_rows]]


def _whole_groups(dataset: Dataset, groups: IntArray, wanted: int, generator: np.random.Generator) -> IntArray:
    """Return the rows of drawn groups, about as many as requested, never all rows of a class.

    Raises:
        DataError: If every group holds all rows of some class.
    """
    _, members = np.unique(groups, return_inverse=True)
    counts_by_group = np.zeros((members.max() + 1, dataset.num_classes), np.int64)
    np.add.at(counts_by_group, (members, dataset.labels), 1)
    sizes, client_counts = counts_by_group.sum(axis=1), counts_by_group.sum(axis=0)
    admissible = np.flatnonzero((counts_by_group < client_counts).all(axis=1))
    if not len(admissible):
        raise DataError.of(
            ROWS_KEY,
            f"leave the clients a row of each class of data set {dataset.name!r}, but each of its "
            f"{len(sizes)} groups (federation.group_column) holds all rows of some class",
        )
    drawn: list[int] = []
    for group in spread_over_classes(counts_by_group.argmax(axis=1), generator):
        num_missing = wanted - sizes[drawn].sum()
        if abs(num_missing - sizes[group]) < abs(num_missing) and (counts_by_group[group] < client_counts).all():
            drawn.append(group)
            client_counts = client_counts - counts_by_group[group]
    return np.flatnonzero(np.isin(members, drawn or [admissible[np.argmin(sizes[admissible])]]))


DATASET_KEY = "federation.server_dataset"
OF_THE_CLIENTS: dict[str, object] = {
    "client_column": None,
    "group_column": None,
    "split": None,
    "min_client_rows": 1,
    "max_rows": None,
}
"""Settings that apply only to the clients' data, at their defaults."""


def with_server(dataset: Dataset, federation: FederationConfig) -> tuple[Dataset, ServerData | None]:
    """Return the data set without the server's rows but with facts on them, and the server's data.

    Raises:
        DataError: If another data set can't be read, or the rows do not suffice.
    """
    generator = stream(federation.seed, "server-rows")
    num_rows, labelled, name = federation.server_rows, federation.server_labels, federation.server_dataset
    if name is None:
        return without_server_rows(dataset, num_rows, labelled, generator)
    try:
        other = load_dataset(federation.model_copy(update={**OF_THE_CLIENTS, "dataset": name}))
    except UserError as error:
        raise DataError([f"{DATASET_KEY}={name} can't be read: {fault}" for fault in error.faults]) from error
    server = rows_of_another(dataset, other, num_rows, labelled, generator)
    facts: dict[str, Any] = {"num_server_rows": server.num_rows, "server_labels": labelled}
    facts |= {"server_dataset": other.name, "server_source": other.source}
    return replace(dataset, facts={**dataset.facts, **facts}), server


def rows_of_another(
    clients: Dataset, other: Dataset, amount: float | None, labelled: bool, generator: np.random.Generator
) -> ServerData:
    """Return server rows drawn from another data set than the clients'.

    Args:
        clients: Data set of the clients, with all rows that any of them holds.
        other: Data set of the server.
        amount: A number of its rows, a share in (0, 1) of them, or None for all; drawn in proportion to the classes.
        labelled: Whether the server keeps labels.
        generator: Draws them.

    Raises:
        DataError: If its rows are incompatible with those of the clients, or there are too few.
    """
    _check_rows(clients, other)
    labels = _labels_by_client_class(clients, other) if labelled else None
    num_rows = other.num_rows if amount is None else _number(amount, other)
    if num_rows > other.num_rows:
        raise DataError.of(
            "federation.server_rows", f"be at most the {other.num_rows} rows of {DATASET_KEY}={other.name}", num_rows
        )
    rows = np.sort(stratified(other.labels, num_rows, generator))
    return ServerData(other.features[rows], None if labels is None else labels[rows])


def _check_rows(clients: Dataset, other: Dataset) -> None:
    if "tokens" in (clients.kind, other.kind):
        raise DataError.of(
            DATASET_KEY, "be left out for tokens, whose numbers denote other words there", repr(other.name)
        )
    expected, received = _row_text(clients), _row_text(other)
    pairs = zip(clients.feature_names, other.feature_names, strict=False)
    if differing := next((pair for pair in pairs if pair[0] != pair[1]), None):
        expected, received = (
            f"{text} with column {name!r}" for text, name in zip((expected, received), differing, strict=True)
        )
    if expected != received:
        must = f"hold rows like those of data set {clients.name!r}, which are {expected}"
        raise DataError.of(DATASET_KEY, must, f"{received} of {other.name!r}")


def _row_text(dataset: Dataset) -> str:
    shape = " x ".join(map(str, dataset.features.shape[1:]))
    return f"{dataset.kind} of {shape} numbers"


def _labels_by_client_class(clients: Dataset, other: Dataset) -> IntArray:
    """Return the labels of the server's rows, numbered by the clients' classes."""
    numbers = {name: number for number, name in enumerate(clients.class_names)}
    if unknown := [name for name in other.class_names if name not in numbers]:
        must = f"hold no other classes than data set {clients.name!r} where federation.server_labels=true"
        raise DataError.of(DATASET_KEY, must, f"{listed(unknown)} of {other.name!r}")
    return np.array([numbers[name] for name in other.class_names], np.int64)[other.labels]


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
    request = EffectRequest(
        partition, np.zeros(num_rows, np.int64), 1, environment.feature_shape, federation.seed, has_rows=False
    )
    assert not isinstance(federation.scenario, str)
    plan = stack_effects(federation.scenario or (), request)
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
    of_rows = ("label", "client_column", "group_column", "split", "text_column", "folder", "server_rows", "max_rows")
    given_settings = [
        f"federation.{name}={given}"
        for name in (*of_rows, "server_dataset", "small_clients", "min_client_rows", "drop_columns", "embedding")
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
    for name in ("server_rows", "server_dataset"):
        if dataset.targets is not None and (given := getattr(federation, name)) is not None:
            must = "be left out for regression: all methods that use the server's rows need classes"
            raise ConfigurationError.of(f"federation.{name}", must, given)
    dataset = without_small_clients(dataset, federation.min_client_rows)
    dataset = sample_rows(dataset, federation.max_rows, stream(federation.seed, "rows"))
    dataset, server = with_server(dataset, federation)
    shape = dataset.features.shape[1:]
    quantity = dataset.targets is not None
    num_outputs = 1 if quantity else dataset.num_classes
    request = ModelRequest(shape, num_outputs, model, dataset.kind, dataset.vocabulary_size, quantity)
    factory = build_model(request)
    partitioned, plan = _partition_and_plan(federation, dataset)
    sizes = partitioned.partition.sizes
    if federation.min_release > sizes.max():
        raise ConfigurationError.of(
            "federation.min_release",
            f"be at most {sizes.max()}, the rows of the largest of {len(sizes)} clients",
            federation.min_release,
            "otherwise no client could answer a query",
        )
    is_held = np.zeros(dataset.num_rows, np.bool_)
    is_held[partitioned.partition.rows] = True  # a partition may give a row to several clients
    num_used = int(np.count_nonzero(is_held))
    return Federation(
        name=f"{dataset.name}, {_partition_text(federation)}, {partitioned.partition.num_clients} clients",
        features=dataset.features,
        labels=dataset.labels,
        num_classes=dataset.num_classes,
        partition=partitioned.partition,
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
        unseen=draw_unseen(federation, partitioned.partition.num_clients),
        facts={
            **dataset.facts,
            **partitioned.facts,
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


def _partition_and_plan(federation: FederationConfig, dataset: Dataset) -> tuple[PartitionResult, ScenarioPlan]:
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
    entry = SCENARIOS[scenario] if isinstance(scenario, str) else PARTITIONS[str(federation.partition.kind)]
    partitioned = entry.partition(partition_request)
    request = EffectRequest(
        partition=partitioned.partition,
        labels=dataset.labels,
        num_classes=dataset.num_classes,
        feature_shape=dataset.features.shape[1:],
        seed=federation.seed,
        data_kind=dataset.kind,
        feature_unit=dataset.feature_unit,
        predicts_quantity=dataset.targets is not None,
    )
    if isinstance(scenario, str):
        plan = SCENARIOS[scenario].plan(partitioned, request)
    else:
        plan = stack_effects(scenario, request) if scenario else ScenarioPlan()
    return partitioned if plan.partition is None else replace(partitioned, partition=plan.partition), plan


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
