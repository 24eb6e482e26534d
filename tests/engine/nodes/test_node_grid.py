"""Clients on machines of their own give what a simulation of the same rows gives; what fails there costs no trial."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
)

from fedscout.detectors import CLIENT_QUERIES
from fedscout.detectors.detect import detect
from fedscout.detectors.report import DetectionConfig
from fedscout.engine.contracts.client_table import FAR_KEY, SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import DataError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort, EngineNeeds, Session, TrainResults
from fedscout.engine.metrics import OF_CLASSES
from fedscout.engine.nodes.client import TRIALS_KEPT, KeptStates, LostStateError, mark
from fedscout.engine.nodes.grid import NodeGrid, NodeRoster
from fedscout.engine.nodes.policy import OwnerPolicy
from fedscout.engine.nodes.wire import DOCUMENT_KEY, Greeting, Wire, algorithms_of, model_digest
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import parse_strategy
from fedscout.strategies.selection.table import SELECTIONS, parse_selection
from tests.engine.choices import INDIVIDUAL, NAMED, Choice
from tests.engine.federations import QUERIES, normalised, uneven_federation, with_server_rows
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
    server_side,
    told_in,
)
from tests.engine.trials.test_resume import Interruption, interrupt_in
from tests.engine.trials.test_trial import Whole
from tests.kits.refusals import refused

SESSION = Session(seed=3, training=LocalTraining(local_epochs=2, batch_size=8), round_timeout_seconds=20.0)
ALGORITHMS = algorithms_of("fedscout.strategies")
Simulated = tuple[Federation, TrialSettings]
five_clients = partial(uneven_federation, sizes=(40, 17, 26, 31, 22))
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


def of_strategy(kind: str) -> Simulated:
    federation = uneven_federation(normalised, sizes=SIZES)
    return federation, settings_of(kind, federation)


def of_selection(kind: str) -> Simulated:
    federation = five_clients()
    changes = {"dimension": 2, "warm_up": 3} if kind == "fedcor" else {}
    selection = parse_selection({"kind": kind, **changes}, Cohort(5, 2, 0.2, chosen=True))
    return federation, replace(settings_of("fedavg", federation), selection=selection, num_sampled=2, num_rounds=5)


def with_the_server_s_rows(kind: str) -> Simulated:
    federation = with_server_rows(five_clients(), labelled=True)
    return federation, settings_of(kind, federation)


def of_metric(kind: str) -> Simulated:
    federation = five_clients()
    return federation, settings_of("fedavg", federation, replace(SESSION, metric=OF_CLASSES[kind]()))


def of_a_user(flower: Any, wants: EngineNeeds = NAMED) -> Simulated:
    trial = TrialSettings(Choice(flower, wants=wants), num_rounds=3, num_sampled=5, session=SESSION, keep_model=True)
    return five_clients(), trial


def clipping(wrapper: type, wants: EngineNeeds) -> Simulated:
    """Return a trial whose clients clip their updates."""

    def build(**counts: Any) -> Any:
        fixed = wrapper is DifferentialPrivacyClientSideFixedClipping
        bound = {"clipping_norm" if fixed else "initial_clipping_norm": 0.05}
        return wrapper(FedAvg(**counts), 0.01, num_sampled_clients=counts["min_train_nodes"], **bound)

    return of_a_user(build, wants)


CLIPPING = [
    (wrapper, wants)
    for wrapper in (DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyClientSideAdaptiveClipping)
    for wants in (INDIVIDUAL, NAMED)
]
STRATEGIES = ("fedavg", "fedadam", "krum", "qfedavg", "scaffold", "fednova", "fedbn", "ditto", "moon", "communities")
NEEDING_MORE = ("fedbuff", "fedbio", "local", "fine_tuning", "fedex", "fedpop", "rhfl", "fedrod")
SIMULATED: list[tuple[Callable[..., Simulated], Any]] = [
    *((of_strategy, kind) for kind in STRATEGIES),
    *((of_selection, kind) for kind in SELECTIONS if kind != "custom"),
    *((with_the_server_s_rows, kind) for kind in NEEDING_MORE),
    *((of_metric, kind) for kind in OF_CLASSES),
    *((of_a_user, kind) for kind in (Whole, FedAvg)),
    *((lambda pair: clipping(*pair), pair) for pair in CLIPPING),
]


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("make", "kind"), SIMULATED)
def test_a_trial_has_the_bits_of_a_simulation(make: Callable[..., Simulated], kind: Any) -> None:
    """Models, scores and who trained."""
    federation, settings = make(kind)
    _, roster, wire = linked(federation, CLIENT_QUERIES, ALGORITHMS)
    simulated = run_trial(settings, LocalGrid(federation, CLIENT_QUERIES, settings.session))
    real = over_nodes(settings, federation, roster, wire)
    assert np.array_equal(model_of(simulated), model_of(real))
    for name in ("accuracy", "loss", "metric"):
        assert simulated.rounds.get(name) == real.rounds.get(name)
    assert (simulated.bytes_down, simulated.bytes_up) == (real.bytes_down, real.bytes_up)
    np.testing.assert_equal(dict(simulated.clients), dict(real.clients))  # a client may have no metric, NaN


@pytest.mark.parametrize(("wrapper", "wants"), CLIPPING)
def test_what_clients_clip_leaves_them_clipped(wrapper: type, wants: EngineNeeds) -> None:
    federation, settings = clipping(wrapper, wants)
    link, roster, wire = linked(federation, QUERIES)
    over_nodes(settings, federation, roster, wire)
    opened = [told for message in link.heard for told in told_in(wire, message)]
    own = server_side(federation).initial_vector(3)
    first = [each for each in opened if isinstance(each, TrainResults) and each.clients][:5]
    assert len(first) == 5
    assert all(np.linalg.norm(told.vectors[0] - own) < 0.05 * (1 + 1e-5) for told in first if told.vectors is not None)


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
    assert len(trial.clients["id"]) == federation.num_clients


def lost(wire: Wire, reply: Message) -> None:
    """What never arrives."""


def garbled(wire: Wire, reply: Message) -> Message:
    reply.content.config_records["document"]["document"] = '["object", {}]'
    return reply


def of_nan(wire: Wire, reply: Message) -> Message:
    def spoilt(told: Any) -> Any:
        if getattr(told, "vectors", None) is not None:
            told.vectors = [np.full_like(vector, np.nan) for vector in told.vectors]
        return told

    return retold(wire, reply, spoilt)


FAULTS: dict[str, tuple[Callable[[Wire, Message], Message | None], str]] = {
    "nan": (of_nan, "finite"),
    "silent": (lost, "0.2 s"),
    "refuses": (lambda wire, reply: reply, "training"),
    "garbage": (garbled, "can't be read"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_who_misbehaves_is_left_out(federation: Federation, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    (spoil, told), (link, roster, wire) = FAULTS[fault], linked(federation, QUERIES)
    broken = FIRST_NODE - 17 * BROKEN
    link.tamper_with(broken, partial(spoil, wire))
    owner = OwnerPolicy(**{**TRUSTING.model_dump(), "trains": fault != "refuses"})
    link.connect(broken, federation, BROKEN, QUERIES, wire, owner)
    session = replace(SESSION, round_timeout_seconds=0.2 if fault == "silent" else 20.0)
    with caplog.at_level(logging.WARNING, "fedscout"):
        trial = train(federation, link, roster, wire, session)
    assert trial.status == "completed", trial.error
    assert set(trial.dropped_clients) == {f"{server_round}:{BROKEN}" for server_round in (1, 2, 3)}
    assert all(told in reason for reason in trial.dropped_clients.values())
    lines = [record.message for record in caplog.records if f"client {BROKEN}" in record.message]
    assert len(lines) == 1 or fault == "silent"
    assert all("\n" not in line for line in lines)


# -- A driver that was killed goes on over nodes with the same bits, as long as clients have what they kept ------------


Nodes = tuple[NodeLink, NodeRoster, Wire]


NORMALISED = uneven_federation(normalised, sizes=SIZES)


def nodes_with(folder: Path | None) -> Nodes:
    """Return nodes whose owners have a folder each."""
    link, roster, wire = linked(NORMALISED, QUERIES, ALGORITHMS)
    for client, node in enumerate([member.node for member in roster.members]):
        own = None if folder is None else folder / str(client)
        owner = OwnerPolicy(**{**TRUSTING.model_dump(), "folder": own})
        link.connect(node or 0, NORMALISED, client, QUERIES, wire, owner)
    return link, roster, wire


def run(nodes: Nodes, settings: TrialSettings, store: Path | None = None, stop_in: int | None = None) -> Trial:
    """Run a trial as a driver that was just started, up to a round."""
    _, roster, wire = nodes
    grid = node_grid(NORMALISED, roster, wire, settings.session, settings.checkpoint)
    stop = None if stop_in is None else interrupt_in(stop_in)
    return run_trial(settings, grid, CheckpointStore(store, every_rounds=1), stop)


def forget_runs(nodes: Nodes) -> None:
    """Have Flower forget what it kept for the clients, as when a run ends."""
    for _, context in nodes[0].apps.values():
        context.state = RecordDict()


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "lost"), [("scaffold", "nothing"), ("fedbn", "nothing"), ("scaffold", "the run's"), ("ditto", "the run's")]
)
def test_a_killed_driver_has_the_same_bits(kind: str, lost: str, tmp_path: Path) -> None:
    settings = replace(settings_of(kind, NORMALISED), num_rounds=4)
    expected = run(nodes_with(None), settings)
    nodes = nodes_with(tmp_path / "owners" if lost != "nothing" else None)
    with pytest.raises(Interruption):
        run(nodes, settings, tmp_path / "store", stop_in=3)
    if lost == "the run's":
        forget_runs(nodes)
    resumed = run(nodes, settings, tmp_path / "store")
    assert np.array_equal(model_of(resumed), model_of(expected))
    assert (resumed.rounds["accuracy"], resumed.dropped_clients) == (expected.rounds["accuracy"], {})


def test_what_is_lost_for_good_costs_a_round_and_is_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(settings_of("ditto", NORMALISED), num_rounds=5)
    nodes = nodes_with(tmp_path / "owners")
    with pytest.raises(Interruption):
        run(nodes, settings, tmp_path / "store", stop_in=2)
    _, context = nodes[0].apps[nodes[1].members[1].node or 0]
    context.state = RecordDict()
    shutil.rmtree(tmp_path / "owners" / "1")
    with caplog.at_level(logging.WARNING, "fedscout"):
        trial = run(nodes, settings, tmp_path / "store")
    assert trial.status == "completed", trial.error
    assert set(trial.dropped_clients) == {"2:1"}
    assert sum("lost its state" in record.message for record in caplog.records) == 1


def test_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    trial = "a" * 64
    kept = KeptStates(RecordDict(), tmp_path)
    kept.keep(trial, 1, {"x": np.ones(3, np.float32)})
    (file,) = tmp_path.rglob("*.npz")
    for content in (b"", b"PK\x03\x04 and no more", file.read_bytes()[:-40]):
        file.write_bytes(content)
        with pytest.raises(LostStateError):
            KeptStates(RecordDict(), tmp_path).find(trial, mark(1))


@pytest.mark.parametrize("told", [[], [np.nan], [np.inf], [1.5], [1.0, 2.0]])
def test_a_mark_that_is_none_stands_for_nothing(told: list[float]) -> None:
    kept = KeptStates(RecordDict())
    kept.keep("t", 1, {"x": np.ones(3, np.float32)})
    with pytest.raises(LostStateError):
        kept.find("t", {"kept-after-round": np.array(told, np.float32)})


@pytest.mark.slow
def test_two_trials_in_turns_do_not_mix_their_states(tmp_path: Path) -> None:
    both = [replace(settings_of("scaffold", NORMALISED), num_rounds=4).on_seed(seed) for seed in (3, 11)]
    alone = [run(nodes_with(None), settings) for settings in both]
    nodes = nodes_with(None)
    for stop in (2, 3):
        for settings in both:
            with pytest.raises(Interruption):
                run(nodes, settings, tmp_path, stop)
    for settings, expected in zip(both, alone, strict=True):
        assert np.array_equal(model_of(run(nodes, settings, tmp_path)), model_of(expected))


def test_an_earlier_run_of_a_trial_does_not_outlive_its_next_one(tmp_path: Path) -> None:
    """The state after the first round of a new run must not be taken for an older one than the last run's."""
    memory, trial = RecordDict(), "b" * 64
    kept = KeptStates(memory, tmp_path)
    for server_round in (8, 9):
        kept.keep(trial, server_round, {"x": np.full(2, server_round, np.float32)}, mark(8))
    kept.keep(trial, 1, {"x": np.zeros(2, np.float32)})
    for again in (kept, KeptStates(RecordDict(), tmp_path)):
        assert again.find(trial, mark(1))["x"].tolist() == [0, 0]
        with pytest.raises(LostStateError):
            again.find(trial, mark(9))


