"""Each method as its paper prints it, in float64: the model of every round, and what clients are scored with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import StrategyError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import FedAvgSpec, StrategySpec
from fedscout.strategies.methods.drift import FedDynSpec, FedNovaSpec, ScaffoldSpec
from fedscout.strategies.methods.personal import BATCH_NORMS
from tests.engine.federations import QUERIES, dense, normalised, uneven_federation
from tests.engine.trials.test_resume import assert_same
from tests.kits.refusals import refused
from tests.strategies import by_hand
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
        self.hand.loss = loss or by_hand.plain_loss
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
    client.hand.loss = by_hand.plain_loss
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
        return by_hand.plain_loss(module, features, labels) - 2 * (towards / (towards + away)).log().mean()

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
    client.hand.loss = by_hand.plain_loss
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
    client.hand.loss = by_hand.plain_loss
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
    np.testing.assert_allclose(trial.clients["accuracy"], scores)
    rows = np.array([round(0.2 * size) for size in SIZES])
    assert trial.rounds["accuracy"][-1] == pytest.approx(scores @ rows / rows.sum())
    if trial.rounds.get("global_accuracy") is not None:
        assert trial.rounds["global_accuracy"][-1] == pytest.approx(common @ rows / rows.sum())
    else:
        assert scores.tolist() == common.tolist()


Step = Callable[[Vector, list[int], Any, int], Vector]
"""From the model, a round's clients, their shares and its number to the model after it."""


def check_rounds(
    strategy: Any, num_rounds: int, step: Step, training: LocalTraining = TRAINING, atol: float = 2e-6
) -> None:
    """Hold that rounds of five of eight clients give the models of a server by hand, in float64."""
    host, hand = host_of(), Hand(uneven_federation(sizes=SIZES))
    vector: Vector = host.initial_vector(SEED).astype(np.float64)
    spec = spec_of(strategy, num_rounds=num_rounds, training=training)
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        equal = strategy.sample_scaling == "uniform"
        vector = step(vector, clients, np.full(5, 1 / 5) if equal else weights_of(hand, clients), server_round)
        np.testing.assert_allclose(found, vector, rtol=0, atol=atol)


@pytest.mark.parametrize(("scaling", "rate"), [("uniform", 1.0), ("num-examples", 0.7)])
def test_scaffold_s_rounds_are_its_paper_s(scaling: Any, rate: float) -> None:
    """Algorithm 1."""
    hand, controls, control = Hand(uneven_federation(sizes=SIZES)), {}, np.zeros(53)

    def step(vector: Vector, clients: list[int], shares: Any, server_round: int) -> Vector:
        nonlocal control
        moved, changed = np.zeros(53), np.zeros(53)
        for share, client in zip(shares, clients, strict=True):
            own = controls.get(client, np.zeros(53))
            trained, num_steps = hand.descend(
                vector, client, server_round, lambda _, gradient, shift=control - own: gradient + shift
            )
            controls[client] = own - control + (vector - trained) / (num_steps * TRAINING.learning_rate)
            moved += share * (trained - vector)
            changed += share * (controls[client] - own)
        control = control + 5 / 8 * changed
        return vector + rate * moved

    check_rounds(ScaffoldSpec(sample_scaling=scaling, server_learning_rate=rate), 8, step, atol=1e-6)
    assert len(controls) == 8


def test_buffers_have_no_control_variates() -> None:
    """A variance may move by more in a step than any gradient, and would leave the range of the exact sum."""
    spec, host = spec_of(ScaffoldSpec(), training=LocalTraining(learning_rate=1e-6)), host_of(normalised)
    grid = LocalGrid(host, session=spec.session)
    result = run_trial(spec, grid)
    assert result.error is None
    for state in grid.client_states.values():
        assert not state["control"][-10:].any()
        assert state["control"][:-10].any()


