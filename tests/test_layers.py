"""Imports go down the layers only, and the command answers before anything heavy is loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import REPOSITORY, loaded_by

LAYERS = {"engine": 0, "detectors": 1, "strategies": 1, "search": 2, "experiments": 3}
HEAVY = {"torch", "ray", "pandas", "sklearn", "pyarrow", "scipy", "flwr", "optuna", "openai"}


def imported_modules(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module) of every import in a file of `package`, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            yield node.lineno, ".".join((*base, *((node.module or "").split("."))))
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, str(node.module)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"}:
                yield node.lineno, str(node.args[0].value)


def violations(root: Path) -> list[str]:
    """Return one line per import under `root` that does not go down a layer of `fedscout`."""
    found = []
    for layer, height in LAYERS.items():
        for file in sorted((root / layer).rglob("*.py")):
            package = ("fedscout", *file.relative_to(root).parent.parts)
            for line, module in imported_modules(ast.parse(file.read_text()), package):
                top, target, *_ = (*module.split("."), "")
                upwards = top == "fedscout" and target != layer and LAYERS.get(target, len(LAYERS)) >= height
                if upwards or top in {"tests", *LAYERS}:
                    found.append(f"{file.relative_to(root)}:{line} imports {module}")
    return found


def test_imports_go_down_only() -> None:
    for layer in LAYERS:
        assert (REPOSITORY / "src" / "fedscout" / layer).resolve() == REPOSITORY / layer
    assert violations(REPOSITORY) == []


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("engine", "import fedscout.strategies"),
        ("engine", "from fedscout.detectors.report import Finding as f"),
        ("engine", "from ...strategies import space"),
        ("engine", "from engine.errors import EngineError"),
        ("strategies", "from fedscout.detectors import metrics"),
        ("strategies", "class A:\n    def f(self):\n        import fedscout.search"),
        ("engine", "import importlib\nimportlib.import_module('fedscout.experiments.config')"),
        ("experiments", "from tests.conftest import REPOSITORY"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, layer: str, source: str) -> None:
    folder = tmp_path / layer / "inner"
    folder.mkdir(parents=True)
    (folder / "planted.py").write_text(source)

    (only,) = violations(tmp_path)

    assert only.startswith(f"{layer}/inner/planted.py:")


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("experiments", "import fedscout.engine, fedscout.detectors.report, fedscout.search.study"),
        ("engine", "from . import search\nfrom .search import study\nfrom ..strategies import fedavg"),
        ("engine", "import searching, re.search"),
    ],
)
def test_imports_downwards_and_within_a_package_are_allowed(tmp_path: Path, layer: str, source: str) -> None:
    folder = tmp_path / layer / "inner"
    folder.mkdir(parents=True)
    (folder / "allowed.py").write_text(source)

    assert violations(tmp_path) == []


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=["import", "help"])
def test_the_command_answers_without_heavy_imports(arguments: list[str]) -> None:
    assert loaded_by(HEAVY, *arguments) == set()
