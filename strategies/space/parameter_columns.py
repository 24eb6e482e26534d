"""Which parameters have a column in a log, and of which type."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from fedscout.engine.annotations import alternatives
from fedscout.strategies.space.strategy_names import named_classes
from fedscout.strategies.space.strategy_table import BUILT_IN
from fedscout.strategies.specification import SELECTION

ColumnType = Literal["int", "float", "str"]


def parameter_columns(named: Collection[str] = ()) -> Mapping[str, ColumnType]:
    """Return the type of every parameter that gets a column in a log, sorted by name, so that all its files agree.

    These are the parameters of the built-in strategies, and of those that a study names among the others: so a log has
    the columns that it had before there were others, unless its study is about them. A name means one type in all
    strategies. Who trains has a column of its own.

    Args:
        named: Kinds that a study names, of whatever sort; `"custom"` and unknown ones have no columns.
    """
    columns: dict[str, ColumnType] = {}
    for spec_class in (*BUILT_IN, *named_classes(named)):
        for name, field in spec_class.model_fields.items():
            if name not in ("kind", SELECTION):
                column = _column_type(field.annotation)
                assert columns.setdefault(name, column) == column, f"{name} has two types"
    return dict(sorted(columns.items()))


def _column_type(annotation: Any) -> ColumnType:
    """Return the type of a column: of numbers where all values are; else of text, in which what is no text is JSON."""
    kinds = {*alternatives([annotation])} - {type(None)}
    if kinds == {int}:
        return "int"
    return "float" if kinds == {float} else "str"
