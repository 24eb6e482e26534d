"""A user's own policy, in a file that this program has never seen."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.checkpoint import PlainState
from fedscout.strategies.selection.table import parse_selection
from tests.kits.refusals import refused
from tests.strategies.selection.planted_rounds import NUM_CHOSEN, NUM_CLIENTS, played

COHORT = Cohort(NUM_CLIENTS, NUM_CHOSEN, client_learning_rate=0.1)

SOURCE = '''
from fedscout.engine.messages.calls import ReportRequest, SelectionPolicy


class Turns(SelectionPolicy):
    """Each in turn, from a place on."""

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


class Late(Turns):
    """Says what it observes when it is made."""

    observes = ReportRequest()

    def __init__(self, cohort, losses: bool = True):
        super().__init__(0, cohort)
        self.observes = ReportRequest(validation_losses=True) if losses else {"training_losses": True}


class Half(SelectionPolicy):
    """Leaves the one method abstract."""


class Stranger:
    """No policy."""
'''


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "user_policies.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "user_policies", raising=False)
    return file


def document(**values: object) -> dict:
    return {"kind": "custom", "path": "user_policies:Turns", "values": values}


def test_it_is_built_with_its_values_and_the_cohort() -> None:
    spec = parse_selection(document(first=3, order=[1, 2]), COHORT)
    policy = spec.build(COHORT)
    assert (vars(policy)["num_clients"], vars(policy)["order"]) == (NUM_CLIENTS, (1, 2))
    (table, first), (_, second) = played(policy, range(1, 3))
    assert first == table.clients[3:7].tolist()
    assert vars(policy)["place"] == 11
    assert len(second) == NUM_CHOSEN


def test_its_name_is_its_path_and_its_code_is_told(module: Path) -> None:
    spec = parse_selection(document(first=3))
    assert spec.label == "user_policies:Turns"
    assert spec.code() == {"user_policies.py": hashlib.sha256(module.read_bytes()).hexdigest()}
    assert spec.parameters() == {"path": "user_policies:Turns", "values": {"first": 3}}


def test_validation_rows_are_set_aside_for_a_class_that_observes_them() -> None:
    assert parse_selection(document(first=0)).validation_share == 0.1
    assert parse_selection({"kind": "custom", "path": "user_policies:Stranger"}).validation_share == 0.0


def test_its_attributes_are_its_state() -> None:
    policy = parse_selection(document(first=0), COHORT).build(COHORT)
    plain = PlainState(policy)
    assert len([*played(policy, range(1, 4))]) == 3
    restored = parse_selection(document(first=0), COHORT).build(COHORT)
    PlainState(restored).restore(*plain.encode(policy))
    assert vars(restored)["place"] == 12


def test_nothing_is_imported_when_it_is_parsed() -> None:
    parse_selection(document(first=3))
    assert "user_policies" not in sys.modules


@pytest.mark.parametrize(
    ("given", "first", "named"),
    [
        ({"path": "nowhere_at_all:Turns"}, "nowhere_at_all:Turns", "ModuleNotFoundError"),
        ({"path": "user_policies:Nothing"}, "user_policies:Nothing", "got nothing"),
        ({"path": "user_policies:Stranger"}, "user_policies:Stranger", "calls.SelectionPolicy, got <class"),
        ({"path": "user_policies:Half"}, "user_policies:Half", "choose"),
        ({"path": "user_policies"}, "path of selection.kind=custom", "package.module:Class"),
        ({"path": "random:Random"}, "path of selection.kind=custom", "'random:Random'"),
        ({"values": {}}, "first of user_policies:Turns", "value"),
        ({"values": {"first": 1, "last": 2}}, "last", "user_policies:Turns; it takes first, order"),
    ],
)
def test_faults_are_told_before_training(given: dict, first: str, named: str) -> None:
    with pytest.raises(StrategyError) as caught:
        parse_selection({**document(first=3), **given}, COHORT)
    assert any(fault.startswith(first) and named in fault for fault in caught.value.faults)


def test_what_its_constructor_raises_is_told() -> None:
    with refused(StrategyError, key="user_policies", given="ValueError: there is no such place"):
        parse_selection(document(first=-1), COHORT)


@pytest.mark.parametrize("losses", [True, False])
def test_what_it_observes_is_known_before_it_is_made(losses: bool) -> None:
    """Else its validation losses would be of no rows at all."""
    late = {"kind": "custom", "path": "user_policies:Late", "values": {"losses": losses}}
    with refused(StrategyError, key="observes of user_policies:Late"):
        parse_selection(late, COHORT)
