"""Arguments of a user's constructor: JSON values in a document, and what the constructor's annotations make of them.

| annotation | takes |
| --- | --- |
| `str` | text; a whole number or a truth value as it is written: `1` is `"1"`, `true` is `"true"` |
| an enum | the name of a member, or its value |
| `tuple`, `list`, `set`, `frozenset`, `Sequence` | a list, whose items are converted likewise |
| `X | None` | null, or what `X` takes |
| any other, or none | the value as it is |

YAML reads `007`, `1.10` and `yes` as a number or a truth value, and how they were written is lost: whoever means text
quotes it (`strategy.values.mode='"007"'` in a shell). A fraction for a `str` is therefore refused.

What a user names by import path, `package.module:Class`: whether it has that form, and what stands there.

Nothing is imported when a document is parsed, but when a class is checked against a cohort or built.
"""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import logging
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Set
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, JsonValue

from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.seeds import UNSEEDED, unseeded_generators
from fedscout.engine.text import alternatives, shown

_LISTS: Mapping[Any, Callable[[Iterable[Any]], Any]] = {
    tuple: tuple,
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
}


def _as_json(value: Any) -> Any:
    """Return what a program gave as a document would say it: a member of an enum by its name, a tuple as a list."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    return value


Argument = Annotated[JsonValue, BeforeValidator(_as_json)]
"""A value that a document can hold: number, text, truth value, null, or a list or group of them."""


def accepted(constructor: Callable[..., Any]) -> tuple[Mapping[str, inspect.Parameter], bool]:
    """Return the arguments that a constructor takes by name, and whether it takes any others."""
    parameters = inspect.signature(constructor).parameters
    by_name = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    return by_name, any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def name_faults(path: str, constructor: Callable[..., Any], given: Set[str], added: Set[str]) -> list[str]:
    """Return which names a constructor does not take, and which it requires and does not get.

    Args:
        path: Of the class, for the text of faults.
        constructor: A class, or anything that is called.
        given: The names of its arguments.
        added: The names that it gets without being told.
    """
    named, takes_any = accepted(constructor)
    allowed = ", ".join(sorted(named.keys() - added)) or "none"
    unknown = [name for name in sorted(given) if name not in named and not takes_any]
    required = [name for name, parameter in named.items() if parameter.default is inspect.Parameter.empty]
    return [
        *(f"{name} is no argument of {path}; it takes {allowed}" for name in unknown),
        *(
            Fault(f"{name} of {path}", "have a value or a range: its constructor requires it")
            for name in required
            if name not in given | added
        ),
    ]


def converted(path: str, constructor: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as the annotations of a constructor want them.

    Args:
        path: Of the class, for the text of errors.
        constructor: A class, or anything that is called.
        values: By the names of its parameters.

    Raises:
        StrategyError: If a value can't be what an annotation says; carries every fault.
    """
    annotations = _annotations(constructor)
    found: dict[str, Any] = {}
    faults = []
    for name, value in values.items():
        try:
            found[name] = _converted(value, annotations.get(name, Any))
        except ValueError as error:
            faults.append(f"{name} of {path} {error}")
    if faults:
        raise StrategyError(faults)
    return found


def constructed(
    path: str, constructor: Callable[..., Any], arguments: Mapping[str, Any], told: Mapping[str, Any]
) -> Any:
    """Return what a user's constructor makes of its arguments.

    Args:
        path: Of the class, for the text of faults.
        constructor: The class.
        arguments: As it takes them.
        told: Those of them that the user gave.

    Raises:
        StrategyError: If it raises anything.
    """
    try:
        return constructor(**arguments)
    except StrategyError:
        raise
    except (Exception, SystemExit) as error:  # a user's constructor may raise anything
        raise StrategyError(Fault(path, f"accept {dict(told)}", f"{type(error).__name__}: {error}")) from error


