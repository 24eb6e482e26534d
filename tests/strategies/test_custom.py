"""A user's own strategy or specification, in a file that this program has never seen."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.strategies import ChoiceRange, CustomSpec, IntegerRange, RealRange, parse_strategy, space_of
from fedscout.strategies.methods.averaging import FedProxSpec
from fedscout.strategies.selection.table import parse_selection
from tests.engine.federations import QUERIES, uneven_federation
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, result_of
from tests.strategies.selection.reports import table

COHORT = Cohort(num_clients=6, num_sampled=4, client_learning_rate=0.2)

SOURCES = {
    "broken": "raise RuntimeError('not today')",
    "leaving": "raise SystemExit(0)",
    "user_strategies": """
from typing import Annotated, Literal

from flwr.serverapp.strategy import FedAvg, FedProx, Strategy
from pydantic import Field

from fedscout.strategies import IntegerRange, RealRange, SearchRange
from fedscout.strategies.methods.averaging import MeanSpec
from fedscout.strategies.methods.personal import FedBNSpec, OwnBatchNorm
from fedscout.strategies.methods.robust import KrumSpec
from fedscout.strategies.specification import node_counts


class Shrunk(FedAvg):
    def __init__(self, factor, power=1, mode="mean", **nodes):
        super().__init__(**nodes)
        if factor == 13:
            raise ValueError("13 is unlucky")
        self.factor, self.power, self.mode = factor, power, mode


class Blind(FedAvg):
    def __init__(self):
        super().__init__()


class Half(Strategy):  # leaves methods abstract
    pass


class Stranger:
    pass


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

""",
    "user_policies": """
from fedscout.engine.messages.calls import ReportRequest, SelectionPolicy


class Turns(SelectionPolicy):  # each in turn, from a place on
    observes = ReportRequest(validation_losses=True)

    def __init__(self, first, cohort, order: tuple = ()):
        if first < 0:
            raise ValueError("there is no such place")
        self.place = first
        self.num_clients, self.order = cohort.num_clients, order

    def choose(self, server_round, table, num_chosen, generator):
        clients = [table.clients[(self.place + offset) % len(table.clients)] for offset in range(num_chosen)]
        self.place += num_chosen
        return clients


class Late(Turns):  # says what it observes when it is made
    observes = ReportRequest()

    def __init__(self, cohort, losses: bool = True):
        super().__init__(0, cohort)
        self.observes = ReportRequest(validation_losses=True) if losses else {"training_losses": True}


class Stranger:
    pass
""",
    "said": """
from __future__ import annotations
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING
from flwr.serverapp.strategy import FedAvg
if TYPE_CHECKING:
    from nowhere import Missing


class Mode(Enum):
    MEAN = "mean"
    MEDIAN = 2


class Unknown:
    pass


class Said(FedAvg):
    def __init__(self, word: str = "", maybe: str | None = None, mode: Mode = Mode.MEAN, sizes: tuple[int, ...] = (),
                 modes: list[Mode] | None = None, names: Sequence[str] = (), kinds: set[str] = frozenset(),
                 either: int | str = 0, whole: int = 0, free=None, strange: Unknown | None = None):
        super().__init__()
        self.said = {name: value for name, value in locals().items() if name not in ("self", "__class__")}


class Unsaid(FedAvg):
    def __init__(self, word: str, missing: Missing):
        super().__init__()
        self.said = {"word": word, "missing": missing}
