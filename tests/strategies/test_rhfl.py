"""Laws of RHFL: who is heard, where common steps lead, and that nobody's model is averaged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from pydantic import ValidationError

from fedscout.engine.client.host import ClientHost
from fedscout.engine.client.updates import ServerModel
from fedscout.engine.errors import StrategyError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.messages.contents import client_of, metrics_of
from fedscout.engine.models.flat import new_model
from fedscout.engine.seeds import stream
from fedscout.strategies.methods import server_rows
from fedscout.strategies.methods.server_rows import Alignment, Rhfl, RhflSpec, confidences
from tests.engine.federations import QUERIES, dense, plain_model, uneven_federation, with_server_rows
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, result_of
from tests.strategies.test_feddf import NUM_ROWS, context_of, features

ALL = len(SIZES)


def context() -> ServerModel:
    federation = with_server_rows(uneven_federation())
    return ServerModel.of(federation, new_model(dense, 1), stream(3, "server", 1))


def models_of(count: int) -> Any:
    vector = new_model(dense, seed=4).vector.numpy()
    return (vector + np.random.default_rng(8).normal(scale=0.4, size=(count, len(vector)))).astype(np.float32)


def aligned(models: Any, weights: Any, **changes: Any) -> Any:
    alignment = Alignment(**{"num_epochs": 30, "learning_rate": 0.01, "batch_size": 16, **changes})
    rule = Rhfl(alignment, 0.5, Cohort(len(models), len(models), 0.1))
    rule.grid = LocalGrid(with_server_rows(uneven_federation()), session=Session(seed=3))
    return rule.aligned(alignment, [*models], np.asarray(weights, np.float32))


def told(vector: Any) -> torch.Tensor:
    return context().outputs(torch.from_numpy(np.array(vector))).double().softmax(dim=1)


def test_who_improves_is_heard_more() -> None:
    """Drops of 0, 1/2 and 1/4 of what was: shares 0, 2/3, 1/3 of all, times η in the exponent."""
    found = confidences(np.array([1.0, 2.0, 4.0, np.inf]), np.array([1.5, 1.0, 3.0, 1.0]), 0.6)
    raised = np.exp([0.0, 0.4, 0.2, 0.0])
    np.testing.assert_allclose(found, raised / raised.sum(), rtol=1e-6)
    np.testing.assert_allclose(confidences(np.full(3, np.inf), np.ones(3), 0.6), 1 / 3, rtol=1e-6)
    without_loss = confidences(np.array([0.0, 2.0]), np.array([0.0, 1.0]), 0.6)  # it can't fall any more
    np.testing.assert_allclose(without_loss, np.array([1, np.exp(0.6)]) / (1 + np.exp(0.6)), rtol=1e-6)
    assert confidences(np.array([2.0, 2.0]), np.array([1.0, 2.0]), 1e4).tolist() == [1, 0]


def test_who_is_heard_follows_from_the_losses_of_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients miss rounds, and what they lost last counts as of the round before."""
    told: dict[int, float] = {}
    rounds: list[tuple[Any, Any, dict[int, float]]] = []
    taught = Rhfl.aligned

    def noted(reply: Message) -> Any:
        told[client_of(reply.metadata.src_node_id)] = metrics_of(reply)["loss"]  # type: ignore[assignment]
        return metrics_of(reply)

    def aligned(rule: Rhfl, alignment: Any, models: Any, weights: Any) -> Any:
        rounds.append((alignment, weights, dict(told)))
        told.clear()
        return taught(rule, alignment, models, weights)

    monkeypatch.setattr(server_rows, "metrics_of", noted)
    monkeypatch.setattr(Rhfl, "aligned", aligned)
    federation = replace(with_server_rows(uneven_federation(sizes=SIZES)), dropout={2: 0.5, 5: 0.5})
    asked = RhflSpec(confidence_strength=2.0, alignment_epochs=7, alignment_rate=0.02)
    result_of(ClientHost(federation, QUERIES), asked, num_sampled=ALL)
    assert all(len({client in losses for _, _, losses in rounds}) == 2 for client in (2, 5))
    now = np.full(ALL, np.inf)
    for work, weights, losses in rounds:
        before = now.copy()
        now[[*losses]] = [*losses.values()]
        assert work == Alignment(7, 0.02)
        assert np.array_equal(weights, confidences(before, now, 2.0))


@pytest.mark.parametrize("weights", [[0.2, 0.5, 0.3], [1 - 2e-7, 1e-7, 1e-7]], ids=["all are heard", "one is heard"])
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
            sum(apart[other] for other in range(3) if other != place).backward()  # type: ignore[union-attr]
            optimizer.step()
        by_hand = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
        np.testing.assert_allclose(found[place], by_hand, rtol=0, atol=2e-5)


def test_each_model_passes_over_the_rows_as_often_as_asked() -> None:
    """In orders of its own: those that all models draw, one after the other."""
    drawn = context().generator
    orders = [drawn.permutation(NUM_ROWS).tolist() for _ in range(2 * 3)]
    model, other = models_of(2)
    for place in range(2):
        context_of_place = context_of()
        arrays = {"model": model, "taught": told(other).float().numpy(), "share": np.float32(0.5), "place": place}
        Alignment(3, 0.01, 16).run(context_of_place, arrays)
        batches = context_of_place.batches
        assert [len(batch) for batch in batches] == [16, 16, 16, 12] * 3
        assert [row for batch in batches for row in batch] == [r for order in orders[3 * place :][:3] for r in order]


def test_models_that_say_the_same_stay() -> None:
    (model,) = models_of(1)
    assert np.array_equal(aligned(np.stack([model] * 3), [1 / 3] * 3), np.stack([model] * 3))


def test_two_clients_learn_what_the_other_said_before() -> None:
    """Each one's divergence from the other's first word falls; the first word is that of before any step."""
    models = models_of(2)
    first, now = [told(model) for model in models], [told(model) for model in aligned(models, [0.5, 0.5])]
    for place, other in ((0, 1), (1, 0)):
        before, after = ((first[other] * (first[other] / own[place]).log()).sum(dim=1).mean() for own in (first, now))
        assert after < before / 2


def test_who_has_no_weight_is_not_heard() -> None:
    """With the whole weight on the first of three, the two others learn what it said, and it what nobody said."""
    models = models_of(3)
    found, alone = aligned(models, [1.0, 0.0, 0.0]), aligned(models[:2], [1.0, 0.0])
    np.testing.assert_allclose(told(found[1]), told(alone[1]), atol=0.02)
    assert np.array_equal(found[0], models[0])


@pytest.mark.parametrize("cohort", [Cohort(8, 8, 0.1), Cohort(8, 5, 0.1, server_rows=9)])
def test_what_it_needs_is_said_before_anything_trains(cohort: Cohort) -> None:
    with refused(StrategyError, key="rhfl"):
        RhflSpec().build(cohort)


def test_nobody_is_heard_less_for_learning() -> None:
    with pytest.raises(ValidationError, match="confidence_strength"):
        RhflSpec(confidence_strength=-0.1)
