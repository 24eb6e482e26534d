"""A user's own strategy or specification, in a file that this program has never seen."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from pathlib import Path

import jsonschema
import numpy as np
import numpy.typing as npt
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.seeds import UNSEEDED
from fedscout.strategies import (
    ChoiceRange,
    CustomSpec,
    FedAvgSpec,
    FedProxSpec,
    IntegerRange,
    RealRange,
    StrategySpec,
    parse_strategy,
    space_of,
)
from fedscout.strategies.space import SearchSpace
from tests.engine.federations import QUERIES, uneven_federation
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, result_of
from tests.strategies.rounds import final_model

COHORT = Cohort(num_clients=6, num_sampled=4, client_learning_rate=0.2)

SOURCE = '''
from flwr.serverapp.strategy import FedAvg, Strategy


class Shrunk(FedAvg):
    """FedAvg times a factor."""

    def __init__(self, factor, power=1, mode="mean", **nodes):
        super().__init__(**nodes)
        if factor == 13:
            raise ValueError("13 is unlucky")
        self.factor, self.power, self.mode = factor, power, mode

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        for name in arrays:
            arrays[name] = type(arrays[name])(arrays[name].numpy() * self.factor**self.power)
        return arrays, metrics


class Blind(FedAvg):
    """Takes no arguments at all."""

    def __init__(self):
        super().__init__()


class Half(Strategy):
    """Leaves methods abstract."""


class Stranger:
    """No strategy."""
'''

DOCUMENT = {
    "kind": "custom",
    "path": "user_strategies:Shrunk",
    "values": {"mode": "mean"},
    "ranges": {
        "factor": {"low": 0.01, "high": 1, "log": True},
        "power": {"low": 1, "high": 3, "integer": True},
        "mode": {"choices": ["mean", "median"]},
    },
}


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "user_strategies.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("raise RuntimeError('not today')")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("user_strategies", None)


def custom(**fields) -> CustomSpec:
    return CustomSpec.model_validate({**DOCUMENT, **fields})


def test_parsing_imports_nothing(user_module) -> None:
    spec = parse_strategy(DOCUMENT)
    assert isinstance(spec, CustomSpec)
    assert "user_strategies" not in sys.modules
    assert parse_strategy({"kind": "fedavg"}, COHORT) == FedAvgSpec()
    assert "user_strategies" not in sys.modules


def test_it_is_built_with_its_values_and_the_cohort(user_module) -> None:
    built = custom(values={"factor": 0.5, "power": 2, "mode": "mean"}).build(COHORT)
    assert (built.factor, built.power) == (0.5, 2)
    assert (built.min_train_nodes, built.min_available_nodes, built.fraction_train) == (4, 6, 4 / 6)


def test_factor_one_is_fedavg(user_module) -> None:
    spec = custom(values={"factor": 1, "power": 3}, ranges={})
    np.testing.assert_allclose(final_model(spec, COHORT), final_model(FedAvgSpec(), COHORT), rtol=1e-6)


def test_it_needs_what_any_flower_strategy_does_unless_told() -> None:
    assert custom().needs() == EngineNeeds(arrays="named", replies="individual", sees_evaluation=True)
    told = custom(arrays="flat", replies="merged", initial_loss=True, sees_evaluation=False)
    assert told.needs() == EngineNeeds(arrays="flat", replies="merged", initial_loss=True)


def test_it_is_searched_beside_the_others(user_module) -> None:
    space = space_of(COHORT, kinds=("fedavg",), customs=(custom(),))
    assert space.kinds == ("fedavg", "user_strategies:Shrunk")
    assert space.parameters_of("user_strategies:Shrunk") == {
        "factor": RealRange(0.01, 1, log=True),
        "power": IntegerRange(1, 3),
        "mode": ChoiceRange(("mean", "median")),
    }
    generator = np.random.default_rng(0)
    drawn = [space.random(generator) for _ in range(60)]
    own = [spec for spec in drawn if isinstance(spec, CustomSpec)]
    assert {spec.values["mode"] for spec in own} == {"mean", "median"}
    assert {spec.values["power"] for spec in own} == {1, 2, 3}
    validator = jsonschema.Draft202012Validator(space.json_schema())
    for spec in own:
        assert space.contains(spec)
        assert spec.faults(COHORT) == []
        document = json.loads(json.dumps({"kind": spec.kind, **spec.parameters()}))
        validator.validate(document)
        assert parse_strategy(document, COHORT) == spec
        assert pickle.loads(pickle.dumps(spec)) == spec
    assert not space.contains(custom(values={"factor": 2.0, "power": 1, "mode": "mean"}))


def test_a_module_that_draws_without_a_seed_is_told_of_once(tmp_path, monkeypatch, caplog) -> None:
    source = "import numpy as np\nfrom flwr.serverapp.strategy import FedAvg as Drawing\nRATE = np.random.default_rng()"
    (tmp_path / "drawing.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(logging.getLogger("fedscout"), "propagate", True)
    spec = CustomSpec(path="drawing:Drawing")
    try:
        assert spec.faults(COHORT) == spec.faults(COHORT) == []
    finally:
        sys.modules.pop("drawing", None)
    assert [record.getMessage() for record in caplog.records] == [f"drawing:Drawing: {UNSEEDED}"]


def test_an_argument_may_have_the_name_of_a_client_parameter() -> None:
    """A range for it makes it the constructor's; without one it is what clients are told."""
    name = "client_learning_rate"
    own = CustomSpec(path="a:B", ranges={name: {"low": 0.1, "high": 1}}).with_values({name: 0.5})
    assert (own.values, own.client_learning_rate) == ({name: 0.5}, None)
    told = CustomSpec(path="a:B").with_values({name: 0.5})
    assert (told.values, told.client_learning_rate) == ({}, 0.5)


