"""MOON, FedLC, FedRS, the symmetric loss and FedRoD: clients with a loss of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from fedscout.engine.contracts.algorithm import Descent
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.models.layout import OUT_OF_IT, Adjusted, ModelFactory
from fedscout.strategies import FedAvgSpec, FedLCSpec, MoonSpec, StrategySpec
from fedscout.strategies.methods.losses import CalibratedDescent, FedRSSpec, SymmetricLossSpec
from fedscout.strategies.methods.personal_layers import FedRoDSpec
from tests.engine.federations import dense, normalised, uneven_federation
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, Hand, host_of, models, result_of, spec_of, weights_of


@pytest.mark.parametrize("model", [dense, normalised])
@pytest.mark.parametrize(
    "strategy",
    [
        MoonSpec(contrast=0.0),
        FedLCSpec(calibration=0.0),
        FedRSSpec(missing_scale=1.0),
        SymmetricLossSpec(cross_entropy_weight=1.0, reverse_weight=0.0),
    ],
    ids=lambda spec: spec.kind,
)
def test_without_the_term_it_is_fedavg_s_loop(strategy: StrategySpec, model: ModelFactory) -> None:
    host = host_of(model)
    own, fedavg = (result_of(host, spec, backend="loop") for spec in (strategy, FedAvgSpec()))
    assert np.array_equal(own.vector, fedavg.vector)
    if strategy.kind != "moon":
        assert list(own.round_accuracy) == list(fedavg.round_accuracy)


def contrastive(hand: Hand, received: Any, previous: Any) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Eq. 3 and 4 as printed, μ = 2 and τ = 0.5; a dense net's representation is what its last layer gets."""

    def loss(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        assert isinstance(module, nn.Sequential)
        own, near, far = (net[:-1](features) for net in (module, hand.loaded(received), hand.loaded(previous)))  # type: ignore[index]
        towards = (nn.functional.cosine_similarity(own, near.detach()) / 0.5).exp()
        away = (nn.functional.cosine_similarity(own, far.detach()) / 0.5).exp()
        return nn.functional.cross_entropy(module(features), labels) - 2 * (towards / (towards + away)).log().mean()

    return loss


def test_moon_by_hand() -> None:
    """Two rounds in float64; in the second, at least two of its five clients have a model of their own from the first.

    Later a row of which the representation is nearly zero, of which the cosine takes the direction, magnifies rounding.
    """
    host, hand, kept = host_of(), Hand(uneven_federation(sizes=SIZES)), {}
    spec = spec_of(MoonSpec(contrast=2.0), num_rounds=2)
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        for client in clients:
            hand.loss = contrastive(hand, vector, kept.get(client, vector))
            kept[client], _ = hand.descend(vector, client, server_round)
        vector = weights_of(hand, clients) @ np.array([kept[client] for client in clients])
        np.testing.assert_allclose(found, vector, rtol=0, atol=1e-6)
    plain = result_of(host, FedAvgSpec(), num_rounds=2).vector
    assert plain is not None
    assert np.abs(plain - vector).max() > 1e-3


def test_a_model_without_a_linear_layer_is_refused() -> None:
    with refused(StrategyError, key="moon", given="layers Conv2d, PReLU"):
        MoonSpec().build(Cohort(8, 5, 0.1, layers=frozenset({"PReLU", "Conv2d"})))


def test_equal_counts_shift_nothing() -> None:
    """One constant off all outputs is no change: with as many rows of each class FedLC is FedAvg."""
    run, outputs, labels = CountedRun(torch.full((1, 3), 7.0)), torch.eye(3), torch.tensor([0, 2, 2])
    CalibratedDescent(1.5).train(run)  # type: ignore[arg-type]
    assert run.adjusted is not None
    shifted = run.adjusted(outputs[None])[0]
    assert not torch.equal(shifted, outputs)
    losses = [nn.functional.cross_entropy(one, labels).item() for one in (shifted, outputs)]
    assert losses[0] == pytest.approx(losses[1])


class CountedRun:
    """As much of a run as FedLC looks at."""

    received = torch.zeros(2)

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts
        self.adjusted: Adjusted | None = None

    def label_counts(self) -> Tensor:
        return self.counts

    def descend(self, start: Tensor, adjusted: Adjusted) -> Descent:
        self.adjusted = adjusted
        return Descent(start[None], torch.ones(1), torch.ones(1))


def test_a_class_without_rows_is_left_out_by_a_finite_shift() -> None:
    """As infinity would be no number where a class has no weight."""
    run = CountedRun(torch.tensor([[16.0, 0.0]]))
    CalibratedDescent(2.0).train(run)  # type: ignore[arg-type]
    assert run.adjusted is not None
    assert run.adjusted.shift is not None
    assert run.adjusted.shift.tolist() == [[-1.0, OUT_OF_IT]]


def test_fedlc_is_fedavg_without_calibration_alone_and_asks_for_classes() -> None:
    cohort = Cohort(8, 5, 0.1)
    uniform = FedLCSpec(calibration=0, sample_scaling="uniform")
    assert uniform.simplest(cohort) == FedAvgSpec(sample_scaling="uniform")
    assert FedLCSpec(calibration=1).simplest(cohort) == FedLCSpec(calibration=1)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        FedLCSpec(calibration=-0.1)
    with refused(StrategyError, key="fedlc"):
        FedLCSpec().build(replace(cohort, classifies=False))


def test_fedlc_by_hand() -> None:
    """Outputs less τ n^(−1/4) of each class, τ = 1.5; a class of which a client holds nothing is left out."""
    host, hand = host_of(), Hand(uneven_federation(sizes=SIZES))
    spec = spec_of(FedLCSpec(calibration=1.5), num_rounds=4)
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    seen = []
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        trained = []
        for client in clients:
            counts = torch.from_numpy(hand.label_counts(client)).double()
            seen += counts.tolist()

            def calibrated(module: nn.Module, features: Tensor, labels: Tensor, counts: Tensor = counts) -> Tensor:
                held = (counts > 0).nonzero().flatten()
                outputs = (module(features) - 1.5 * counts ** (-1 / 4))[:, held]
                return nn.functional.cross_entropy(outputs, (labels[:, None] == held).int().argmax(dim=1))

            hand.loss = calibrated
            trained.append(hand.descend(vector, client, server_round)[0])
        vector = weights_of(hand, clients) @ np.array(trained)
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)
    assert 0 in seen


