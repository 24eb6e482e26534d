"""What an owner does not allow is refused in one line, no word of the rows leaves with it, and ε is never forgotten."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
)
from torch import nn

from fedscout.detectors import CLIENT_QUERIES
from fedscout.engine.contracts.client_table import FAR_KEY, SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.engine.grid.replies import base_config
from fedscout.engine.messages.calls import (
    Cohort,
    EvaluateResults,
    HostCall,
    QueryResults,
    ReportRequest,
    RoundSelection,
    Session,
    TrainResults,
)
from fedscout.engine.metrics import OF_CLASSES
from fedscout.engine.nodes.grid import NodeGrid, NodeRoster
from fedscout.engine.nodes.policy import LEDGER, OwnerPolicy, read_policy
from fedscout.engine.nodes.wire import (
    ACTION,
    DOCUMENT_KEY,
    Greeting,
    Method,
    NodeCall,
    NodeCalls,
    Refusal,
    Wire,
    algorithms_of,
    model_digest,
)
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies.selection.table import SELECTIONS, parse_selection
from tests.engine.choices import INDIVIDUAL, NAMED, Choice
from tests.engine.federations import QUERIES, dense, uneven_federation, with_server_rows
from tests.engine.nodes.node_link import (
    FIRST_NODE,
    SIZES,
    TRUSTING,
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

MARKER = 123456.75
"""Stands in a row; no text that leaves its client may hold it."""


class Careless(nn.Module):
    """A user's model whose error tells of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dense()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if (features == MARKER).any():
            raise ValueError(f"can't use {features[features == MARKER].tolist()}")
        outputs: torch.Tensor = self.inner(features)
        return outputs


class Node:
    """One node, asked by hand.

    Args:
        federation: Of which it holds the first client's rows.
        owner: What its owner allows.
    """

    def __init__(self, federation: Federation, owner: OwnerPolicy) -> None:
        self.link, self.wire = NodeLink(), Wire()
        self.link.connect(5, federation, 0, CLIENT_QUERIES, self.wire, owner)
        self.vector = np.zeros(53, np.float32)

    def ask(self, method: Method, session: Session = SESSION, config: Mapping[str, Any] = {}, **call: Any) -> Any:
        """Return what is answered to a call, or why nothing is."""
        given = {"clients": (0,), "vector": None if method == "query" else self.vector, **call}
        asked = NodeCall(method, HostCall(session=session, config={**base_config(session, 1), **config}, **given))
        kind = {"train": "train", "measure": "train", "evaluate": "evaluate"}.get(method, "query")
        (reply,) = self.link.send_and_receive([Message(self.wire.packed(NodeCalls((asked,))), 5, f"{kind}.{ACTION}")])
        if reply.has_error():
            return str(reply.error.reason)
        (told,) = told_in(self.wire, reply)
        return told.reason if isinstance(told, Refusal) else told


@pytest.fixture
def federation() -> Federation:
    """Four clients; the first has the marker in a row of its training part."""
    made = uneven_federation(sizes=SIZES)
    made.features[made.partition.client(0)[:20]] = MARKER
    return made


def owner_of(**changes: Any) -> OwnerPolicy:
    """Return an owner that allows all but some."""
    return OwnerPolicy(**{**TRUSTING.model_dump(), **changes})