def test_a_client_keeps_what_the_driver_has_however_often_it_was_late(tmp_path: Path) -> None:
    kept, trial = KeptStates(RecordDict(), tmp_path), "c" * 64
    kept.keep(trial, 1, {"x": np.ones(1, np.float32)})
    for late in (2, 3, 4):
        kept.keep(trial, late, {"x": np.zeros(1, np.float32)}, mark(1))
        assert kept.find(trial, mark(1))["x"] == 1


def test_what_is_kept_does_not_grow_without_end(tmp_path: Path) -> None:
    memory = RecordDict()
    kept = KeptStates(memory, tmp_path)
    for trial in range(2 * TRIALS_KEPT):
        for server_round in (1, 2, 3):
            marked = mark(server_round - 1) if server_round > 1 else None
            kept.keep(f"{trial:x}".ljust(64, "0"), server_round, {"x": np.zeros(1, np.float32)}, marked)
    kept_arrays = [name for record in memory.values() if isinstance(record, ArrayRecord) for name in record]
    assert len(kept_arrays) == 2 * TRIALS_KEPT
    assert len([*tmp_path.rglob("*.npz")]) == TRIALS_KEPT


# -- Policies and tables of settings over nodes ------------------------------------------------------------------------


SEVERAL = five_clients()


@pytest.mark.parametrize("kind", ["oort", "flash"])
def test_a_policy_goes_on_without_whom_it_does_not_know(kind: str) -> None:
    link, roster, wire = linked(SEVERAL, QUERIES)
    join_late(link, roster, after_replies=1)
    selection = parse_selection(kind, Cohort(4, 2, 0.2, chosen=True))
    settings = replace(settings_of("fedavg", SEVERAL), selection=selection, num_sampled=2, num_rounds=4)
    trial = over_nodes(settings, SEVERAL, roster, wire)
    assert trial.status == "completed", trial.error
    assert len(trial.clients["id"]) == 5, "it is scored"
    assert trial.clients["rounds"][-1] == 0
    assert any("joined" in note for note in trial.notes)