# -- Laws of FedNova ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scaling", "momentum", "mu"), [("num-examples", 0.0, 0.0), ("uniform", 0.9, 0.0), ("num-examples", 0.0, 0.5)]
)
def test_fednova_s_rounds_are_its_paper_s(scaling: Any, momentum: float, mu: float) -> None:
    """x + τ_eff Σ p_i (y_i − x)/a_i of clients of unequal steps."""
    training = TRAINING.model_copy(update={"momentum": momentum})
    hand = Hand(uneven_federation(sizes=SIZES), training)

    def step(vector: Vector, clients: list[int], shares: Any, server_round: int) -> Vector:
        effective, normalised, different = 0.0, np.zeros(53), set()
        for share, client in zip(shares, clients, strict=True):
            trained, num_steps = hand.descend(vector, client, server_round, lambda w, g: g + mu * (w - vector))
            if momentum:
                length = sum((1 - momentum**k) / (1 - momentum) for k in range(1, num_steps + 1))
            else:
                length = (1 - (1 - 0.1 * mu) ** num_steps) / (0.1 * mu) if mu else num_steps
            effective += share * (num_steps if mu else length)
            normalised += share * (trained - vector) / length
            different.add(num_steps)
        assert len(different) > 1
        return vector + effective * normalised

    check_rounds(FedNovaSpec(sample_scaling=scaling, proximal_mu=mu), 4, step, training)


def test_what_has_no_length_is_refused() -> None:
    with refused(StrategyError, key="proximal_mu"):
        FedNovaSpec(proximal_mu=2.5).build(Cohort(8, 5, 0.5))


# -- FedDyn is its paper's algorithm, and ends where that says ---------------------------------------------------------


@pytest.mark.parametrize("scaling", ["uniform", "num-examples"])
def test_feddyn_s_rounds_are_its_paper_s(scaling: Any) -> None:
    """Algorithm 1, h and all."""
    hand, alpha, kept, h = Hand(uneven_federation(sizes=SIZES)), 0.3, {}, np.zeros(53)

    def step(vector: Vector, clients: list[int], shares: Any, server_round: int) -> Vector:
        changed = np.zeros(53)
        for share, client in zip(shares, clients, strict=True):
            own = kept.get(client, np.zeros(53))
            trained, _ = hand.descend(
                vector, client, server_round, lambda y, g, own=own: g - own + alpha * (y - vector)
            )
            kept[client] = own - alpha * (trained - vector)
            changed += share * (trained - vector)
        h[:] -= alpha * 5 / 8 * changed
        return vector + changed - h / alpha

    check_rounds(FedDynSpec(dynamic_alpha=alpha, sample_scaling=scaling), 8, step)


def test_statistics_of_batch_normalisation_are_averaged_alone() -> None:
    """Next to no regulariser, one round: buffers are those of FedAvg, and the rest is the mean and the lead beyond."""
    host, uniform = host_of(normalised), FedAvgSpec(sample_scaling="uniform")
    feddyn, fedavg = (result_of(host, own, num_rounds=1).vector for own in (FedDynSpec(dynamic_alpha=1e-9), uniform))
    np.testing.assert_allclose(feddyn[-10:], fedavg[-10:], rtol=1e-6)
    start = host.initial_vector(3)[:-10]
    np.testing.assert_allclose(feddyn[:-10] - start, (1 + 5 / 8) * (fedavg[:-10] - start), rtol=0, atol=1e-6)


# -- Laws of strategies whose clients keep or tune something of their own, and of those with a loss of their own -------


def test_weight_decay_does_not_move_what_is_frozen() -> None:
    alone = host_of(sizes=SIZES[:1])
    decayed = TRAINING.model_copy(update={"weight_decay": 0.1, "momentum": 0.5})
    result = result_of(alone, made("fedbabu"), num_sampled=1, training=decayed)
    initial = alone.initial_vector(SEED)
    assert np.array_equal(result.vector[HEAD], initial[HEAD])
    assert not np.isclose(result.vector[~HEAD], initial[~HEAD]).any()


