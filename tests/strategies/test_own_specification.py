"""A user's own specification by import path: it is checked, searched and built as it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import CustomSpec, FedProxSpec, RealRange, StrategySpec, parse_strategy, space_of
from tests.engine.federations import QUERIES, uneven_federation
from tests.strategies.by_hand import SIZES, result_of

COHORT = Cohort(8, 5, 0.1, layers=frozenset({"Linear"}))
SOURCE = """
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
    (tmp_path / "own_specifications.py").write_text(SOURCE)
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
    space = space_of(COHORT, kinds=[], customs=[own()])
    (label,) = space.kinds
    assert [*space.parameters_of(label)] == ["strength", "depth"]
    drawn = space.random(np.random.default_rng(1))
    assert space.contains(drawn)
    assert {"strength", "depth"} <= drawn.search_values().keys()
    narrow = CustomSpec(path="own_specifications:Own", ranges={"strength": {"low": 0.2, "high": 0.3}})  # type: ignore[dict-item]
    assert space_of(COHORT, kinds=[], customs=[narrow]).parameters_of(label) == {"strength": RealRange(0.2, 0.3)}


def test_ranges_that_depend_on_the_clients_do() -> None:
    spec = own("Distrusting", num_malicious_nodes=1)
    assert spec.faults(COHORT) == []
    (fault,) = own("Distrusting", num_malicious_nodes=4).faults(COHORT)
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
    (fault,) = own(name, **values).faults(COHORT)
    assert fault.startswith(f"{first} ")
    assert named in fault
    with pytest.raises(StrategyError):
        own(name, **values).build(COHORT)