MEASURED = RoundSelection(ReportRequest(training_losses=True), (0,))
REFUSALS: dict[str, tuple[dict[str, Any], Method, dict[str, Any], str]] = {
    "training": ({"trains": False}, "train", {}, "training"),
    "scoring": ({"scores": False}, "evaluate", {}, "scoring"),
    "a loss of the received model": ({"scores": False}, "train", {"config": {"initial-loss": True}}, "scoring"),
    "scoring on the way": ({"scores": False}, "train", {"clients": (), "evaluated": (0,)}, "scoring"),
    "measuring": ({"scores": False}, "measure", {"clients": (), "watched": MEASURED}, "scoring"),
    "measuring on the way": ({"scores": False}, "train", {"clients": (), "watched": MEASURED}, "scoring"),
    "a query": ({"queries": ()}, "query", {"config": {"function": "label_counts"}}, "'label_counts'"),
    "two clients": ({}, "train", {"clients": (0, 1)}, "one client"),
    "a client beyond all": ({}, "train", {"clients": (10**12,)}, "one client"),
    "a client below all": ({}, "train", {"clients": (-1,)}, "one client"),
    "no client": ({}, "train", {"clients": ()}, "one client"),
    "no model": ({}, "train", {"vector": None}, "model"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_is_one_line(what: str, federation: Federation) -> None:
    changes, method, call, reason = REFUSALS[what]
    told = Node(federation, owner_of(**changes)).ask(method, **call)
    assert isinstance(told, str)
    assert reason in told
    assert "\n" not in told


def test_who_may_not_be_trained_on_may_be_scored_on_the_way(federation: Federation) -> None:
    told = Node(federation, owner_of(trains=False)).ask("train", evaluated=(0,))
    assert isinstance(told, TrainResults)
    assert (told.clients, [*told.evaluation.own], [*told.failures]) == ([], [0], [0])


def test_losses_are_no_way_around_the_owner(federation: Federation) -> None:
    watched = RoundSelection(ReportRequest(training_losses=True, validation_losses=True, update_norms=True))
    told = Node(federation, owner_of(scores=False)).ask("train", watched=watched, evaluated=(0,))
    assert isinstance(told, TrainResults)
    assert (told.clients, told.evaluation, told.received_losses) == ([0], None, {})


def test_few_validation_rows_are_measured_by_nobody_who_abstains(federation: Federation) -> None:
    """A validation part of one row, chosen by the driver, would tell that row's label."""
    session = replace(SESSION, validation_fraction=0.04)
    watched = RoundSelection(ReportRequest(training_losses=True, validation_losses=True))
    told = Node(federation, owner_of(small_clients="abstain")).ask("train", session, watched=watched)
    assert isinstance(told, TrainResults)
    assert told.received_losses["train"][0].num_examples > 5
    assert told.received_losses["validation"][0].num_examples == 0


def test_nothing_at_the_driver_holds_a_word_of_rows(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    careless = replace(federation, model=Careless)
    link, roster, wire = linked(careless, QUERIES)
    link.connect(FIRST_NODE - 17, careless, 1, QUERIES, wire, owner_of(queries=(), trains=False))
    settings = settings_of("fedavg", careless)
    with caplog.at_level(logging.DEBUG, "fedscout"):
        trial = over_nodes(settings, careless, roster, wire)
    for name in ("train", "evaluate"):
        link.heard += link.send_and_receive([Message(RecordDict(), FIRST_NODE, name)])
    reasons = [message.error.reason for message in link.heard if message.has_error()]
    values = [value for message in link.heard if _is_document(message) for value in told_in(wire, message)]
    at_driver = [
        record.getMessage()
        for record in caplog.records
        if record.name == "fedscout" and record.module in ("node_grid", "node_roster", "trial")
    ]
    assert any("ValueError" in reason for reason in trial.dropped_clients.values())
    marker = str(MARKER)
    assert marker in caplog.text, "the client's own log says what went wrong"
    told = [value for value in values if isinstance(value, TrainResults | EvaluateResults | QueryResults)]
    assert told
    assert marker not in json.dumps([reasons, at_driver, trial.dropped_clients, list(map(repr, told))])


def test_the_text_of_an_error_stays_with_the_client_of_any_strategy(federation: Federation) -> None:
    link, _, _ = linked(replace(federation, model=Careless), QUERIES)
    content = RecordDict({"arrays": ArrayRecord({"flat": Array(np.zeros(53, np.float32))})})
    for kind in ("train", "evaluate"):
        (reply,) = link.send_and_receive([Message(content, FIRST_NODE, kind)])
        assert reply.has_error()
        assert "ValueError" in str(reply.error.reason)
        assert str(MARKER) not in str(reply.error.reason)


FILES = {
    "not there": None,
    "no TOML": b"trains = yes",
    "no text": b"\xff\xfe\x00",
    "nested deeply": b"queries = " + b"[" * 10**5,
    "unknown key": b"train = true",
    "truth as text": b'trains = "yes"',
    "truth as number": b"trains = 1",
    "number as truth": b"min_release = true",
    "too small": b"min_release = 0",
    "queries as text": b'queries = "label_counts"',
    "epsilon without folder": b"epsilon = 1.0",
    "epsilon without end": b'epsilon = inf\nfolder = "x"',
    "no epsilon": b'epsilon = nan\nfolder = "x"',
    "several faults": b'trains = 3\nepsilon = -1\nfolder = 7\nsmall_clients = "hide"',
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_policy_file_is_one_line(name: str, tmp_path: Path) -> None:
    path, content = tmp_path / "policy.toml", FILES[name]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refusal:
        read_policy(path)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_a_policy_file_s_folder_starts_where_the_file_lies(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('queries = ["label_counts"]\nepsilon = 2\nfolder = "kept"\n')
    assert read_policy(path) == OwnerPolicy(queries=("label_counts",), epsilon=2.0, folder=tmp_path / "kept")


NOISE = {"epsilon": 1.0, "delta": 1e-6, "clip": 3.0, "noise": "secure", "noise_seed": 5}
COUNTS, SUMS = {"function": "private_counts"}, {"function": "private_sums"}


class Budget:
    """A client with an ε of 2, asked by processes that come and go."""

    def __init__(self, federation: Federation, folder: Path) -> None:
        self._federation, self.folder = federation, folder
        self.owner = owner_of(epsilon=2.0, folder=folder)

    def ask(self, config: Mapping[str, Any] = COUNTS, seed: int = 3, **noise: Any) -> Any:
        """Return what a new process answers."""
        session = replace(SESSION, seed=seed)
        return Node(self._federation, self.owner).ask("query", session, {**NOISE, **noise, **config})


@pytest.fixture
def budget(federation: Federation, tmp_path: Path) -> Budget:
    """Nothing of it is spent."""
    pytest.importorskip("opendp")
    return Budget(federation, tmp_path / "owner")


def counts_of(told: Any) -> list[float]:
    """Return the numbers of an answer."""
    assert isinstance(told, QueryResults), told
    (arrays,) = told.arrays
    values: list[float] = arrays["counts"].tolist()
    return values


def test_an_answer_is_given_once_and_then_repeated(budget: Budget) -> None:
    first = counts_of(budget.ask())
    assert [counts_of(budget.ask()) for _ in range(3)] == [first] * 3
    told = budget.ask(SUMS)
    assert isinstance(told, QueryResults)
    assert told.arrays, "of the same ε: half of it is for either query"
    entries = json.loads((budget.folder / LEDGER).read_text())
    assert sum(entry["epsilon"] for entry in entries.values()) == 1


@pytest.mark.parametrize("change", [{"seed": 4}, {"noise_seed": 6}, {"clip": 2.0}, {"server-round": 9}, {"x": "y"}])
def test_other_terms_cost_again_until_nothing_is_left(change: dict[str, Any], budget: Budget) -> None:
    own = {name: value for name, value in change.items() if name == "seed"}
    noise = {name: value for name, value in change.items() if name != "seed"}
    first, second = counts_of(budget.ask()), counts_of(budget.ask(**own, **noise))
    refused = budget.ask(**own, **{**noise, "more": 1})
    assert "epsilon" in refused
    assert (counts_of(budget.ask()), counts_of(budget.ask(**own, **noise))) == (first, second), "repeated all the same"


@pytest.mark.parametrize(
    "terms",
    [
        *({"epsilon": epsilon} for epsilon in (2.5, float("inf"), float("nan"), 0.0, -1.0, True, "1")),
        {"noise": "seeded"},
        *({"function": name} for name in ("label_counts", "mean_output", "no such query")),
    ],
)
def test_what_gives_away_more_is_refused(terms: dict[str, Any], budget: Budget) -> None:
    told = budget.ask({**COUNTS, **terms})
    if isinstance(told, QueryResults):
        assert not told.arrays
        (told,) = told.failures.values()
    assert "\n" not in told
    assert any(word in told for word in ("noise", "epsilon", "answers", "query"))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"a": 1}', '{"a": {"epsilon": -5, "answers": {}}}', '{"a": {"epsilon": NaN}}']
)
def test_a_damaged_ledger_refuses_and_stays_as_it_is(content: str, budget: Budget) -> None:
    budget.folder.mkdir()
    (budget.folder / LEDGER).write_text(content)
    told = budget.ask()
    assert isinstance(told, str)
    assert "log" in told
    assert (budget.folder / LEDGER).read_text() == content


def test_models_and_scores_are_no_answers_and_cost_nothing(budget: Budget, federation: Federation) -> None:
    node = Node(federation, budget.owner)
    assert isinstance(node.ask("train", replace(SESSION, training=LocalTraining())), TrainResults)
    assert isinstance(node.ask("evaluate"), EvaluateResults)
    assert not (budget.folder / LEDGER).exists()


def _is_document(message: Message) -> bool:
    return message.has_content() and "document" in message.content


# -- Policies, tables of settings, clipping clients and the server's own rows over nodes: what a simulation gives ------


SIZES_POLICIES = (40, 17, 26, 31, 22)
POLICIES: dict[str, dict[str, Any]] = {kind: {} for kind in SELECTIONS if kind != "custom"} | {
    "fedcor": {"dimension": 2, "warm_up": 3}
}
ALGORITHMS = algorithms_of("fedscout.strategies")


@pytest.fixture
def small_federation() -> Federation:
    """Five clients of some rows each."""
    return uneven_federation(sizes=SIZES_POLICIES)


def both(settings: TrialSettings, small_federation: Federation) -> tuple[Trial, Trial]:
    """Return a trial in a simulation and over nodes."""
    _, roster, wire = linked(small_federation, QUERIES, ALGORITHMS)
    server = (
        server_side(small_federation)
        if small_federation.server is None
        else server_side(small_federation, small_federation.server)
    )
    grid = NodeGrid(roster, server, wire, settings.session, settings.checkpoint)
    return local_result(settings, small_federation), run_trial(settings, grid)


def assert_same_bits(settings: TrialSettings, small_federation: Federation) -> None:
    """Models, scores and who trained."""
    simulated, real = both(settings, small_federation)
    assert np.array_equal(model_of(simulated), model_of(real))
    assert simulated.round_accuracy == real.round_accuracy
    assert simulated.client_rounds == real.client_rounds


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_chooses_the_same_clients(kind: str, small_federation: Federation) -> None:
    selection = parse_selection({"kind": kind, **POLICIES[kind]}, Cohort(5, 2, 0.2, chosen=True))
    settings = replace(settings_of("fedavg", small_federation), selection=selection, num_sampled=2, num_rounds=5)
    assert_same_bits(settings, small_federation)


@pytest.mark.parametrize("kind", ["oort", "flash"])
def test_a_policy_goes_on_without_whom_it_does_not_know(kind: str, small_federation: Federation) -> None:
    link, roster, wire = linked(small_federation, QUERIES)
    join_late(link, roster, after_replies=1)
    selection = parse_selection(kind, Cohort(4, 2, 0.2, chosen=True))
    settings = replace(settings_of("fedavg", small_federation), selection=selection, num_sampled=2, num_rounds=4)
    trial = over_nodes(settings, small_federation, roster, wire)
    assert trial.status == "completed", trial.error
    assert len(trial.client) == 5, "it is scored"
    assert trial.client_rounds[-1] == 0
    assert any("joined" in note for note in trial.notes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["fedbuff", "fedbio", "local", "fine_tuning", "fedex", "fedpop", "rhfl", "fedrod"])
def test_a_strategy_with_needs_of_its_own_has_the_bits_of_a_simulation(kind: str, small_federation: Federation) -> None:
    held = with_server_rows(small_federation, labelled=True)
    assert_same_bits(settings_of(kind, held), held)


@pytest.mark.parametrize("flower", [Whole, FedAvg])
def test_a_strategy_of_a_user_s_own_has_the_bits_of_a_simulation(flower: type, small_federation: Federation) -> None:
    choice = Choice(flower, wants=NAMED)
    assert_same_bits(
        TrialSettings(choice, num_rounds=3, num_sampled=5, session=SESSION, keep_model=True), small_federation
    )


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
def test_what_clients_clip_leaves_them_clipped(wrapper: type, wants: Any, small_federation: Federation) -> None:
    settings = clipping(wrapper, wants)
    assert_same_bits(settings, small_federation)
    link, roster, wire = linked(small_federation, QUERIES)
    over_nodes(settings, small_federation, roster, wire)
    opened = [told for message in link.heard for told in told_in(wire, message)]
    own = server_side(small_federation).initial_vector(3)
    first = [each for each in opened if isinstance(each, TrainResults) and each.clients][:5]
    assert len(first) == 5
    assert all(np.linalg.norm(told.vectors[0] - own) < 0.05 * (1 + 1e-5) for told in first if told.vectors is not None)


CELLS = SettingsTable((SettingsCell(0.0, 15, 0.3, 4, 3), SettingsCell(0.0, 30, 0.05, 16, 1)), threshold=0.05)


def over_a_table(small_federation: Federation, table: SettingsLookup) -> tuple[NodeLink, Any, Trial]:
    """Train with a table of settings over nodes that do not say how many rows they hold."""
    link, _, wire = linked(small_federation, QUERIES)
    link.heard.clear()
    roster = NodeRoster(link, wire, model_digest(server_side(small_federation).facts()), Greeting(asks_rows=False), 5.0)
    roster.meet(small_federation.num_clients, patience=5.0)
    session = replace(SESSION, client_table=table)
    settings = replace(settings_of("fedavg", small_federation, session), num_rounds=2)
    trial = over_nodes(settings, small_federation, roster, wire)
    assert trial.status == "completed", trial.error
    return link, wire, trial


def shapes(value: Any) -> Any:
    """Return a document without the numbers that training shows: losses, and the share of rows that are right."""
    if isinstance(value, dict):
        shown = {"losses", "loss_sum", "num_correct", "sums", "clients", "own", "name", "position"}
        return {key: shapes(item) for key, item in value.items() if key not in shown}
    return [shapes(item) for item in value] if isinstance(value, list) else value


def test_no_message_tells_the_cell_of_a_table(small_federation: Federation) -> None:
    """Clients of 40 and of 17 rows take different cells; but models, losses and scores their answers are the same."""
    link, _, _ = over_a_table(small_federation, SettingsLookup(CELLS))
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
def test_who_is_far_from_a_table_is_drawn_by_the_client_and_once(small_federation: Federation) -> None:
    table = SettingsLookup(CELLS, epsilon=0.01)
    seen = set()
    for _ in range(5):  # all alike once in a million
        link, wire, _ = over_a_table(small_federation, table)
        opened = [told for message in link.heard for told in told_in(wire, message)]
        trained = [each for each in opened if isinstance(each, TrainResults) and each.clients]
        said = {client: {each.sums[FAR_KEY][0] for each in trained if each.clients == [client]} for client in range(5)}
        assert all(len(answers) == 1 for answers in said.values()), "the same in all rounds"
        seen.add(tuple(answer for answers in said.values() for answer in answers))
        if len(seen) > 1:
            break
    assert len(seen) > 1, "the session's seed does not decide"


def test_a_table_refuses_a_metric_whose_sums_are_rows(small_federation: Federation) -> None:
    _, roster, wire = linked(small_federation, QUERIES)
    session = replace(SESSION, client_table=SettingsLookup(CELLS), metric=OF_CLASSES["macro_f1"]())
    with refused(DataError, key="a table of client settings"):
        node_grid(small_federation, roster, wire, session)


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_a_metric_is_that_of_a_simulation(metric: str, small_federation: Federation) -> None:
    session = replace(SESSION, metric=OF_CLASSES[metric]())
    simulated, real = both(settings_of("fedavg", small_federation, session), small_federation)
    assert simulated.round_metric == real.round_metric
    np.testing.assert_equal(simulated.client_metric, real.client_metric)  # a client may have none, NaN
    assert real.round_metric


def test_quantities_are_refused_before_anything_trains(small_federation: Federation) -> None:
    targets = small_federation.labels.astype(np.float32)
    quantities = replace(small_federation, targets=targets, num_classes=1)
    _, roster, wire = linked(small_federation, QUERIES)
    with refused(DataError, key="clients on their own machines"):
        NodeGrid(roster, server_side(quantities, targets=targets[:0]), wire, SESSION)
