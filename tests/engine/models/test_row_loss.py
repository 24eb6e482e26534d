"""The loss of rows whose labels may be wrong: its gradient, its limits, and that the loop is its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import LocalRun, TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.models.dense import DenseStack
from fedscout.engine.models.flat import new_model
from fedscout.engine.models.layout import RowLoss
from fedscout.engine.training.algorithm_runs import BlockRun, LoopRun
from fedscout.engine.training.loop import RowsWork
from fedscout.engine.trials.record import TrialSettings
from fedscout.strategies import FedAvgSpec, FedProxSpec, StrategySpec, parse_strategy
from fedscout.strategies.methods.losses import FedLCSpec, MoonSpec, SymmetricLossSpec
from tests.engine.contracts.test_client_task import federation as guessing
from tests.engine.federations import QUERIES, dense, learnable_rows, uneven_federation
from tests.engine.results import local_result
from tests.strategies.by_hand import SIZES, TRAINING, Hand, host_of, models, result_of, spec_of, weights_of

ALPHA, BETA = 0.7, 1.5
ROBUST = TRAINING.model_copy(update={"pseudo_label_weight": ALPHA, "reverse_weight": BETA})


def printed(outputs: Tensor, labels: Tensor, told: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """Return the mean loss as sums over classes with log 0 = −4, in float64."""
    found, label = outputs.softmax(dim=1), torch.eye(outputs.shape[1], dtype=outputs.dtype)[labels]
    direct, pseudo = (-(target * found.log()).sum(dim=1) for target in (label, told))
    log_label = torch.where(label > 0, label.clamp(min=1e-300).log(), -4.0)
    reverse = -(found * log_label).sum(dim=1)
    return (weights[0] * direct + weights[1] * pseudo + weights[2] * reverse).mean()


def test_gradient_is_that_of_autograd() -> None:
    """Two clients of three and of five rows, padded to six, in float64; the padding has no share."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn((2, 6, 4), generator=generator, dtype=torch.float64) * 3
    told = torch.randn((2, 6, 4), generator=generator, dtype=torch.float64).softmax(dim=2)
    labels = torch.randint(4, (2, 6), generator=generator)
    shares = torch.zeros((2, 6, 1), dtype=torch.float64)
    weights = RowLoss(0.3, ALPHA, 4 * BETA)
    for client, size in enumerate((3, 5)):
        shares[client, :size] = 1 / size
    targets = torch.eye(4, dtype=torch.float64)[labels] * shares
    means, gradient = weights.means_and_gradient(logits.log_softmax(dim=2), targets, shares, told)
    for client, size in enumerate((3, 5)):
        own = logits[client, :size].clone().requires_grad_()
        mean = printed(own, labels[client, :size], told[client, :size], (0.3, ALPHA, BETA))
        mean.backward()  # type: ignore[no-untyped-call]
        assert means[client].item() == pytest.approx(mean.item(), abs=1e-12)
        torch.testing.assert_close(gradient[client, :size], own.grad, rtol=0, atol=1e-12)
        assert not gradient[client, size:].any()
        first = nn.functional.cross_entropy(own, labels[client, :size])
        by_loop = weights.mean(first, own, labels[client, :size], told[client, :size])
        assert by_loop.item() == pytest.approx(mean.item(), abs=1e-12)


def test_a_sure_row_stays_finite() -> None:
    """Probabilities of exactly 0 have a logarithm in no term."""
    logits = torch.tensor([[[400.0, -400.0, 0.0]]])
    told = logits.softmax(dim=2)
    means, gradient = RowLoss(0.0, 1.0, 4.0).means_and_gradient(
        logits.log_softmax(dim=2), torch.tensor([[[0.0, 1.0, 0.0]]]), torch.ones(1, 1, 1), told
    )
    assert means.item() == 4.0
    assert not gradient.any()


@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_rounds_by_hand(backend: str) -> None:
    """Local training in float64, the pseudo-labels those of the model that came, whatever epoch it is."""
    host, hand = host_of(), Hand(uneven_federation(sizes=SIZES))
    spec = spec_of(FedAvgSpec(), training=ROBUST, backend=backend)
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        received = vector

        def robust(module: nn.Module, features: Tensor, labels: Tensor, received: Any = received) -> Tensor:
            told = hand.loaded(received)(features).softmax(dim=1).detach()
            return printed(module(features), labels, told, (1.0, ALPHA, BETA))

        hand.loss = robust
        trained = [hand.descend(vector, client, server_round)[0] for client in clients]
        vector = weights_of(hand, clients) @ np.array(trained)
        np.testing.assert_allclose(found, vector, rtol=0, atol=3e-6)
    plain = result_of(host, FedAvgSpec()).vector
    assert np.abs(plain - vector).max() > 1e-2


