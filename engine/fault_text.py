"""How a fault reads: condition and value, on one line, whatever the value is; those that pydantic found included."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fedscout.engine.errors import Fault

LONGEST_VALUE = 200
LONGEST_NAME = 60
MOST_NAMES = 60
MOST_MEANT = 2

_CONDITIONS: Mapping[str, str] = {
    "dict_type": "be a group of keys, such as {key: value}",
    "mapping_type": "be a group of keys, such as {key: value}",
    "model_type": "be a group of keys, such as {key: value}",
    "model_attributes_type": "be a group of keys, such as {key: value}",
    "tuple_type": "be a list, such as [first, second]",
    "missing": "be given",
}
"""Conditions whose own text would speak of Python's types."""

_LITERAL = re.compile(r"'([^']*)'")

_LENGTHS: Mapping[str, str] = {"too_short": "have at least {min_length}", "too_long": "have at most {max_length}"}


def shown(value: object) -> str:
    """Return a value as in Python's source; of a long one the beginning, and how long it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of more digits than Python writes, or a very deep list
        return f"a {type(value).__name__} that can't be written"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}… ({len(text)} characters)"


def listed(names: Iterable[str], most: int = MOST_NAMES) -> str:
    """Return names with commas between them: the first few where there are many, each cut if it is long."""
    known = list(names)
    cut = [name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…" for name in known[:most]]
    return ", ".join(cut) + (f" and {len(known) - most} more" if len(known) > most else "")


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """Return `; did you mean cifar10 or cifar100?` of names that look like what was given, or else nothing."""
    known = list(dict.fromkeys(names))
    text = given.lower() if isinstance(given, str) else ""
    begun = [name for name in known if len(text) > 1 and name.lower().startswith(text)]
    near = difflib.get_close_matches(text, known, n=MOST_MEANT, cutoff=0.7)
    meant = list(dict.fromkeys([*begun, *near]))[:MOST_MEANT]
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def details(error: ValidationError) -> Sequence[ErrorDetails]:
    """Return the faults; of a whole whose parts are wrong, those of the parts alone.

    Pydantic counts items after it has dropped the wrong ones, so a list of one wrong item is called empty as well.
    """
    found = error.errors()
    wholes = {detail["loc"][:length] for detail in found for length in range(len(detail["loc"]))}
    return [detail for detail in found if detail["loc"] not in wholes]


def fault_of(subject: str, detail: ErrorDetails, hint: str = "") -> Fault:
    """Return what pydantic found wrong with `subject`."""
    if detail["type"] in ("value_error", "assertion_error"):  # our own text, which names the value itself
        text = re.sub(r"^(Value error|Assertion failed), ", "", detail["msg"])
        within, must, rest = (
            f"{subject} {text}".partition(" must ")
            if text.startswith("must ")
            else (f"{subject}: {text}".partition(" must "))
        )
        return Fault(within, f"{rest}{hint}") if must else Fault(f"{within}{hint}")
    condition = _condition(detail)
    if detail["type"] == "missing":
        return Fault(subject, condition, hint=hint)
    meant = did_you_mean(detail["input"], _LITERAL.findall(condition)) if detail["type"] == "literal_error" else ""
    given = "a group of keys" if isinstance(detail["input"], Mapping) else shown(detail["input"])
    return Fault(subject, condition, given, meant + hint)


def _condition(detail: ErrorDetails) -> str:
    """Return what must be done, as it follows `must`."""
    if detail["type"] in _CONDITIONS:
        return _CONDITIONS[detail["type"]]
    if detail["type"] in _LENGTHS:
        context: dict[str, Any] = detail.get("ctx", {})
        count = context.get("min_length", context.get("max_length"))
        return _LENGTHS[detail["type"]].format(**context) + (" item" if count == 1 else " items")
    subject, should, condition = detail["msg"].partition(" should ")
    return condition if should and " " not in subject else f"be valid ({detail['msg'][:1].lower()}{detail['msg'][1:]})"
