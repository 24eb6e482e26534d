"""What a message asks of a client: configuration, a table of settings, and a task in place of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from flwr.app import Message
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM, KEY_NORM_BIT

from fedscout.detectors.queries import CLIENT_QUERIES
from fedscout.engine.client.host import ClientHost
from fedscout.engine.client.updates import clipped
from fedscout.engine.contracts import client_table as tables
from fedscout.engine.contracts.algorithm import ClientUpdate
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import LABEL_COUNTS, Samples
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort, HostCall, Session, TrainResults
from fedscout.engine.messages.contents import READ_BY_EVERY_CLIENT, flat_record, one_learning_rate, train_config
from fedscout.engine.messages.keys import CLIPPING_KEY, FUNCTION_KEY, NORM_BIT_KEY, ReplyMode
from fedscout.engine.models.layout import ParameterLayout, TensorSlot
from fedscout.engine.training.loop import RowsWork
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import (
    BUILT_IN_KINDS,
    CHOSEN_BY_NAME_KINDS,
    STRATEGIES,
    FedAvgSpec,
    StrategySpec,
    parse_selection,
    parse_strategy,
)
from fedscout.strategies.methods.averaging import ProximalGradient
from tests.engine import federations
from tests.engine.choices import FEDAVG, FLOWER_CHOICES, Choice, spec_of as flower_spec
from tests.engine.training.test_vectorised import in_block
from tests.engine.trials.test_resume import assert_going_on, assert_same
from tests.strategies.by_hand import SEED, SIZES, TRAINING, Hand, host_of, models, result_of, spec_of

HOST = host_of()
NUM_CLIENTS = 8
CELLS = [
    *((0.0, 8, 0.3, 4, 1), (0.0, 16, 0.2, 8, 3), (0.0, 28, 0.05, 5, 2)),
    *((1.0, 8, 0.4, 16, 1), (1.0, 16, 0.1, 3, 2), (1.0, 28, 0.02, 32, 3)),
]
SEVERAL = tables.SettingsTable(tuple(tables.SettingsCell(*cell) for cell in CELLS))


def trial_of(table: tables.SettingsTable, strategy: Any = None, merge: bool = True, **changes: Any) -> Trial:
    spec = spec_of(strategy or FedAvgSpec(), client_table=tables.SettingsLookup(table), **changes)
    return run_trial(spec, LocalGrid(HOST, session=spec.session, merge_on_hosts=merge))


def test_each_client_trains_with_its_nearest_cell_by_hand() -> None:
    """In float64: the cell by hand, its rate, batches and epochs, and the plain mean."""
    hand = Hand(HOST._federation)
    spec = spec_of(FedAvgSpec(), client_table=tables.SettingsLookup(SEVERAL))
    vector = HOST.initial_vector(SEED).astype(np.float64)
    cells = set()
    for server_round, (clients, found) in enumerate(models(HOST, spec), start=1):
        trained = []
        for client in clients:
            counts = hand.label_counts(client)
            index = 1 - (np.count_nonzero(counts) - 1) / 2
            cell = min(
                SEVERAL.cells, key=lambda c: math.hypot(c.heterogeneity - index, (c.quantity - counts.sum()) / 20)
            )
            cells.add(cell)
            own = replace(hand, training=cell.local_training(TRAINING))
            trained.append(own.descend(vector, client, server_round)[0])
        vector = np.mean(trained, axis=0)
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)
    assert len(cells) > 2


@pytest.mark.parametrize("kind", ["fedavg", "krum", "scaffold", "fednova", "fedadam"])
def test_bits_do_not_depend_on_where_replies_are_merged(kind: str) -> None:
    strategy = parse_strategy({"kind": kind, "client_learning_rate": None})
    assert_same(trial_of(SEVERAL, strategy), trial_of(SEVERAL, strategy, merge=False))


@pytest.mark.parametrize("algorithm", [None, ProximalGradient(0.5)], ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_client_alone_has_its_bits(optimizer: Literal["sgd", "adam"], algorithm: ProximalGradient | None) -> None:
    """Whatever the settings of the others are; the proximal term counts."""
    sizes, table = (5, 7, 8, 16, 17, 18, 30, 31, 33, 9), tables.SettingsLookup(SEVERAL)
    training = LocalTraining(optimizer=optimizer, momentum=0.5, weight_decay=0.01)

    def trained(chosen: Iterable[int], algorithm: ProximalGradient | None = algorithm) -> list[Any]:
        return in_block([*chosen], training, algorithm, sizes=sizes, num_classes=3, table=table)

    together = trained(range(10))
    for client, update in enumerate(together):
        (alone,) = trained([client])
        assert np.array_equal(alone.vector, update.vector)
        assert (alone.num_steps, alone.loss) == (update.num_steps, update.loss)
    if algorithm is not None:
        pairs = zip(trained(range(10), None), together, strict=True)
        assert not all(np.array_equal(one.vector, update.vector) for one, update in pairs)


class Recorder(LocalGrid):
    """Keeps every message and every reply."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.sent: list[Message] = []
        self.replied: list[Message] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.sent += messages
        self.replied += replies
        return replies


