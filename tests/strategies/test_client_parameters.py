"""What a strategy asks of its clients: one space, one digest, and the study's own value where nothing is said."""

from __future__ import annotations

import jsonschema
import numpy as np
import pytest

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import (
    BUILT_IN_KINDS,
    CHOSEN_BY_NAME_KINDS,
    CustomSpec,
    FedAvgSpec,
    IntegerRange,
    RealRange,
    SearchSpace,
    given_values,
    parse_strategy,
    space_of,
)
from tests.kits.refusals import refused
from tests.strategies.rounds import made

COHORT = Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2)
GIVEN = LocalTraining(learning_rate=0.2, local_epochs=2, batch_size=32)
RANGES = {
    "client_learning_rate": RealRange(0.05, 0.8, log=True),
    "client_local_epochs": IntegerRange(1, 5),
    "client_batch_size": IntegerRange(8, 64, log=True),
}
CUSTOM = CustomSpec.model_validate(
    {
        "path": "flwr.serverapp.strategy:FedAdagrad",
        "values": {"eta_l": 0.1},
        "ranges": {"eta": {"low": 0.01, "high": 1, "log": True}},
    }
)


def space() -> SearchSpace:
    return space_of(COHORT, customs=[CUSTOM], client_ranges=RANGES, given=given_values(GIVEN))


def test_they_join_every_strategy_after_its_own() -> None:
    plain, found = space_of(COHORT, customs=[CUSTOM]), space()
    for kind in found.kinds:
        assert dict(found.parameters_of(kind)) == {**plain.parameters_of(kind), **RANGES}
        assert list(found.parameters_of(kind))[-3:] == list(RANGES)
        assert not set(plain.parameters_of(kind)) & set(RANGES)


def test_whatever_is_drawn_is_inside_fits_and_can_be_written_and_read() -> None:
    found = space()
    validator = jsonschema.Draft202012Validator(found.json_schema())
    generator = np.random.default_rng(0)
    drawn = [found.random(generator) for _ in range(200)]
    assert {spec.label for spec in drawn} == set(found.kinds)
    for spec in drawn:
        assert found.contains(spec)
        assert spec.faults(COHORT) == []
        assert set(RANGES) <= set(spec.parameters())
        document = {"kind": spec.kind, **spec.parameters()}
        assert parse_strategy(document, COHORT) == spec
        shown = document if spec.kind == "custom" else {"kind": spec.kind, **spec.search_values()}
        if spec.kind == "custom":
            shown = {name: value for name, value in document.items() if name != "ranges"} | {
                "ranges": spec.model_dump(mode="json")["ranges"]
            }
        validator.validate(shown)
        training = spec.local_training(GIVEN)
        assert training.learning_rate == spec.client_learning_rate
        assert training.local_epochs == spec.client_local_epochs
        assert training.batch_size == spec.client_batch_size
        assert training.optimizer == GIVEN.optimizer


@pytest.mark.parametrize("kind", [*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS])
def test_unset_they_are_nowhere_to_be_seen(kind: str) -> None:
    spec = parse_strategy(kind)
    assert not set(RANGES) & {*spec.parameters(), *spec.search_values()}
    assert "client" not in str(spec)
    assert spec.local_training(GIVEN) is GIVEN


def test_they_are_shown_and_stay_when_others_move() -> None:
    spec = made("fedadam", eta=0.1, client_local_epochs=3)
    assert str(spec).endswith("beta_2=0.99, client_local_epochs=3)")
    moved = spec.with_values({"eta": 0.2})
    assert (moved.eta, moved.client_local_epochs) == (0.2, 3)
    custom = CUSTOM.with_values({"eta": 0.3, "client_batch_size": 16})
    assert (custom.values, custom.client_batch_size) == ({"eta_l": 0.1, "eta": 0.3}, 16)


def test_a_spec_outside_the_ranges_or_without_a_value_is_not_in_the_space() -> None:
    inside = {"client_learning_rate": 0.1, "client_local_epochs": 3, "client_batch_size": 16}
    found = space()
    assert found.contains(made("fedavg", **inside))
    assert not found.contains(made("fedavg", **{**inside, "client_learning_rate": 0.9}))
    assert not found.contains(made("fedavg", **{**inside, "client_local_epochs": None}))
    assert not space_of(COHORT).contains(made("fedavg", **inside))


