"""Imports go down the layers only, and the command answers before anything heavy is loaded."""

from __future__ import annotations

import ast
import resource
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

from tests.commands import REPOSITORY, loaded_by, ran

LAYERS = {"engine": 0, "detectors": 1, "strategies": 1, "search": 2, "experiments": 3}
HEAVY = {"torch", "ray", "pandas", "sklearn", "pyarrow", "scipy", "flwr", "optuna", "openai"}


def imported(source: str, package: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield line, module and name of every import in a file of `package`, wherever in the file it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            yield from ((node.lineno, module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"}:
                yield node.lineno, str(node.args[0].value), None


def violations(root: Path) -> list[str]:
    """Return one line per import under `root` that does not go down a layer of `fedscout`."""
    found = []
    for layer, height in LAYERS.items():
        for file in sorted((root / layer).rglob("*.py")):
            package = ".".join(("fedscout", *file.relative_to(root).parent.parts))
            for line, module, _ in imported(file.read_text(), package):
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
    ("layer", "source", "is_allowed"),
    [
        ("engine", "import fedscout.strategies", False),
        ("engine", "from ...strategies import space", False),
        ("engine", "from engine.errors import EngineError", False),
        ("strategies", "class A:\n    def f(self):\n        import fedscout.search", False),
        ("engine", "import importlib\nimportlib.import_module('fedscout.experiments.config')", False),
        ("experiments", "from tests.conftest import REPOSITORY", False),
        ("engine", "from . import search\nfrom .search import study\nfrom ..strategies import fedavg", True),
        ("engine", "import searching, re.search", True),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, layer: str, source: str, is_allowed: bool) -> None:
    folder = tmp_path / layer / "inner"
    folder.mkdir(parents=True)
    (folder / "planted.py").write_text(source)
    found = [line.partition(":")[0] for line in violations(tmp_path)]
    assert found == ([] if is_allowed else [f"{layer}/inner/planted.py"])


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=["import", "help"])
def test_the_command_answers_without_heavy_imports(arguments: list[str]) -> None:
    assert loaded_by(HEAVY, *arguments) == set()


def test_help_answers_in_under_seven_tenths_of_a_second() -> None:
    """The best of several runs, as the first compiles; processor seconds, as any may wait for a core."""
    start_of_command = "import sys; from fedscout.experiments.cli.main import main; sys.exit(main())"

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = ran(sys.executable, "-c", start_of_command, "--help", timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        assert "Usage" in done.stdout
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(seconds() < 0.7 for _ in range(4))
