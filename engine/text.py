"""Texts of faults, types and truth values, and HTML for notebooks.

How a fault reads: condition and value, on one line, whatever the value is; those that pydantic found included.

What an annotation says that a value may be.

Truth values that stand where a number is wanted: to Python `True` is 1, to a person it is a slip.

Small tables and pictures for notebooks: what `_repr_html_` of federations, reports, trials and studies is made of.

Names of clients, classes and strategies are the work of others, so whatever is not `Markup` is escaped. Colours are
those of the page (`currentColor`, transparent shades), so a picture is right on light and on dark ground.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from math import isfinite
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
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


def alternatives(annotations: Iterable[Any]) -> Iterator[Any]:
    """Yield the types of which a value may be, without what only constrains them."""
    for annotation in annotations:
        origin = get_origin(annotation)
        if origin is Annotated:
            yield from alternatives(get_args(annotation)[:1])
        elif origin in (Union, types.UnionType):
            yield from alternatives(get_args(annotation))
        else:
            yield annotation


def truths_as_words(value: Any, *wanted: Any) -> Any:
    """Return a document in which `true` and `false` are words wherever a number, and no truth value, is wanted.

    A validation then refuses them as it refuses all other words.

    Args:
        value: The document, or a part of it.
        wanted: The model that it is validated against; of a part, the annotations of which one must fit.
    """
    forms = [*alternatives(wanted)]
    if isinstance(value, bool):
        return str(value).lower() if {int, float} & {*forms} and bool not in forms else value
    if isinstance(value, Mapping):
        return {name: truths_as_words(part, *_named(forms, name)) for name, part in value.items()}
    if isinstance(value, list):
        return [truths_as_words(part, *_items(forms)) for part in value]
    return value


def _named(forms: Iterable[Any], name: Any) -> Iterator[Any]:
    """Yield the annotations of what a group holds under a name."""
    for form in forms:
        if isinstance(form, type) and issubclass(form, BaseModel):
            if name in form.model_fields:
                yield form.model_fields[name].annotation
        elif isinstance(get_origin(form), type) and issubclass(get_origin(form), Mapping):
            yield get_args(form)[1]


def _items(forms: Iterable[Any]) -> Iterator[Any]:
    """Yield the annotations of what a list holds."""
    for form in forms:
        if get_origin(form) in (tuple, list):
            yield from get_args(form)


SHADE = "0, 114, 178"
CURVE_WIDTH, CURVE_HEIGHT = 140, 32
INTERVAL_WIDTH = 180


class Markup(str):
    """HTML that is finished: escaped, and shown as it is."""

    __slots__ = ()


def html(value: object) -> Markup:
    """Return a value as HTML."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def paragraph(text: object, strong: bool = False) -> Markup:
    """Return a text as a paragraph."""
    return Markup(f"<p><strong>{html(text)}</strong></p>" if strong else f"<p>{html(text)}</p>")


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """Return a table; a cell that is `Markup` of a whole `<td>` stays one."""
    head = "".join(f"<th>{html(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def shaded(share: float, told: object) -> Markup:
    """Return a cell that is the darker, the larger a share in `[0, 1]`; `told` shows when one points at it."""
    shade = f"background: rgba({SHADE}, {min(max(share, 0.0), 1.0):.2f})"
    return Markup(f'<td style="{shade}; min-width: 1.2em" title="{html(told)}"></td>')


def curve(values: Sequence[float | None], span: tuple[float, float] | None = None) -> Markup:
    """Return values, such as accuracy after each round, as a line.

    Args:
        values: In their order; None and what is not finite are passed over.
        span: Values at the lower and the upper edge, for curves to compare; None takes the lowest and the highest.
    """
    points = [(place, value) for place, value in enumerate(values) if value is not None and isfinite(value)]
    if not points:
        return Markup("")
    told = [value for _, value in points]
    low, high = span or (min(told), max(told))
    across, up = (CURVE_WIDTH - 4) / max(len(values) - 1, 1), (CURVE_HEIGHT - 4) / ((high - low) or 1.0)
    line = " ".join(f"{2 + place * across:.1f},{CURVE_HEIGHT - 2 - (value - low) * up:.1f}" for place, value in points)
    drawn = f'<polyline points="{line}" fill="none" stroke="rgb({SHADE})" stroke-width="2"/>'
    return _picture(CURVE_WIDTH, CURVE_HEIGHT, f"{told[0]:.4g} to {told[-1]:.4g}, highest {max(told):.4g}", drawn)


def interval(low: float, mean: float, high: float, told: str) -> Markup:
    """Return an interval with its middle, and where zero is."""
    left, right = min(low, 0.0), max(high, 0.0)
    wide = (INTERVAL_WIDTH - 12) / ((right - left) or 1.0)
    at_zero, at_low, at_mean, at_high = (6 + (value - left) * wide for value in (0.0, low, mean, high))
    drawn = (
        f'<line x1="{at_zero:.1f}" x2="{at_zero:.1f}" y1="0" y2="20" stroke="currentColor" stroke-dasharray="2 2"/>'
        f'<line x1="{at_low:.1f}" x2="{at_high:.1f}" y1="10" y2="10" stroke="rgb({SHADE})" stroke-width="3"/>'
        f'<circle cx="{at_mean:.1f}" cy="10" r="5" fill="rgb({SHADE})"/>'
    )
    return _picture(INTERVAL_WIDTH, 20, told, drawn)


def _cell(value: object) -> str:
    return value if isinstance(value, Markup) and value.startswith("<td") else f"<td>{html(value)}</td>"


def _picture(width: int, height: int, told: str, drawn: str) -> Markup:
    return Markup(f'<svg width="{width}" height="{height}" role="img"><title>{html(told)}</title>{drawn}</svg>')