""",
}
"""Modules of a user, each imported anew in each test."""

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


@pytest.fixture(autouse=True)
def user_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, source in SOURCES.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in SOURCES:
        sys.modules.pop(name, None)


def custom(**fields) -> CustomSpec:
    return CustomSpec.model_validate({**DOCUMENT, **fields})


def test_parsing_imports_nothing() -> None:
    assert isinstance(parse_strategy(DOCUMENT), CustomSpec)
    assert "user_strategies" not in sys.modules


def test_it_is_built_with_its_values_and_the_cohort() -> None:
    built = custom(values={"factor": 0.5, "power": 2, "mode": "mean"}).build(COHORT)
    assert (built.factor, built.power) == (0.5, 2)
    assert (built.min_train_nodes, built.min_available_nodes, built.fraction_train) == (4, 6, 4 / 6)


def test_it_needs_what_any_flower_strategy_does_unless_told() -> None:
    assert custom().needs() == EngineNeeds(arrays="named", replies="individual", sees_evaluation=True)
    told = custom(arrays="flat", replies="merged", initial_loss=True, sees_evaluation=False)
    assert told.needs() == EngineNeeds(replies="merged", initial_loss=True)


def test_it_is_searched_beside_the_others() -> None:
    """What is drawn is held to the laws of `test_space.py`."""
    space = space_of(COHORT, kinds=("fedavg",), customs=(custom(),))
    assert space.kinds == ("fedavg", "user_strategies:Shrunk")
    ranges = {"factor": RealRange(0.01, 1, log=True), "power": IntegerRange(1, 3)}
    assert space.parameters_of(space.kinds[1]) == {**ranges, "mode": ChoiceRange(("mean", "median"))}
    generator = np.random.default_rng(0)
    own = [spec for spec in (space.random(generator) for _ in range(60)) if isinstance(spec, CustomSpec)]
    assert {spec.values["mode"] for spec in own} == {"mean", "median"}
    assert pickle.loads(pickle.dumps(own)) == own
    assert not space.contains(custom(values={"factor": 2.0, "power": 1, "mode": "mean"}))


def test_an_argument_may_have_the_name_of_a_client_parameter() -> None:
    """A range for it makes it the constructor's; without one it is what clients are told."""
    name = "client_learning_rate"
    own = CustomSpec(path="a:B", ranges={name: {"low": 0.1, "high": 1}}).with_values({name: 0.5})
    assert (own.values, own.client_learning_rate) == ({name: 0.5}, None)
    told = CustomSpec(path="a:B").with_values({name: 0.5})
    assert (told.values, told.client_learning_rate) == ({}, 0.5)


def test_the_digest_is_of_the_arguments_not_of_their_ranges() -> None:
    with_ranges = custom(values={"factor": 0.5, "power": 2, "mode": "mean"})
    assert with_ranges.digest(COHORT) == with_ranges.model_copy(update={"ranges": {}}).digest(COHORT)
    assert with_ranges.digest(COHORT) != with_ranges.with_values({"power": 1}).digest(COHORT)


def test_a_constructor_that_raises_is_told() -> None:
    with refused(StrategyError, key="user_strategies", given="ValueError: 13 is unlucky"):
        custom(values={"factor": 13, "power": 1}, ranges={}).build(COHORT)


def test_python_s_library_is_not_imported_for_a_strategy() -> None:
    """`this` prints when it is imported, `antigravity` opens a browser."""
    for path in ("this:Zen", "antigravity:Strategy", "os.path:join"):
        with refused(StrategyError, key="path of custom", names=f"'{path}'"):
            parse_strategy({"kind": "custom", "path": path}, COHORT)
    assert "this" not in sys.modules


def test_faulty_declarations_are_all_reported() -> None:
    faulty = {
        "a": ({"low": 2, "high": 1}, "[2.0, 1.0]"),
        "b": ({"low": 0, "high": 1, "log": True}, "0.0"),
        "c": ({"low": 0.5, "high": 2, "integer": True}, "[0.5, 2.0]"),
        "d": ({"choices": []}, "[]"),
        "e": ({"low": 1, "high": 2.5, "integer": True}, "[1.0, 2.5]"),
    }
    ranges = {name: declared for name, (declared, _) in faulty.items()}
    with pytest.raises(StrategyError) as caught:
        parse_strategy({"kind": "custom", "path": "no colon", "ranges": ranges, "speed": 1})
    told = {fault.partition(" of custom")[0]: fault.rpartition(", got ")[2] for fault in caught.value.faults}
    given = {f"ranges.{name}": given for name, (_, given) in faulty.items()}
    assert {"path": "'no colon'", **given}.items() <= told.items()
    assert len(caught.value.faults) == len(told) == 7


def test_a_space_lists_a_strategy_once_and_none_that_can_t_be_built() -> None:
    with refused(StrategyError, key="a user's strategy"):
        space_of(COHORT, customs=(custom(), custom(values={"factor": 1})))
    with refused(StrategyError, key="user_strategies", names="aggregate_evaluate"):
        space_of(COHORT, customs=(CustomSpec(path="user_strategies:Half"),))


def test_a_class_that_samples_by_its_own_is_noted() -> None:
    assert len(CustomSpec(path="user_strategies:Blind").notes(COHORT)) == 1
    assert CustomSpec(path="nowhere_at_all:Shrunk").notes(COHORT) == []  # that is a fault
    assert custom(values={"factor": 1, "power": 1, "mode": "mean"}).notes(COHORT) == []


