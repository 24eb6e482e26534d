"""From the configuration to a federation whose clients play episodes.

Rows only count here: every client holds as many, so that all weigh the same.
"""

from __future__ import annotations

import numpy as np

from fedscout.engine.data.client_data import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.data.release import Release
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.federations.assembly.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.federations.assembly.unseen_clients import draw_unseen
from fedscout.experiments.federations.environments.environment_table import ENVIRONMENTS
from fedscout.experiments.federations.models.model_request import ModelRequest
from fedscout.experiments.federations.models.model_table import build_model
from fedscout.experiments.federations.scenarios.effect import EffectRequest, ScenarioPlan
from fedscout.experiments.federations.scenarios.stack import stack_effects

ROWS_A_CLIENT = 10


def build_players(federation: FederationConfig, model: ModelConfig) -> Federation:
    """Build the federation of an environment.

    Raises:
        ConfigurationError: If a value of the configuration is wrong, or has no meaning without rows.
    """
    _refuse_rows(federation)
    num_clients = federation.num_clients
    assert num_clients is not None
    environment = ENVIRONMENTS[federation.dataset].build(num_clients, federation.physics)
    settings = model.model_copy(update={"kind": "dqn"}) if model.kind == "auto" else model
    factory = build_model(ModelRequest(environment.feature_shape, len(environment.action_names), settings))
    num_rows = num_clients * ROWS_A_CLIENT
    partition = Partition(np.arange(num_rows), np.arange(num_clients + 1) * ROWS_A_CLIENT)
    plan = _scenario(federation, partition, environment.feature_shape)
    changed = len(environment.affected_clients)
    return Federation(
        name=f"{federation.dataset}, {num_clients} clients" + (f", {changed} with other physics" if changed else ""),
        features=np.zeros((num_rows, *environment.feature_shape), np.float32),
        labels=np.zeros(num_rows, np.int64),
        num_classes=len(environment.action_names),
        partition=partition,
        model=factory,
        seed=federation.seed,
        affected_clients=tuple(sorted({*environment.affected_clients, *plan.affected_clients})),
        release=Release(federation.min_release),
        class_names=environment.action_names,
        facts={
            "source": environment.source,
            "model": str(factory),
            "score_name": environment.task.score_name,
            "largest_score": environment.task.largest_score,
            **environment.facts,
            **plan.facts,
        },
        dropout=plan.dropout,
        devices=plan.devices,
        attacks=plan.attacks,
        task=environment.task,
        unseen=draw_unseen(federation, num_clients),
    )


def _refuse_rows(federation: FederationConfig) -> None:
    """Refuse settings about rows."""
    rows = ("label", "client_column", "group_column", "split", "text_column", "folder", "server_rows", "server_dataset")
    given = [f"federation.{name}={getattr(federation, name)}" for name in rows if getattr(federation, name) is not None]
    if isinstance(federation.scenario, str):
        given.append(f"federation.scenario={federation.scenario}")
    if federation.partition != FederationConfig(dataset=federation.dataset).partition:
        given.append("federation.partition")
    if federation.small_clients != "train":
        given.append(f"federation.small_clients={federation.small_clients}")
    if given:
        raise ConfigurationError(
            Fault(
                f"federation.dataset={federation.dataset} has no rows, so these",
                f"be left out: {', '.join(given)}",
                hint="federation.physics says how clients differ",
            )
        )


def _scenario(federation: FederationConfig, partition: Partition, feature_shape: tuple[int, ...]) -> ScenarioPlan:
    """Return who misses rounds, takes long or attacks; effects on rows are refused."""
    if not federation.scenario or isinstance(federation.scenario, str):
        return ScenarioPlan()
    labels = np.zeros(len(partition.rows), np.int64)
    request = EffectRequest(partition, labels, 1, feature_shape, federation.seed)
    moves_rows = any(effect.moves_rows for effect in federation.scenario)
    plan = ScenarioPlan() if moves_rows else stack_effects(federation.scenario, request)
    if moves_rows or plan.transforms:
        kinds = ", ".join(effect.kind for effect in federation.scenario)
        raise ConfigurationError(
            "federation.scenario may hold latency, devices, dropout and attacks on updates alone where "
            f"federation.dataset={federation.dataset}, which has no rows, got {kinds}"
        )
    if any(attack.accomplices for attacks in plan.attacks.values() for attack in attacks):
        raise ConfigurationError(
            Fault(
                "federation.scenario",
                (
                    f"hold no little_is_enough where federation.dataset={federation.dataset}: players "
                    "learn from what they keep, and attackers who train for each other know nothing of it"
                ),
            )
        )
    return plan
