"""Arguments of a user's constructor: what reaches it, what is logged of it, and what it is told apart by."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.experiments.config import load_config
from fedscout.strategies import CustomSpec, parse_strategy, space_of
from tests.kits.refusals import refused

COHORT = Cohort(num_clients=4, num_sampled=4, client_learning_rate=0.1)
SOURCE = """
from __future__ import annotations
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Annotated, Literal, Optional
from flwr.serverapp.strategy import FedAvg
if TYPE_CHECKING:
    from nowhere import Missing


class Mode(Enum):
    MEAN = "mean"
    MEDIAN = 2


class Level(IntEnum):
    LOW = 1


class Said(FedAvg):
    def __init__(self, word: str = "", maybe: Optional[str] = None, mode: Mode = Mode.MEAN, level: Level | None = None,
                 sizes: tuple[int, ...] = (), pair: tuple[int, str] = (0, ""), modes: list[Mode] | None = None,
                 names: Sequence[str] = (), kinds: set[str] = frozenset(), noted: Annotated[str, "x"] = "",
                 either: int | str = 0, number: float = 0, whole: int = 0, switch: bool = False,
                 one: Literal["1", "a"] = "a", free=None, group: dict[str, float] | None = None, bare: tuple = (),
                 loose: object | str = "", known: Literal[1] | str = ""):
        super().__init__()
        self.said = {name: value for name, value in locals().items() if name not in ("self", "__class__")}


class Unsaid(FedAvg):
    def __init__(self, word: str, missing: Missing):
        super().__init__()
        self.said = {"word": word, "missing": missing}
"""


@pytest.fixture(autouse=True)
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "said.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("said", None)


def spec_of(*arguments: str, name: str = "Said") -> CustomSpec:
    """Return what a command line names."""
    given = [f"strategy.values.{argument}" for argument in arguments]
    config = load_config(["strategy.kind=custom", f"strategy.path=said:{name}", *given])
    spec = parse_strategy(config.strategy or {}, COHORT)
    assert isinstance(spec, CustomSpec)
    return spec


def reached(*arguments: str, name: str = "Said") -> dict[str, Any]:
    said: dict[str, Any] = spec_of(*arguments, name=name).build(COHORT).said  # type: ignore[attr-defined]
    return said


def shown(value: Any) -> str:
    """Return type and value, also of members of an enum that was imported anew."""
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("word=1", "'1'"),
        ("word=true", "'true'"),
        ('word="007"', "'007'"),
        ("word='true'", "'true'"),
        ("word=plain", "'plain'"),
        ("noted=1", "'1'"),
        ("maybe=null", "None"),
        ("maybe=12", "'12'"),
        ("either=1", "1"),
        ('either="1"', "'1'"),
        ("mode=MEDIAN", "Mode.MEDIAN"),
        ("mode=mean", "Mode.MEAN"),
        ("mode=2", "Mode.MEDIAN"),
        ("level=1", "Level.LOW"),
        ("level=null", "None"),
        ("sizes=[1, 2]", "(1, 2)"),
        ("sizes=[]", "()"),
        ("sizes=ab", "'ab'"),
        ("bare=[1, a]", "(1, 'a')"),
        ("pair=[1, 2]", "(1, '2')"),
        ("names=[1, a]", "['1', 'a']"),
        ("kinds=[a, a]", "{'a'}"),
        ("one=1", "'1'"),
        ("one=a", "'a'"),
        ("known=1", "1"),
        ("known=2", "'2'"),
        ("known=true", "'true'"),
        ("loose=1", "1"),
        ("number=1", "1"),
        ("whole=0.5", "0.5"),
        ("switch=true", "True"),
        ("free=[1, [true, null]]", "[1, [True, None]]"),
        ("group={a: 1}", "{'a': 1}"),
    ],
)
def test_what_reaches_the_constructor(argument: str, expected: str) -> None:
    assert shown(reached(argument)[argument.partition("=")[0]]) == expected


def test_enums_in_a_list() -> None:
    assert [shown(mode) for mode in reached("modes=[MEAN, 2]")["modes"]] == ["Mode.MEAN", "Mode.MEDIAN"]


def test_an_annotation_that_names_nothing_leaves_values_as_they_are() -> None:
    assert reached("word=1", "missing=[2]", name="Unsaid") == {"word": 1, "missing": [2]}


@pytest.mark.parametrize(
    ("argument", "first", "last"),
    [
        ("mode=mode", "mode of said:Said", "MEAN, MEDIAN, got 'mode'"),
        ("mode=true", "mode of said:Said", "MEAN, MEDIAN, got True"),
        ("level=true", "level of said:Said", "LOW, got True"),
        ("word=1.10", "word of said:Said", "got 1.1"),
        ("names=[a, 1.5]", "names of said:Said", "got 1.5"),
        ("free=.inf", "values.free.float of custom", "got inf"),
    ],
)
def test_what_an_annotation_can_not_take_is_one_fault(argument: str, first: str, last: str) -> None:
    with pytest.raises(StrategyError) as caught:
        spec_of(argument)
    (told,) = caught.value.faults
    assert told.startswith(first)
    assert last in told


def test_choices_are_converted_and_checked_before_a_search() -> None:
    def declared(choices: list[Any]) -> CustomSpec:
        return CustomSpec.model_validate({"path": "said:Said", "ranges": {"mode": {"choices": choices}}})

    space = space_of(COHORT, kinds=(), customs=(declared(["MEAN", "MEDIAN"]),))
    found = [space.compose("said:Said", lambda _name, _range, choice=choice: choice) for choice in ("MEAN", "MEDIAN")]
    assert [shown(spec.build(COHORT).said["mode"]) for spec in found] == ["Mode.MEAN", "Mode.MEDIAN"]  # type: ignore[attr-defined]
    with pytest.raises(StrategyError, match="'MODE'"):
        space_of(COHORT, kinds=(), customs=(declared(["MEAN", "MODE"]),))
    with refused(StrategyError, key="ranges.x.0", names="got [1]"):
        parse_strategy({"kind": "custom", "path": "a:B", "ranges": {"x": {"choices": [[1], 2]}}})


def test_the_identity_tells_values_apart_by_type_and_survives_being_logged() -> None:
    texts = ("1", '"1"', "1.0", "true", '"true"', "null", "[1]", '["1"]', "{a: 1}")
    specs = [spec_of(f"free={text}") for text in texts]
    assert len({spec.digest(COHORT) for spec in specs}) == len(texts)
    for spec in specs:
        logged = json.loads(json.dumps({"kind": "custom", **spec.parameters()}))
        again = parse_strategy(logged, COHORT)
        assert again == spec
        assert again.digest(COHORT) == spec.digest(COHORT)


def test_a_program_may_give_tuples_and_enums() -> None:
    class Mode(Enum):
        MEAN = object()

    given = CustomSpec(path="said:Said", values={"sizes": (1, 2), "mode": Mode.MEAN})  # type: ignore[dict-item]
    assert given.parameters()["values"] == {"sizes": [1, 2], "mode": "MEAN"}
