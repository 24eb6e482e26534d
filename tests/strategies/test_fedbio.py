"""Laws of FedBiO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import auxiliary_record, claim_task_identity, client_of, sent_auxiliary
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies.methods.server_rows import FedBiO, FedBiOSpec, on_simplex
from tests.engine.federations import linear, uneven_federation, with_server_rows
from tests.strategies.by_hand import SIZES, Hand, host_of, spec_of

FAST = FedBiOSpec(weight_rate=2.0, direction_rate=0.3)
Points = st.lists(st.floats(-3, 3), min_size=1, max_size=8).map(np.array)


# Weights.


@given(Points)
def test_projected_weights_are_the_nearest_ones(point: npt.NDArray[np.float64]) -> None:
    """As Karush, Kuhn and Tucker say: what is positive is the point less one number, and the rest is not above it."""
    weights = on_simplex(point)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    threshold = (point - weights)[weights > 0]
    np.testing.assert_allclose(threshold, threshold[0], atol=1e-9)
    assert (point[weights == 0] <= threshold[0] + 1e-9).all()


@pytest.mark.parametrize("large", [1e9, 1e17, 1e300])
def test_projected_weights_are_weights_however_long_the_step(large: float) -> None:
    np.testing.assert_array_equal(on_simplex(np.array([-large, large, 0.5])), [0, 1, 0])
    np.testing.assert_array_equal(on_simplex(np.array([large, large])), [0.5, 0.5])


# A model of one number: L_k(y) = ½ (y − c_k)², f(y) = ½ (y − 1)², so ∇²L_k u = u.


class OneNumber:
    """A grid whose server's rows want y = 1."""

    def get_node_ids(self) -> list[int]:
        return [2, 3]

    def serve(self, work: Any, arrays: Any) -> Any:
        return {"gradient": arrays["model"] - np.float32(1)}


def play(
    strategy: FedBiO, centres: Sequence[float], num_rounds: int, absent: Sequence[int] = ()
) -> list[tuple[float, dict[int, float], float]]:
    """Return the model, the weights and u after each round; client k ends local training at its centre.

    Args:
        strategy: With two clients.
        centres: c_k, of clients with 10 and 30 rows.
        num_rounds: To play, from y = 0.
        absent: Who never answers.
    """
    claim_task_identity()
    model, told = np.zeros(1, np.float32), []
    for server_round in range(1, num_rounds + 1):
        record, grid = ArrayRecord({"flat": Array(model)}), OneNumber()
        messages: list[Message] = list(strategy.configure_train(server_round, record, ConfigRecord(), grid))  # type: ignore[arg-type]
        direction = sent_auxiliary(messages[0].content).get("direction", np.zeros(1, np.float32))
        replies = []
        for message in sorted(messages, key=lambda message: message.metadata.dst_node_id):
            client = client_of(message.metadata.dst_node_id)
            if client in absent:
                continue
            alignment = float((model[0] - centres[client]) * direction[0])
            metrics = MetricRecord({"num-examples": (10, 30)[client], "alignment": alignment, "loss": 1.0})
            arrays = ArrayRecord({"flat": Array(np.float32([centres[client]]))})
            content = RecordDict({"arrays": arrays, "metrics": metrics})
            content["auxiliary"] = auxiliary_record({"curvature": direction})
            replies.append(Message(content, reply_to=message))
        aggregated, _ = strategy.aggregate_train(server_round, replies)
        model = aggregated["flat"].numpy().astype(np.float32)
        told.append((float(model[0]), dict(strategy.client_weights), float(strategy.direction[0])))
    return told


def server_of(**parameters: Any) -> FedBiO:
    return FedBiOSpec(**parameters).build(Cohort(2, 2, 0.1, server_rows=9, server_labels=True))


