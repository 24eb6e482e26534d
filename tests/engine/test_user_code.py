"""The files of a user's own code are found by its imports, and what is in them decides."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedscout.engine.user_code import code_digests, is_own


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules on the import path; what is imported from it is forgotten."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        path = folder / f"{name.replace('__dot__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()


def test_all_that_it_imports_of_the_users_own_counts(folder: Path) -> None:
    write(
        folder,
        first_one="import json\nimport numpy\nimport fedscout\ndef late():\n    from kit_two import deep\n",
        kit_two__dot____init__="from .near import thing\n",
        kit_two__dot__near="import first_one\nfrom . import beside, nothing\nthing = 1\n",
        kit_two__dot__beside="",
        kit_two__dot__deep="from .sub import leaf",
        kit_two__dot__sub__dot__leaf="",
        kit_two__dot__unused="",
        unused="",
    )
    found = code_digests("first_one:Thing")
    names = ("__init__", "beside", "deep", "near", "sub/leaf")
    assert found.keys() == {"first_one.py", *(f"kit_two/{name}.py" for name in names)}
    assert "first_one" not in sys.modules
    assert not [name for name in sys.modules if name.startswith("kit_two")]
    assert code_digests("kit_two.deep:x").keys() == found.keys()


@pytest.mark.parametrize("edited", ["outer_mod", "inner_mod"])
def test_an_edit_anywhere_in_it_is_another_code(folder: Path, edited: str) -> None:
    write(folder, outer_mod="import inner_mod\n", inner_mod="x = 1\n", other_mod="")
    before = code_digests("outer_mod:X")
    write(folder, other_mod="y = 1\n")
    assert code_digests("outer_mod:X") == before
    with (folder / f"{edited}.py").open("a") as file:
        file.write("x = 2\n")
    after = code_digests("outer_mod:X")
    assert [name for name in before if after[name] != before[name]] == [f"{edited}.py"]


def test_the_place_of_the_folder_does_not_count(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        write(tmp_path / name, same_code="x = 1\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(tmp_path / name)
            found.append(code_digests("same_code:X"))
    assert found[0] == found[1] != {}


def test_of_an_imported_module_the_code_that_runs_counts(folder: Path) -> None:
    """Until it is imported again."""
    write(folder, running="x = 1\n")
    module = importlib.import_module("running")
    before = code_digests("running:X")
    write(folder, running="x = 22\n")
    assert code_digests("running:X") == before
    importlib.reload(module)
    assert code_digests("running:X") != before


@pytest.mark.parametrize("path", ["nowhere:X", "nowhere.at.all:X", "os.path.nothing:X", "sys:exit"])
def test_no_module_no_code(path: str) -> None:
    assert code_digests(path) == {}


def test_what_is_the_users_own(folder: Path) -> None:
    write(folder, my_own="", broken_own="def (")
    assert is_own("my_own")
    assert list(code_digests("broken_own:X")) == ["broken_own.py"]
    assert not any(map(is_own, ["os", "antigravity", "torch.nn", "numpy", "fedscout.engine.seeds", "nowhere"]))
