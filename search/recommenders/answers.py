"""A model's answer: its form, made from the search space of a federation, and how it is read.

    {"reason": "...", "strategy": {"kind": "fedprox", "proximal_mu": 0.01}}

**Form.** Servers that hold a model to a schema know a part of JSON schema only: the outermost value is an object,
alternatives are `anyOf`, every property is required, and no other is allowed. What the part does not know, that a range
is log-scaled, is said in the parameter's description. A user's own strategy is named by its import path, as in a search
space, and gives its searched arguments alone; its other fields are not the model's to choose.

**Reading.** An answer may be wrapped in prose, cut off, wrong, or made to do harm. Where a server does not hold its
model to the schema, the object is looked for: the whole text, a fenced block, or an object in prose. Two different
strategies in one answer are no answer. What was found must then be a configuration of the search space, all parameters
given and in their ranges; a model can't name anything outside of it, nor import or call anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from pydantic import ValidationError

from fedscout.engine.errors import Fault, StrategyError
from fedscout.search.language_model.chat import ChatReply
from fedscout.search.plain_text import one_line
from fedscout.strategies import ChoiceRange, IntegerRange, Range, RealRange, SearchSpace, StrategySpec, Value

REASON = "reason"
STRATEGY = "strategy"
KIND = "kind"
VALUES = "values"

LONGEST_ANSWER = 20_000
LONGEST_REASON = 500
STARTS_TRIED = 50
"""Places in a text where an object may begin."""

_FENCED = re.compile(r"```[A-Za-z]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_TYPE_NAMES: Mapping[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def answer_schema(space: SearchSpace) -> dict[str, Any]:
    """Return the JSON schema of an answer: one strategy of the space, and why."""
    return {
        "type": "object",
        "properties": {
            REASON: {"type": "string", "description": "why, in one or two sentences"},
            STRATEGY: {"anyOf": [_alternative(schema) for schema in space.json_schema()["oneOf"]]},
        },
        "required": [REASON, STRATEGY],
        "additionalProperties": False,
    }


def answer_document(spec: StrategySpec, reason: str) -> dict[str, Any]:
    """Return the answer that names a configuration, in the form of the schema."""
    return {REASON: reason, STRATEGY: strategy_document(spec)}


def strategy_document(spec: StrategySpec) -> dict[str, Any]:
    """Return a configuration as an answer names it."""
    return {KIND: spec.label, **spec.search_values()}


class AnswerError(Exception):
    """An answer that is none. Its faults go back to the model.

    Args:
        faults: Each a sentence.
    """

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


@dataclass(frozen=True)
class Answer:
    """A valid answer.

    Attributes:
        spec: The configuration.
        reason: Why, in the model's words; one line, possibly empty.
    """

    spec: StrategySpec
    reason: str


def read_answer(reply: ChatReply, space: SearchSpace) -> Answer:
    """Return what a model answered.

    Args:
        reply: Of the model.
        space: What it may choose from.

    Raises:
        AnswerError: If it is no valid answer; carries every fault.
    """
    if reply.refusal is not None:
        raise AnswerError(f"the answer must not be a refusal, got {one_line(reply.refusal)!r}")
    if reply.finish_reason == "length":
        raise AnswerError("the answer must be short, and was cut off: give the JSON object alone")
    if reply.finish_reason == "content_filter":
        raise AnswerError("the answer must pass the server's content filter, and was withheld")
    if not reply.text.strip():
        raise AnswerError("the answer must be one JSON object, got nothing")
    if len(reply.text) > LONGEST_ANSWER:
        raise AnswerError(f"the answer must have at most {LONGEST_ANSWER} characters, got {len(reply.text)}")
    answers = {json.dumps(found[STRATEGY], sort_keys=True): found for found in _answers(reply.text)}
    if not answers:
        raise AnswerError(f"the answer must be one JSON object with a {KIND!r}, got none in the text")
    if len(answers) > 1:
        raise AnswerError(f"the answer must be one JSON object, got {len(answers)} different ones")
    (document,) = answers.values()
    reason = document.get(REASON)
    return Answer(
        spec=to_spec(document[STRATEGY], space),
        reason=one_line(reason, LONGEST_REASON) if isinstance(reason, str) else "",
    )


def to_spec(document: Mapping[str, Any], space: SearchSpace) -> StrategySpec:
    """Return the configuration of a space that a document names.

    Args:
        document: `{"kind": name, parameter: value}` with every searched parameter and nothing else.
        space: What it may name.

    Raises:
        AnswerError: If it is none of the space; carries every fault.
    """
    kind = document.get(KIND)
    if not isinstance(kind, str) or kind not in space.members:
        allowed = ", ".join(space.kinds)
        why = f" ({space.absent[kind]})" if isinstance(kind, str) and kind in space.absent else ""
        raise AnswerError(f"kind must be one of {allowed}, got {_shown(kind)}{why}")
    given = {name: value for name, value in document.items() if name != KIND}
    faults: list[str] = []

    def choose(name: str, allowed: Range) -> Value:
        if name not in given:
            faults.append(Fault(f"{name} of {kind}", f"be given, in {allowed.text()}"))
            return _some(allowed)
        value = _number(given[name], allowed)
        if not allowed.contains(value):
            faults.append(Fault(f"{name} of {kind}", f"be in {allowed.text()}", _shown(value)))
            return _some(allowed)
        return cast(Value, value)

    try:
        spec = space.compose(kind, choose)
    except (ValidationError, StrategyError) as error:
        raise AnswerError(*faults, one_line(str(error))) from error
    known = space.parameters_of(kind)
    surplus = sorted(name for name in given if name not in known)
    allowed_names = ", ".join(known) or "none"
    faults += [f"{_shown(name)} is no parameter of {kind}; its parameters are {allowed_names}" for name in surplus[:5]]
    if faults:
        raise AnswerError(*faults)
    assert space.contains(spec)
    return spec


def _alternative(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return one strategy of a space's schema, with its name as kind and its searched parameters."""
    properties = dict(schema["properties"])
    arguments = properties.pop(VALUES, {"properties": {}})["properties"]  # of a user's strategy
    searched = {
        name: _parameter(found)
        for name, found in {**arguments, **properties}.items()
        if "const" not in found  # name, import path and what else is fixed
    }
    return {
        "type": "object",
        "description": schema["description"],
        "properties": {KIND: {"type": "string", "const": schema["title"]}, **searched},
        "required": [KIND, *searched],
        "additionalProperties": False,
    }


