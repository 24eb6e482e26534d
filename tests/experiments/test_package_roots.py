"""The five packages come from one folder, or the program refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from engine.errors import ConfigurationError
from experiments.package_roots import (
    OWN_ROOT,
    PACKAGES,
    check_package_roots,
    own_packages_first,
    package_roots,
    root_conflict,
    without_precedence,
)

HOME = dict.fromkeys(PACKAGES, OWN_ROOT)


def test_this_process_takes_all_five_from_one_folder() -> None:
    assert package_roots() == HOME
    check_package_roots()


def test_no_conflict_when_all_are_at_home() -> None:
    assert root_conflict(HOME) is None


@pytest.mark.parametrize("package", PACKAGES)
def test_a_stranger_is_named_with_where_it_comes_from_and_what_is_allowed(package: str) -> None:
    sentence = root_conflict({**HOME, package: Path("/home/me/thesis")})

    assert sentence is not None
    assert f"must all come from {OWN_ROOT}" in sentence
    assert f"got {package} from /home/me/thesis." in sentence


def test_every_stranger_is_named_and_a_missing_package_is_one() -> None:
    sentence = root_conflict({**HOME, "engine": Path("/a"), "search": None})

    assert sentence is not None
    assert "engine from /a, search from nowhere" in sentence


def test_a_module_file_that_takes_the_place_of_a_package_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "search.py").write_text("raise RuntimeError('imported a namesake')")
    for name in [name for name in sys.modules if name.split(".")[0] == "search"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError, match=f"search from {tmp_path.resolve()}"):
        check_package_roots()


def test_a_package_imported_before_ours_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "search", ModuleType("search"))

    with pytest.raises(ConfigurationError, match="search from nowhere"):
        check_package_roots()


def test_a_foreign_engine_is_refused_without_importing_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engine", ModuleType("engine"))

    with pytest.raises(ImportError, match="engine from nowhere"):
        check_package_roots()


def test_only_entries_with_a_namesake_lose_their_precedence(tmp_path: Path) -> None:
    own, plain, module, package = (tmp_path / name for name in ("own", "plain", "module", "package"))
    (own / "engine").mkdir(parents=True)
    plain.mkdir()
    module.mkdir()
    (module / "search.py").touch()
    (package / "engine").mkdir(parents=True)
    path = [str(package), str(plain), str(module), str(own)]

    assert without_precedence(path, own) == [str(plain), str(own), str(package), str(module)]


def test_own_folder_joins_the_path_only_where_a_namesake_stands(tmp_path: Path) -> None:
    own, plain, module = (tmp_path / name for name in ("own", "plain", "module"))
    for folder in (own, plain, module):
        folder.mkdir()
    (module / "strategies.py").touch()

    assert without_precedence([str(plain)], own) == [str(plain)]
    assert without_precedence([str(module), str(plain)], own) == [str(plain), str(own), str(module)]


def test_the_working_directory_counts_when_the_path_names_it_by_an_empty_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "detectors").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(OWN_ROOT)])

    own_packages_first()

    assert sys.path == [str(OWN_ROOT), ""]
