"""Under masks a training has the bits of one without, whoever drops out; and no message tells of a client alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedscout.detectors import CLIENT_QUERIES
from fedscout.engine.contracts.settings_lookup import SettingsLookup
from fedscout.engine.contracts.settings_table import SettingsCell, SettingsTable
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import TrialError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.exchange import Query, exchange
from fedscout.engine.messages.host_calls import TrainResults
from fedscout.engine.messages.message_contents import flat_record
from fedscout.engine.metrics.confusion import MacroF1
from fedscout.engine.metrics.metric import Metric
from fedscout.engine.nodes import masked_answers
from fedscout.engine.nodes.node_call import Greeting, Introduction, NodeAnswers, Wire, algorithms_of
from fedscout.engine.nodes.node_grid import NodeGrid
from fedscout.engine.nodes.node_roster import NodeRoster
from fedscout.engine.nodes.owner_policy import OwnerPolicy
from fedscout.engine.nodes.secure_grid import SecureGrid
from fedscout.engine.nodes.sum_calls import SUM_VALUES, SumAnswer
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.trial import run_trial
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.strategies import parse_strategy
from tests.engine.federations import normalised, uneven_federation
from tests.engine.nodes.node_link import FIRST_NODE, TRUSTING, NodeLink, linked, node_grid, server_side
from tests.engine.nodes.test_node_grid import BROKEN, SESSION, model_of, settings_of
from tests.engine.trials.test_resume import Interruption, interrupt_in

SIZES = (40, 17, 26, 12)
IMPATIENT = replace(SESSION, round_timeout_seconds=0.2)
SUMS_ALONE = OwnerPolicy(**{**TRUSTING.model_dump(), "sums_only": True})


@pytest.fixture
def federation() -> Federation:
    """Four clients of some rows each, and a model with buffers."""
    return uneven_federation(normalised, sizes=SIZES, min_release=5)


def secure_link(federation: Federation, owner: OwnerPolicy = TRUSTING) -> tuple[NodeLink, NodeRoster, Wire]:
    """Return nodes that know masked sums."""
    algorithms = (*algorithms_of("fedscout.strategies"), *SUM_VALUES)
    link, roster, wire = linked(federation, CLIENT_QUERIES, algorithms, owner)
    if owner.sums_only:
        roster.members.clear()  # who were asked for their rows
        roster._greeting = Greeting(asks_rows=False)
        roster.meet(federation.num_clients, patience=5.0)
    return link, roster, wire


def secure_grid(federation: Federation, roster: NodeRoster, wire: Wire, settings: TrialSettings) -> SecureGrid:
    """Return a grid over a roster's nodes that reads sums alone."""
    return SecureGrid(roster, server_side(federation), wire, settings.session, settings.checkpoint)


def client_of(node: int) -> int:
    """Return whose node it is."""
    return (FIRST_NODE - node) // 17


KINDS = (
    "fedavg",
    "fedavgm",
    "fedadam",
    "fedyogi",
    "fedprox",
    "scaffold",
    "feddyn",
    "fednova",
    "fedbn",
    "ditto",
    "moon",
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "fedadam+fedprox"])
def test_a_training_has_the_bits_of_a_simulation_in_the_clear(kind: str, federation: Federation) -> None:
    _, roster, wire = secure_link(federation, SUMS_ALONE)
    settings = settings_of(kind, federation)
    plain = run_trial(settings, LocalGrid(federation, CLIENT_QUERIES, settings.session))
    secure = run_trial(settings, secure_grid(federation, roster, wire, settings))
    assert np.array_equal(model_of(plain), model_of(secure))
    assert_same_scores(plain, secure)
    assert (secure.client, secure.client_accuracy) == ((), ())
    assert (secure.bytes_down, secure.bytes_up) == (plain.bytes_down, 2 * (plain.bytes_up or 0))


def assert_same_scores(plain: Trial, secure: Trial) -> None:
    """Check that both were scored on the same rows; sums of losses are rounded in different places."""
    assert secure.round_accuracy == pytest.approx(plain.round_accuracy, rel=1e-12)
    assert secure.round_loss == pytest.approx(plain.round_loss, rel=1e-9, nan_ok=True)
    assert secure.round_train_loss == pytest.approx(plain.round_train_loss, rel=1e-9, nan_ok=True)
    assert secure.round_metric == plain.round_metric


