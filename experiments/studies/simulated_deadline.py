"""Whether any client can meet the simulated deadline: known before anything trains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.grid.expected_durations import least_seconds
from fedscout.engine.messages.host_calls import FederationFacts
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.strategies.specification import StrategySpec


def check_deadline(config: StudyConfig, federation: Federation, spec: StrategySpec) -> None:
    """Return if some client's round may end before the deadline; of a search it is FedAvg's, which it begins with.

    Args:
        config: Of the study.
        federation: Its clients.
        spec: What they train.

    Raises:
        ConfigurationError: If even the shortest round of every client ends after it.
    """
    deadline = config.training.simulated_deadline_seconds
    if deadline is None or not federation.devices:
        return
    from fedscout.engine.model.flat_model import new_model  # torch, which others do without

    facts = FederationFacts(
        num_clients=federation.num_clients,
        client_rows=federation.partition.sizes,
        num_classes=federation.num_classes,
        layout=new_model(federation.model, seed=0).layout,
        corrupted_clients=(),
        devices=federation.devices,
        holds_rows=federation.task is None,
    )
    session = config.training.session(config.seed, config.search.validation_fraction)
    session = replace(session, training=spec.local_training(session.training), algorithm=spec.client_algorithm())
    seen = [client for client in range(federation.num_clients) if client not in federation.unseen]
    seconds = least_seconds(facts, session)[seen]
    if seconds.min() > deadline:
        fastest = seen[int(np.argmin(seconds))]
        raise ConfigurationError(
            f"training.simulated_deadline_seconds must be at least what a client's round takes, got {deadline:g}: the "
            f"fastest, client {fastest}, takes {seconds.min():.3g} s or more"
        )
