"""Texts of faults, type annotations, boolean values in documents, and HTML for notebooks.

`fault_of` formats pydantic's faults like fedscout's own: condition and value on one line, for any value, and
`reading_document` those of a whole file. `alternatives` yields the types that an annotation permits.
`booleans_as_words` prevents booleans from being accepted as numbers, because `True` is 1 in Python but a mistake in a
configuration. `html_of` gives the `_repr_html_` of federations, reports and studies.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedscout.engine.errors import Fault, UserError, first_line

if TYPE_CHECKING:
    import pandas as pd

LONGEST_VALUE = 200
LONGEST_NAME = 60
MOST_NAMES = 60
MOST_MEANT = 2

_CONDITIONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type"), "be a group of keys, such as {key: value}"
    ),
    "tuple_type": "be a list, such as [first, second]",
    "missing": "be given",
    "extra_forbidden": "be left out, as it is not a known key",
}
"""Conditions for which pydantic's text names Python types."""

_LITERAL = re.compile(r"'([^']*)'")

_LENGTHS: Mapping[str, str] = {"too_short": "have at least {min_length}", "too_long": "have at most {max_length}"}


def shown(value: object) -> str:
    """Return a value's `repr`; a long one is truncated, with its length."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of more digits than Python writes, or a very deep list
        return f"a {type(value).__name__} that can't be displayed"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}… ({len(text)} characters)"


def listed(names: Iterable[str], most: int = MOST_NAMES) -> str:
    """Return names joined by commas: the first few if there are many, each truncated if it is long."""
    all_names = list(names)
    cut = [name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…" for name in all_names[:most]]
    return ", ".join(cut) + (f" and {len(all_names) - most} more" if len(all_names) > most else "")


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """Return `; did you mean cifar10 or cifar100?` for names that resemble the given one, or an empty string."""
    candidates = list(dict.fromkeys(names))
    text = given.lower() if isinstance(given, str) else ""
    by_prefix = [name for name in candidates if len(text) > 1 and name.lower().startswith(text)]
    similar = difflib.get_close_matches(text, candidates, n=MOST_MEANT, cutoff=0.7)
    suggestions = list(dict.fromkeys([*by_prefix, *similar]))[:MOST_MEANT]
    return f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""


def details(error: ValidationError) -> Sequence[ErrorDetails]:
    """Return the faults of a validation error; faults of a container are omitted if its items have faults.

    Pydantic counts items after it has dropped the wrong ones, so a list of one wrong item is also reported as empty.
    """
    faults = error.errors()
    containers = {detail["loc"][:length] for detail in faults for length in range(len(detail["loc"]))}
    return [detail for detail in faults if detail["loc"] not in containers]


def fault_of(subject: str, detail: ErrorDetails, hint: str = "") -> Fault:
    """Return a pydantic fault as a `Fault` of `subject`."""
    if detail["type"] in ("value_error", "assertion_error"):  # our own text, which names the value itself
        text = re.sub(r"^(Value error|Assertion failed), ", "", detail["msg"])
        separator = "" if not subject else " " if text.startswith("must ") else ": "
        within, must, rest = f"{subject}{separator}{text}".partition(" must ")
        condition, got, given = rest.partition(", got ")
        return Fault(within, condition, given if got else ..., hint) if must else Fault(within, hint=hint)
    condition = _condition(detail)
    if detail["type"] == "missing":
        return Fault(subject, condition, hint=hint)
    suggestion = did_you_mean(detail["input"], _LITERAL.findall(condition)) if detail["type"] == "literal_error" else ""
    given = "a group of keys" if isinstance(detail["input"], Mapping) else shown(detail["input"])
    return Fault(subject, condition, given, suggestion + hint)


@contextmanager
def reading_document(subject: object, kind: type[UserError], must: str) -> Iterator[None]:
    """Report a failure of the block, which reads and validates a document, as a fault of the document.

    Args:
        subject: The document, such as its path.
        kind: Kind of the error.
        must: What the document must be, as it follows the word "must".

    Raises:
        UserError: Of the given kind, with the first fault, if the document can't be read or does not fit its model.
    """
    try:
        yield
    except ValidationError as error:
        raise kind.of(subject, f"{must}, but {_first_fault(error)}") from error
    except FileNotFoundError as error:
        raise kind.of(subject, f"{must}, but there is no such file") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise kind.of(subject, f"{must}, but can't be read: {reason}") from error


def _first_fault(error: ValidationError) -> Fault:
    """Return the first fault of a document that does not fit its model."""
    first = details(error)[0]
    whole = "" if first["type"] == "value_error" else "it"
    return fault_of(".".join(map(str, first["loc"])) or whole, first)


def _condition(detail: ErrorDetails) -> str:
    """Return the violated condition, as it follows `must`."""
    if detail["type"] in _CONDITIONS:
        return _CONDITIONS[detail["type"]]
    if detail["type"] in _LENGTHS:
        context: dict[str, Any] = detail.get("ctx", {})
        count = context.get("min_length", context.get("max_length"))
        return _LENGTHS[detail["type"]].format(**context) + (" item" if count == 1 else " items")
    subject, should, condition = detail["msg"].partition(", unable to parse")[0].partition(" should ")
    return condition if should and " " not in subject else f"be valid ({detail['msg'][:1].lower()}{detail['msg'][1:]})"


def alternatives(annotations: Iterable[Any]) -> Iterator[Any]:
    """Yield the types that annotations permit, without constraints."""
    for annotation in annotations:
        origin = get_origin(annotation)
        if origin is Annotated:
            yield from alternatives(get_args(annotation)[:1])
        elif origin in (Union, types.UnionType):
            yield from alternatives(get_args(annotation))
        else:
            yield annotation


def booleans_as_words(value: Any, *wanted: Any) -> Any:
    """Return a document in which booleans are replaced by words wherever a number, and no boolean, is expected.

    A validation then rejects them like all other words.

    Args:
        value: The document, or a part of it.
        wanted: The model for validation; for a part, the annotations of which one must match.
    """
    forms = [*alternatives(wanted)]
    if isinstance(value, bool):
        return str(value).lower() if {int, float} & {*forms} and bool not in forms else value
    if isinstance(value, Mapping):
        return {name: booleans_as_words(part, *_named(forms, name)) for name, part in value.items()}
    if isinstance(value, list):
        return [booleans_as_words(part, *_items(forms)) for part in value]
    return value


def _named(forms: Iterable[Any], name: Any) -> Iterator[Any]:
    """Yield the annotations of a mapping's entry."""
    for form in forms:
        if isinstance(form, type) and issubclass(form, BaseModel):
            if name in form.model_fields:
                yield form.model_fields[name].annotation
        elif isinstance(get_origin(form), type) and issubclass(get_origin(form), Mapping):
            yield get_args(form)[1]


def _items(forms: Iterable[Any]) -> Iterator[Any]:
    """Yield the annotations of a list's items."""
    for form in forms:
        if get_origin(form) in (tuple, list):
            yield from get_args(form)


MOST_ROWS, MOST_COLUMNS = 40, 40


def html_of(*parts: str | pd.DataFrame) -> str:
    """Return texts as paragraphs and frames as tables, in HTML.

    Names of clients, classes and strategies are untrusted, so everything is escaped. Of a large table the first and the
    last rows and columns are shown, with its size.
    """
    import pandas as pd

    with pd.option_context("display.max_colwidth", None):
        return "".join(
            f"<p>{escape(part)}</p>"
            if isinstance(part, str)
            else part.to_html(
                index=False, na_rep="", max_rows=MOST_ROWS, max_cols=MOST_COLUMNS, show_dimensions=len(part) > MOST_ROWS
            )
            for part in parts
        )
