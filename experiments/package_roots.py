"""Whether the five packages of this program come from one folder.

Their names (`engine`, `search`, …) are ordinary words, so a file of the user's can take the place of one: Python reads
the working directory first under `python -m`, `PYTHONPATH` first always, and a process may have imported a namesake
before it asks for ours. A program put together from two sources gives errors that point nowhere, or wrong results; it
is refused instead. Nothing here imports a sibling package before it is known to be ours.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("engine", "detectors", "strategies", "search", "experiments")
OWN_ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the five packages: site-packages, or a checkout."""


def own_packages_first() -> None:
    """Move the entries of this process's import path that hold a namesake of ours behind our own folder.

    Called before the first import of a sibling package, it keeps a file of the user's from standing in for one. The
    user's directories stay on the path, at its end, so that strategies named by import path are still found there.
    """
    sys.path[:] = without_precedence(sys.path)


def without_precedence(path: Sequence[str], own_root: Path = OWN_ROOT) -> list[str]:
    """Return the import path with `own_root` ahead of every other entry that holds one of the five names.

    Args:
        path: Entries as in `sys.path`; an empty one is the working directory.
        own_root: The folder that holds our packages.
    """
    namesakes = [entry for entry in path if Path(entry).resolve() != own_root and _holds_a_package(Path(entry))]
    if not namesakes:
        return list(path)
    others = [entry for entry in path if entry not in namesakes]
    own = [] if any(Path(entry).resolve() == own_root for entry in others) else [str(own_root)]
    return [*others, *own, *namesakes]


def package_roots() -> dict[str, Path | None]:
    """Return the folder from which each package is, or would be, imported; None for one that is nowhere.

    A module file `search.py` and a folder without `__init__.py` count: what Python would import is what matters.
    """
    return {package: _root_of(package) for package in PACKAGES}


def root_conflict(roots: Mapping[str, Path | None], own_root: Path = OWN_ROOT) -> str | None:
    """Return the sentence that tells the user which packages come from elsewhere, or None if all are at home.

    Args:
        roots: The folder of each package, as `package_roots` gives it.
        own_root: Where all of them must be.
    """
    strangers = {package: root for package, root in roots.items() if root != own_root}
    if not strangers:
        return None
    found = ", ".join(f"{package} from {root or 'nowhere'}" for package, root in strangers.items())
    return (
        f"The packages {', '.join(PACKAGES[:-1])} and {PACKAGES[-1]} must all come from {own_root}; got {found}. "
        "Rename what stands in for them, take its folder off PYTHONPATH, or install fedscout in an environment of "
        "its own."
    )


def check_package_roots() -> None:
    """Refuse to run when this process takes the five packages from different folders.

    Raises:
        ConfigurationError: If a package comes from another folder than this one, or from nowhere.
        ImportError: If `engine` itself, which defines that error, is another program's; the text is the same.
    """
    roots = package_roots()
    conflict = root_conflict(roots)
    if conflict is None:
        return
    if roots["engine"] != OWN_ROOT:
        raise ImportError(conflict)
    from engine.errors import ConfigurationError

    raise ConfigurationError(conflict)


def _holds_a_package(folder: Path) -> bool:
    return any((folder / package).is_dir() or (folder / f"{package}.py").is_file() for package in PACKAGES)


def _root_of(package: str) -> Path | None:
    try:
        spec = find_spec(package)
    except ValueError:  # a module put into sys.modules by hand has no spec
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve().parent
    return Path(spec.origin).resolve().parent if spec.origin else None
