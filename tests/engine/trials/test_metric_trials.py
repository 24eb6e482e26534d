"""A trial's metric is that of its model on all clients' test rows; without one nothing changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientAlgorithm, Clients, ClientScore
from fedscout.engine.data.federation import Federation
from fedscout.engine.data.split import split_client
from fedscout.engine.grid.replies import fold_evaluation
from fedscout.engine.messages.calls import EvaluateResults, HostCall
from fedscout.engine.metrics import OF_CLASSES, Auroc, MacroF1
from fedscout.engine.trials.record import Trial
from tests.engine.choices import FEDAVG, rounds_of, spec_of
from tests.engine.federations import (
    CORRUPTED,
    EMPTY,
    ONE_ROW,
    QUERIES,
    dense,
    plain_model,
    uneven_federation,
)
from tests.engine.results import completed, local_result


@dataclass(frozen=True)
class Doubled(ClientAlgorithm):
    """Clients are scored with another model than they received: its outputs have twice the size."""

    personal = True

    def scored(self, clients: Clients) -> Tensor:
        return 2 * clients.received.expand(len(clients.states), -1)


def outputs_and_labels(federation: Federation, vector: FloatArray, clean: bool = False) -> tuple[FloatArray, IntArray]:
    """Return a plain model's outputs on the test rows of all clients."""
    net = plain_model(dense, vector).eval()
    outputs, labels = [], []
    for client in range(federation.num_clients):
        data = federation.client_data(client)
        view = data.clean if clean else data.own
        test = split_client(data.own.labels[data.own.rows], 3, client, 0.2).test
        features, own_labels = view.take(test)
        outputs.append(net(torch.from_numpy(features)).detach().numpy())
        labels.append(own_labels)
    return np.concatenate(outputs), np.concatenate(labels)


def run(federation: Federation, **changes: object) -> Trial:
    return completed(spec_of(FEDAVG, **{"num_sampled": federation.num_seen, **changes}), federation)


@pytest.mark.parametrize("name", OF_CLASSES)
@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_it_is_that_of_the_pooled_test_rows(name: str, backend: str) -> None:
    """Of the last model, in both views, and the fitness is its mean over the rounds."""
    federation, metric = uneven_federation(), OF_CLASSES[name]()
    trial = run(federation, metric=metric, backend=backend)
    assert trial.metric == name
    for measured, clean in ((trial.round_metric, False), (trial.round_clean_metric, True)):
        expected = metric.value(metric.statistics(*outputs_and_labels(federation, trial.vector, clean)))
        assert measured[-1] == pytest.approx(expected, abs=1e-12)
    assert trial.round_metric[-1] != trial.round_clean_metric[-1]
    assert trial.own_fitness == pytest.approx(np.mean(trial.round_metric))
    assert trial.clean_fitness == pytest.approx(np.mean(trial.round_clean_metric))


def test_beside_it_all_is_as_without_it() -> None:
    plain, measured = run(uneven_federation()), run(uneven_federation(), metric=MacroF1(), worst_clients=True)
    assert rounds_of(plain) == rounds_of(measured)
    assert np.array_equal(plain.vector, measured.vector)
    assert (plain.metric, plain.round_metric, plain.client_metric, plain.round_worst_clients) == (None,) * 4
    assert plain.own_fitness == pytest.approx(np.mean(plain.round_accuracy))


def test_each_client_has_its_own() -> None:
    """That of its rows alone; without rows it has none, and where nobody is corrupted both views are one."""
    trial = run(uneven_federation(), metric=MacroF1())
    known = [client for client in trial.client if client not in (EMPTY, ONE_ROW)]
    for client, own, clean in zip(trial.client, trial.client_metric, trial.client_clean_metric, strict=True):
        assert np.isnan(own) == (client not in known)
        assert client in (CORRUPTED, EMPTY, ONE_ROW) or own == clean


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


def test_models_of_their_own_are_what_clients_are_scored_with() -> None:
    """Twice the outputs predict the same classes, so both models' macro F1 are one; the macro F1 of none is missing."""
    trial = run(uneven_federation(), metric=MacroF1())
    doubled = completed(spec_of(replace(FEDAVG, algorithm=Doubled()), metric=MacroF1()), uneven_federation())
    assert trial.round_global_metric is None
    assert doubled.round_global_metric == trial.round_metric
    assert doubled.global_accuracy == pytest.approx(trial.own_fitness)


def test_clients_that_join_later_have_theirs_apart() -> None:
    federation = uneven_federation()
    trial = run(replace(federation, unseen=frozenset((0, 5))), metric=MacroF1())
    assert len(trial.round_new_client_metric) == trial.num_rounds
    assert trial.new_client_accuracy == pytest.approx(np.mean(trial.round_new_client_metric))
    assert set(trial.client) == {1, 2, 3, 4, 6}


def test_rows_of_one_class_have_no_area_and_the_trial_says_so() -> None:
    federation = uneven_federation()
    one = replace(federation, labels=np.zeros_like(federation.labels), transforms={})
    trial = local_result(spec_of(FEDAVG, metric=Auroc()), one)
    assert trial.error is not None
    assert "(test)" in trial.error
    assert "auroc" in trial.error


def test_the_worst_tenth_of_the_clients_is_rounded_up_and_knows_only_who_has_rows() -> None:
    """Of eleven with rows the two worst; one without rows, whose accuracy reads 0, is not among them."""
    scores = {client: ClientScore(10, client, 0.0) for client in range(11)} | {11: ClientScore(0, 0, 0.0)}
    evaluation = fold_evaluation([EvaluateResults(scores, {0: ClientScore(10, 10, 0.0)})])
    assert evaluation.worst_clients() == pytest.approx((0.0 + 0.1) / 2)
    assert evaluation.worst_clients(clean=True) == pytest.approx((0.1 + 0.2) / 2)
    measured = {client: replace(score, metric=float("nan")) for client, score in scores.items()}
    measured[4] = replace(scores[4], metric=0.75)
    assert fold_evaluation([EvaluateResults(measured)]).worst_clients() == 0.75