def _annotations(constructor: Callable[..., Any]) -> Mapping[str, Any]:
    """Return what a constructor says of its parameters; nothing of those that it says in names that are not there."""
    own = {name: parameter.annotation for name, parameter in inspect.signature(constructor).parameters.items()}
    target = constructor.__init__ if isinstance(constructor, type) else constructor  # type: ignore[misc]  # as called
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name under TYPE_CHECKING, or whatever evaluating a user's text raises
        hints = {}
    return {name: hints.get(name, Any if isinstance(told, str) else told) for name, told in own.items()}


def _converted(value: Any, annotation: Any) -> Any:
    forms = [*alternatives([annotation])]
    if any(_fits(value, form) for form in forms):
        return value
    for form in forms:
        if isinstance(form, type) and issubclass(form, Enum):
            return _member(value, forms)
        if isinstance(value, list) and (make := _LISTS.get(get_origin(form) or form)) is not None:
            return make(_converted(item, _of_item(form, place)) for place, item in enumerate(value))
        if form is str or (get_origin(form) is Literal and isinstance(value, bool | int)):
            text = _text(value)
            if form is str or text in get_args(form):
                return text
    return value


def _fits(value: Any, form: Any) -> bool:
    if form in (Any, object, inspect.Parameter.empty):
        return True
    if get_origin(form) is Literal:
        return any(type(value) is type(allowed) and value == allowed for allowed in get_args(form))
    return type(value) is form or (form is float and type(value) is int)


def _member(value: Any, forms: Iterable[Any]) -> Enum:
    """Return the member of an enum of that name, or else of that value."""
    members = [member for form in forms if isinstance(form, type) and issubclass(form, Enum) for member in form]
    for member in members:
        if member.name == value:
            return member
    for member in members:
        if type(member.value) is type(value) and member.value == value:
            return member
    raise ValueError(f"must be one of {', '.join(member.name for member in members)}, got {shown(value)}")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    raise ValueError(f"must be text, as its constructor says, got {shown(value)}; in quotes, '\"1.0\"', it is")


def _of_item(form: Any, place: int) -> Any:
    """Return the annotation of an item of a list: `tuple[int, str]` says each, all others say one for all."""
    items = get_args(form)
    if get_origin(form) is tuple and Ellipsis not in items:
        return items[place] if place < len(items) else Any
    return items[0] if items else Any


logger = logging.getLogger("fedscout")


def _well_formed(path: str) -> str:
    module, _, name = path.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError(f"an import path must have the form package.module:Class, got {path!r}")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"must not name a module of Python's library, which holds no strategy, got {path!r}")
    return path


ImportPath = Annotated[str, AfterValidator(_well_formed)]
"""A path of that form, outside Python's library."""


def imported(path: str) -> Any:
    """Return what stands at a path; None if its module has nothing of that name.

    Raises:
        StrategyError: If the module can't be imported.
    """
    module_name, _, name = path.partition(":")
    try:
        with unseeded_generators() as unseeded:
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise StrategyError(
            Fault(path, "be importable from the Python path", f"{type(error).__name__}: {error}")
        ) from error
    if unseeded:  # at the first import alone
        logger.warning("%s: %s", path, UNSEEDED)
    return getattr(module, name, None)


def imported_class(path: str, bases: Mapping[str, type]) -> type[Any]:
    """Return the class that stands at a path.

    Args:
        path: `package.module:Class`.
        bases: What it may be a subclass of, by the names that users import.

    Raises:
        StrategyError: If the module can't be imported, no such class stands there, or it lacks methods.
    """
    found = imported(path)
    if not (isinstance(found, type) and issubclass(found, tuple(bases.values()))):
        what = "nothing of that name" if found is None else repr(found)
        raise StrategyError(Fault(path, f"be a subclass of {' or of '.join(bases)}", what))
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise StrategyError(Fault(path, f"define every abstract method, {', '.join(missing)} missing"))
    return found
