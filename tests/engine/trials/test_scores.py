"""What a trial measures, of whom and by which model: metrics, quantities, clients that join later, groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg
from sklearn.metrics import r2_score
from torch import nn

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore, UpdateAttack
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition, TargetScale
from fedscout.engine.data.federation import Federation, split_client
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.replies import fold_evaluation
from fedscout.engine.grid.selection import scored_clients
from fedscout.engine.messages.calls import EvaluateResults, HostCall, Session
from fedscout.engine.messages.contents import flat_record, metrics_of, read_array, several_models, view_record
from fedscout.engine.messages.keys import FLAT_KEY, FUNCTION_KEY
from fedscout.engine.metrics import OF_CLASSES, R2, Auroc, MacroF1
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.scenarios.effects import LittleIsEnough
from tests.engine.choices import FEDAVG, Choice, Variates, rounds_of, spec_of
from tests.engine.federations import (
    NUM_FEATURES,
    QUERIES,
    dense,
    one_output,
    plain_model,
    quantities,
    uneven_federation,
)
from tests.engine.grid.test_local_grid import WatchedGrid, messages
from tests.engine.results import completed, local_result
from tests.engine.trials.test_resume import assert_going_on


def outputs_and_labels(
    federation: Federation, vector: FloatArray, clean: bool = False, clients: Sequence[int] | None = None
) -> tuple[FloatArray, IntArray]:
    """Return a plain model's outputs on the test rows of all clients, or of some."""
    net = plain_model(dense, vector).eval()
    outputs, labels = [], []
    for client in range(federation.num_clients) if clients is None else clients:
        data = federation.client_data(client)
        view = data.clean if clean else data.own
        test = split_client(data.own.labels[data.own.rows], 3, client, 0.2).test
        features, own_labels = view.take(test)
        outputs.append(net(torch.from_numpy(features)).detach().numpy())
        labels.append(own_labels)
    return np.concatenate(outputs), np.concatenate(labels)


def run(federation: Federation, choice: Choice = FEDAVG, **changes: Any) -> Trial:
    return completed(spec_of(choice, **{"num_sampled": federation.num_seen, **changes}), federation)


@pytest.mark.parametrize("name", OF_CLASSES)
@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_it_is_that_of_the_pooled_test_rows(name: str, backend: str) -> None:
    """Of the last model, in both views, and the fitness is its mean over the rounds."""
    federation, metric = uneven_federation(), OF_CLASSES[name]()
    trial = run(federation, metric=metric, backend=backend)
    assert trial.metric == name
    for measured, clean in ((trial.rounds.get("metric"), False), (trial.rounds.get("clean_metric"), True)):
        expected = metric.value(metric.statistics(*outputs_and_labels(federation, trial.vector, clean)))
        assert measured[-1] == pytest.approx(expected, abs=1e-12)
    assert trial.rounds["metric"][-1] != trial.rounds["clean_metric"][-1]
    assert trial.own_fitness == pytest.approx(np.mean(trial.rounds["metric"]))
    assert trial.clean_fitness == pytest.approx(np.mean(trial.rounds["clean_metric"]))


def test_beside_it_all_is_as_without_it() -> None:
    plain, measured = run(uneven_federation()), run(uneven_federation(), metric=MacroF1(), worst_clients=True)
    assert rounds_of(plain) == rounds_of(measured)
    assert np.array_equal(plain.vector, measured.vector)
    assert plain.metric is plain.clients.get("metric") is None
    assert plain.rounds.get("metric") is plain.rounds.get("worst_clients") is None
    assert plain.own_fitness == pytest.approx(np.mean(plain.rounds["accuracy"]))


