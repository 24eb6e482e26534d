"""FedDF, RHFL and FedBiO, which read rows of the server: their laws, and steps written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from flwr.app import Message
from hypothesis import given, strategies as st
from torch import nn

from fedscout.engine.arrays import IntArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.client.updates import ServerModel
from fedscout.engine.errors import StrategyError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.messages.contents import client_of, metrics_of
from fedscout.engine.models.flat import new_model
from fedscout.engine.seeds import stream
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import FedAvgSpec
from fedscout.strategies.aggregation.rules import Outputs
from fedscout.strategies.methods import server_rows
from tests.commands import ran_python
from tests.engine import federations
from tests.engine.federations import dense, linear, normalised, plain_model, uneven_federation, with_server_rows
from tests.engine.grid.test_local_grid import WatchedGrid
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, Hand, host_of, result_of, spec_of
from tests.strategies.rounds import played

NUM_ROWS = 60
FEW = server_rows.FedDFSpec(distillation_steps=24, distillation_rate=2e-3, distillation_batch=16)
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CountingModel(ServerModel):
    """Notes the rows of each gradient."""

    batches: list[Any]

    def gradient(self, vector: Any, loss: Callable[[Any], Any], rows: IntArray | None = None) -> Any:
        self.batches.append(None if rows is None else rows.tolist())
        return super().gradient(vector, loss, rows)


@pytest.fixture(scope="module")
def host() -> ClientHost:
    return ClientHost(with_server_rows(uneven_federation(sizes=SIZES)), federations.QUERIES)


def context_of(model: Any = dense) -> CountingModel:
    context = ServerModel.of(with_server_rows(uneven_federation(model)), new_model(model, 1), stream(3, "server", 1))
    return CountingModel(**vars(context), batches=[])


def models_of(count: int = 3, model: Any = dense) -> Vectors:
    """Clients' models: one initial model, each moved by noise of its own."""
    generator, vector = np.random.default_rng(8), new_model(model, seed=4).vector.numpy()
    noise = generator.normal(scale=0.4, size=(count, len(vector)))
    return (vector + np.abs(noise) if model is normalised else vector + noise).astype(np.float32)


def mean_of(models: Vectors) -> Vectors:
    return models.astype(np.float64).mean(axis=0).astype(np.float32)


def distilled(context: Any, models: Vectors, **changes: Any) -> tuple[Vectors, float, float]:
    """Return the mean of models after distillation, and the divergences before and after."""
    settings = {"num_steps": 20, "learning_rate": 0.01, "batch_size": 16, "patience": 1000, **changes}
    student = mean_of(models)
    outputs = np.mean([Outputs().run(context, {"model": model})["outputs"] for model in models], axis=0)
    found = server_rows.Distillation(**settings).run(context, {"student": student, "outputs": outputs})
    before, after = found["divergences"].tolist()
    return found["student"], before, after


def features() -> torch.Tensor:
    server = with_server_rows(uneven_federation()).server
    return torch.from_numpy(server.features).double()


def teacher_by_hand(models: Vectors) -> torch.Tensor:
    """Softmax of the mean logits, in float64."""
    logits = [plain_model(dense, vector).double().eval()(features()).detach() for vector in models]
    return torch.stack(logits).mean(dim=0).softmax(dim=1)


def divergence_by_hand(models: Vectors, vector: Vectors) -> float:
    """Mean over rows of Σ_c t_c (log t_c − log s_c), in float64."""
    teacher = teacher_by_hand(models)
    student = plain_model(dense, vector).double().eval()(features()).detach().softmax(dim=1)
    return float((teacher * (teacher.log() - student.log())).sum(dim=1).mean())


def test_divergences_are_those_computed_by_hand_and_distillation_lowers_them() -> None:
    models = models_of()
    student, before, after = distilled(context_of(), models)
    assert before == pytest.approx(divergence_by_hand(models, mean_of(models)), abs=1e-6)
    assert after == pytest.approx(divergence_by_hand(models, student), abs=1e-6)
    assert after < before / 2


