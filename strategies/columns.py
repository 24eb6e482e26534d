"""The parameters of all built-in strategies as typed columns, so that every file of a trial log has the same schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from strategies.table import BUILT_IN

ColumnType = Literal["int", "float", "str"]


def _column_type(annotation: Any) -> ColumnType:
    if get_origin(annotation) is Literal or annotation is str:
        return "str"
    if type(None) in get_args(annotation):
        (annotation,) = (kind for kind in get_args(annotation) if kind is not type(None))
    assert annotation in (int, float), f"no column type for {annotation}"
    return "int" if annotation is int else "float"


def parameter_columns() -> Mapping[str, ColumnType]:
    """Return the type of every parameter name, sorted by name; a name means one type in all strategies."""
    columns: dict[str, ColumnType] = {}
    for spec_class in BUILT_IN:
        for name, field in spec_class.model_fields.items():
            if name != "kind":
                column = _column_type(field.annotation)
                assert columns.setdefault(name, column) == column, f"{name} has two types"
    return dict(sorted(columns.items()))