class WatchedHost(ClientHost):
    """Keeps what it answered."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation, QUERIES)
        self.answers: list[EvaluateResults] = []

    def evaluate(self, call: HostCall) -> EvaluateResults:
        self.answers.append(super().evaluate(call))
        return self.answers[-1]


def test_nobody_reads_the_counts_of_a_client() -> None:
    """A host tells the sums over its clients, which count all their rows, and none of a single one."""
    host, spec = WatchedHost(uneven_federation()), spec_of(FEDAVG, metric=MacroF1())
    completed(spec, host)
    assert len(host.answers) == spec.num_rounds
    for answer in host.answers:
        assert all(score.statistics is None for told in (answer.own, answer.clean) for score in told.values())
        assert answer.sums["own"].sum() == sum(score.num_examples for score in answer.own.values())


def test_a_trial_without_a_measure_says_so() -> None:
    """Rows of one class have no area; new clients must have rows to be scored on."""
    plain = uneven_federation()
    one = replace(plain, labels=np.zeros_like(plain.labels), transforms={})
    joining = replace(plain, unseen=frozenset((4,)))
    for settings, federation, named in (
        (spec_of(FEDAVG, metric=Auroc()), one, "auroc"),
        (spec_of(FEDAVG, num_sampled=6), joining, "unseen"),
    ):
        error = local_result(settings, federation).error
        assert "(test)" in error
        assert named in error


def test_the_worst_tenth_of_the_clients_is_rounded_up_and_knows_only_who_has_rows() -> None:
    """Of eleven with rows the two worst; one without rows, whose accuracy reads 0, is not among them."""
    scores = {client: ClientScore(10, client, 0.0) for client in range(1, 11)}
    scores |= {0: ClientScore(1, 0, 0.0), 11: ClientScore(0, 0, 0.0)}
    evaluation = fold_evaluation([EvaluateResults(scores, {0: ClientScore(10, 10, 0.0)})])
    assert evaluation.worst_clients() == pytest.approx((0.0 + 0.1) / 2)
    assert evaluation.worst_clients(clean=True) == pytest.approx((0.1 + 0.2) / 2)
    measured = {client: replace(score, metric=float("nan")) for client, score in scores.items()}
    measured[4] = replace(scores[4], metric=0.75)
    assert fold_evaluation([EvaluateResults(measured)]).worst_clients() == 0.75


# -- Federations that predict a quantity: the squared error is learnt, on the scale of training rows, and nobody leaks


SEED, SHARE = 3, 0.2


def rows_of(built: Federation, part: str) -> npt.NDArray[np.int64]:
    """Return the rows of one part of all clients, client after client."""
    found = []
    for client in range(built.num_clients):
        rows, own = built.partition.client(client), built.client_data(client).own
        found.append(rows[getattr(built.split_rows(client, own.labels[own.rows], SEED, SHARE, 0.0), part)])
    return np.concatenate(found)


run_quantities = partial(run, metric=R2())


def test_a_step_by_hand() -> None:
    """One client, all rows a batch: w − 2 η Xᵀ(Xw + b − z) / n in float64, z standardised by the training rows."""
    built = quantities(partial(nn.Linear, NUM_FEATURES, 1))
    alone = replace(built, transforms={}, partition=Partition.from_lists([built.partition.client(0)]))
    grid = LocalGrid(alone, QUERIES)
    start = grid.initial_vector(SEED).astype(np.float64)
    training = LocalTraining(batch_size=1000, learning_rate=0.1)
    trained = run_quantities(alone, num_sampled=1, num_rounds=1, training=training)
    rows = rows_of(alone, "train")
    targets = (alone.targets[rows] - alone.targets[rows].mean()) / alone.targets[rows].std()
    inputs = np.column_stack([alone.features[rows].astype(np.float64), np.ones(len(rows))])
    expected = start - 0.1 * 2 * inputs.T @ (inputs @ start - targets) / len(rows)
    np.testing.assert_allclose(trained.vector, expected, rtol=1e-5)


def test_the_score_is_scikit_learns_of_the_pooled_test_rows() -> None:
    """In both views, which differ by the corrupted client's features; the loss is the standardised squared error."""
    built = quantities()
    trial = run_quantities(built)
    scale = TargetScale.of(built.targets[rows_of(built, "train")])
    test = rows_of(built, "test")
    said = plain_model(one_output, trial.vector).eval()(torch.from_numpy(built.features[test])).detach().numpy()[:, 0]
    expected = r2_score(built.targets[test], scale.mean + scale.deviation * said.astype(np.float64))
    assert trial.rounds["clean_metric"][-1] == pytest.approx(expected, abs=1e-6)
    errors = (built.targets[test] - scale.mean) / scale.deviation - said
    assert trial.rounds["clean_loss"][-1] == pytest.approx(np.mean(errors**2), rel=1e-5)
    assert trial.rounds["metric"][-1] < trial.rounds["clean_metric"][-1]
    assert all(np.isnan(trial.rounds["accuracy"]))
    assert trial.own_fitness == pytest.approx(np.mean(trial.rounds["metric"]))


