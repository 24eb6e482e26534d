"""Modules in order: no circle of modules, and none of folders.

All imports count, also those in functions and for type checks. A name that a package's `__init__` hands on counts as
imported from the file that defines it. A module directly in a package counts as a folder of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.code_size import PACKAGES, REPOSITORY
from tests.test_layers import imported


def source_files(root: Path) -> dict[str, Path]:
    """Return every file of the packages by its module's name."""
    files = {}
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            files[".".join(("fedscout", *(parts[:-1] if parts[-1] == "__init__" else parts)))] = file
    return files


def imports(module: str, files: Mapping[str, Path]) -> Iterator[tuple[str, str | None]]:
    """Yield each import of a file from the packages: module, and name if it is no module itself."""
    package = module if files[module].name == "__init__.py" else module.rpartition(".")[0]
    for _, base, name in imported(files[module].read_text(), package):
        if f"{base}.{name}" in files:
            yield f"{base}.{name}", None
        elif base in files:
            yield base, name


def arrows(root: Path) -> dict[str, set[str]]:
    """Return the modules that each module imports, names followed to where they are defined."""
    files = source_files(root)
    handed_on = {
        module: {name: target for target, name in imports(module, files) if name is not None}
        for module, path in files.items()
        if path.name == "__init__.py"
    }

    def defined_in(target: str, name: str | None) -> str:
        while name is not None and name in handed_on.get(target, {}):
            target = handed_on[target][name]
        return target

    own = [module for module in files if module not in handed_on]
    return {module: {defined_in(*found) for found in imports(module, files)} - {module} for module in own}


def folder_of(module: str) -> str:
    """Return the folder of a module within its package; of one that lies directly in it, the module itself."""
    folder = module.removeprefix("fedscout.").rpartition(".")[0]
    return folder if "." in folder else module


def folders(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the folders that each folder imports."""
    found: dict[str, set[str]] = {}
    for module, targets in graph.items():
        own = folder_of(module)
        found.setdefault(own, set()).update({folder_of(target) for target in targets} - {own})
    return found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of a circle; none if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [*error.args[1][:-1]]
    return []


def test_neither_modules_nor_folders_import_each_other_in_a_circle() -> None:
    graph = arrows(REPOSITORY)
    assert circle(graph) == []
    assert circle(folders(graph)) == []


def test_a_planted_circle_is_found(tmp_path: Path) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "engine" / "__init__.py").write_text("from fedscout.engine.one import a")
    (tmp_path / "engine" / "one.py").write_text("def a():\n    from fedscout.engine.two import b")
    (tmp_path / "engine" / "two.py").write_text("from . import three")
    (tmp_path / "engine" / "three.py").write_text("from fedscout.engine import a")
    (tmp_path / "search" / "four.py").write_text("from fedscout.engine import a")
    found = arrows(tmp_path)
    assert found["fedscout.search.four"] == {"fedscout.engine.one"}
    assert sorted(circle(found)) == [f"fedscout.engine.{name}" for name in ("one", "three", "two")]