def test_a_part_of_a_step_of_mfedbn_is_that_part_of_fedbn_s() -> None:
    """η scales the mean change of all but batch normalisation, which holds its initial values to the bit."""
    host = host_of(normalised)
    fedbn, part = (
        result_of(host, spec, num_rounds=1) for spec in (made("fedbn"), made("mfedbn", server_learning_rate=0.25))
    )
    initial = host.initial_vector(SEED)
    np.testing.assert_allclose(part.vector - initial, 0.25 * (fedbn.vector - initial), rtol=0, atol=1e-7)
    batch_norm = host.facts().layout.of_kind(*BATCH_NORMS)
    assert batch_norm.any()
    assert all(np.array_equal(trial.vector[batch_norm], initial[batch_norm]) for trial in (fedbn, part))


def test_overwritten_batch_norm_begins_anew_and_is_what_a_client_is_scored_with() -> None:
    """In the first round nobody has any of its own, so both ways train alike; in the second they part."""
    host = host_of(normalised)
    specs = [made("mfedbn", server_learning_rate=0.5, batch_norm=way) for way in ("own", "overwritten")]
    first = [result_of(host, spec, num_rounds=1, num_sampled=8) for spec in specs]
    assert_same(*first)
    second = [result_of(host, spec, num_rounds=2, num_sampled=8) for spec in specs]
    assert not np.array_equal(second[0].vector, second[1].vector)


# -- Strategies whose clients train ahead of their score: FedAvg with fine-tuning and FedBABU --------------------------


def test_the_score_of_a_round_does_not_depend_on_when_it_is_taken(host: ClientHost) -> None:
    """Scored at the end or on the way out for the next round, a model is tuned on the same batches."""
    short, long = (result_of(host, made("fine_tuning", tuning_epochs=2), num_rounds=rounds) for rounds in (3, 4))
    assert list(short.rounds["accuracy"]) == list(long.rounds["accuracy"])[:3]


def test_a_client_without_training_rows_is_scored_with_the_global_model() -> None:
    """One row each: it is the test's or nobody's; the others are tuned."""
    sizes = (*SIZES, 0)
    both = [result_of(host_of(sizes=sizes), spec) for spec in (made("fine_tuning", tuning_epochs=2), made("fedavg"))]
    assert both[0].clients["id"] == both[1].clients["id"]
    assert both[0].clients["accuracy"][-1] == both[1].clients["accuracy"][-1]


# -- Three accuracies by hand: of each client's own model, of the global one, and of a client that never trained -------


UNSEEN = frozenset((2, 5))
SEEN = tuple(client for client in range(8) if client not in UNSEEN)
NUM_ROUNDS = 2


@pytest.fixture(scope="module")
def small_host() -> ClientHost:
    return ClientHost(replace(uneven_federation(sizes=SIZES), unseen=UNSEEN), QUERIES)


def run(small_host: ClientHost, strategy: StrategySpec, **changes: Any) -> Trial:
    return result_of(small_host, strategy, num_sampled=len(SEEN), num_rounds=NUM_ROUNDS, **changes)


def test_new_clients_have_the_global_model_and_tune_it_where_others_do(small_host: ClientHost) -> None:
    """On training rows that took no part in it."""
    ditto, tuning, fedavg = (run(small_host, made(kind)) for kind in ("ditto", "fine_tuning", "fedavg"))
    for trial in (ditto, tuning):
        assert trial.rounds["global_accuracy"] == fedavg.rounds["accuracy"]
    assert ditto.rounds["new_client_accuracy"] == fedavg.rounds["new_client_accuracy"]
    assert tuning.rounds["new_client_accuracy"] != fedavg.rounds["new_client_accuracy"]
    assert fedavg.rounds.get("global_accuracy") is None, "it is the accuracy itself"


@pytest.mark.parametrize("strategy", [made("fedavg"), made("ditto"), made("local")], ids=lambda one: one.kind)
def test_who_keeps_a_model_where_clients_have_their_own_is_told_which_one_it_is(
    small_host: ClientHost, strategy: StrategySpec
) -> None:
    assert bool(run(small_host, strategy).notes) == (strategy.kind != "fedavg")
    assert not run(small_host, strategy, keep_model=False).notes