def test_what_is_learnt_knows_nothing_of_the_test_rows() -> None:
    """Whatever their targets are, the trained model has the same bits."""
    built = quantities()
    other = built.targets.copy()
    other[rows_of(built, "test")] *= -1e6
    changed = replace(built, targets=other)
    assert np.array_equal(run_quantities(built).vector, run_quantities(changed).vector)
    assert run_quantities(built).rounds.get("metric") != run_quantities(changed).rounds.get("metric")


def test_clients_that_join_later_have_a_score_and_no_say_in_the_scale() -> None:
    """Their targets may be anything: the others learn the same bits."""
    built = replace(quantities(), unseen=frozenset((0,)))
    other = built.targets.copy()
    other[built.partition.client(0)] *= 100
    ours, theirs = run_quantities(built), run_quantities(replace(built, targets=other))
    assert np.array_equal(ours.vector, theirs.vector)
    assert ours.rounds.get("metric") == theirs.rounds.get("metric")
    assert ours.rounds.get("new_client_metric") != theirs.rounds.get("new_client_metric")


def answers(host: ClientHost, clients: tuple[int, ...]) -> EvaluateResults:
    spec = spec_of(FEDAVG, metric=R2())
    config = {"seed": SEED, "round": 1}
    grid = LocalGrid(host, session=spec.session)
    return host.evaluate(HostCall(clients, spec.session, config, vector=grid.initial_vector(SEED)))


def test_two_hosts_add_up_to_one() -> None:
    """To the last bit: every host knows the scale of all clients' training rows, and sums are exact."""
    one, left, right = (answers(ClientHost(quantities(), QUERIES), part) for part in ((0, 1, 3, 5), (0, 5), (1, 3)))
    assert (left.sums["own"] + right.sums["own"]).tolist() == one.sums["own"].tolist()
    for client, score in {**left.own, **right.own}.items():
        assert (score.loss_sum, score.metric) == (one.own[client].loss_sum, one.own[client].metric)


TRAININGS = (
    LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.02, momentum=0.9, weight_decay=0.01),
    LocalTraining(local_epochs=3, batch_size=16, learning_rate=0.005, optimizer="adam"),
)


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("algorithm", [None, Variates()])
def test_blocks_learn_what_the_loop_learns(training: LocalTraining, algorithm: ClientAlgorithm | None) -> None:
    """The same to the order of float32 sums; the corrupted client reads rows of its own."""
    choice, built = replace(FEDAVG, algorithm=algorithm), quantities()
    blocks, loop = (
        local_result(spec_of(choice, num_rounds=3, training=training, metric=R2(), backend=backend), built)
        for backend in ("auto", "loop")
    )
    np.testing.assert_allclose(blocks.vector, loop.vector, atol=2e-5)
    assert not np.array_equal(blocks.vector, loop.vector)
    for name in ("loss", "clean_loss", "metric"):
        np.testing.assert_allclose(blocks.rounds[name], loop.rounds[name], rtol=1e-4)
    np.testing.assert_allclose(blocks.clients["metric"], loop.clients["metric"], rtol=1e-4)


# -- Who is scored by which model: clients that join after the training, a few of many, and a model a group ------------


UNSEEN = frozenset((1, 5))
LAST = frozenset((5, 6))
"""Without them the rows are still more than 64, so exact sums have the same unit."""


def without(unseen: frozenset[int]) -> Federation:
    return replace(uneven_federation(), unseen=unseen)


def cut(federation: Federation, num_clients: int) -> Federation:
    """Return the federation of the first clients alone, over the same rows."""
    rows, offsets = federation.partition.rows, federation.partition.offsets
    kept = Partition(rows[: offsets[num_clients]], offsets[: num_clients + 1])
    transforms = {client: steps for client, steps in federation.transforms.items() if client < num_clients}
    return replace(federation, partition=kept, transforms=transforms)