def test_the_digest_is_of_the_arguments_not_of_their_ranges(user_module) -> None:
    with_ranges = custom(values={"factor": 0.5, "power": 2, "mode": "mean"})
    assert with_ranges.digest(COHORT) == with_ranges.model_copy(update={"ranges": {}}).digest(COHORT)
    assert with_ranges.digest(COHORT) != with_ranges.with_values({"power": 1}).digest(COHORT)


def faults_of(document, cohort=COHORT) -> tuple[Fault, ...]:
    with pytest.raises(StrategyError) as caught:
        parse_strategy({"kind": "custom", **document}, cohort)
    return caught.value.faults


@pytest.mark.parametrize(
    ("path", "key", "names"),
    [
        ("nowhere_at_all:Shrunk", "nowhere_at_all", "ModuleNotFoundError"),
        ("broken:Shrunk", "broken:Shrunk", "RuntimeError: not today"),
        ("user_strategies:Missing", "user_strategies", "nothing"),
        ("user_strategies:Stranger", "user_strategies", "flwr.serverapp.strategy.Strategy"),
        ("user_strategies:Half", "user_strategies", "aggregate_evaluate"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(user_module, path, key, names) -> None:
    with refused(StrategyError, key=key, names=names):
        parse_strategy({"kind": "custom", "path": path}, COHORT)
    with refused(StrategyError, key=key, names=names):
        space_of(COHORT, customs=(CustomSpec(path=path),))


def test_python_s_library_is_not_imported_for_a_strategy() -> None:
    """`this` prints when it is imported, `antigravity` opens a browser."""
    for path in ("this:Zen", "antigravity:Strategy", "os.path:join"):
        with refused(StrategyError, key="path of custom", names=f"'{path}'"):
            parse_strategy({"kind": "custom", "path": path}, COHORT)
    assert "this" not in sys.modules


def test_a_constructor_must_take_the_arguments(user_module) -> None:
    faults = faults_of({"path": "user_strategies:Blind", "values": {"a": 1}, "ranges": {"b": {"low": 0, "high": 1}}})
    assert len(faults) == 3
    assert [fault.partition(" ")[0] for fault in faults[:2]] == ["b", "a"]
    assert all("user_strategies:Blind" in fault for fault in faults)
    (fault,) = faults_of({"path": "user_strategies:Shrunk"})
    assert fault.key == "factor of user_strategies:Shrunk"


def test_a_constructor_that_refuses_its_values_is_a_users_error(user_module) -> None:
    with refused(StrategyError, key="user_strategies", given="ValueError: 13 is unlucky"):
        custom(values={"factor": 13, "power": 1}, ranges={}).build(COHORT)


def test_faulty_declarations_are_all_reported() -> None:
    faults = faults_of(
        {
            "path": "no colon",
            "ranges": {
                "a": {"low": 2, "high": 1},
                "b": {"low": 0, "high": 1, "log": True},
                "c": {"low": 0.5, "high": 2, "integer": True},
                "d": {"choices": []},
                "e": {"low": 0},
                "f": {"low": 1, "high": 2.5, "integer": True},
            },
            "speed": 1,
        },
        cohort=None,
    )
    told = {fault.partition(" of custom")[0]: fault.rpartition(", got ")[2] for fault in faults}
    given = {"path": "'no colon'", "ranges.a": "[2.0, 1.0]", "ranges.b": "0.0", "ranges.c": "[0.5, 2.0]"}
    assert {**given, "ranges.d": "none", "ranges.f": "[1.0, 2.5]"}.items() <= told.items()
    assert len(faults) == len(told) == 8
    assert "ranges.e.high" in told


def test_one_strategy_is_listed_once(user_module) -> None:
    with refused(StrategyError, key="a user's strategy"):
        space_of(COHORT, customs=(custom(), custom(values={"factor": 1})))


def test_a_space_may_hold_a_users_strategies_alone(user_module) -> None:
    space: SearchSpace = space_of(COHORT, kinds=(), customs=(custom(),))
    assert space.kinds == ("user_strategies:Shrunk",)


def test_a_class_that_samples_by_its_own_is_noted(user_module) -> None:
    (note,) = CustomSpec(path="user_strategies:Blind").notes(COHORT)
    assert "samples" in note
    assert CustomSpec(path="nowhere_at_all:Shrunk").notes(COHORT) == []  # that is a fault
    assert custom(values={"factor": 1, "power": 1, "mode": "mean"}).notes(COHORT) == []


OWN_COHORT = Cohort(8, 5, 0.1, layers=frozenset({"Linear"}))
OWN_SOURCE = """
from typing import Annotated, ClassVar, Literal

from flwr.serverapp.strategy import FedProx
from pydantic import Field

from fedscout.strategies import IntegerRange, RealRange, SearchRange, StrategySpec
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.methods.personal import FedBNSpec, OwnBatchNorm
from fedscout.strategies.methods.robust import KrumSpec
from fedscout.strategies.specification import node_counts


class Own(MeanSpec):
    kind: Literal["own"] = "own"
    strength: Annotated[float, Field(ge=0), SearchRange(RealRange(1e-4, 1.0, log=True))] = 0.1
    depth: Annotated[int, Field(ge=1), SearchRange(IntegerRange(1, 4))] = 2

    def client_algorithm(self):
        return OwnBatchNorm()


class Distrusting(KrumSpec):
    pass


class WithBatchNorm(Own):
    requires = FedBNSpec.requires


class Near(MeanSpec):
    kind: Literal["near"] = "near"
    mu: float = 5.0

    def _construct(self, cohort):
        return FedProx(proximal_mu=self.mu, **node_counts(cohort))


class Unfinished(StrategySpec):
    kind: Literal["unfinished"] = "unfinished"
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_specifications.py").write_text(OWN_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)


def own(name: str = "Own", **values: object) -> CustomSpec:
    spec = parse_strategy({"kind": "custom", "path": f"own_specifications:{name}", "values": values})
    assert isinstance(spec, CustomSpec)
    return spec


def test_flower_s_fedprox_means_the_same_in_a_specification() -> None:
    """What its clients do stands in no line of the specification: the message asks them for it."""
    host = ClientHost(uneven_federation(sizes=SIZES), QUERIES)

    def model(spec: StrategySpec) -> npt.NDArray[np.float32]:
        vector = result_of(host, spec, keep_model=True).vector
        assert vector is not None
        return vector

    for mu in (0.0, 5.0):
        np.testing.assert_array_equal(model(own("Near", mu=mu)), model(FedProxSpec(proximal_mu=mu)))
    assert np.abs(model(own("Near")) - model(own("Near", mu=0.0))).max() > 1e-2


def test_its_ranges_are_searched_and_others_come_in_their_place() -> None:
    space = space_of(OWN_COHORT, kinds=[], customs=[own()])
    (label,) = space.kinds
    assert [*space.parameters_of(label)] == ["strength", "depth"]
    drawn = space.random(np.random.default_rng(1))
    assert space.contains(drawn)
    assert {"strength", "depth"} <= drawn.search_values().keys()
    narrow = CustomSpec(path="own_specifications:Own", ranges={"strength": {"low": 0.2, "high": 0.3}})  # type: ignore[dict-item]
    assert space_of(OWN_COHORT, kinds=[], customs=[narrow]).parameters_of(label) == {"strength": RealRange(0.2, 0.3)}


def test_ranges_that_depend_on_the_clients_do() -> None:
    spec = own("Distrusting", num_malicious_nodes=1)
    assert spec.faults(OWN_COHORT) == []
    (fault,) = own("Distrusting", num_malicious_nodes=4).faults(OWN_COHORT)
    assert (fault.key, fault.given) == ("num_malicious_nodes", "4")


@pytest.mark.parametrize(
    ("name", "values", "first", "named"),
    [
        ("Own", {"strength": -1}, "strength of own_specifications:Own", "-1"),
        ("Own", {"breadth": 1}, "breadth", "sample_scaling, strength, depth"),
        ("WithBatchNorm", {}, "own", "layers Linear"),
        ("Unfinished", {}, "own_specifications:Unfinished", "_construct"),
    ],
)
def test_what_is_wrong_is_said_before_anything_trains(
    name: str, values: dict[str, object], first: str, named: str
) -> None:
    (fault,) = own(name, **values).faults(OWN_COHORT)
    assert fault.startswith(f"{first} ")
    assert named in fault
    with pytest.raises(StrategyError):
        own(name, **values).build(OWN_COHORT)
