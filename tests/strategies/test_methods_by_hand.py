"""Each method as its paper prints it, in float64: the model of every round, and what clients are scored with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.models.layout import ModelFactory
from fedscout.strategies import StrategySpec
from tests.engine.federations import dense, normalised, uneven_federation
from tests.strategies.by_hand import SEED, SIZES, TRAINING, WHOLE, Hand, host_of, models, result_of, spec_of, weights_of
from tests.strategies.rounds import made

Vector = Any
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
HEAD = np.arange(53) >= 35
"""The dense net's last layer, 5·3 + 3 elements after 6·5 + 5."""
BATCH_NORM = np.isin(np.arange(73), np.r_[35:45, 63:73])
"""Scale and shift of the normalised net follow the first layer's 35 parameters, the statistics all 63."""
NOTHING = np.zeros(53, bool)


@dataclass
class Client:
    """A client in a round by hand.

    Attributes:
        hand: Trains.
        number: Its number.
        received: The global model.
        server_round: The round, 0 where it is scored.
        kept: Its own vector of the rounds before; None if it has none.
    """

    hand: Hand
    number: int
    received: Vector
    server_round: int = 0
    kept: Vector | None = None

    def descend(self, start: Vector, correct: Any = None, loss: Loss | None = None) -> Vector:
        """Return where local training ends, by default on the cross-entropy."""
        self.hand.loss = loss or cross_entropy
        return self.hand.descend(start, self.number, self.server_round, correct)[0]

    def personal(self, own: Vector) -> Vector:
        """Return the global model with the elements that the client keeps."""
        return self.received if self.kept is None else np.where(own, self.kept, self.received)

    @property
    def counts(self) -> Tensor:
        """Training rows of each class."""
        return torch.from_numpy(self.hand.label_counts(self.number)).double()


@dataclass(frozen=True)
class Case:
    """A method by hand.

    Attributes:
        strategy: The method.
        train: Returns what a client sends and what it keeps.
        scored: Returns the model that a client is scored with.
        private_mask: The elements that are not averaged.
        model: The net.
        training: Local training.
        num_rounds: Rounds that are compared.
    """

    strategy: StrategySpec
    train: Callable[[Client], tuple[Vector, Vector]]
    scored: Callable[[Client], Vector] = lambda client: client.received
    private_mask: Vector = field(default_factory=lambda: NOTHING)
    model: ModelFactory = dense
    training: LocalTraining = TRAINING
    num_rounds: int = 5