@pytest.mark.parametrize("num_sampled", [3, 4])
def test_some_train_and_all_are_scored_by_another_metric(federation: Federation, num_sampled: int) -> None:
    _, roster, wire = secure_link(federation)
    spec = parse_strategy({"kind": "fedavg", "sample_scaling": "uniform"}, Cohort(4, num_sampled, 0.2))
    session = replace(SESSION, metric=MacroF1())
    settings = TrialSettings(spec, num_rounds=3, num_sampled=num_sampled, session=session, keep_model=True)
    plain = run_trial(settings, LocalGrid(federation, CLIENT_QUERIES, settings.session))
    grid = secure_grid(federation, roster, wire, settings)
    secure = run_trial(settings, grid)
    assert np.array_equal(model_of(plain), model_of(secure))
    assert_same_scores(plain, secure)
    if num_sampled == federation.num_clients:
        prepared, counted, rounds, scored = 2, 2, 3 * 2, 2
        assert grid.sums.num_exchanges == prepared + counted + rounds + scored


@pytest.mark.slow
def test_clients_with_settings_of_their_own_are_summed_as_they_are_in_the_clear(federation: Federation) -> None:
    _, roster, wire = secure_link(federation, SUMS_ALONE)
    cells = tuple(SettingsCell(0.5, rows, 0.2, 8, epochs) for rows, epochs in ((15, 3), (30, 1)))
    session = replace(SESSION, client_table=SettingsLookup(SettingsTable(cells), "heterogeneity"))
    settings = settings_of("fedavg", federation, session)
    plain = run_trial(settings, LocalGrid(federation, CLIENT_QUERIES, settings.session))
    secure = run_trial(settings, secure_grid(federation, roster, wire, settings))
    assert np.array_equal(model_of(plain), model_of(secure))
    assert_same_scores(plain, secure)


def losing(link: NodeLink, lost: Callable[[int, Any], bool], wire: Wire) -> None:
    """Have replies lost, by node and what they hold."""

    def tamper(node: int, reply: Message) -> Message | None:
        if not reply.has_error() and lost(client_of(node), wire.opened(reply.content)):
            return None
        return reply

    link.tamper = tamper


def run_plain(federation: Federation, settings: TrialSettings, lost: tuple[int, ...]) -> Trial:
    """Train over nodes in the clear, where the second round's replies of some clients are lost."""
    link, roster, wire = linked(federation, CLIENT_QUERIES)
    rounds = dict.fromkeys(range(federation.num_clients), 0)

    def is_lost(client: int, answer: Any) -> bool:
        has_trained = isinstance(answer, NodeAnswers) and isinstance(answer.answers[0], TrainResults)
        rounds[client] += has_trained
        return has_trained and client in lost and rounds[client] == 2

    losing(link, is_lost, wire)
    return run_trial(settings, node_grid(federation, roster, wire, settings.session, settings.checkpoint))


def run_secure(
    federation: Federation, settings: TrialSettings, lost: tuple[int, ...], step: str, which: int
) -> tuple[Trial, SecureGrid]:
    """Train under masks, where some clients' answers to one kind of step are lost the n-th time that they give them."""
    link, roster, wire = secure_link(federation)
    times = dict.fromkeys(range(federation.num_clients), 0)

    def is_lost(client: int, answer: Any) -> bool:
        given = (
            isinstance(answer, SumAnswer)
            and {
                "added": answer.masked is not None and len(answer.sections) > 1,
                "opened": bool(answer.opened),
                "sealed": bool(answer.sealed) and not answer.opened,
            }[step]
        )
        times[client] += bool(given)
        return bool(given) and client in lost and times[client] == which

    losing(link, is_lost, wire)
    grid = secure_grid(federation, roster, wire, settings)
    return run_trial(settings, grid), grid


@pytest.mark.slow
def test_who_drops_out_before_adding_is_left_out_of_the_round(federation: Federation) -> None:
    settings = settings_of("fedavg", federation, IMPATIENT)
    plain = run_plain(federation, settings, (BROKEN,))
    secure, _ = run_secure(federation, settings, (BROKEN,), "added", 2)
    assert np.array_equal(model_of(plain), model_of(secure))
    assert_same_scores(plain, secure)
    assert set(secure.dropped_clients) == set(plain.dropped_clients) == {f"2:{BROKEN}"}


@pytest.mark.slow
def test_who_drops_out_after_adding_is_in_the_round(federation: Federation) -> None:
    settings = settings_of("fedavg", federation, IMPATIENT)
    plain = run_plain(federation, settings, ())
    secure, _ = run_secure(federation, settings, (BROKEN,), "opened", 3)  # the first two: rows, first round
    assert secure.dropped_clients == {}
    assert np.array_equal(model_of(plain), model_of(secure))
    assert_same_scores(plain, secure)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["added", "opened"])
