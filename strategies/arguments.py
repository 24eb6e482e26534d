"""Arguments and import paths of user-defined classes in documents.

JSON values are validated and converted by pydantic against the annotations of the user's constructor: a list becomes a
tuple or a set, a value the member of an enum. An annotation that pydantic does not know accepts any value. YAML reads
`007`, `1.10` and `yes` as a number or a boolean and loses their spelling, so text must be quoted
(`strategy.values.mode='"007"'` in a shell).

An import path has the form `package.module:Class`. It is imported when the class is checked against a cohort
or built, never when a document is parsed.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import typing
from collections.abc import Callable, Mapping, Set
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, JsonValue, PydanticUserError, TypeAdapter, ValidationError

from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.seeds import UNSEEDED, unseeded_generators
from fedscout.engine.text import details, fault_of
from fedscout.engine.user_code import code_digests


def accepted(constructor: Callable[..., Any]) -> tuple[Mapping[str, inspect.Parameter], bool]:
    """Return the named arguments of a constructor, and whether it accepts any others."""
    parameters = inspect.signature(constructor).parameters
    by_name = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    return by_name, any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def name_faults(path: str, constructor: Callable[..., Any], given: Set[str], added: Set[str]) -> list[str]:
    """Return the faults of argument names: names that a constructor does not accept, and missing required ones.

    Args:
        path: Import path of the class, for error messages.
        constructor: A class or callable.
        given: Names of the user's arguments.
        added: Names of arguments that are passed automatically.
    """
    named, takes_any = accepted(constructor)
    allowed = ", ".join(sorted(named.keys() - added)) or "none"
    unknown = [name for name in sorted(given) if name not in named and not takes_any]
    required = [name for name, parameter in named.items() if parameter.default is inspect.Parameter.empty]
    return [
        *(Fault(name, hint=f"it takes {allowed}", problem=f"is no argument of {path}") for name in unknown),
        *(
            Fault(f"{name} of {path}", "have a value or a range: its constructor requires it")
            for name in required
            if name not in given | added
        ),
    ]


def converted(path: str, constructor: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments converted by the annotations of a constructor.

    Args:
        path: Import path of the class, for error messages.
        constructor: A class or callable.
        values: Values by parameter name.

    Raises:
        StrategyError: If a value can't be converted; contains all faults.
    """
    target = constructor.__init__ if isinstance(constructor, type) else constructor  # type: ignore[misc]  # as called
    try:
        annotations = typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name under TYPE_CHECKING, or whatever evaluating a user's text raises
        annotations = {}
    arguments: dict[str, Any] = {}
    faults = []
    for name, value in values.items():
        try:
            arguments[name] = TypeAdapter(annotations.get(name, Any)).validate_python(value)
        except PydanticUserError:  # it does not know such a type
            arguments[name] = value
        except ValidationError as error:
            faults.append(fault_of(f"{name} of {path}", details(error)[0]))
    if faults:
        raise StrategyError(faults)
    return arguments


def constructed(
    path: str, constructor: Callable[..., Any], arguments: Mapping[str, Any], told: Mapping[str, Any]
) -> Any:
    """Return the instance that a user's constructor creates.

    Args:
        path: Import path of the class, for error messages.
        constructor: The class.
        arguments: All arguments, converted.
        told: Those that the user gave.

    Raises:
        StrategyError: If the constructor raises anything.
    """
    try:
        return constructor(**arguments)
    except StrategyError:
        raise
    except (Exception, SystemExit) as error:  # a user's constructor may raise anything
        raise StrategyError.of(path, f"accept {dict(told)}", f"{type(error).__name__}: {error}") from error


logger = logging.getLogger("fedscout")


def _well_formed(path: str) -> str:
    module, _, name = path.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError(f"an import path must have the form package.module:Class, got {path!r}")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"must not name a module of Python's standard library, got {path!r}")
    return path


ImportPath = Annotated[str, AfterValidator(_well_formed)]
"""A path of that form, outside Python's library."""


class UserClass(BaseModel):
    """What specifications of a user's class, a strategy's or a policy's, have in common."""

    path: Annotated[ImportPath, Field(description="module:Class")]
    values: Annotated[Mapping[str, JsonValue], Field(description="arguments of its constructor")] = {}

    @property
    def label(self) -> str:
        """The import path, since several classes share the kind."""
        return self.path

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of the class's module and of the user modules that it imports."""
        return code_digests(self.path)


def imported(path: str) -> Any:
    """Return the attribute at an import path; None if the module does not define it.

    Raises:
        StrategyError: If the module can't be imported.
    """
    module_name, _, name = path.partition(":")
    try:
        with unseeded_generators() as unseeded:
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise StrategyError.of(
            path, "be importable from the Python path", f"{type(error).__name__}: {error}"
        ) from error
    if unseeded:  # at the first import alone
        logger.warning("%s: %s", path, UNSEEDED)
    return getattr(module, name, None)


def imported_class(path: str, bases: Mapping[str, type]) -> type[Any]:
    """Return the class at an import path.

    Args:
        path: `package.module:Class`.
        bases: Allowed base classes, by their import names.

    Raises:
        StrategyError: If the module can't be imported, there is no such class, or it has abstract methods.
    """
    attribute = imported(path)
    if not (isinstance(attribute, type) and issubclass(attribute, tuple(bases.values()))):
        description = "nothing of that name" if attribute is None else repr(attribute)
        raise StrategyError.of(path, f"be a subclass of {' or of '.join(bases)}", description)
    if missing := sorted(getattr(attribute, "__abstractmethods__", ())):
        raise StrategyError.of(path, f"define every abstract method, but lacks {', '.join(missing)}")
    return attribute