CELLS = SettingsTable((SettingsCell(0.0, 15, 0.3, 4, 3), SettingsCell(0.0, 30, 0.05, 16, 1)), threshold=0.05)


def over_a_table(table: SettingsLookup) -> tuple[NodeLink, Any, Trial]:
    """Train with a table of settings over nodes that do not say how many rows they hold."""
    link, _, wire = linked(SEVERAL, QUERIES)
    link.heard.clear()
    roster = NodeRoster(link, wire, model_digest(server_side(SEVERAL).facts()), Greeting(asks_rows=False), 5.0)
    roster.meet(SEVERAL.num_clients, patience=5.0)
    session = replace(SESSION, client_table=table)
    settings = replace(settings_of("fedavg", SEVERAL, session), num_rounds=2)
    trial = over_nodes(settings, SEVERAL, roster, wire)
    assert trial.status == "completed", trial.error
    return link, wire, trial


def shapes(value: Any) -> Any:
    """Return a document without the numbers that training shows: losses, and the share of rows that are right."""
    if isinstance(value, dict):
        shown = {"losses", "loss_sum", "num_correct", "sums", "clients", "own", "name", "position"}
        return {key: shapes(item) for key, item in value.items() if key not in shown}
    return [shapes(item) for item in value] if isinstance(value, list) else value