def scalars(message: Message) -> dict[str, Any]:
    """Return all that a message holds beside arrays, but for losses and scores, which training itself shows."""
    records = {**message.content.metric_records, **message.content.config_records}
    return {
        f"{name}.{key}": value
        for name, record in records.items()
        for key, value in record.items()
        if key not in ("loss", "train_loss", "accuracy", "server-round")
    }


@pytest.mark.parametrize("kind", ["fedavg", "krum", "fedmedian", "qfedavg"])
def test_no_message_tells_clients_of_different_cells_apart(kind: str) -> None:
    """Only models, auxiliary vectors, losses and scores differ between two messages of a kind, or two replies."""
    spec = spec_of(parse_strategy({"kind": kind}), client_table=tables.SettingsLookup(SEVERAL), num_sampled=NUM_CLIENTS)
    session = replace(spec.session, needs=replace(spec.session.needs, replies="individual", sees_evaluation=True))
    grid = Recorder(HOST, session=session)
    object.__setattr__(spec, "session", session)
    assert run_trial(spec, grid).status == "completed"
    hand = Hand(HOST._federation)
    assert len({hand.num_rows(client) for client in range(NUM_CLIENTS)}) == NUM_CLIENTS
    assert len(grid.replied) >= 2 * 5 * NUM_CLIENTS - NUM_CLIENTS
    for messages in (grid.sent, grid.replied):
        for message_type in ("train", "evaluate"):
            of_type = [m for m in messages if m.metadata.message_type == message_type]
            assert of_type
            first, *others = [scalars(message) for message in of_type]
            assert all(other == first for other in others)
            arrays = [[*m.content.array_records.values()] for m in of_type]
            shapes = [[{k: (a.shape, a.dtype) for k, a in r.items()} for r in records] for records in arrays]
            assert all(shape == shapes[0] for shape in shapes)


def first_round(host: ClientHost, session: Session, reply: ReplyMode) -> TrainResults:
    """Train all clients from the initial model."""
    config = train_config(TRAINING, SEED, 1, reply, session.needs.initial_loss)
    return host.train(HostCall(tuple(range(NUM_CLIENTS)), session, dict(config), host.initial_vector(SEED)))


@pytest.mark.parametrize("kind", ["fedavg", "scaffold", "fedprox"])
def test_where_hosts_merge_they_tell_no_more(kind: str) -> None:
    spec = spec_of(parse_strategy({"kind": kind}), client_table=tables.SettingsLookup(SEVERAL))
    results = first_round(HOST, spec.session, "merged")
    assert results.clients == [*range(NUM_CLIENTS)]
    assert {*results.num_examples} == {*results.num_steps} == {1}
    assert not results.sums


def noted(trial: Trial) -> list[str]:
    return [note for note in trial.notes if "clients disclose" in note]


OTHERS = tables.SettingsTable(tuple(tables.SettingsCell(*at, 0.7 * rate, size + 1, 4) for *at, rate, size, _ in CELLS))
"""Other settings in every cell."""