@pytest.mark.parametrize("model", [dense, normalised])
def test_where_all_clients_are_equal_or_one_is_not_finite_the_student_stays(model: Any) -> None:
    """The teacher is the student: nothing to gain, so not a step is made; nor is one towards what is no number."""
    context, (vector, *_) = context_of(model), models_of(1, model)
    student, before, _ = distilled(context, np.stack([vector] * 3))
    np.testing.assert_array_equal(student, vector)
    assert abs(before) < 1e-6
    models = models_of(model=model)
    models[1] *= np.float32(1e30)
    student, before, _ = distilled(context, models)
    assert np.isnan(before) == (model is dense)  # batch normalisation makes numbers of it
    np.testing.assert_array_equal(student, mean_of(models))
    assert context.batches == []


def test_steps_are_adam_s_on_the_divergence_with_a_rate_that_falls_as_a_cosine() -> None:
    """By torch's own Adam and schedule in float64; a batch is all rows, so no draw matters."""
    models, num_steps = models_of(), 6
    student, _, _ = distilled(context_of(), models, num_steps=num_steps, batch_size=NUM_ROWS)
    mean = mean_of(models)
    module, teacher = plain_model(dense, mean).double().eval(), teacher_by_hand(models)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = (teacher * (teacher.log() - module(features()).log_softmax(dim=1))).sum(dim=1).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    by_hand = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    np.testing.assert_allclose(student, by_hand, rtol=0, atol=1e-5)
    assert np.abs(student - mean).max() > 0.02


def test_statistics_of_batch_normalisation_are_the_clients_mean() -> None:
    models = models_of(model=normalised)
    student, before, after = distilled(context_of(normalised), models)
    size = new_model(normalised, 0).layout.num_trainable
    mean = mean_of(models)
    np.testing.assert_array_equal(student[size:], mean[size:])
    assert after < before


def test_steps_that_gain_nothing_end_and_leave_the_mean() -> None:
    """Steps as long as the weights only harm; they are compared after each pass of four batches."""
    context, models = context_of(), models_of()
    student, before, after = distilled(context, models, learning_rate=30.0, num_steps=10_000, patience=10)
    np.testing.assert_array_equal(student, mean_of(models))
    assert after == before
    assert len(context.batches) == 12


