"""Source files of a user's own code that is named by an import path, and their digests.

The code of a trial is the module that an import path names and the user's own modules that it imports, directly or not:
modules that belong neither to the standard library, nor to installed packages, nor to fedscout. For an import path into
an installed package, the modules of that package count. Imports are read from the source, so the result does not depend
on what was imported before; dynamic imports with computed names, and data files that code reads, are not found.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

_INSTALLED = {"site-packages", "dist-packages"}

_loaded: dict[str, tuple[Any, Mapping[str, str]]] = {}
"""Modules imported by this process: their specification, and their code at that time."""


def user_folders() -> tuple[str, ...]:
    """Return the folders searched for a user's own code: the working directory, appended to the path."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    return (folder,)


def is_own(module: str) -> bool:
    """Return whether a module is the user's own code, without importing it."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "fedscout":
        return False
    spec = _spec_of(top)
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec is not None else []
    return bool(places) and not any(_INSTALLED & {*Path(place).parts} for place in places if place is not None)


def code_digests(path: str) -> Mapping[str, str]:
    """Return the SHA-256 of each file of the code that an import path names.

    After a module is imported, the result of the first call is cached: the running code is that of the files at that
    time, even if the files change.

    Args:
        path: `package.module:name`.

    Returns:
        Digests by file, relative to the folder from which modules are imported; empty if there is no such module.
    """
    name = path.partition(":")[0]
    module = sys.modules.get(name)
    if module is None:
        return _read(name)
    spec, digests = _loaded.get(name, (None, {}))
    if spec is None or spec is not getattr(module, "__spec__", None):  # a new one once it is imported again
        digests = _read(name)
        _loaded[name] = getattr(module, "__spec__", None), digests
    return digests


def _read(name: str) -> dict[str, str]:
    top = name.partition(".")[0]
    digests: dict[str, str] = {}
    pending, seen = [*_with_parents(name)], set[str]()
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        if module.partition(".")[0] != top and not is_own(module):
            continue
        spec = _spec_of(module)
        if spec is None or not spec.has_location or spec.origin is None:
            continue
        content = Path(spec.origin).read_bytes()
        digests[_file_name(spec)] = hashlib.sha256(content).hexdigest()
        pending += _imported_in(content, spec)
    return dict(sorted(digests.items()))


def _with_parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def _spec_of(module: str) -> ModuleSpec | None:
    """Return the spec of a module without importing it; None if it is not found, or is a folder without a file."""
    parent, _, _ = module.rpartition(".")
    try:
        if not parent:
            return find_spec(module)
        return PathFinder.find_spec(module, _folders_of(parent))
    except (ImportError, KeyError, ValueError):  # a folder in one not imported; a module made by hand
        return None


def _folders_of(package: str) -> list[str]:
    """Return the folders in which the modules of a package are searched."""
    parent, _, last = package.rpartition(".")
    if parent:
        return [str(Path(folder) / last) for folder in _folders_of(parent)]
    spec = find_spec(package)
    return [] if spec is None else [*(spec.submodule_search_locations or ())]


def _file_name(spec: ModuleSpec) -> str:
    inside = Path(*spec.name.split("."))
    file = Path(str(spec.origin))
    return str(inside / file.name if spec.submodule_search_locations is not None else inside.parent / file.name)


def _imported_in(content: bytes, spec: ModuleSpec) -> Iterator[str]:
    """Yield the modules that a file's source may import, anywhere in it."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # an extension module, or not Python's
        return
    package = spec.name if spec.submodule_search_locations is not None else spec.parent
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                try:
                    base = resolve_name("." * node.level + base, package)
                except ImportError:  # beyond the top
                    continue
            yield from _with_parents(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)