def test_fedrs_by_hand() -> None:
    """Eq. 5 in float64, α = 0.3: outputs of classes that a client does not hold are scaled."""
    host, hand = host_of(), Hand(uneven_federation(sizes=SIZES))
    spec = spec_of(FedRSSpec(missing_scale=0.3), num_rounds=4)
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    seen = []
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        trained = []
        for client in clients:
            scales = torch.from_numpy(np.where(hand.label_counts(client) > 0, 1.0, 0.3))
            seen += scales.tolist()
            hand.loss = lambda module, features, labels, scales=scales: nn.functional.cross_entropy(
                module(features) * scales, labels
            )
            trained.append(hand.descend(vector, client, server_round)[0])
        vector = weights_of(hand, clients) @ np.array(trained)
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)
    assert 0.3 in seen


def test_the_symmetric_loss_by_hand() -> None:
    """Both cross-entropies as sums over classes in float64, the label's zeros at 1e-4 in the second."""
    host, hand = host_of(), Hand(uneven_federation(sizes=SIZES))
    spec = spec_of(SymmetricLossSpec(cross_entropy_weight=0.3, reverse_weight=0.5))
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)

    def symmetric(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        found, told = module(features).softmax(dim=1), torch.eye(3).double()[labels]
        forth, back = -(told * found.log()).sum(dim=1), -(found * told.clamp(min=1e-4).log()).sum(dim=1)
        return (0.3 * forth + 0.5 * back).mean()

    hand.loss = symmetric
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        trained = [hand.descend(vector, client, server_round)[0] for client in clients]
        vector = weights_of(hand, clients) @ np.array(trained)
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)


def test_fedrod_by_hand() -> None:
    """Eq. 6 and 8 in float64 with two heads side by side: the second one's gradient does not reach the body."""
    host, federation = host_of(), uneven_federation(sizes=SIZES)
    spec, hand, heads = spec_of(FedRoDSpec()), Hand(federation), {}
    result = result_of(host, FedRoDSpec())
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        sent = []
        for client in clients:
            counts = torch.from_numpy(hand.label_counts(client)).double()
            hand.loss = balanced_softmax(counts)
            trained, _ = hand.descend(vector, client, server_round)
            sent.append(trained)
            hand.loss = beside_a_fixed_net(hand, trained)
            second = heads.get(client, np.zeros(18))
            # the second head alone, as the last layer of a net that adds it to the trained one's outputs
            start = np.concatenate([trained[:35], second])
            ended, _ = hand.descend(start, client, server_round, lambda _, g: np.concatenate([0 * g[:35], g[35:]]))
            heads[client] = ended[35:]
        vector = weights_of(hand, clients) @ np.array(sent)
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)
    own = [np.concatenate([vector[:35], vector[35:] + heads.get(client, 0)]) for client in range(8)]
    scored = [hand.accuracy(model, client) for client, model in enumerate(own)]
    np.testing.assert_allclose(result.client_accuracy, scored)


def balanced_softmax(counts: Tensor) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Return eq. 6 as printed: each class's exponential times how many rows of it there are."""

    def loss(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        held = (counts > 0).nonzero().flatten()
        shares = counts[held] * module(features)[:, held].exp()
        own = shares.gather(1, (labels[:, None] == held).int().argmax(dim=1, keepdim=True))
        return -(own[:, 0] / shares.sum(dim=1)).log().mean()

    return loss


def beside_a_fixed_net(hand: Hand, vector: Any) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Return the loss of the sum of a net's outputs and those of another that does not move."""

    def loss(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(module(features) + hand.loaded(vector)(features).detach(), labels)

    return loss