def test_a_round_is_the_mean_distilled(host: ClientHost) -> None:
    """Of all eight clients: what is distilled in the first round is FedAvg's model, and so it is in every round."""
    spec = spec_of(FEW, num_rounds=3, num_sampled=8)
    grid = Kept(host, session=spec.session)
    taught, mean = run_trial(spec, grid).vector, result_of(host, FedAvgSpec(), num_rounds=1, num_sampled=8).vector
    np.testing.assert_allclose(grid.served[0][0]["student"], mean, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(taught, grid.served[-1][1]["student"])
    assert [len(models) for models in grid.asked] == [8] * 3
    for (arrays, found), models in zip(grid.served, grid.asked, strict=True):
        teacher = torch.from_numpy(arrays["outputs"]).double().softmax(dim=1)
        np.testing.assert_allclose(teacher, teacher_by_hand(models), rtol=0, atol=1e-6)
        before, after = found["divergences"]
        assert after < before
        assert np.abs(found["student"] - arrays["student"]).max() > 1e-3


class Kept(LocalGrid):
    """Remembers the work that was done for the server: what was distilled, and which models were asked before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.served: list[tuple[Any, Any]] = []
        self.asked: list[Any] = []

    def serve(self, work: Any, arrays: Any) -> Any:
        found = super().serve(work, arrays)
        self.served.append((arrays, found))
        return found

    def serve_each(self, work: Any, inputs: Any) -> Any:
        if work == Outputs():
            self.asked.append(np.stack([arrays["model"] for arrays in inputs]))
        return super().serve_each(work, inputs)


def test_a_grid_without_hosts_is_refused() -> None:
    built = FEW.build(Cohort(2, 2, 0.1, server_rows=9))
    with refused(StrategyError, key="FedDF", given="NodeList"):
        played(built, np.ones(4), lambda sent: [sent, sent + 1], 1)


@pytest.mark.slow
def test_who_drives_rounds_loads_no_torch() -> None:
    program = (
        "import sys\n"
        "from fedscout.engine.trials.ray_runner import start_trial\n"
        "from fedscout.engine.messages.calls import Cohort\n"
        "from fedscout.strategies import parse_strategy\n"
        "for kind in ('feddf', 'fedbio'):\n"
        "    parse_strategy(kind).build(Cohort(8, 5, 0.1, server_rows=9, server_labels=True))\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert ran_python("-c", program, timeout=60).returncode == 0


# -- Laws of RHFL: who is heard, where common steps lead, and that nobody's model is averaged --------------------------


ALL = len(SIZES)


def aligned(models: Any, weights: Any, **changes: Any) -> Any:
    alignment = server_rows.Alignment(**{"num_epochs": 30, "learning_rate": 0.01, "batch_size": 16, **changes})
    rule = server_rows.Rhfl(alignment, 0.5, Cohort(len(models), len(models), 0.1))
    rule.grid = LocalGrid(with_server_rows(uneven_federation()), session=Session(seed=3))
    return rule.aligned(alignment, [*models], np.asarray(weights, np.float32))


def told(vector: Any) -> torch.Tensor:
    return context_of().outputs(torch.from_numpy(np.array(vector))).double().softmax(dim=1)


def test_who_improves_is_heard_more() -> None:
    """Drops of 0, 1/2 and 1/4 of what was: shares 0, 2/3, 1/3 of all, times η in the exponent."""
    found = server_rows.confidences(np.array([1.0, 2.0, 4.0, np.inf]), np.array([1.5, 1.0, 3.0, 1.0]), 0.6)
    raised = np.exp([0.0, 0.4, 0.2, 0.0])
    np.testing.assert_allclose(found, raised / raised.sum(), rtol=1e-6)
    np.testing.assert_allclose(server_rows.confidences(np.full(3, np.inf), np.ones(3), 0.6), 1 / 3, rtol=1e-6)
    without_loss = server_rows.confidences(np.array([0.0, 2.0]), np.array([0.0, 1.0]), 0.6)  # it can't fall any more
    np.testing.assert_allclose(without_loss, np.array([1, np.exp(0.6)]) / (1 + np.exp(0.6)), rtol=1e-6)
    assert server_rows.confidences(np.array([2.0, 2.0]), np.array([1.0, 2.0]), 1e4).tolist() == [1, 0]


def test_who_is_heard_follows_from_the_losses_of_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients miss rounds, and what they lost last counts as of the round before."""
    told: dict[int, float] = {}
    rounds: list[tuple[Any, Any, dict[int, float]]] = []
    taught = server_rows.Rhfl.aligned

    def noted(reply: Message) -> Any:
        told[client_of(reply.metadata.src_node_id)] = metrics_of(reply)["loss"]  # type: ignore[assignment]
        return metrics_of(reply)

    def aligned(rule: server_rows.Rhfl, alignment: Any, models: Any, weights: Any) -> Any:
        rounds.append((alignment, weights, dict(told)))
        told.clear()
        return taught(rule, alignment, models, weights)

    monkeypatch.setattr(server_rows, "metrics_of", noted)
    monkeypatch.setattr(server_rows.Rhfl, "aligned", aligned)
    federation = replace(with_server_rows(uneven_federation(sizes=SIZES)), dropout={2: 0.5, 5: 0.5})
    asked = server_rows.RhflSpec(confidence_strength=2.0, alignment_epochs=7, alignment_rate=0.02)
    result_of(ClientHost(federation, federations.QUERIES), asked, num_sampled=ALL)
    assert all(len({client in losses for _, _, losses in rounds}) == 2 for client in (2, 5))
    now = np.full(ALL, np.inf)
    for work, weights, losses in rounds:
        before = now.copy()
        now[[*losses]] = [*losses.values()]
        assert work == server_rows.Alignment(7, 0.02)
        assert np.array_equal(weights, server_rows.confidences(before, now, 2.0))


@pytest.mark.parametrize("weights", [[0.2, 0.5, 0.3], [1 - 2e-7, 1e-7, 1e-7], [1, 0, 0]], ids=str)
def test_common_steps_by_hand(weights: list[float]) -> None:
    """By torch's Adam on Σ_{j≠i} w_j KL(z_j ‖ z_i) in float64. Where w is that small, Adam's ε shortens its steps."""
    models = models_of(3)
    found = aligned(models, weights, num_epochs=6, batch_size=NUM_ROWS)
    said = [told(model).detach() for model in models]
    for place, model in enumerate(models):
        module = plain_model(dense, model).double().eval()
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            own = module(features()).log_softmax(dim=1)
            apart = [weight * (z * (z.log() - own)).sum(dim=1).mean() for weight, z in zip(weights, said, strict=True)]
            heard = sum(apart[other] for other in range(3) if other != place)
            if not any(weights[:place] + weights[place + 1 :]):
                break  # nobody
            heard.backward()  # type: ignore[union-attr]
            optimizer.step()
        by_hand = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
        np.testing.assert_allclose(found[place], by_hand, rtol=0, atol=2e-5)
    (same,) = models_of(1)
    assert np.array_equal(aligned(np.stack([same] * 3), weights), np.stack([same] * 3))


def test_each_model_passes_over_the_rows_as_often_as_asked() -> None:
    """In orders of its own: those that all models draw, one after the other."""
    drawn = context_of().generator
    orders = [drawn.permutation(NUM_ROWS).tolist() for _ in range(2 * 3)]
    model, other = models_of(2)
    for place in range(2):
        context_of_place = context_of()
        arrays = {"model": model, "taught": told(other).float().numpy(), "share": np.float32(0.5), "place": place}
        server_rows.Alignment(3, 0.01, 16).run(context_of_place, arrays)
        batches = context_of_place.batches
        assert [len(batch) for batch in batches] == [16, 16, 16, 12] * 3
        assert [row for batch in batches for row in batch] == [r for order in orders[3 * place :][:3] for r in order]


FAST = server_rows.FedBiOSpec(weight_rate=2.0, direction_rate=0.3)
Points = st.lists(st.floats(-3, 3), min_size=1, max_size=8).map(np.array)


# Weights.


@given(Points)
def test_projected_weights_are_the_nearest_ones(point: npt.NDArray[np.float64]) -> None:
    """As Karush, Kuhn and Tucker say: what is positive is the point less one number, and the rest is not above it."""
    weights = server_rows.on_simplex(point)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    threshold = (point - weights)[weights > 0]
    np.testing.assert_allclose(threshold, threshold[0], atol=1e-9)
    assert (point[weights == 0] <= threshold[0] + 1e-9).all()


@pytest.mark.parametrize("large", [1e9, 1e17, 1e300])
def test_projected_weights_are_weights_however_long_the_step(large: float) -> None:
    np.testing.assert_array_equal(server_rows.on_simplex(np.array([-large, large, 0.5])), [0, 1, 0])
    np.testing.assert_array_equal(server_rows.on_simplex(np.array([large, large])), [0.5, 0.5])


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
    grid = WatchedGrid(host, session=spec.session)
    result = run_trial(spec, grid)
    assert result.error is None
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    direction = np.zeros(21)
    trainings = [call for method, call in grid.calls_made if method == "train"]
    for server_round, call in enumerate(trainings, start=1):
        clients = call.clients
        np.testing.assert_allclose(call.vector, vector, rtol=0, atol=2e-5)
        if server_round > 1:
            np.testing.assert_allclose(call.auxiliary["direction"], direction, rtol=0, atol=2e-5)
        known = np.array([weights.get(client, hand.num_rows(client)) for client in clients], np.float64)
        shares = known / known.sum()
        found = [derivatives(vector, *hand._rows(client), direction) for client in clients]
        rows = torch.from_numpy(server.features).double(), torch.from_numpy(server.labels)
        wanted = derivatives(vector, *rows, direction)[0]
        bent = sum(share * curvature for share, (_, curvature) in zip(shares, found, strict=True))
        moved = server_rows.on_simplex(shares + 2.0 * np.array([gradient @ direction for gradient, _ in found]))
        weights |= dict(zip(clients, known.sum() * moved, strict=True))
        trained = [hand.descend(vector, client, server_round)[0] for client in clients]
        vector = sum(share * model for share, model in zip(shares, trained, strict=True))
        direction = direction - 0.3 * (bent + 0.1 * direction - wanted)
    np.testing.assert_allclose(result.vector, vector, rtol=0, atol=2e-5)
    assert max(weights[client] / hand.num_rows(client) for client in weights) > 1.05