OWN_COHORT = Cohort(8, 5, 0.1, layers=frozenset({"Linear"}))


def own(name: str = "Own", **values: object) -> CustomSpec:
    spec = parse_strategy({"kind": "custom", "path": f"user_strategies:{name}", "values": values})
    assert isinstance(spec, CustomSpec)
    return spec


def test_flower_s_fedprox_means_the_same_in_a_specification() -> None:
    """What its clients do stands in no line of the specification: the message asks them for it."""
    host = ClientHost(uneven_federation(sizes=SIZES), QUERIES)
    near = {mu: result_of(host, own("Near", mu=mu)).vector for mu in (0.0, 5.0)}
    for mu, vector in near.items():
        np.testing.assert_array_equal(vector, result_of(host, FedProxSpec(proximal_mu=mu)).vector)
    assert np.abs(near[5.0] - near[0.0]).max() > 1e-2


def test_its_ranges_are_searched_and_others_come_in_their_place() -> None:
    space = space_of(OWN_COHORT, kinds=[], customs=[own()])
    (label,) = space.kinds
    drawn = space.random(np.random.default_rng(1))
    assert space.contains(drawn)
    assert [*space.parameters_of(label)] == ["strength", "depth"] == [*drawn.search_values()]
    narrow = CustomSpec(path="user_strategies:Own", ranges={"strength": {"low": 0.2, "high": 0.3}})  # type: ignore[dict-item]
    assert space_of(OWN_COHORT, kinds=[], customs=[narrow]).parameters_of(label) == {"strength": RealRange(0.2, 0.3)}


@pytest.mark.parametrize(
    ("path", "fields", "key", "names"),
    [
        ("nowhere_at_all:Shrunk", {}, "nowhere_at_all", "ModuleNotFoundError"),
        ("broken:Shrunk", {}, "broken:Shrunk", "RuntimeError: not today"),
        ("leaving:Shrunk", {}, "leaving:Shrunk", "SystemExit"),
        ("user_strategies:Missing", {}, "user_strategies", "nothing"),
        ("user_strategies:Stranger", {}, "user_strategies", "flwr.serverapp.strategy.Strategy"),
        ("user_strategies:Half", {}, "user_strategies", "aggregate_evaluate"),
        ("user_strategies:Blind", {"values": {"a": 1}}, "a", "user_strategies:Blind"),
        ("user_strategies:Blind", {"ranges": {"b": {"low": 0, "high": 1}}}, "b of user_strategies:Blind", ""),
        ("user_strategies:Shrunk", {}, "factor of user_strategies:Shrunk", ""),
        ("user_strategies:Own", {"values": {"strength": -1}}, "strength of user_strategies:Own", "-1"),
        ("user_strategies:Own", {"values": {"breadth": 1}}, "breadth", "sample_scaling, strength, depth"),
        ("user_strategies:WithBatchNorm", {}, "own", "layers Linear"),
        ("user_strategies:Distrusting", {"values": {"num_malicious_nodes": 4}}, "num_malicious_nodes", "4"),
        ("said:Said", {"values": {"mode": "mode"}}, "mode of said:Said", "'mean' or 2, got 'mode'"),
        ("said:Said", {"values": {"word": 1.1}}, "word of said:Said", "got 1.1"),
        ("said:Said", {"values": {"whole": 0.5}}, "whole of said:Said", "got 0.5"),
        ("said:Said", {"values": {"names": ["a", 1.5]}}, "names of said:Said", "got 1.5"),
        ("said:Said", {"values": {"free": math.inf}}, "values.free.float", "got inf"),
        ("said:Said", {"ranges": {"word": {"choices": [[1], 2]}}}, "ranges.word.0", "got [1]"),
    ],
)
def test_what_is_wrong_is_said_before_anything_trains(path: str, fields: dict[str, Any], key: str, names: str) -> None:
    with refused(StrategyError, key=key, names=names):
        parse_strategy({"kind": "custom", "path": path, **fields}, OWN_COHORT)


# -- Arguments of a user's constructor: what reaches it, what is logged of it, and what it is told apart by ------------


def said(name: str = "Said", **values: Any) -> CustomSpec:
    spec = parse_strategy({"kind": "custom", "path": f"said:{name}", "values": values}, COHORT)
    assert isinstance(spec, CustomSpec)
    return spec


