"""Prints how large the program is, by package: `make size`.

Code is what is no docstring, no comment alone and not blank; imports count as code. `__init__` files count as code and
not as modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("engine", "detectors", "strategies", "search", "experiments")


@dataclass(frozen=True)
class Size:
    """Of some files.

    Attributes:
        code: Lines.
        imports: Lines of these that import.
        modules: Lines of code of each module.
    """

    code: int
    imports: int
    modules: tuple[int, ...]


def size_of(folder: Path) -> Size:
    """Return the size of the Python files below a folder."""
    code = imports = 0
    modules = []
    for path in sorted(folder.rglob("*.py")):
        own, importing = counted(path.read_text())
        code, imports = code + own, imports + importing
        if path.name != "__init__.py":
            modules.append(own)
    return Size(code, imports, tuple(modules))


def counted(source: str) -> tuple[int, int]:
    """Return the lines of code of a file, and those of them that import."""
    documented: set[int] = set()
    importing: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        documented.update(_docstring(node))
        if isinstance(node, ast.Import | ast.ImportFrom):
            importing.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code = {
        number
        for number, line in enumerate(source.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number not in documented
    }
    return len(code), len(code & importing)


def _docstring(node: ast.AST) -> Iterator[int]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def main() -> None:
    """Print a table."""
    print(f"{'':12} {'modules':>8} {'code':>8} {'median':>7} {'imports':>8}")
    sizes = {name: size_of(REPOSITORY / name) for name in (*PACKAGES, "tests")}
    whole = Size(
        sum(sizes[name].code for name in PACKAGES),
        sum(sizes[name].imports for name in PACKAGES),
        tuple(own for name in PACKAGES for own in sizes[name].modules),
    )
    for name, size in {**sizes, "packages": whole}.items():
        share = f"{100 * size.imports / size.code:.1f} %"
        print(f"{name:12} {len(size.modules):8,} {size.code:8,} {median(size.modules):7.0f} {share:>8}")


if __name__ == "__main__":
    main()
