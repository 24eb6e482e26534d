"""Libraries that not every installation has, as few need them: an extra of the package brings each."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedscout.engine.errors import ConfigurationError


def extra_module(module: str, extra: str, need: str) -> Any:
    """Import a module of a library that an extra installs.

    Args:
        module: Its name.
        extra: That brings its library.
        need: What needs which library, as the message begins.

    Raises:
        ConfigurationError: If it is not installed; says how to install it.
    """
    if find_spec(module.partition(".")[0]) is None:
        raise ConfigurationError(f"{need}, which is not installed: pip install 'fedscout[{extra}]'")
    return import_module(module)
