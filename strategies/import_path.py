"""What a user names by import path, `package.module:Class`: whether it has that form, and what stands there.

Nothing is imported when a document is parsed, but when a class is checked against a cohort or built.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.trials.global_random import UNSEEDED, unseeded_generators

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
            f"{path} must be importable from the Python path, got {type(error).__name__}: {error}"
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
