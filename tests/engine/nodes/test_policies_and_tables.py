"""Policies, tables of settings, clipping clients and the server's own rows over nodes: what a simulation gives."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
)

from fedscout.engine.contracts.client_table import FAR_KEY, SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import DataError
from fedscout.engine.messages.calls import Cohort, TrainResults
from fedscout.engine.metrics import OF_CLASSES
from fedscout.engine.nodes.grid import NodeGrid, NodeRoster
from fedscout.engine.nodes.wire import DOCUMENT_KEY, Greeting, algorithms_of, model_digest
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies.selection.table import SELECTIONS, parse_selection
from tests.engine.choices import INDIVIDUAL, NAMED, Choice
from tests.engine.federations import QUERIES, uneven_federation, with_server_rows
from tests.engine.nodes.node_link import (
    FIRST_NODE,
    NodeLink,
    join_late,
    linked,
    node_grid,
    over_nodes,
    server_side,
    told_in,
)
from tests.engine.nodes.test_node_grid import SESSION, model_of, settings_of
from tests.engine.results import local_result
from tests.engine.trials.test_trial import Whole
from tests.kits.refusals import refused

SIZES = (40, 17, 26, 31, 22)
POLICIES: dict[str, dict[str, Any]] = {kind: {} for kind in SELECTIONS if kind != "custom"} | {
    "fedcor": {"dimension": 2, "warm_up": 3}
}
ALGORITHMS = algorithms_of("fedscout.strategies")


@pytest.fixture
def federation() -> Federation:
    """Five clients of some rows each."""
    return uneven_federation(sizes=SIZES)


def both(settings: TrialSettings, federation: Federation) -> tuple[Trial, Trial]:
    """Return a trial in a simulation and over nodes."""
    _, roster, wire = linked(federation, QUERIES, ALGORITHMS)
    server = server_side(federation) if federation.server is None else server_side(federation, federation.server)
    grid = NodeGrid(roster, server, wire, settings.session, settings.checkpoint)
    return local_result(settings, federation), run_trial(settings, grid)


def assert_same_bits(settings: TrialSettings, federation: Federation) -> None:
    """Models, scores and who trained."""
    simulated, real = both(settings, federation)
    assert np.array_equal(model_of(simulated), model_of(real))
    assert simulated.round_accuracy == real.round_accuracy
    assert simulated.client_rounds == real.client_rounds


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_chooses_the_same_clients(kind: str, federation: Federation) -> None:
    selection = parse_selection({"kind": kind, **POLICIES[kind]}, Cohort(5, 2, 0.2, chosen=True))
    settings = replace(settings_of("fedavg", federation), selection=selection, num_sampled=2, num_rounds=5)
    assert_same_bits(settings, federation)


@pytest.mark.parametrize("kind", ["oort", "flash"])
def test_a_policy_goes_on_without_whom_it_does_not_know(kind: str, federation: Federation) -> None:
    link, roster, wire = linked(federation, QUERIES)
    join_late(link, roster, after_replies=1)
    selection = parse_selection(kind, Cohort(4, 2, 0.2, chosen=True))
    settings = replace(settings_of("fedavg", federation), selection=selection, num_sampled=2, num_rounds=4)
    trial = over_nodes(settings, federation, roster, wire)
    assert trial.status == "completed", trial.error
    assert len(trial.client) == 5, "it is scored"
    assert trial.client_rounds[-1] == 0
    assert any("joined" in note for note in trial.notes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["fedbuff", "fedbio", "local", "fine_tuning", "fedex", "fedpop", "rhfl", "fedrod"])
def test_a_strategy_with_needs_of_its_own_has_the_bits_of_a_simulation(kind: str, federation: Federation) -> None:
    held = with_server_rows(federation, labelled=True)
    assert_same_bits(settings_of(kind, held), held)


@pytest.mark.parametrize("flower", [Whole, FedAvg])
def test_a_strategy_of_a_user_s_own_has_the_bits_of_a_simulation(flower: type, federation: Federation) -> None:
    choice = Choice(flower, wants=NAMED)
    assert_same_bits(TrialSettings(choice, num_rounds=3, num_sampled=5, session=SESSION, keep_model=True), federation)


def clipping(wrapper: type, wants: Any) -> TrialSettings:
    """Return a trial whose clients clip their updates."""

    def build(**counts: Any) -> Any:
        fixed = wrapper is DifferentialPrivacyClientSideFixedClipping
        bound = {"clipping_norm" if fixed else "initial_clipping_norm": 0.05}
        return wrapper(FedAvg(**counts), 0.01, num_sampled_clients=counts["min_train_nodes"], **bound)

    return TrialSettings(Choice(build, wants=wants), num_rounds=3, num_sampled=5, session=SESSION, keep_model=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("wants", [INDIVIDUAL, NAMED], ids=["flat", "named"])
@pytest.mark.parametrize(
    "wrapper", [DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyClientSideAdaptiveClipping]
)
def test_what_clients_clip_leaves_them_clipped(wrapper: type, wants: Any, federation: Federation) -> None:
    settings = clipping(wrapper, wants)
    assert_same_bits(settings, federation)
    link, roster, wire = linked(federation, QUERIES)
    over_nodes(settings, federation, roster, wire)
    opened = [told for message in link.heard for told in told_in(wire, message)]
    own = server_side(federation).initial_vector(3)
    first = [each for each in opened if isinstance(each, TrainResults) and each.clients][:5]
    assert len(first) == 5
    assert all(np.linalg.norm(told.vectors[0] - own) < 0.05 * (1 + 1e-5) for told in first if told.vectors is not None)


CELLS = SettingsTable((SettingsCell(0.0, 15, 0.3, 4, 3), SettingsCell(0.0, 30, 0.05, 16, 1)), threshold=0.05)


def over_a_table(federation: Federation, table: SettingsLookup) -> tuple[NodeLink, Any, Trial]:
    """Train with a table of settings over nodes that do not say how many rows they hold."""
    link, _, wire = linked(federation, QUERIES)
    link.heard.clear()
    roster = NodeRoster(link, wire, model_digest(server_side(federation).facts()), Greeting(asks_rows=False), 5.0)
    roster.meet(federation.num_clients, patience=5.0)
    session = replace(SESSION, client_table=table)
    settings = replace(settings_of("fedavg", federation, session), num_rounds=2)
    trial = over_nodes(settings, federation, roster, wire)
    assert trial.status == "completed", trial.error
    return link, wire, trial


def shapes(value: Any) -> Any:
    """Return a document without the numbers that training shows: losses, and the share of rows that are right."""
    if isinstance(value, dict):
        shown = {"losses", "loss_sum", "num_correct", "sums", "clients", "own", "name", "position"}
        return {key: shapes(item) for key, item in value.items() if key not in shown}
    return [shapes(item) for item in value] if isinstance(value, list) else value


def test_no_message_tells_the_cell_of_a_table(federation: Federation) -> None:
    """Clients of 40 and of 17 rows take different cells; but models, losses and scores their answers are the same."""
    link, _, _ = over_a_table(federation, SettingsLookup(CELLS))
    answers = [message for message in link.heard if message.metadata.reply_to_message_id]
    of_client: dict[int, list[Any]] = {}
    for message in answers:
        (config,) = message.content.config_records.values()
        of_client.setdefault(message.metadata.src_node_id, []).append(shapes(json.loads(str(config[DOCUMENT_KEY]))))
    large, small = of_client[FIRST_NODE], of_client[FIRST_NODE - 17]
    assert len(large) == len(small) > 2
    assert large == small
    told = json.dumps([large, small])
    assert not any(f" {rows}" in told for rows in (32, 8, 14, 3, 40, 17)), "rows that train, are tested, are held"


@pytest.mark.slow
def test_who_is_far_from_a_table_is_drawn_by_the_client_and_once(federation: Federation) -> None:
    table = SettingsLookup(CELLS, epsilon=0.01)
    seen = set()
    for _ in range(5):  # all alike once in a million
        link, wire, _ = over_a_table(federation, table)
        opened = [told for message in link.heard for told in told_in(wire, message)]
        trained = [each for each in opened if isinstance(each, TrainResults) and each.clients]
        said = {client: {each.sums[FAR_KEY][0] for each in trained if each.clients == [client]} for client in range(5)}
        assert all(len(answers) == 1 for answers in said.values()), "the same in all rounds"
        seen.add(tuple(answer for answers in said.values() for answer in answers))
    assert len(seen) > 1, "the session's seed does not decide"


def test_a_table_refuses_a_metric_whose_sums_are_rows(federation: Federation) -> None:
    _, roster, wire = linked(federation, QUERIES)
    session = replace(SESSION, client_table=SettingsLookup(CELLS), metric=OF_CLASSES["macro_f1"]())
    with refused(DataError, key="a table of client settings"):
        node_grid(federation, roster, wire, session)


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_a_metric_is_that_of_a_simulation(metric: str, federation: Federation) -> None:
    session = replace(SESSION, metric=OF_CLASSES[metric]())
    simulated, real = both(settings_of("fedavg", federation, session), federation)
    assert simulated.round_metric == real.round_metric
    np.testing.assert_equal(simulated.client_metric, real.client_metric)  # a client may have none, NaN
    assert real.round_metric


def test_quantities_are_refused_before_anything_trains(federation: Federation) -> None:
    targets = federation.labels.astype(np.float32)
    quantities = replace(federation, targets=targets, num_classes=1)
    _, roster, wire = linked(federation, QUERIES)
    with refused(DataError, key="clients on their own machines"):
        NodeGrid(roster, server_side(quantities, targets=targets[:0]), wire, SESSION)
