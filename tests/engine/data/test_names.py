"""Names of clients, classes and features in sentences; positions where there is no name."""

from __future__ import annotations

import pytest

from fedscout.engine.data.federation import CLIENTS_NAMED, UNNAMED, Names

WARDS = tuple(f"ward {letter}" for letter in "ABCDEFGHIJKLMNOP")
NAMES = Names(WARDS, ("benign", "malignant"), ("age", "sex=f"))


def test_each_is_called_by_its_name_or_else_by_its_position() -> None:
    assert [NAMES.client(1), UNNAMED.client(1), NAMES.client(40)] == ["ward B", "1", "40"]
    assert NAMES.one_client(0) == "client ward A"
    assert NAMES.some_classes([1]) == "class malignant"
    assert NAMES.some_classes([1, 0, 7]) == "classes malignant, benign and 7"
    assert NAMES.some_features([1], ["+1"]) == "feature sex=f (+1)"
    assert NAMES.some_features([1, 0], ["+1", "-2"]) == "features sex=f (+1) and age (-2)"


@pytest.mark.parametrize("count", [1, 2, CLIENTS_NAMED, CLIENTS_NAMED + 1, 16])
def test_of_many_clients_the_first_are_named_and_the_others_counted(count: int) -> None:
    named, _, rest = NAMES.some_clients(range(count)).partition(" and ")
    word, _, listed = named.partition(" ")
    assert word == ("client" if count == 1 else "clients")
    assert listed.split(", ") == list(WARDS[: min(count, CLIENTS_NAMED)])
    assert rest == (f"{count - CLIENTS_NAMED} more" if count > CLIENTS_NAMED else "")