COHORT = Cohort(NUM_CLIENTS, NUM_CLIENTS, 0.1, server_rows=60, server_labels=True, own_settings=True)
KINDS = (*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS)
UNDER_A_TABLE = [kind for kind in KINDS if STRATEGIES[kind].unavailable(COHORT) is None]


def told_beside_models(strategy: StrategySpec, host: ClientHost, table: tables.SettingsTable) -> list[dict[str, Any]]:
    """Return by client all that the first round's replies hold but for models, losses and what follows from models."""
    session = spec_of(strategy, client_table=tables.SettingsLookup(table)).session
    results = first_round(host, session, "individual")
    assert results.clients == [*range(NUM_CLIENTS)]
    changes = np.stack(results.vectors) - host.initial_vector(SEED)
    beside = {name: vectors for name, vectors in results.auxiliary.items() if not np.array_equal(vectors, changes)}
    sums = {**beside, **results.sums, "rows": results.num_examples, "steps": results.num_steps}
    return [{name: np.asarray(values[client]).tolist() for name, values in sums.items()} for client in results.clients]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", UNDER_A_TABLE)
def test_what_tells_the_settings_of_equal_data_apart_makes_the_run_say_so(kind: str) -> None:
    """The same clients from the same model under two tables: replies, but for models and losses, are the same bits."""
    strategy = parse_strategy({"kind": kind}, COHORT)
    model = federations.normalised if kind in ("fedbn", "mfedbn") else federations.dense
    federation = federations.with_server_rows(federations.uneven_federation(model, SIZES, min_release=1), labelled=True)
    host = ClientHost(federation, {**federations.QUERIES, LABEL_COUNTS: CLIENT_QUERIES[LABEL_COUNTS]})
    first, second = (told_beside_models(strategy, host, table) for table in (SEVERAL, OTHERS))
    spec = spec_of(strategy, client_table=tables.SettingsLookup(SEVERAL), num_rounds=1, num_sampled=NUM_CLIENTS)
    grid = Recorder(host, session=spec.session)
    trial = run_trial(spec, grid)
    assert trial.status == "completed", trial.error
    queries = [message for message in grid.sent if message.metadata.message_type == "query"]
    tells = bool(queries) or first != second
    assert tells <= bool(noted(trial)), "it tells, and does not say so"
    assert tells == (kind in ("scaffold", "fednova", "communities"))


def test_fednova_under_a_table_counts_clients() -> None:
    """Whichever way it weighs: rows are not told."""
    weighings = [parse_strategy({"kind": "fednova", "sample_scaling": by}) for by in ("num-examples", "uniform")]
    by_rows, by_clients = (trial_of(SEVERAL, strategy) for strategy in weighings)
    assert np.array_equal(by_rows.vector, by_clients.vector)


def test_who_is_far_says_so_and_nothing_else() -> None:
    hand = Hand(HOST._federation)
    counts = [hand.label_counts(client) for client in range(NUM_CLIENTS)]
    distances = [SEVERAL.distances(tables.heterogeneity_index(c), int(c.sum())).min() for c in counts]
    threshold = float(np.median(distances))
    table = replace(SEVERAL, threshold=threshold)
    trial = trial_of(table, num_sampled=NUM_CLIENTS)
    far = sum(distance > threshold for distance in distances)
    assert 0 < far < NUM_CLIENTS
    assert any(f"{far} of {NUM_CLIENTS} " in note for note in trial.notes)
    assert np.array_equal(trial.vector, trial_of(SEVERAL, num_sampled=NUM_CLIENTS).vector)
    assert not any("clients' data" in note for note in trial.notes)