def test_no_message_tells_the_cell_of_a_table() -> None:
    """Clients of 40 and of 17 rows take different cells; but models, losses and scores their answers are the same."""
    link, _, _ = over_a_table(SettingsLookup(CELLS))
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
def test_who_is_far_from_a_table_is_drawn_by_the_client_and_once() -> None:
    table = SettingsLookup(CELLS, epsilon=0.01)
    seen = set()
    for _ in range(5):  # all alike once in a million
        link, wire, _ = over_a_table(table)
        opened = [told for message in link.heard for told in told_in(wire, message)]
        trained = [each for each in opened if isinstance(each, TrainResults) and each.clients]
        said = {client: {each.sums[FAR_KEY][0] for each in trained if each.clients == [client]} for client in range(5)}
        assert all(len(answers) == 1 for answers in said.values()), "the same in all rounds"
        seen.add(tuple(answer for answers in said.values() for answer in answers))
        if len(seen) > 1:
            break
    assert len(seen) > 1, "the session's seed does not decide"


def test_a_table_refuses_a_metric_whose_sums_are_rows() -> None:
    _, roster, wire = linked(SEVERAL, QUERIES)
    session = replace(SESSION, client_table=SettingsLookup(CELLS), metric=OF_CLASSES["macro_f1"]())
    with refused(DataError, key="a table of client settings"):
        node_grid(SEVERAL, roster, wire, session)


def test_quantities_are_refused_before_anything_trains() -> None:
    targets = SEVERAL.labels.astype(np.float32)
    quantities = replace(SEVERAL, targets=targets, num_classes=1)
    _, roster, wire = linked(SEVERAL, QUERIES)
    with refused(DataError, key="clients on their own machines"):
        NodeGrid(roster, server_side(quantities, targets=targets[:0]), wire, SESSION)
