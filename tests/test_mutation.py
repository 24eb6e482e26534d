"""Small faults that are put into a module, and whether its tests notice them."""

from __future__ import annotations

from pathlib import Path

from tests.mutation import is_noticed, with_fault


def test_a_fault_is_noticed_where_a_test_fails(tmp_path: Path) -> None:
    source = "def one():\n    return 1\n"
    (tmp_path / "own.py").write_text(source)
    (tmp_path / "test_own.py").write_text("from own import one\n\n\ndef test_one():\n    assert one() == 1\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    assert not is_noticed(tmp_path, ["test_own.py"], 60)
    faulty, words = zip(*(with_fault(source, number) for number in range(3)), strict=True)
    assert [text.split()[2:] for text in faulty] == [["return"], ["return", "2"], ["return", "0"]]
    assert all(told.startswith("2: ") for told in words)
    (tmp_path / "own.py").write_text(faulty[1])
    assert is_noticed(tmp_path, ["test_own.py"], 60)
