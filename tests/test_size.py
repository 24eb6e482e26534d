"""How large the program may be: ceilings, which only go down."""

from __future__ import annotations

import pytest

from tests.code_size import PACKAGES, REPOSITORY, counted, size_of

CEILINGS = {"packages": 39_653, "imports": 3_580, "tests": 34_732, "timings and grids": 3_079, "modules": 179}


def test_the_program_does_not_grow() -> None:
    packages = [size_of(REPOSITORY / name) for name in PACKAGES]
    measured = [size_of(REPOSITORY / "experiments" / name) for name in ("timings", "published", "grids", "suites")]
    found = {
        "packages": sum(size.code for size in packages),
        "imports": sum(size.imports for size in packages),
        "tests": size_of(REPOSITORY / "tests").code,
        "timings and grids": sum(size.code for size in measured),
        "modules": sum(len(size.modules) for size in packages),
    }
    assert {name: size for name, size in found.items() if size > CEILINGS[name]} == {}


@pytest.mark.parametrize(
    ("source", "code", "imports"),
    [
        ("", 0, 0),
        ('"""Doc."""\n\nimport a\nfrom b import (\n    c,\n)\n\n# a comment\nx = 1  # and one\n', 5, 4),
        ('class A:\n    """Doc\n    more."""\n\n    x = """no\n    doc"""\n', 3, 0),
        ('def f() -> None:\n    """Doc."""\n    import a\n', 2, 1),
    ],
)
def test_what_is_code(source: str, code: int, imports: int) -> None:
    assert counted(source) == (code, imports)