def _parameter(schema: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in schema.items() if not name.startswith("x-")}
    if "enum" in kept and len(types := {type(value) for value in kept["enum"]}) == 1:
        kept["type"] = _TYPE_NAMES[types.pop()]
    if schema.get("x-scale") == "log":
        kept["description"] = f"{kept.get('description', '')} (log-scaled)".strip()
    return kept


def _answers(text: str) -> list[dict[str, Any]]:
    """Return every answer in a text: it is one, or its fenced blocks hold some, or its prose does."""
    whole = _parsed(text)
    if whole is not None:
        return _in_outer_form([whole])
    return _in_outer_form(map(_parsed, _FENCED.findall(text))) or _in_outer_form(_objects_in_prose(text))


def _objects_in_prose(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    position, tried = text.find("{"), 0
    while position >= 0 and tried < STARTS_TRIED:
        tried += 1
        try:
            found, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            yield found
        position = text.find("{", end)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _in_outer_form(candidates: Iterable[Any]) -> list[dict[str, Any]]:
    """Return those that are answers, in the form of the schema; a bare strategy is wrapped."""
    answers = []
    for found in candidates:
        if not isinstance(found, dict):
            continue
        if isinstance(found.get(STRATEGY), dict):
            answers.append({STRATEGY: found[STRATEGY], REASON: found.get(REASON)})
        elif KIND in found:
            answers.append({STRATEGY: found})
    return answers


def _number(value: Any, allowed: Range) -> Any:
    """Return a number in the type of its range: to JSON 2 and 2.0 are the same."""
    if isinstance(allowed, IntegerRange) and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(allowed, RealRange) and isinstance(value, int) and allowed.contains(value):
        return float(value)
    return value


def _some(allowed: Range) -> Value:
    """Return any value of a range, to go on to the next parameter."""
    return allowed.choices[0] if isinstance(allowed, ChoiceRange) else allowed.from_unit(0)


def _shown(value: Any) -> str:
    return one_line(repr(value), 80)