@pytest.mark.slow
def test_a_randomised_response_is_the_same_each_time_and_right_in_the_mean() -> None:
    cell = tables.SettingsCell(0.0, 100, 0.1, 8, 1)
    table = tables.SettingsLookup(tables.SettingsTable((cell,), threshold=0.5), epsilon=1.0)
    far, near = (np.array(counts) for counts in ([100, 0, 0], [40, 30, 30]))
    num_clients = 4000
    for counts, truth in ((far, 1), (near, 0)):
        says = [table.reports_far(counts, 0, client) for client in range(num_clients)]
        assert says == [table.reports_far(counts, 0, client) for client in range(num_clients)]
        share = 1 / (1 + math.exp(-1.0)) if truth else 1 / (1 + math.exp(1.0))
        assert abs(np.mean(says) - share) < 5 * math.sqrt(share * (1 - share) / num_clients)
        assert abs(table.num_far(sum(says), num_clients) / num_clients - truth) < 0.1
    assert replace(table, epsilon=None).reports_far(far, 0, 0)
    assert tables.FAR_KEY not in vars(table)


def test_metrics_of_labels() -> None:
    assert tables.missing_entropy(np.array([5, 5, 5, 5])) == pytest.approx(0, abs=1e-12)
    assert tables.missing_entropy(np.array([7, 0, 0])) == 1
    lacking = 1 + 0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)
    assert tables.missing_entropy(np.array([3, 1])) == pytest.approx(lacking)
    for counts in ([0, 0], [4]):
        with pytest.raises(ValueError, match=rf"\b{sum(counts)} of {len(counts)}$"):
            tables.missing_entropy(np.array(counts))


def spread(label_counts: Any, num_rows: int) -> float:
    """A metric of a user's own."""
    return float(label_counts.max() / num_rows)


def test_a_metric_of_ones_own_says_where_a_client_lies() -> None:
    table = tables.SettingsLookup(SEVERAL, metric=f"{__name__}:spread")
    assert table.settings(TRAINING, np.array([15, 1, 0])) == SEVERAL.nearest(15 / 16, 16).local_training(TRAINING)


def test_who_is_far_is_remembered_by_a_checkpoint(tmp_path: Path) -> None:
    """A trial that goes on tells of the clients of its first rounds, too."""
    table = tables.SettingsLookup(replace(SEVERAL, threshold=0.0))
    spec = spec_of(FedAvgSpec(), client_table=table, num_sampled=2)
    went_on, at_once = assert_going_on(spec, HOST, tmp_path, stopped_in=2)
    assert went_on.notes == at_once.notes
    assert any("farther" in note for note in at_once.notes)


def test_who_reports_steps_or_rows_makes_the_run_say_so() -> None:
    assert not noted(trial_of(SEVERAL))
    assert noted(trial_of(SEVERAL, parse_strategy({"kind": "fednova"})))
    policy = parse_selection({"kind": "oort"}, Cohort(NUM_CLIENTS, 5, 0.1, chosen=True))
    assert noted(trial_of(SEVERAL, selection=policy))
    assert not noted(result_of(HOST, parse_strategy({"kind": "fednova"})))


# -- A task in place of rows: everything else is as ever ---------------------------------------------------------------


def guessed(spec: TrialSettings) -> tuple[Trial, LocalGrid]:
    grid = LocalGrid(ClientHost(federations.guessing_federation(), federations.QUERIES), session=spec.session)
    return run_trial(spec, grid), grid


@pytest.mark.parametrize("choice", [FEDAVG, FLOWER_CHOICES["fedavg-individual"]])
def test_rounds_train_score_and_keep_states(choice: Choice) -> None:
    result, grid = guessed(replace(flower_spec(choice), num_rounds=3, keep_model=True))
    assert result.status == "completed"
    # The clients' numbers are 0, 0.1 … 0.6; with and without 0.3 their mean is 0.3: x ← x/2 + 0.15.
    initial = float(grid.initial_vector(flower_spec(choice).session.seed)[0])
    expected = ((initial / 2 + 0.15) / 2 + 0.15) / 2 + 0.15
    assert result.vector[0] == pytest.approx(expected, abs=1e-6)
    assert list(result.dropped_clients) == ["2:3"]
    rounds = {client: int(state["task/rounds"][0]) for client, state in grid.client_states.items()}
    assert rounds == {client: 2 if client == 3 else 3 for client in range(federations.GUESSING)}


