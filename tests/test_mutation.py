"""Small faults that are put into a module, and whether its tests notice them."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.mutation import faults, is_noticed, with_fault

SOURCE = """def f(x: int | None = None) -> int:
    y = x < -a or not b
    x += c[d]
    g(True)
    return 3"""
FAULTY = {
    2: ["y = x < +a or not b", "y = x < -a and (not b)", "y = x < -a or b", "y = x <= -a or not b"],
    **{3: ["pass", "x -= c[d]"], 4: ["g(False)", "pass"], 5: ["return", "return 2", "return 4"]},
}


def test_each_fault_is_one_change_of_one_line() -> None:
    lines, changed = ast.unparse(ast.parse(SOURCE)).splitlines(), {}
    for number in range(len(list(faults(ast.parse(SOURCE))))):
        text, words = with_fault(SOURCE, number)
        ((place, found),) = [(i, new) for i, new in enumerate(text.splitlines(), 1) if new != lines[i - 1]]
        assert words.startswith(f"{place}: ")
        changed.setdefault(place, []).append(found.strip())
    assert {place: sorted(found) for place, found in changed.items()} == FAULTY


def test_a_fault_is_noticed_where_a_test_fails(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def one():\n    return 1\n")
    (tmp_path / "test_own.py").write_text("from own import one\n\n\ndef test_one():\n    assert one() == 1\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    assert not is_noticed(tmp_path, ["test_own.py"], 60)
    (tmp_path / "own.py").write_text("def one():\n    return 10\n")
    assert is_noticed(tmp_path, ["test_own.py"], 60)
