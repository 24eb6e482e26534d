"""What a study asks of the simulated clock, checked before anything trains: that there is one, and its deadline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.grid.expected_durations import least_seconds
from fedscout.engine.messages.host_calls import FederationFacts
from fedscout.engine.messages.session import Session
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.strategies.methods.averaging import FedAvgSpec
from fedscout.strategies.specification import StrategySpec

NEEDS_DEVICES = (
    "federation.scenario must hold devices or latency, such as {kind: latency, clients: all, mean_seconds: 10}"
)


def check_clock(config: StudyConfig, federation: Federation, spec: StrategySpec) -> None:
    """Return if what a study asks of the simulated clock can be had.

    Args:
        config: Of the study.
        federation: Its clients.
        spec: What they train; of a search FedAvg, with which it begins.

    Raises:
        ConfigurationError: If there is no clock and time counts or the strategy needs it, or even the shortest round of
            every client ends after the deadline.
    """
    if "time_to_accuracy" in config.search.objectives and not federation.devices:
        raise ConfigurationError(
            Fault("search.objective", f"not be time_to_accuracy without a simulated clock: {NEEDS_DEVICES}")
        )
    check_durations(federation, spec)
    deadline = config.training.simulated_deadline_seconds
    if deadline is None or not federation.devices:
        return
    seen = _seen(federation)
    seconds = least_seconds(driver_facts(federation), session_of(config, spec))[seen]
    if seconds.min() > deadline:
        fastest = seen[int(np.argmin(seconds))]
        raise ConfigurationError(
            f"training.simulated_deadline_seconds must be at least what a client's round takes, got {deadline:g}: the "
            f"fastest, client {fastest}, takes {seconds.min():.3g} s or more"
        )


def check_durations(federation: Federation, spec: StrategySpec) -> None:
    """Return if a strategy that needs to know how long clients take, a user's own included, can be told.

    Raises:
        ConfigurationError: If there is no clock.
    """
    if spec.needs().durations and not federation.devices:
        raise ConfigurationError(
            Fault("strategy.kind", f"not be {spec.label} without a simulated clock: {NEEDS_DEVICES}")
        )


def plain_seconds(config: StudyConfig, federation: Federation) -> float:
    """Return what a round of plain FedAvg with all clients takes at most in the mean, or the deadline if that is less.

    The slowest of n clients takes at most max (least) + max (mean) · H_n, as that is the mean of the largest of n
    exponential times of the largest mean; H_n = 1 + 1/2 + … + 1/n.
    """
    seen = _seen(federation)
    least = float(least_seconds(driver_facts(federation), session_of(config, FedAvgSpec()))[seen].max())
    late = max((federation.devices[client].mean_seconds for client in seen if client in federation.devices), default=0)
    seconds = least + late * float((1 / np.arange(1, len(seen) + 1)).sum())
    deadline = config.training.simulated_deadline_seconds
    return seconds if deadline is None else min(seconds, deadline)


def _seen(federation: Federation) -> list[int]:
    return [client for client in range(federation.num_clients) if client not in federation.unseen]


def session_of(config: StudyConfig, spec: StrategySpec) -> Session:
    """Return what fixes how long a specification's rounds take."""
    session = config.training.session(config.seed, config.search.validation_fraction)
    return replace(session, training=spec.local_training(session.training), algorithm=spec.client_algorithm())


def driver_facts(federation: Federation) -> FederationFacts:
    """Return what a driver would know of a federation that is not placed yet."""
    from fedscout.engine.model.flat_model import new_model  # torch, which others do without

    return FederationFacts(
        num_clients=federation.num_clients,
        client_rows=federation.partition.sizes,
        num_classes=federation.num_classes,
        layout=new_model(federation.model, seed=0).layout,
        corrupted_clients=(),
        devices=federation.devices,
        holds_rows=federation.task is None,
        unseen=federation.unseen,
        grouped=federation.groups is not None,
        least_training_rows=federation.release.least_rows,
    )