def cross_entropy(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(module(features), labels)


def on_loss(loss_of: Callable[[Client], Loss]) -> Callable[[Client], tuple[Vector, Vector]]:
    """Return FedAvg's client with another loss, who keeps where it ended."""

    def train(client: Client) -> tuple[Vector, Vector]:
        trained = client.descend(client.received, loss=loss_of(client))
        return trained, trained

    return train


def pulled(strength: float) -> Callable[[Client], tuple[Vector, None]]:
    return lambda client: (client.descend(client.received, lambda w, g: g + strength * (w - client.received)), None)


def uphill(client: Client) -> tuple[Vector, None]:
    """One step on all rows: y = x − η g(x + ρ g(x)/‖g(x)‖), ρ = 0.3."""
    rows = client.hand._rows(client.number)
    client.hand.loss = cross_entropy
    _, gradient = client.hand._gradient(client.received, *rows)
    _, ahead = client.hand._gradient(client.received + 0.3 * gradient / np.linalg.norm(gradient), *rows)
    return client.received - WHOLE.learning_rate * ahead, None


def contrastive(client: Client) -> Loss:
    """Eq. 3 and 4 as printed, μ = 2 and τ = 0.5; a dense net's representation is what its last layer gets."""
    near = client.hand.loaded(client.received)[:-1]  # type: ignore[index]
    far = client.hand.loaded(client.received if client.kept is None else client.kept)[:-1]  # type: ignore[index]

    def loss(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        own = module[:-1](features)  # type: ignore[index]
        towards, away = (
            (nn.functional.cosine_similarity(own, net(features).detach()) / 0.5).exp() for net in (near, far)
        )
        return cross_entropy(module, features, labels) - 2 * (towards / (towards + away)).log().mean()

    return loss


def calibrated(client: Client) -> Loss:
    """Outputs less τ n^(−1/4) of each class, τ = 1.5; a class of which a client holds nothing is left out."""
    counts = client.counts
    held = (counts > 0).nonzero().flatten()

    def loss(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        outputs = (module(features) - 1.5 * counts ** (-1 / 4))[:, held]
        return nn.functional.cross_entropy(outputs, (labels[:, None] == held).int().argmax(dim=1))

    return loss


def restricted(client: Client) -> Loss:
    """Eq. 5, α = 0.3: outputs of classes that a client does not hold are scaled."""
    scales = torch.where(client.counts > 0, 1.0, 0.3)
    return lambda module, features, labels: nn.functional.cross_entropy(module(features) * scales, labels)


def symmetric(_: Client) -> Loss:
    """Both cross-entropies as sums over classes, the label's zeros at 1e-4 in the second."""

    def loss(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        found, told = module(features).softmax(dim=1), torch.eye(3).double()[labels]
        forth, back = -(told * found.log()).sum(dim=1), -(found * told.clamp(min=1e-4).log()).sum(dim=1)
        return (0.3 * forth + 0.5 * back).mean()

    return loss


def balanced_softmax(client: Client) -> Loss:
    """Eq. 6 as printed: each class's exponential times how many rows of it there are."""
    counts = client.counts
    held = (counts > 0).nonzero().flatten()

    def loss(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        shares = counts[held] * module(features)[:, held].exp()
        own = shares.gather(1, (labels[:, None] == held).int().argmax(dim=1, keepdim=True))
        return -(own[:, 0] / shares.sum(dim=1)).log().mean()

    return loss


def with_second_head(client: Client) -> tuple[Vector, Vector]:
    """Eq. 6 and 8: a second head beside the net that has been trained, whose gradient does not reach the body."""
    trained = client.descend(client.received, loss=balanced_softmax(client))
    fixed = client.hand.loaded(trained)

    def beside(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(module(features) + fixed(features).detach(), labels)

    second = np.zeros(53) if client.kept is None else client.kept
    return trained, HEAD * client.descend(np.where(HEAD, second, trained), lambda _, g: g * HEAD, beside)


def keeping(own: Vector) -> Callable[[Client], tuple[Vector, Vector]]:
    def train(client: Client) -> tuple[Vector, Vector]:
        trained = client.descend(client.personal(own))
        return trained, trained

    return train


def head_then_body(client: Client) -> tuple[Vector, Vector]:
    """Algorithm 1: three epochs of the head on the received body, then the study's of the body."""
    start = client.personal(HEAD)
    client.hand.loss = cross_entropy
    own, _ = client.hand.in_epochs(3).descend(start, client.number, client.server_round, lambda _, g: g * HEAD)
    trained = client.descend(own, lambda _, g: g * ~HEAD)
    return trained, trained


def two_models(client: Client) -> tuple[Vector, Vector]:
    """Ditto's Algorithm 1, λ = 0.7: v ← v − η (g_i(v) + λ (v − x)), on batches drawn after the global model's."""
    sent, start = client.descend(client.received), client.personal(~NOTHING)
    return sent, client.descend(start, lambda v, g: g + 0.7 * (v - client.received))


def in_turns(client: Client) -> tuple[Vector, Vector]:
    """PFedMe's eq. 7 and 8, λ = 2, three turns."""
    shared = own = client.received
    for _ in range(3):
        own = client.descend(shared, lambda w, g, centre=shared: g + 2.0 * (w - centre))
        shared = shared - TRAINING.learning_rate * 2.0 * (shared - own)
    return shared, own


def tuned(client: Client) -> Vector:
    client.hand.loss = cross_entropy
    return client.hand.tuned(client.received, client.number, 3)


def own(part: Vector) -> Callable[[Client], Vector]:
    return lambda client: client.personal(part)


CASES: Mapping[str, Case] = {
    "fedavg": Case(made("fedavg"), pulled(0.0)),
    "fedprox": Case(made("fedprox", proximal_mu=0.3), pulled(0.3)),
    "fedsam": Case(made("fedsam", sharpness_radius=0.3), uphill, training=WHOLE),
    # In later rounds a row of which the representation is nearly zero, of which the cosine takes the direction,
    # magnifies rounding.
    "moon": Case(made("moon", contrast=2.0), on_loss(contrastive), num_rounds=2),
    "fedlc": Case(made("fedlc", calibration=1.5), on_loss(calibrated)),
    "fedrs": Case(made("fedrs", missing_scale=0.3), on_loss(restricted)),
    "symmetric_loss": Case(made("symmetric_loss", cross_entropy_weight=0.3, reverse_weight=0.5), on_loss(symmetric)),
    "fedper": Case(made("fedper"), keeping(HEAD), own(HEAD), HEAD),
    "fedrep": Case(made("fedrep", head_epochs=3), head_then_body, own(HEAD), HEAD),
    "local": Case(made("local"), keeping(~NOTHING), own(~NOTHING), ~NOTHING),
    "fedbn": Case(made("fedbn"), keeping(BATCH_NORM), own(BATCH_NORM), BATCH_NORM, normalised),
    "fedbabu": Case(
        made("fedbabu", tuning_epochs=3), lambda one: (one.descend(one.received, lambda _, g: g * ~HEAD), None), tuned
    ),
    "fine_tuning": Case(made("fine_tuning", tuning_epochs=3), pulled(0.0), tuned),
    "ditto": Case(made("ditto", personal_pull=0.7), two_models, own(~NOTHING)),
    "pfedme": Case(made("pfedme", personal_pull=2.0, local_rounds=3), in_turns, own(~NOTHING)),
    "fedrod": Case(made("fedrod"), with_second_head, lambda one: one.received + (0 if one.kept is None else one.kept)),
}


@pytest.mark.parametrize("name", CASES)
def test_models_and_scores_are_those_by_hand(name: str) -> None:
    """Five of eight clients in each round; who has not trained has nothing of its own."""
    case = CASES[name]
    host, hand = host_of(case.model), Hand(uneven_federation(case.model, SIZES), case.training, case.model)
    spec = spec_of(case.strategy, num_rounds=case.num_rounds, training=case.training)
    vector: Vector = host.initial_vector(SEED).astype(np.float64)
    kept: dict[int, Vector] = {}
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        sent = []
        for client in clients:
            trained, kept[client] = case.train(Client(hand, client, vector, server_round, kept.get(client)))
            sent.append(trained)
        vector = np.where(case.private_mask, vector, weights_of(hand, clients) @ np.array(sent))
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)

    trial = result_of(host, case.strategy, num_rounds=case.num_rounds, training=case.training)
    personal = [case.scored(Client(hand, client, vector, kept=kept.get(client))) for client in range(8)]
    scores, common = (
        np.array([hand.accuracy(model, client) for client, model in enumerate(found)])
        for found in (personal, [vector] * 8)
    )
    np.testing.assert_allclose(trial.client_accuracy, scores)
    rows = np.array([round(0.2 * size) for size in SIZES])
    assert trial.round_accuracy[-1] == pytest.approx(scores @ rows / rows.sum())
    if trial.round_global_accuracy is not None:
        assert trial.round_global_accuracy[-1] == pytest.approx(common @ rows / rows.sum())
    else:
        assert scores.tolist() == common.tolist()