def test_a_round_of_too_few_is_lost_in_one_line_and_training_goes_on(
    federation: Federation, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of("fedavg", federation, IMPATIENT)
    everybody, most = (0, 1, 2, 3), (0, 1, 3)
    plain = run_plain(federation, settings, everybody)
    with caplog.at_level(logging.WARNING, "fedscout"):
        secure, _ = run_secure(federation, settings, most, step, 2 if step == "added" else 3)
    assert (secure.status, [*secure.skipped_rounds]) == ("completed", ["2"])
    assert np.array_equal(model_of(plain), model_of(secure))
    assert_same_scores(plain, secure)
    lines = [record.message for record in caplog.records if "sum is lost" in record.message]
    assert len(lines) == 1
    assert "\n" not in lines[0]


@pytest.mark.slow
def test_a_client_that_seals_no_shares_is_left_out_of_the_sum(federation: Federation) -> None:
    settings = settings_of("fedavg", federation, IMPATIENT)
    secure, _ = run_secure(federation, settings, (BROKEN,), "sealed", 1)
    assert secure.status == "completed", secure.error


@pytest.mark.slow
def test_a_driver_that_was_killed_goes_on_with_the_same_bits(federation: Federation, tmp_path: Path) -> None:
    _, roster, wire = secure_link(federation)
    settings = replace(settings_of("scaffold", federation), num_rounds=4)
    expected = run_trial(settings, LocalGrid(federation, CLIENT_QUERIES, settings.session))
    store = CheckpointStore(tmp_path, every_rounds=1)
    with pytest.raises(Interruption):
        run_trial(settings, secure_grid(federation, roster, wire, settings), store, interrupt_in(3))
    resumed = run_trial(settings, secure_grid(federation, roster, wire, settings), store)
    assert np.array_equal(model_of(expected), model_of(resumed))
    assert_same_scores(expected, resumed)


@pytest.mark.slow
def test_a_client_that_adds_nonsense_costs_its_round_and_one_that_sends_other_sizes_its_part(
    federation: Federation,
) -> None:
    link, roster, wire = secure_link(federation)
    times = 0

    def spoil(node: int, reply: Message) -> Message:
        nonlocal times
        answer = None if reply.has_error() else wire.opened(reply.content)
        if client_of(node) != BROKEN or not isinstance(answer, SumAnswer) or answer.masked is None:
            return reply
        times += 1
        if times == 3:  # after the rows and the first round
            noise = np.random.default_rng(0).integers(0, 2**64, len(answer.masked), dtype=np.uint64)
            reply.content = wire.packed(replace(answer, masked=noise))
        if times == 4:
            reply.content = wire.packed(replace(answer, masked=answer.masked[:-1]))
        return reply

    link.tamper = spoil
    settings = replace(settings_of("fedavg", federation), num_rounds=3)
    secure = run_trial(settings, secure_grid(federation, roster, wire, settings))
    assert secure.status == "completed", secure.error
    assert "rows, of 95 that they hold" in secure.skipped_rounds["2"]
    assert {place.partition(":")[0] for place in secure.dropped_clients} == {"2"}


@pytest.mark.slow
def test_no_message_holds_a_clients_own_numbers(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("scaffold", federation)
    clear, roster, wire = linked(federation, CLIENT_QUERIES, algorithms_of("fedscout.strategies"))
    run_trial(settings, NodeGrid(roster, server_side(federation), wire, settings.session, settings.checkpoint))
    told = [wire.opened(message.content) for message in clear.heard]
    answered = [one for message in told if isinstance(message, NodeAnswers) for one in message.answers]
    updates = [one for one in answered if isinstance(one, TrainResults)]
    secrets = [one.vectors[0].tobytes() for one in updates if one.vectors is not None]  # what is told in the clear
    secrets += [row.tobytes() for one in updates for rows in one.companions.values() for row in rows]
    assert len(secrets) == 2 * 3 * len(SIZES)

    unmasked: list[npt.NDArray[np.int64]] = []
    real = masked_answers.masked

    def recorded(vector: npt.NDArray[np.int64], *rest: Any) -> npt.NDArray[np.uint64]:
        unmasked.append(vector)
        return real(vector, *rest)

    monkeypatch.setattr(masked_answers, "masked", recorded)
    link, roster, wire = secure_link(federation, SUMS_ALONE)
    run_trial(settings, secure_grid(federation, roster, wire, settings))
    replies = [message for message in link.heard if message.metadata.reply_to_message_id]
    for message in replies:
        sent = b"".join(each.deflate() for each in get_all_nested_objects(message).values())
        assert not any(secret in sent for secret in secrets)
        assert not any(vector[vector != 0].tobytes() in sent for vector in unmasked)

    answers = [wire.opened(message.content) for message in replies]
    introductions = [one for one in answers if isinstance(one, Introduction)]
    assert {one.num_rows for one in introductions[-len(SIZES) :]} == {0}
    steps = [one for one in answers if isinstance(one, SumAnswer)]
    assert len(steps) == len(answers) - len(introductions)
    masked = [one.masked for one in steps if one.masked is not None]
    for vector, own in zip(masked, unmasked, strict=True):
        assert not np.any(vector.view(np.int64) == own)
    # beside keys, shares and noise, which are as long for all, each tells what all tell
    others = [replace(one, public="", sealed={}, opened={}, masked=None, states={}) for one in steps]
    assert len({repr(one) for one in others}) == 1 + len({one.sections for one in steps if one.sections})
    marks = {tuple(state) for one in steps for state in one.states.values()}
    assert marks == {("kept-after-round",)}


def test_secrets_that_were_used_are_forgotten(federation: Federation) -> None:
    link, roster, wire = secure_link(federation)
    settings = settings_of("fedavg", federation)
    run_trial(settings, secure_grid(federation, roster, wire, settings))
    for _, context in link.apps.values():
        kept = [record for key, record in context.state.config_records.items() if key.startswith("sum.")]
        assert len(kept) == 1  # of a sum to which nothing was added
        assert "sealed" not in kept[0]


def test_an_owner_may_allow_masked_sums_alone(federation: Federation) -> None:
    _, roster, wire = secure_link(federation, SUMS_ALONE)
    settings = settings_of("fedavg", federation)
    trial = run_trial(settings, node_grid(federation, roster, wire, settings.session, settings.checkpoint))
    assert trial.status == "failed"
    assert all("allows masked sums alone" in reason for reason in trial.dropped_clients.values())
    assert run_trial(settings, secure_grid(federation, roster, wire, settings)).status == "completed"
    assert {member.introduction.num_rows for member in roster.members} == {0}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("krum", "each client's own model"), ("communities", "a query asks for each client's own answer")],
)
def test_what_needs_single_clients_is_refused(kind: str, reason: str, federation: Federation) -> None:
    _, roster, wire = secure_link(federation)
    settings = settings_of(kind, federation)
    trial = run_trial(settings, secure_grid(federation, roster, wire, settings))
    assert trial.status == "failed"
    assert reason in (trial.error or "")


