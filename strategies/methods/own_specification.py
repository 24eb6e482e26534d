"""A user's own specification: a `StrategySpec` outside this program, as complete as one of its own.

It says its parameters with their ranges, what it needs, what its clients do and how its server is built, so it reaches
all that the built-in strategies reach. `kind: custom` names it by import path (`custom_strategy.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.errors import StrategyError
from fedscout.engine.fault_text import details, fault_of
from fedscout.strategies.specification import SHARED_PARAMETERS, StrategySpec


def specified(path: str, spec_class: type[StrategySpec], values: Mapping[str, Any]) -> StrategySpec:
    """Return a user's specification with these values.

    Args:
        path: Of the class, for the text of faults.
        spec_class: The class.
        values: Of its parameters; what clients are told may be among them.

    Raises:
        StrategyError: If they are not valid, each fault a sentence.
    """
    try:
        return spec_class.model_validate(values)
    except ValidationError as error:
        raise StrategyError([_sentence(path, spec_class, detail) for detail in details(error)]) from error


def _sentence(path: str, spec_class: type[StrategySpec], detail: ErrorDetails) -> str:
    where = ".".join(map(str, detail["loc"]))
    if detail["type"] != "extra_forbidden":
        return fault_of(f"{where} of {path}", detail)
    allowed = [name for name in spec_class.model_fields if name not in ("kind", *SHARED_PARAMETERS)]
    return f"{where} is no parameter of {path}; it takes {', '.join(allowed) or 'none'}"


def class_faults(path: str, spec_class: type[StrategySpec], values: Mapping[str, Any], cohort: Cohort) -> list[str]:
    """Return why no values could make it work in a cohort, or what is wrong with those that are given."""
    if reason := spec_class.unavailable(cohort):
        return [reason]
    try:
        specified(path, spec_class, values)
    except StrategyError as error:
        return [*error.faults]
    return []