def test_the_study_s_own_values_are_the_same_as_none() -> None:
    found = space()
    same = made("fedavg", client_learning_rate=0.2, client_local_epochs=2, client_batch_size=32)
    assert found.digest(same) == found.digest(made("fedavg"))
    assert found.digest(made("fedavg", client_local_epochs=2)) == found.digest(made("fedavg"))
    for other in ({"client_learning_rate": 0.21}, {"client_local_epochs": 1}, {"client_batch_size": 31}):
        assert found.digest(made("fedavg", **other)) != found.digest(made("fedavg"))
    # Without knowing epochs and rows, the step size of the cohort is known all the same.
    plain = space_of(COHORT, client_ranges=RANGES)
    assert plain.digest(made("fedavg", client_learning_rate=0.2)) == plain.digest(made("fedavg"))
    assert plain.digest(made("fedavg", client_local_epochs=2)) != plain.digest(made("fedavg"))


@pytest.mark.parametrize(
    ("spec", "other"),
    [
        (made("fedprox", proximal_mu=0), made("fedavg")),
        (made("fedavgm", server_learning_rate=1, server_momentum=0), made("fedavg")),
        (made("qfedavg", q=0), made("fedavg", sample_scaling="uniform")),
        (made("fedtrimmedavg", beta=0.05), made("fedavg", sample_scaling="uniform")),
        (made("fedtrimmedavg", beta=0.21), made("fedtrimmedavg", beta=0.29)),
    ],
)
def test_equivalents_tell_their_clients_the_same(spec: FedAvgSpec, other: FedAvgSpec) -> None:
    told = {"client_learning_rate": 0.4, "client_local_epochs": 3}
    spec_told, other_told = (each.model_copy(update=told) for each in (spec, other))
    assert spec_told.digest(COHORT) == other_told.digest(COHORT)
    assert spec_told.digest(COHORT) != spec.digest(COHORT) == other.digest(COHORT)
    assert spec_told.simplest(COHORT).client_values() == told


def test_the_nearest_of_a_space_is_inside_it_and_moves_no_further_than_it_must() -> None:
    found = space()
    inside = found.random(np.random.default_rng(1))
    assert found.nearest(inside) == inside
    far = made("fedadam", eta=30, tau=1e-12, beta_1=0.5, client_learning_rate=5.0, client_local_epochs=9)
    near = found.nearest(far)
    assert near == made(
        "fedadam", eta=1.0, tau=1e-5, beta_1=0.5, client_learning_rate=0.8, client_local_epochs=5, client_batch_size=32
    )
    assert space_of(COHORT).nearest(far) == made("fedadam", eta=1.0, tau=1e-5, beta_1=0.5)
    assert space_of(COHORT, kinds=("krum",)).nearest(far) is None


def test_defaults_lie_in_the_space() -> None:
    for found in (space(), space_of(COHORT), space_of(Cohort(4, 4, 5.0), client_ranges=RANGES)):
        for kind in found.kinds:
            assert found.contains(found.default(kind)), kind
    assert space_of(COHORT).default("fedadam") == made("fedadam")
    assert space().default("fedavg").client_values() == given_values(GIVEN)


def test_a_name_that_a_user_s_strategy_searches_itself_is_refused() -> None:
    document = {"path": "flwr.serverapp.strategy:QFedAvg", "ranges": {"client_learning_rate": {"low": 0.1, "high": 1}}}
    own = CustomSpec.model_validate(document)
    assert space_of(COHORT, customs=[own]).kinds[-1] == own.path
    with refused(StrategyError, key="client_learning_rate"):
        space_of(COHORT, customs=[own], client_ranges=RANGES)


@pytest.mark.parametrize("value", [{"client_learning_rate": 0}, {"client_local_epochs": 0}, {"client_batch_size": 0.5}])
def test_values_that_cannot_be_trained_with_are_refused(value: dict[str, float]) -> None:
    with pytest.raises(StrategyError, match=next(iter(value))):
        parse_strategy({"kind": "fedavg", **value})