def shown(value: Any) -> str:
    """Return type and value, also of a member of an enum that was imported anew."""
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("maybe", None, "None"),
        ("either", "1", "'1'"),
        ("mode", 2, "Mode.MEDIAN"),
        ("modes", ["mean", 2], "[<Mode.MEAN: 'mean'>, <Mode.MEDIAN: 2>]"),
        ("sizes", [1, 2], "(1, 2)"),
        ("kinds", ["a", "a"], "{'a'}"),
        ("strange", [1], "[1]"),
        ("free", [1, [True, None]], "[1, [True, None]]"),
    ],
)
def test_what_reaches_the_constructor(name: str, given: Any, expected: str) -> None:
    assert shown(said(**{name: given}).build(COHORT).said[name]) == expected  # type: ignore[attr-defined]
    unsaid = said("Unsaid", word=1, missing=[2]).build(COHORT)  # an annotation there names nothing
    assert unsaid.said == {"word": 1, "missing": [2]}  # type: ignore[attr-defined]


def test_choices_are_converted_and_checked_before_a_search() -> None:
    def declared(choices: list[Any]) -> CustomSpec:
        return CustomSpec.model_validate({"path": "said:Said", "ranges": {"mode": {"choices": choices}}})

    space = space_of(COHORT, kinds=(), customs=(declared(["mean", 2]),))
    found = [space.compose("said:Said", lambda _name, _range, choice=choice: choice) for choice in ("mean", 2)]
    assert [shown(spec.build(COHORT).said["mode"]) for spec in found] == ["Mode.MEAN", "Mode.MEDIAN"]  # type: ignore[attr-defined]
    with pytest.raises(StrategyError, match="'mode'"):
        space_of(COHORT, kinds=(), customs=(declared(["mean", "mode"]),))


def test_the_identity_tells_values_apart_by_type_and_survives_being_logged() -> None:
    values = (1, "1", 1.0, True, "true", None, [1], ["1"], {"a": 1})
    specs = [said(free=value) for value in values]
    assert len({spec.digest(COHORT) for spec in specs}) == len(values)
    for spec in specs:
        logged = json.loads(json.dumps({"kind": "custom", **spec.parameters()}))
        again = parse_strategy(logged, COHORT)
        assert again == spec
        assert again.digest(COHORT) == spec.digest(COHORT)


# -- A user's own policy -----------------------------------------------------------------------------------------------


LATE = "user_policies:Late"
POLICY_COHORT = Cohort(20, 4, client_learning_rate=0.1)


def document(**values: object) -> dict:
    return {"kind": "custom", "path": "user_policies:Turns", "values": values}


def test_a_policy_is_built_with_its_values_and_the_cohort(tmp_path: Path) -> None:
    spec = parse_selection(document(first=3, order=[1, 2]), POLICY_COHORT)
    policy = spec.build(POLICY_COHORT)
    assert (vars(policy)["num_clients"], vars(policy)["order"]) == (20, (1, 2))
    assert policy.choose(1, table(20), 4, np.random.default_rng(0)) == [3, 4, 5, 6]
    assert vars(policy)["place"] == 7
    assert (spec.label, spec.validation_share) == ("user_policies:Turns", 0.1)  # which its class observes
    assert parse_selection({"kind": "custom", "path": "user_policies:Stranger"}).validation_share == 0.0
    assert spec.code() == {"user_policies.py": hashlib.sha256((tmp_path / "user_policies.py").read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    ("given", "first", "named"),
    [
        ({"path": "user_policies:Stranger"}, "user_policies", "calls.SelectionPolicy, got <class"),
        ({"path": "user_policies"}, "path of selection.kind=custom: an import path", "package.module:Class"),
        ({"values": {"first": 1, "last": 2}}, "last", "user_policies:Turns; it takes first, order"),
        ({"values": {"first": -1}}, "user_policies", "ValueError: there is no such place"),
        # What is observed must be known before a policy is made, or its validation losses would be of no rows.
        ({"path": LATE, "values": {}}, f"observes of {LATE}", "in the class"),
        ({"path": LATE, "values": {"losses": False}}, f"observes of {LATE}", "ReportRequest"),
    ],
)
def test_faults_are_told_before_training(given: dict, first: str, named: str) -> None:
    with refused(StrategyError, key=first, names=named):
        parse_selection({**document(first=3), **given}, POLICY_COHORT)
