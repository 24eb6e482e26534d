"""Clients on machines of their own give what a simulation of the same rows gives; what fails there costs no trial."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedscout.detectors import CLIENT_QUERIES
from fedscout.detectors.detect import detect
from fedscout.detectors.report import DetectionConfig
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.nodes.grid import NodeRoster
from fedscout.engine.nodes.policy import OwnerPolicy
from fedscout.engine.nodes.wire import algorithms_of
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import parse_strategy
from tests.engine.federations import QUERIES, normalised, uneven_federation
from tests.engine.nodes.node_link import (
    FIRST_NODE,
    SIZES,
    TRUSTING,
    NodeLink,
    join_late,
    linked,
    node_grid,
    over_nodes,
    retold,
)

SESSION = Session(seed=3, training=LocalTraining(local_epochs=2, batch_size=8), round_timeout_seconds=20.0)
BROKEN = 1
"""The client that does what it should not; its node is the second."""


def _cohort(federation: Federation) -> Cohort:
    held = federation.server
    num_clients, num_rows = federation.num_clients, 0 if held is None else held.num_rows
    return Cohort(num_clients, num_clients, 0.2, server_rows=num_rows, server_labels=num_rows > 0)


def settings_of(kind: str, federation: Federation, session: Session = SESSION, **parameters: Any) -> TrialSettings:
    """Return three rounds of a strategy with all clients."""
    num_clients = federation.num_clients
    spec = parse_strategy({"kind": kind, **parameters}, _cohort(federation))
    return TrialSettings(spec, num_rounds=3, num_sampled=num_clients, session=session, keep_model=True)


def model_of(trial: Trial) -> np.ndarray[Any, Any]:
    """Return a trial's last model."""
    assert trial.vector is not None, trial.error
    return trial.vector


@pytest.mark.parametrize(
    "kind", ["fedavg", "fedadam", "krum", "qfedavg", "scaffold", "fednova", "fedbn", "ditto", "moon", "communities"]
)
def test_a_training_has_the_bits_of_a_simulation(kind: str) -> None:
    federation = uneven_federation(normalised, sizes=SIZES)
    _, roster, wire = linked(federation, CLIENT_QUERIES, algorithms_of("fedscout.strategies"))
    settings = settings_of(kind, federation)
    simulated = run_trial(settings, LocalGrid(federation, CLIENT_QUERIES, settings.session))
    real = over_nodes(settings, federation, roster, wire)
    assert np.array_equal(model_of(simulated), model_of(real))
    assert (simulated.round_accuracy, simulated.round_loss) == (real.round_accuracy, real.round_loss)
    assert (simulated.bytes_down, simulated.bytes_up) == (real.bytes_down, real.bytes_up)


def test_a_detection_tells_the_same_to_the_last_digit() -> None:
    federation = uneven_federation(sizes=(60, 45, 52, 48), min_release=5)
    link, roster, wire = linked(federation, CLIENT_QUERIES)

    def report(grid: HostGrid[Any]) -> dict[str, Any]:
        found = detect(grid, grid.initial_vectors, SESSION.training, DetectionConfig(), seed=3)
        return found.without_timings().model_dump(mode="json")

    link.heard.clear()
    real = report(node_grid(federation, roster, wire, SESSION))
    assert report(LocalGrid(federation, CLIENT_QUERIES, SESSION)) == real
    assert len(link.heard) == 4 * 2 * federation.num_clients, "four exchanges: a process starts for each message"


def train(federation: Federation, link: NodeLink, roster: NodeRoster, wire: Any, session: Session = SESSION) -> Trial:
    """Train by FedAvg over the nodes that are connected."""
    settings = replace(settings_of("fedavg", federation, session), num_sampled=len(link.apps))
    return over_nodes(settings, federation, roster, wire)


def test_a_lost_node_costs_its_rounds_alone(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    link, roster, wire = linked(federation, QUERIES)
    sent = 0

    def lose(node: int, reply: Message) -> Message | None:
        nonlocal sent
        sent += 1
        if sent == len(link.apps):  # the first round is done
            del link.apps[FIRST_NODE - 17 * BROKEN]
        return reply

    link.tamper = lose
    with caplog.at_level(logging.WARNING, "fedscout"):
        trial = train(federation, link, roster, wire)
    assert trial.status == "completed", trial.error
    assert set(trial.dropped_clients) == {f"{server_round}:{BROKEN}" for server_round in (2, 3)}
    assert sum("connected" in record.message for record in caplog.records) == 1, "told once, not every round"


def test_a_node_that_joins_late_takes_part_from_the_next_round_on(federation: Federation) -> None:
    link, roster, wire = linked(federation, QUERIES)
    join_late(link, roster, after_replies=3)
    trial = train(federation, link, roster, wire)
    assert trial.status == "completed", trial.error
    assert len(trial.client or ()) == federation.num_clients


FAULTS = {
    "nan": "finite",
    "shape": "parameters, got",
    "million": "1000000",
    "silent": "0.2 s",
    "refuses": "training",
    "garbage": "can't be read",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_who_misbehaves_is_left_out(federation: Federation, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    link, roster, wire = linked(federation, QUERIES)
    node = FIRST_NODE - 17 * BROKEN
    if fault == "refuses":
        owner = OwnerPolicy(**{**TRUSTING.model_dump(), "trains": False})
        link.connect(node, federation, BROKEN, QUERIES, wire, owner)

    def spoil(sender: int, reply: Message) -> Message | None:
        if sender != node or fault == "refuses":
            return reply
        if fault == "silent":
            return None
        if fault == "garbage":
            reply.content.config_records["document"]["document"] = '["object", {}]'
            return reply
        return retold(wire, reply, spoilt)

    def spoilt(told: Any) -> Any:
        if getattr(told, "vectors", None) is not None:
            (vector,) = told.vectors
            vector = np.full_like(vector, np.nan) if fault == "nan" else vector
            told.vectors = [vector[:-1] if fault == "shape" else vector]
            told.num_examples = [1_000_000] if fault == "million" else told.num_examples
        return told

    link.tamper = spoil
    session = replace(SESSION, round_timeout_seconds=0.2 if fault == "silent" else 20.0)
    with caplog.at_level(logging.WARNING, "fedscout"):
        trial = train(federation, link, roster, wire, session)
    assert trial.status == "completed", trial.error
    assert set(trial.dropped_clients) == {f"{server_round}:{BROKEN}" for server_round in (1, 2, 3)}
    assert all(FAULTS[fault] in reason for reason in trial.dropped_clients.values())
    lines = [record.message for record in caplog.records if f"client {BROKEN}" in record.message]
    assert len(lines) == 1 or fault == "silent"
    assert all("\n" not in line for line in lines)
