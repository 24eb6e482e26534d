"""Laws of FedBN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedscout.engine.errors import StrategyError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import FedAvgSpec, FedBNSpec
from fedscout.strategies.methods.batch_norm import OwnBatchNorm
from tests.engine.choices import FLOWER_CHOICES
from tests.engine.choices import spec_of as flower_spec
from tests.engine.federations import normalised, uneven_federation
from tests.engine.trials.test_resume import assert_same
from tests.strategies.by_hand import SIZES, Hand, host_of, models, result_of, spec_of, weights_of

OWN = slice(35, 45), slice(63, 73)
"""Scale and shift follow the first layer's 6·5 + 5 parameters, the statistics all 63."""


class Unchecked(FedBNSpec):
    """FedBN that is built in any cohort."""

    def faults(self, cohort: Cohort) -> list[str]:
        return []


def test_without_batch_normalisation_it_is_fedavg() -> None:
    """Nothing stays at home; the net is a dense one, whose clients are trained and scored together."""
    host = host_of()
    spec = spec_of(Unchecked())
    assert_same(run_trial(spec, LocalGrid(host, session=spec.session)), result_of(host, FedAvgSpec()))


def test_models_and_scores_are_those_by_hand() -> None:
    """Five rounds in float64, five of eight clients in each; who has not trained is scored with the initial layer."""
    host, hand = host_of(normalised), Hand(uneven_federation(normalised, SIZES), model=normalised)
    spec, own = spec_of(FedBNSpec()), {}
    result = result_of(host, spec.strategy)  # type: ignore[arg-type]
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)

    def personal(client: int) -> Any:
        model = vector.copy()
        for part, values in zip(OWN, own.get(client, [vector[part] for part in OWN]), strict=True):
            model[part] = values
        return model

    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        trained = {client: hand.descend(personal(client), client, server_round)[0] for client in clients}
        mean = sum(share * trained[c] for share, c in zip(weights_of(hand, clients), clients, strict=True))
        for client in clients:
            own[client] = [trained[client][part] for part in OWN]
        for part in OWN:
            mean[part] = vector[part]
        vector = mean
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)
        rows = np.array([round(0.2 * size) for size in SIZES])
        expected = np.dot([hand.accuracy(personal(client), client) for client in range(8)], rows) / rows.sum()
        assert result.round_accuracy[server_round - 1] == pytest.approx(expected)
    by_client = [hand.accuracy(personal(client), client) for client in range(8)]
    np.testing.assert_allclose(result.client_accuracy, by_client)


def test_a_client_that_never_trained_is_scored_with_the_global_model() -> None:
    host = host_of(normalised)
    spec = spec_of(FedBNSpec(), num_rounds=1, num_sampled=2)
    grid = LocalGrid(host, session=spec.session)
    result = run_trial(spec, grid)
    hand = Hand(uneven_federation(normalised, SIZES), model=normalised)
    assert result.vector is not None
    idle = [client for client in range(8) if client not in grid.client_states]
    assert len(idle) == 6
    for client in idle:
        vector = result.vector.astype(np.float64)
        assert result.client_accuracy[client] == pytest.approx(hand.accuracy(vector, client))


def test_a_model_without_batch_normalisation_is_refused() -> None:
    with pytest.raises(StrategyError) as caught:
        FedBNSpec().build(Cohort(8, 5, 0.1, layers=frozenset({"Linear"})))
    assert str(caught.value) == "fedbn must have a model with batch normalisation, got layers Linear"


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "fedavgm", "fedmedian", "fedtrimmedavg", "krum", "qfedavg"])
def test_under_any_server_rule_the_global_layer_stays_where_it_was(name: str) -> None:
    """At its initial 0 and 1, as every rule of Flower's sees no change there; the rest is trained."""
    host = host_of(normalised)
    spec = replace(flower_spec(replace(FLOWER_CHOICES[name], algorithm=OwnBatchNorm())), num_sampled=8)
    result = run_trial(spec, LocalGrid(host, session=spec.session))
    assert result.vector is not None
    initial = host.initial_vector(spec.session.seed)
    for part in OWN:
        assert np.array_equal(result.vector[part], initial[part])
    assert np.abs(result.vector - initial).max() > 1e-3
