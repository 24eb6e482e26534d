"""Small faults that are put into a module, and whether its tests notice them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation import faults, is_noticed, with_fault

BODY = "def f(x: int | None = None) -> int:\n    'Doc.'\n"


@pytest.mark.parametrize(
    ("line", "faulty"),
    [
        ("return x", {"return"}),
        (
            "y = x < -a or not b",
            {"y = x <= -a or not b", "y = x < +a or not b", "y = x < -a and (not b)", "y = x < -a or b"},
        ),
        ("x += c[d]", {"x -= c[d]", "pass"}),
        ("g(True)", {"g(False)", "pass"}),
        ("h = 3", {"h = 4", "h = 2"}),
    ],
)
def test_each_fault_is_one_change_of_one_line(line: str, faulty: set[str]) -> None:
    source = f"{BODY}    {line}\n"
    found = [with_fault(source, number) for number in range(len(list(faults(ast.parse(source)))))]
    assert sorted(text.splitlines()[-1].strip() for text, _ in found) == sorted(faulty)
    assert all(text.splitlines()[:2] == ast.unparse(ast.parse(source)).splitlines()[:2] for text, _ in found)
    assert all(words.startswith("3: ") and words.endswith(line) for _, words in found)


def test_a_fault_is_noticed_where_a_test_fails(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def one():\n    return 1\n")
    (tmp_path / "test_own.py").write_text("from own import one\n\n\ndef test_one():\n    assert one() == 1\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    assert not is_noticed(tmp_path, ["test_own.py"], 60)
    (tmp_path / "own.py").write_text("def one():\n    return 10\n")
    assert is_noticed(tmp_path, ["test_own.py"], 60)
