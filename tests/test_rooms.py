"""The house in order: every file lies in a room, imports go to rooms above their own in the list, no circle of files.

All imports count, also those in functions and for type checks. A name that a package's `__init__` hands on counts as
imported from the file that defines it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ROOMS = (
    "engine",
    "engine/runtime",
    "engine/model",
    "engine/metrics",
    "engine/contracts",
    "engine/data",
    "engine/messages",
    "engine/training",
    "engine/client",
    "engine/grid",
    "engine/trials",
    "engine/nodes",
    "detectors",
    "detectors/statistics",
    "detectors/skew",
    "detectors/outliers",
    "detectors/detection",
    "strategies",
    "strategies/selection",
    "strategies/aggregation",
    "strategies/methods",
    "strategies/methods/servers",
    "strategies/methods/clients",
    "strategies/methods/personal",
    "strategies/methods/groups",
    "strategies/space",
    "search",
    "search/language_model",
    "search/recommenders",
    "search/searchers",
    "search/confirmation",
    "search/study",
    "experiments",
    "experiments/federations/datasets",
    "experiments/federations/datasets/texts",
    "experiments/federations/datasets/tables",
    "experiments/federations/datasets/images",
    "experiments/federations/datasets/bearings",
    "experiments/federations/datasets/loaders",
    "experiments/federations/partitions",
    "experiments/federations/scenarios",
    "experiments/federations/models",
    "experiments/federations/models/networks",
    "experiments/federations/environments",
    "experiments/federations/assembly",
    "experiments/federations/description",
    "experiments/federations/embeddings",
    "experiments/config",
    "experiments/trained",
    "experiments/studies",
    "experiments/studies/sweeps",
    "experiments/studies/settings_tables",
    "experiments/deployment",
    "experiments/reports",
    "experiments/reports/exports",
    "experiments/reports/page/pictures",
    "experiments/reports/page",
    "experiments/agents",
    "experiments/grids",
    "experiments/suites",
    "experiments/benchmarks/peers",
    "experiments/benchmarks",
    "experiments/published",
    "experiments/cli",
)
"""A room rests on those above it; the files directly in a package or in a folder of rooms are its ground floor."""

PACKAGES = sorted({room.split("/")[0] for room in ROOMS})


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
    path = files[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                inside = package.split(".")
                base = ".".join([*inside[: len(inside) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                if f"{base}.{alias.name}" in files:
                    yield f"{base}.{alias.name}", None
                elif base in files:
                    yield base, alias.name


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

    return {
        module: {defined_in(*found) for found in imports(module, files)} - {module}
        for module in files
        if module not in handed_on
    }


def room_of(module: str) -> str:
    """Return the folder of a file's module."""
    return module.removeprefix("fedscout.").rpartition(".")[0].replace(".", "/")


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of a circle; none if there is none."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        waiting = [(start, iter(sorted(graph[start])))] if start not in done else []
        while waiting:
            module, rest = waiting[-1]
            if len(path) < len(waiting):
                path.append(module)
            following = next(rest, None)
            if following is None:
                done.add(module)
                waiting.pop()
                path.pop()
            elif following in path:
                return path[path.index(following) :]
            elif following in graph and following not in done:
                waiting.append((following, iter(sorted(graph[following]))))
    return []


def test_every_file_lies_in_a_room_of_the_list() -> None:
    graph = arrows(REPOSITORY)
    assert {room_of(module) for module in graph} == {*ROOMS}


def test_a_room_rests_on_those_above_it() -> None:
    place = {room: number for number, room in enumerate(ROOMS)}
    upwards = [
        f"{module} imports {target}"
        for module, targets in arrows(REPOSITORY).items()
        for target in sorted(targets)
        if place[room_of(target)] > place[room_of(module)]
    ]
    assert upwards == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(arrows(REPOSITORY)) == []


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
