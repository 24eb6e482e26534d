"""Parameters and federations with which a method is a simpler one, over whole trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.trials.record import Trial
from fedscout.strategies import StrategySpec
from fedscout.strategies.methods.tuned_clients import FedExSpec, FedPopSpec
from tests.engine.federations import dense, normalised
from tests.strategies.by_hand import SIZES, TRAINING, WHOLE, host_of, result_of
from tests.strategies.rounds import made

LOOP = {"backend": "loop"}
EQUAL = (40, 37, 39, 36)
"""Rows of which 30 to 32 train: four batches of eight, whatever remains."""
FEDAVG, UNIFORM = made("fedavg"), made("fedavg", sample_scaling="uniform")
MOMENTUM = TRAINING.model_copy(update={"momentum": 0.9})
COHORT = Cohort(8, 5, 0.1, server_rows=60, server_labels=True)


@dataclass(frozen=True)
class Limit:
    """A method and the one that it is.

    Attributes:
        method: The method.
        same: The simpler one.
        atol: By how much models may differ.
        compared: Series of rounds that have the same bits.
        model: The net.
        sizes: Rows of each client.
        changes: Settings of both trials.
        own: Settings of the simpler one's alone.
    """

    method: StrategySpec
    same: StrategySpec = FEDAVG
    atol: float | None = 0.0
    compared: tuple[str, ...] = ("round_accuracy", "round_train_loss")
    model: ModelFactory = dense
    sizes: tuple[int, ...] = SIZES
    changes: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)


ACCURACY, MODEL_ALONE = ("round_accuracy",), ()
LIMITS: Mapping[str, Limit] = {
    "fedsam": Limit(made("fedsam", sharpness_radius=0.0), changes=LOOP),
    "moon": Limit(made("moon", contrast=0.0), compared=MODEL_ALONE, changes=LOOP),
    "moon, normalised": Limit(made("moon", contrast=0.0), compared=MODEL_ALONE, model=normalised, changes=LOOP),
    "fedlc": Limit(made("fedlc", calibration=0.0), compared=ACCURACY, changes=LOOP),
    "fedrs": Limit(made("fedrs", missing_scale=1.0), compared=ACCURACY, changes=LOOP),
    "fedrs, normalised": Limit(made("fedrs", missing_scale=1.0), compared=ACCURACY, model=normalised, changes=LOOP),
    "symmetric_loss": Limit(
        made("symmetric_loss", cross_entropy_weight=1.0, reverse_weight=0.0), compared=ACCURACY, changes=LOOP
    ),
    "fine_tuning": Limit(made("fine_tuning", tuning_epochs=0)),
    "pfedme": Limit(
        made("pfedme", personal_pull=1 / TRAINING.learning_rate, local_rounds=1),  # w becomes θ
        made("fedprox", proximal_mu=1 / TRAINING.learning_rate),
        compared=MODEL_ALONE,
    ),
    "fedper": Limit(made("fedper", personal_layers=2), made("local")),
    "local": Limit(made("local"), atol=None, compared=ACCURACY, sizes=SIZES[:1], changes={"num_sampled": 1}),
    "rhfl": Limit(
        made("rhfl", cross_entropy_weight=1.0, reverse_weight=0.0, alignment_epochs=0),
        made("local"),
        atol=None,  # its model is one a client
        compared=ACCURACY,
        changes={**LOOP, "num_sampled": len(SIZES)},
    ),
    "rhfl, alone": Limit(made("rhfl"), made("rhfl", alignment_epochs=0), sizes=SIZES[:1], changes={"num_sampled": 1}),
    "mfedbn": Limit(
        made("mfedbn", server_learning_rate=1.0),
        made("fedbn"),
        1e-7,
        MODEL_ALONE,
        normalised,
        changes={"num_rounds": 1},
    ),
    # Eight steps are a power of two, so dividing weights by them does not round; a length with momentum is not.
    "fednova": Limit(made("fednova"), sizes=EQUAL, changes={"num_sampled": 4}),
    "fednova, uniform": Limit(
        made("fednova", sample_scaling="uniform"),
        UNIFORM,
        1e-6,
        MODEL_ALONE,
        sizes=EQUAL,
        changes={"num_sampled": 4, "training": MOMENTUM},
    ),
    # There are no controls yet; and with one step on all rows of all clients they add up to the same mean gradient.
    "scaffold, first round": Limit(made("scaffold"), UNIFORM, changes={"num_rounds": 1}),
    "scaffold, full gradients": Limit(
        made("scaffold"), UNIFORM, 1e-6, MODEL_ALONE, changes={"num_sampled": len(SIZES), "training": WHOLE}
    ),
    "fedbio, fixed weights": Limit(made("fedbio", weight_rate=0), atol=1e-6, compared=MODEL_ALONE),
    "fedbio, no direction": Limit(made("fedbio", direction_rate=0), atol=1e-6, compared=MODEL_ALONE),
    "feddf": Limit(made("feddf", distillation_steps=0)),
    "feddf, uniform": Limit(made("feddf", distillation_steps=0, sample_scaling="uniform"), UNIFORM),
    **{
        f"{spec_class.model_fields['kind'].default}, {backend}": Limit(
            spec_class(num_configurations=1, validation_share=0.25),
            changes={"backend": backend},
            own={"validation_fraction": 0.25},
        )
        for spec_class in (FedExSpec, FedPopSpec)
        for backend in ("auto", "loop")
    },
}


@pytest.mark.parametrize("name", LIMITS)
def test_in_its_limit_a_method_is_the_simpler_one(name: str) -> None:
    limit = LIMITS[name]
    host = host_of(limit.model, limit.sizes)
    one = result_of(host, limit.method, **limit.changes)
    other = result_of(host, limit.same, **{**limit.changes, **limit.own})
    if limit.atol is not None:
        np.testing.assert_allclose(one.vector, other.vector, rtol=0, atol=limit.atol)
    for series in limit.compared:
        assert list(getattr(one, series)) == list(getattr(other, series))


@pytest.mark.parametrize(
    "name",
    ["fedsam", "moon", "fedlc", "fine_tuning", "fedbio, fixed weights", "fedbio, no direction", "feddf, uniform"],
)
def test_one_digest_tells_of_the_limit(name: str) -> None:
    limit = LIMITS[name]
    assert limit.method.simplest(COHORT) == limit.same
    assert limit.method.digest(COHORT) == limit.same.digest(COHORT)


# -- Bytes a round by hand: a net of 53 parameters, four bytes each, to eight clients ----------------------------------


MODEL = 53 * 4
NUM_ROUNDS = 3


def run(host: ClientHost, strategy: StrategySpec, num_sampled: int = 5, merge_on_hosts: bool = True) -> Trial:
    return result_of(host, strategy, merge_on_hosts, num_sampled=num_sampled, num_rounds=NUM_ROUNDS)


@pytest.mark.parametrize("merge_on_hosts", [True, False])
@pytest.mark.parametrize(
    ("kind", "num_values"),
    [*((kind, 53) for kind in ("fedavg", "ditto", "fednova", "krum")), ("fedper", 35), ("local", 0)],
)
def test_a_model_goes_down_and_one_comes_up(host: ClientHost, kind: str, num_values: int, merge_on_hosts: bool) -> None:
    """What stays at home is not counted: of the net's two layers, 6·5 + 5 and 5·3 + 3, FedPer shares the first."""
    trial = run(host, made(kind), merge_on_hosts=merge_on_hosts)
    assert (trial.bytes_down, trial.bytes_up) == (5 * num_values * 4, 5 * num_values * 4)


@pytest.mark.parametrize("merge_on_hosts", [True, False])
def test_scaffold_s_are_twice_as_many(host: ClientHost, merge_on_hosts: bool) -> None:
    """Up in every round; down from the second on, as the server's control variate is 0 before."""
    trial = run(host, made("scaffold"), merge_on_hosts=merge_on_hosts)
    assert trial.bytes_up == 2 * 5 * MODEL
    assert trial.bytes_down == 5 * MODEL * (1 + 2 + 2) / 3


@pytest.mark.parametrize(("kind", "times"), [("fedavg", 1), ("scaffold", 2)])
def test_a_client_that_fails_is_sent_a_model_and_sends_none(kind: str, times: int) -> None:
    """One of five holds no rows."""
    trial = run(host_of(sizes=(*SIZES[:4], 0)), made(kind))
    assert trial.bytes_up == times * 4 * MODEL
    assert trial.bytes_down == 5 * MODEL * (1 if times == 1 else 5 / 3)