@pytest.mark.parametrize("sampled", [2, 5])
def test_they_are_sent_no_model_to_train_and_are_scored_beside_the_others(sampled: int) -> None:
    federation = without(UNSEEN)
    spec = spec_of(replace(FEDAVG, algorithm=Variates()), num_sampled=sampled)
    grid = WatchedGrid(federation, QUERIES, session=spec.session)
    trial = run_trial(spec, grid)
    assert trial.status == "completed"
    trained = [call for method, call in grid.calls_made if method == "train"]
    assert len(trained) == spec.num_rounds
    assert not UNSEEN & {client for call in trained for client in call.clients}
    assert not UNSEEN & grid.client_states.keys()
    assert all(set(call.evaluated) in (set(), set(range(7))) for call in trained)
    assert trial.clients["id"] == (0, 2, 3, 4, 6)


@pytest.mark.parametrize("message_type", ["train", "query", "evaluate"])
def test_a_message_to_one_of_them_is_refused(message_type: str) -> None:
    grid = LocalGrid(without(UNSEEN), QUERIES)
    with pytest.raises(ValueError, match=r"\bnode 7\b"):
        grid.push_messages(messages(grid, message_type, [5], config={FUNCTION_KEY: "label-counts"}))


@pytest.mark.parametrize("choice", [FEDAVG, replace(FEDAVG, algorithm=Variates())], ids=["plain", "with states"])
def test_the_others_train_as_if_they_did_not_exist(choice: Choice) -> None:
    """To the last bit; and the score of new clients is that of the final model on their rows."""
    federation = uneven_federation()
    with_them, alone = run(without(LAST), choice), run(cut(federation, 5), choice)
    assert rounds_of(with_them) == rounds_of(alone)
    assert np.array_equal(with_them.vector, alone.vector)
    assert with_them.clients["accuracy"] == alone.clients["accuracy"]
    assert with_them.bytes_up == alone.bytes_up
    assert alone.rounds.get("new_client_accuracy") is None
    outputs, labels = outputs_and_labels(federation, with_them.vector, clients=sorted(LAST))
    assert with_them.rounds["new_client_accuracy"][-1] == np.mean(outputs.argmax(axis=1) == labels)


def test_an_attacker_has_no_accomplice_among_them() -> None:
    """The model of one who never trains is nobody's to know."""

    def attacked(*colluders: int) -> Federation:
        attack: tuple[UpdateAttack, ...] = (LittleIsEnough(colluders, 1.5),)
        return replace(uneven_federation(), attacks={0: attack}, unseen=frozenset((1,)))

    assert np.array_equal(run(attacked(0, 1, 3)).vector, run(attacked(0, 3)).vector)
    assert not np.array_equal(run(attacked(0, 1, 3)).vector, run(attacked(0)).vector)


# -- Where few of many clients score the models: they are the same in every round, and training is as it would be ------


@pytest.mark.parametrize("choice", [FEDAVG, replace(FEDAVG, algorithm=Variates())], ids=["plain", "with states"])
def test_their_scores_are_those_that_they_have_among_all(choice: Choice) -> None:
    few, all_of_them = run(uneven_federation(), choice, num_scored=4), run(uneven_federation(), choice)

    assert np.array_equal(few.vector, all_of_them.vector)
    assert len(few.clients["id"]) == 4
    among_all = dict(zip(all_of_them.clients["id"], all_of_them.clients["accuracy"], strict=True))
    assert few.clients["accuracy"] == tuple(among_all[client] for client in few.clients["id"])
    weights = np.array(few.clients["num_examples"])
    assert few.rounds["accuracy"][-1] == pytest.approx(np.dot(few.clients["accuracy"], weights) / weights.sum())


def test_nobody_else_scores_in_any_round() -> None:
    spec = spec_of(FEDAVG, num_scored=2, num_rounds=4)
    grid = WatchedGrid(uneven_federation(), QUERIES, session=spec.session)
    trial = run_trial(spec, grid)

    calls = [(call.clients if method == "evaluate" else call.evaluated) for method, call in grid.calls_made]
    assert [{*clients} for clients in calls if clients] == [{*trial.clients["id"]}] * 4


def test_clients_that_join_later_are_drawn_apart() -> None:
    trial = run(without(UNSEEN), num_scored=2)

    assert len(trial.clients["id"]) == 2
    assert not UNSEEN & {*trial.clients["id"]}
    assert trial.rounds.get("new_client_accuracy") is not None


