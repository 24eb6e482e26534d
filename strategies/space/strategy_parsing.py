"""From a document to a specification, with every fault reported at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.fault_text import details, fault_of, shown
from fedscout.engine.truth_values import truths_as_words
from fedscout.strategies.selection.selection_table import selection_class
from fedscout.strategies.space.strategy_names import strategy_class
from fedscout.strategies.space.strategy_table import STRATEGIES
from fedscout.strategies.specification import SHARED_PARAMETERS, StrategySpec, searched_fields


def parse_strategy(value: Mapping[str, Any] | str, cohort: Cohort | None = None) -> StrategySpec:
    """Return the specification that a document describes.

    Args:
        value: `{"kind": ..., parameter: ...}`, the same as JSON text, or a kind alone for its defaults.
        cohort: If given, the specification must fit it as well.

    Raises:
        StrategyError: If it is no valid strategy; carries every fault with what is allowed.
    """
    document = _document(value) if isinstance(value, str) else dict(value)
    if "kind" not in document:
        raise StrategyError(Fault("a strategy", "have a kind", shown(document), f"allowed are {', '.join(STRATEGIES)}"))
    spec_class = strategy_class(document["kind"])
    try:
        spec = spec_class.model_validate(truths_as_words(document, spec_class))
    except ValidationError as error:
        faults = [_sentence(detail, spec_class, document["kind"]) for detail in details(error)]
        raise StrategyError([*faults, *_cohort_faults(spec_class, document, error, cohort)]) from error
    if spec.selection is not None:
        selection_class(spec.selection)  # of its parameters the study decides
    if cohort is not None and (faults := spec.faults(cohort)):
        raise StrategyError(faults)
    return spec


def _document(text: str) -> dict[str, Any]:
    text = text.strip()
    if not text.startswith(("{", "[", '"')):
        return {"kind": text}
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise StrategyError(f"a strategy must be valid JSON, got {shown(text)}: {error.msg} at {where}") from error
    except RecursionError as error:
        raise StrategyError(Fault("a strategy", "be one JSON object", f"{shown(text)}, nested too deeply")) from error
    if not isinstance(document, dict):
        raise StrategyError(Fault("a strategy", "be one JSON object", shown(text)))
    return document


def _cohort_faults(
    spec_class: type[StrategySpec], document: Mapping[str, Any], error: ValidationError, cohort: Cohort | None
) -> list[str]:
    """Return the cohort's faults of those parameters that are valid by themselves, the others at their defaults."""
    if cohort is None:
        return []
    bad = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
    try:
        rest = spec_class.model_validate({name: given for name, given in document.items() if name not in bad})
    except ValidationError:
        return []
    return rest.faults(cohort)


def _sentence(detail: ErrorDetails, spec_class: type[StrategySpec], kind: str) -> str:
    """Return a fault as condition, value and what is allowed."""
    path = [str(part) for part in detail["loc"]]
    if not path:  # parameters that do not go together
        return fault_of(kind, detail)
    if detail["type"] == "extra_forbidden" and len(path) == 1:
        return _unknown_parameter(spec_class, kind, path[0], detail["input"])
    where = ".".join(part for part in path if part not in ("interval", "choices"))
    return fault_of(f"{where} of {kind}", detail, _searched_text(spec_class, path[0]))


def _unknown_parameter(spec_class: type[StrategySpec], kind: str, name: str, value: Any) -> str:
    if name in spec_class.bound:
        return f"{name} of {kind} can't be set, got {shown(value)}; it is {spec_class.bound[name]}"
    own = [field for field in spec_class.model_fields if field not in ("kind", *SHARED_PARAMETERS)]
    allowed = ", ".join([*own, *SHARED_PARAMETERS])
    return f"{name} is no parameter of {kind}, got {shown(value)}; its parameters are {allowed}"


def _searched_text(spec_class: type[StrategySpec], name: str) -> str:
    searched = searched_fields(spec_class).get(name)
    if searched is None or callable(searched.default):
        return ""
    return f"; a search draws it from {searched.default.text()}"