def test_three_rounds_of_two_clients_by_hand() -> None:
    """τ = ½, η = 2, μ = 0; c = (1, −1), n = (10, 30), p = (¼, ¾), y_0 = 0.

    1: u = ½ (f'(0) = −1) = −½; p stays, as u was 0; y = ¼ − ¾ = −½
    2: alignments (y − c) u = (−3/2, ½)(−½) = (¾, −¼), so p + 2 a = (7/4, ¼), less ½ (3/2, −¼): p = (1, 0), of 40 rows;
       u = −½ − ½ (−½ − f'(−½)) = −½ − ½ (−½ + 3/2) = −1; y = −½ by the weights as they were
    3: y = 1
    """
    one, two, three = play(server_of(weight_rate=2.0, direction_rate=0.5, damping=0.0), (1.0, -1.0), 3)
    assert one == (-0.5, {0: 10.0, 1: 30.0}, -0.5)
    assert two == (-0.5, {0: 40.0, 1: 0.0}, -1.0)
    assert three[0] == 1.0


def test_who_does_not_answer_keeps_its_weight() -> None:
    """And who answers alone has all of the mean, and its own weight."""
    strategy = server_of()
    play(strategy, (1.0, -1.0), 2)
    before = strategy.client_weights[1]
    rounds = play(strategy, (1.0, -1.0), 2, absent=[1])
    assert strategy.client_weights[1] == before
    assert [model for model, _, _ in rounds] == [1, 1]


# Over a federation.


class Kept(LocalGrid):
    """Remembers what each training sent: who trains, the model and u."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent: list[tuple[tuple[int, ...], Any, Any]] = []

    def _start(self, host: int, method: str, call: Any) -> Any:
        if method == "train":
            self.sent.append((call.clients, call.vector, call.auxiliary.get("direction")))
        return super()._start(host, method, call)


def derivatives(vector: Any, features: torch.Tensor, labels: torch.Tensor, direction: Any) -> tuple[Any, Any]:
    """Return the gradient of softmax regression's loss and its Hessian times a direction, in float64 by autograd."""
    flat = torch.tensor(vector, requires_grad=True)
    loss = nn.functional.cross_entropy(features @ flat[:18].view(3, 6).T + flat[18:], labels)
    (gradient,) = torch.autograd.grad(loss, flat, create_graph=True)
    (curvature,) = torch.autograd.grad(gradient @ torch.tensor(direction, dtype=torch.float64), flat)
    return gradient.detach().numpy(), curvature.numpy()


def test_rounds_are_the_algorithm_by_hand() -> None:
    """In float64, Hessians by autograd: six rounds, five of eight clients in each, of a convex model."""
    federation = with_server_rows(uneven_federation(linear, SIZES), labelled=True)
    server, hand, weights = federation.server, Hand(federation, model=linear), {}
    spec, host = spec_of(FAST, num_rounds=6), host_of(linear)
    grid = Kept(host, session=spec.session)
    result = run_trial(spec, grid)
    assert result.error is None
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    direction = np.zeros(21)
    for server_round, (clients, received, sent) in enumerate(grid.sent, start=1):
        np.testing.assert_allclose(received, vector, rtol=0, atol=2e-5)
        if server_round > 1:
            np.testing.assert_allclose(sent, direction, rtol=0, atol=2e-5)
        known = np.array([weights.get(client, hand.num_rows(client)) for client in clients], np.float64)
        shares = known / known.sum()
        found = [derivatives(vector, *hand._rows(client), direction) for client in clients]
        rows = torch.from_numpy(server.features).double(), torch.from_numpy(server.labels)
        wanted = derivatives(vector, *rows, direction)[0]
        bent = sum(share * curvature for share, (_, curvature) in zip(shares, found, strict=True))
        moved = on_simplex(shares + 2.0 * np.array([gradient @ direction for gradient, _ in found]))
        weights |= dict(zip(clients, known.sum() * moved, strict=True))
        trained = [hand.descend(vector, client, server_round)[0] for client in clients]
        vector = sum(share * model for share, model in zip(shares, trained, strict=True))
        direction = direction - 0.3 * (bent + 0.1 * direction - wanted)
    np.testing.assert_allclose(result.vector, vector, rtol=0, atol=2e-5)
    assert max(weights[client] / hand.num_rows(client) for client in weights) > 1.05