def test_accuracy_is_the_median_over_repeats_of_the_mean_over_clients() -> None:
    result, grid = guessed(replace(flower_spec(FEDAVG), num_rounds=1, keep_model=True))
    near = np.array([1 - abs(client / 10 - float(result.vector[0])) for client in range(federations.GUESSING)])
    last = grid.evaluate_all(flat_record(result.vector))
    third = last.repeats[:, 2].mean()
    assert result.rounds["accuracy"][0] == pytest.approx(float(np.median([near.mean(), near.mean() / 2, third])))
    assert result.rounds["clean_accuracy"][0] == result.rounds["accuracy"][0]
    assert last.num_examples.tolist() == [1] * federations.GUESSING


def test_all_models_of_a_seed_meet_the_same_draws() -> None:
    """The random part of client 0's score is the same in every round."""
    results = (guessed(flower_spec(FEDAVG, num_rounds=rounds)) for rounds in (1, 3))
    one, three = (grid.evaluate_all(flat_record(result.vector)) for result, grid in results)
    assert one.repeats[0, 2] == three.repeats[0, 2]


def test_a_client_without_rows_answers_no_query() -> None:
    host = ClientHost(federations.guessing_federation(), federations.QUERIES)
    results = host.query(HostCall((0, 1), Session(), {FUNCTION_KEY: "label-counts"}))
    assert [*results.failures] == [0, 1]
    assert not host.facts().holds_rows


# -- Local training as a configuration, keys that are read, one step size under two names, clipped updates -------------


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(),
        LocalTraining(local_epochs=3, batch_size=7, learning_rate=1e-9, optimizer="adam", precision="bfloat16"),
        LocalTraining(momentum=0.999, weight_decay=0.1, pseudo_label_weight=1.5, reverse_weight=1000),
    ],
)
def test_a_configuration_gives_back_what_was_written(training: LocalTraining) -> None:
    config = training.to_config()

    assert LocalTraining.from_config({**config, "server-round": 3, "proximal-mu": 0.1}) == training
    assert all("_" not in key for key in config)
    assert set(config) <= READ_BY_EVERY_CLIENT


MODEL = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, 0.1),
        ({"lr": 0.1, "learning-rate": 0.1}, 0.1),
        ({"lr": 0.3}, 0.3),
        ({"lr": 0.3, "learning-rate": 0.1}, 0.3),
        ({"lr": 0.1, "learning-rate": 0.3}, 0.3),
        ({"lr": 0.3, "learning-rate": 0.3}, 0.3),
    ],
)
def test_the_step_size_is_the_one_that_was_changed(config: dict[str, float], expected: float) -> None:
    assert one_learning_rate(config, 0.1) == expected


def sent_of(update: np.ndarray, norm: float) -> ClientUpdate | Exception:
    """Return what a client sends whose model moves by an update."""
    layout, call = ParameterLayout((TensorSlot("w", (3,)),)), HostCall((0,), Session(), {CLIPPING_KEY: norm}, MODEL)
    work = RowsWork(0, np.random.default_rng(0), {}, Samples(np.empty((0, 1)), np.empty(0), np.empty(0)))
    ((_, sent),) = clipped(call, layout, [(work, ClientUpdate((MODEL + update).astype(np.float32), 1, 0.5, {}))])
    return sent


@pytest.mark.parametrize(("norm", "factor"), [(2.5, 0.5), (5.0, 1.0), (50.0, 1.0)])
def test_an_update_of_length_five_is_cut_to_the_norm(norm: float, factor: float) -> None:
    update = np.array([3.0, 0.0, -4.0])
    sent = sent_of(update, norm)
    assert isinstance(sent, ClientUpdate)
    np.testing.assert_allclose(sent.vector, MODEL + factor * update)
    assert sent.sums == {NORM_BIT_KEY: int(norm < 5)}


def test_an_update_of_length_zero_can_not_be_clipped() -> None:
    assert isinstance(sent_of(np.zeros(3), 1.0), ZeroDivisionError)
    assert (CLIPPING_KEY, NORM_BIT_KEY) == (KEY_CLIPPING_NORM, KEY_NORM_BIT)