def test_the_sum_of_two_is_refused() -> None:
    federation = uneven_federation(sizes=(40, 17))
    _, roster, wire = secure_link(federation)
    settings = settings_of("fedavg", federation)
    trial = run_trial(settings, secure_grid(federation, roster, wire, settings))
    assert trial.status == "failed"
    assert "3 clients are needed, got 2" in (trial.error or "")


def test_totals_are_the_sums_of_what_clients_would_answer(federation: Federation) -> None:
    _, roster, wire = secure_link(federation)
    settings = settings_of("fedavg", federation)
    queries = [Query("label_counts"), Query("class_sums", config={"max_features": 99})]
    plain, _ = exchange(LocalGrid(federation, CLIENT_QUERIES, settings.session), queries)
    grid = secure_grid(federation, roster, wire, settings)
    for query, answers in zip(queries, plain, strict=True):
        totals, num_clients = grid.total_of(query)
        assert num_clients == len(answers.arrays) == len(SIZES)
        for name, values in totals.items():
            alone = [np.asarray(arrays[name], np.float64) for arrays in answers.arrays.values()]
            assert values == pytest.approx(np.sum(alone, axis=0), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("metric", [None, MacroF1()])
def test_a_model_whose_outputs_are_not_numbers_has_no_score_in_sums_either(
    metric: Metric | None, federation: Federation
) -> None:
    _, roster, wire = secure_link(federation)
    settings = settings_of("fedavg", federation)
    settings = replace(settings, session=replace(settings.session, metric=metric))
    grid = secure_grid(federation, roster, wire, settings)
    initial = grid.initial_vector(0)
    good, bad = (grid.evaluate_all(flat_record(vector)) for vector in (initial, np.full_like(initial, np.nan)))
    assert not good.is_missing
    assert bad.is_missing
    assert np.isnan([bad.accuracy, bad.weighted(bad.losses)]).all()
    assert metric is None or (good.metric is not None and bad.metric is not None and np.isnan(bad.metric))


def test_min_release_holds_for_each_client_before_its_answer_is_masked(federation: Federation) -> None:
    _, roster, wire = secure_link(federation, OwnerPolicy(**{**TRUSTING.model_dump(), "min_release": 30}))
    settings = settings_of("fedavg", federation)
    with pytest.raises(TrialError, match=r"could not be formed: .* got 1 \(client 1: holds fewer rows than"):
        secure_grid(federation, roster, wire, settings).total_of(Query("label_counts"))