@pytest.mark.parametrize(("least", "able"), [(1, {0, 1, 3, 5, 6}), (4, {0, 5, 6})])
def test_nobody_is_drawn_who_has_no_rows_to_be_scored_on(least: int, able: set[int]) -> None:
    """Of so many rows each a fifth is tested on; of one row there is none, and fewer than the least abstain."""
    facts = LocalGrid(uneven_federation(), QUERIES).facts
    facts = replace(facts, client_rows=np.array([40, 17, 1, 5, 0, 20, 33]), least_training_rows=least)
    drawn = [scored_clients(facts, Session(seed=seed, num_scored=2)) for seed in range(30)]
    assert {len(clients) for clients in drawn if clients is not None} == {2}
    assert {client for clients in drawn if clients is not None for client in clients.tolist()} == able


def test_the_seed_draws_them() -> None:
    facts = LocalGrid(uneven_federation(), QUERIES).facts
    first, again, other = (scored_clients(facts, Session(seed=seed, num_scored=3)).tolist() for seed in (0, 0, 1))
    assert first == again == sorted({*first}) != other
    assert scored_clients(facts, Session()) is None


def test_a_strategy_that_evaluates_others_is_answered_by_them() -> None:
    """Not from the scores of those few, which the grid knows."""
    grid = LocalGrid(uneven_federation(), QUERIES, session=Session(num_scored=2))
    arrays = flat_record(grid.initial_vector(0))
    known = {*grid.evaluate_all(arrays).clients}
    replies = list(grid.send_and_receive(messages(grid, "evaluate", arrays=arrays)))

    assert len(known) == 2
    assert len(replies) == 7
    alone = LocalGrid(uneven_federation(), QUERIES).evaluate_all(arrays)
    for name, told in (("accuracy", alone.accuracies), ("loss", alone.losses), ("num-examples", alone.num_examples)):
        assert [metrics_of(reply)[name] for reply in replies] == told.tolist()


# -- A strategy with a model for each group of clients: who is scored by what, with any grid, and through a checkpoint


GROUP = np.array([0, 1, 1, 0, 0, 2, 1])


class Shifted(FedAvg):
    """FedAvg, whose model three groups use as it is, a little larger, and with another sign."""

    factors = np.array([1, 1.1, -1], np.float32)[:, None]
    group = GROUP

    def configure_train(self, server_round: int, arrays: ArrayRecord, *others: Any) -> Iterable[Message]:
        flat = read_array(arrays[FLAT_KEY])
        record = view_record({FLAT_KEY: flat[0] if flat.ndim == 2 else flat})
        return super().configure_train(server_round, record, *others)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, Any]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        return several_models(read_array(arrays[FLAT_KEY]) * self.factors, self.group), metrics


CHOICE = Choice(Shifted)


def test_each_client_is_scored_under_its_group_s_model(host: ClientHost) -> None:
    spec = spec_of(CHOICE)
    trial = completed(spec, host)
    assert trial.vector.shape == (3, 53)
    for group, vector in enumerate(trial.vector):
        alone = LocalGrid(host, session=spec.session).evaluate_all(flat_record(vector))
        for client in np.flatnonzero(group == GROUP):
            assert trial.clients["accuracy"][client] == alone.accuracies[client]
            assert trial.clients["clean_accuracy"][client] == alone.clean.accuracies[client]
    assert trial.rounds["accuracy"][-1] == pytest.approx(
        np.dot(trial.clients["accuracy"], trial.clients["num_examples"]) / sum(trial.clients["num_examples"]), rel=1e-12
    )
    (note,) = trial.notes
    assert note.endswith(" 0, 3-4; 1-2, 6; 5")


@pytest.mark.parametrize("algorithm", [None, Variates()])
def test_a_resumed_trial_is_an_uninterrupted_one(host: ClientHost, tmp_path: Path, algorithm: Any) -> None:
    assert_going_on(spec_of(Choice(Shifted, algorithm=algorithm), num_rounds=4), host, tmp_path, stopped_in=3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"factors": np.array([[1], [np.inf], [1]], np.float32)}, "diverged"),
        ({"group": np.append(GROUP, 0)}, "ValueError: group"),
    ],
)
def test_models_that_can_t_be_used_fail_the_trial(host: ClientHost, changes: dict[str, Any], reason: str) -> None:
    spec = spec_of(Choice(type("Unusable", (Shifted,), changes)))
    trial = local_result(spec, host)
    assert (trial.status, trial.vector, rounds_of(trial)) == ("failed", None, [])
    assert reason in str(trial.error)