STRATEGIES = [
    *(FedAvgSpec(), FedProxSpec(), FedLCSpec(), MoonSpec(), SymmetricLossSpec()),
    *map(parse_strategy, ("scaffold", "fednova", "fedrs", "fedrod", "ditto", "fedrep", "feddyn", "fedadam")),
    *map(parse_strategy, ("fedbio", "fedbabu", "fine_tuning", {"kind": "rhfl", "alignment_epochs": 0})),
]
"""Those whose server takes Adam's steps on outputs, as FedDF does, turn rounding into steps of full length."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda spec: spec.kind)
def test_many_at_once_equal_the_loop_under_any_strategy(strategy: StrategySpec) -> None:
    host = host_of()
    changes: dict[str, Any] = {"training": ROBUST, "num_rounds": 2, "num_sampled": 8}
    block, loop = (result_of(host, strategy, backend=backend, **changes) for backend in ("auto", "loop"))
    plain = result_of(host, strategy, num_rounds=2, num_sampled=8)
    if block.vector is None or loop.vector is None or plain.vector is None:
        np.testing.assert_allclose(list(block.round_loss), list(loop.round_loss), rtol=0, atol=2e-5)
        assert list(plain.round_loss) != list(loop.round_loss)
    else:
        np.testing.assert_allclose(block.vector, loop.vector, rtol=0, atol=2e-5)
        assert np.abs(plain.vector - loop.vector).max() > 1e-3


@pytest.fixture(params=["block", "loop"])
def run(request: pytest.FixtureRequest) -> LocalRun:
    """One client at the received model, about to make one step on all its rows with α alone."""
    model = new_model(dense, 3)
    features, labels = learnable_rows(50)
    training = LocalTraining(batch_size=50, learning_rate=1.0, pseudo_label_weight=30.0)
    asked = TrainRequest(model.vector.clone(), training, num_classes=3)
    work = RowsWork(0, np.random.default_rng(1), {}, Samples(features, labels, np.arange(50)))
    if request.param == "loop":
        return LoopRun.of(model, asked, work)
    stack = DenseStack.of(model.module, model.layout)
    return BlockRun.of(stack, model.layout, asked, [work])


def test_nothing_pulls_towards_what_is_there(run: LocalRun) -> None:
    """At the received model p = q, so the first step is FedAvg's whatever α is."""
    added = run.descend(run.received).vectors
    without = run.training.model_copy(update={"pseudo_label_weight": 0.0})
    object.__setattr__(run, "training", without)
    plain = run.descend(run.received).vectors
    assert (plain - run.received).abs().max() > 1e-2
    torch.testing.assert_close(added, plain, rtol=0, atol=2e-5)


def test_the_gradient_that_an_algorithm_asks_for_is_of_the_whole_loss(run: LocalRun) -> None:
    away = run.received + 0.3
    added = run.gradient(away)
    object.__setattr__(run, "training", LocalTraining())
    assert (added - run.gradient(away)).abs().max() > 1e-2


def test_a_miss_is_bounded() -> None:
    """However wrong a model is, the reverse term costs 4 β a row and pulls no more than β."""
    labels = torch.zeros(1, dtype=torch.int64)
    for logit in (0.0, -5.0, -50.0):
        outputs = torch.tensor([[logit, 0.0]], requires_grad=True)
        mean = RowLoss(0.0).plus(0.0, BETA).mean(torch.zeros(()), outputs, labels, None)
        mean.backward()  # type: ignore[no-untyped-call]
        right = torch.tensor(logit).sigmoid().item()
        assert mean.item() == pytest.approx(4 * BETA * (1 - right))
        assert outputs.grad[0, 0].item() == pytest.approx(-4 * BETA * right * (1 - right))


def test_clients_with_a_task_refuse() -> None:
    host = ClientHost(guessing(), QUERIES)
    settings = TrialSettings(
        FedAvgSpec(), session=spec_of(FedAvgSpec(), training=ROBUST).session, num_rounds=1, num_sampled=2
    )
    result = local_result(settings, host)
    assert "TypeError" in result.error
