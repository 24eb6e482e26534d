"""A study folder that was edited or is half there: one line and exit code 2, or what is left of it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.cli.conftest import SMALL, Cli

READERS = {
    "app": ("app", "--out", "new", "--from"),
    "report": ("report",),
    "plot": ("plot", "--format", "svg"),
    "trials": ("trials",),
    "export": ("export", "--to", "tensorboard"),
}
FILES = ("config.json", "result.json", "report.json")
OTHERS: tuple[Any, ...] = (None, "text", 7, [], {}, [[]], [{}])
"""What may stand in the place of any value."""

GONE = object()
"""Stands for nothing at all."""

DEPTH = 4
"""To which values are edited."""

SAMPLED = 3
"""Edits of a file for a command in the quick tests, drawn from all; one where a command draws pictures.

Thirty times as many are drawn under `stress`: all would take hours.
"""
SLOWER = ("plot", "report")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished study."""
    from fedscout.experiments.cli.main import main

    folder = tmp_path_factory.mktemp("study") / "out"
    with pytest.raises(SystemExit) as ended:
        main(["run", *SMALL, "--out", str(folder)])
    assert ended.value.code == 0
    return folder


def copied(study: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(study, to))


def held_to_its_word(cli: Cli, folder: Path, tmp_path: Path, command: str) -> int:
    """Run a command over a folder: it does what it can, or says in one line why it can't; return its exit code."""
    done = cli(*READERS[command], folder)  # a traceback is no SystemExit
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    assert done.code in (0, 2), done
    if done.code == 2:
        assert (done.out, len(done.err.splitlines())) == ("", 1), done
    assert "Warning" not in done.err
    return done.code


def places(document: Any, depth: int) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values; of a list, its first."""
    inner = document.items() if isinstance(document, dict) else enumerate(document[:1])
    for key, value in inner:
        yield (key,)
        if depth > 1 and isinstance(value, dict | list):
            yield from ((key, *rest) for rest in places(value, depth - 1))


def edited(document: Any, place: tuple[Any, ...], other: Any) -> Any:
    changed = json.loads(json.dumps(document))
    holder = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = other
    if other is GONE:
        del holder[place[-1]]
    return changed


def edits(document: Any, depth: int) -> Iterator[Any]:
    """Yield the document with each of its values gone, and in turn with another in its place."""
    for place in places(document, depth):
        for other in (GONE, *OTHERS):
            yield edited(document, place, other)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("share", [1, pytest.param(30, marks=pytest.mark.stress)])
@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", FILES)
def test_an_edited_value(cli: Cli, study: Path, tmp_path: Path, name: str, command: str, share: int) -> None:
    folder = copied(study, tmp_path / "out")
    documents = [*edits(json.loads((study / name).read_text()), DEPTH)]
    wanted = share * (1 if command in SLOWER else SAMPLED)
    for document in random.Random(f"{name} {command}").sample(documents, wanted):
        (folder / name).write_text(json.dumps(document))
        held_to_its_word(cli, folder, tmp_path, command)


def test_a_place_of_a_client_has_two_numbers(cli: Cli, study: Path, tmp_path: Path) -> None:
    folder = copied(study, tmp_path / "out")
    document = json.loads((study / "report.json").read_text())
    document["centroids"] = {"0": []}
    (folder / "report.json").write_text(json.dumps(document))
    held_to_its_word(cli, folder, tmp_path, "plot")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "a list": lambda path: path.write_text("[1, 2]"),
    "nested": lambda path: path.write_text("[" * 100_000),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_file_may_be_gone_or_damaged(cli: Cli, study: Path, tmp_path: Path, damage: str, command: str) -> None:
    for name in FILES:
        folder = copied(study, tmp_path / "out")
        DAMAGES[damage](folder / name)
        held_to_its_word(cli, folder, tmp_path, command)
    folder = copied(study, tmp_path / "out")
    for path in (folder / "trials").iterdir():
        DAMAGES[damage](path)
    assert held_to_its_word(cli, folder, tmp_path, command) == (2 if command in ("trials", "export") else 0)


@pytest.mark.slow
@pytest.mark.parametrize("command", READERS)
def test_a_folder_without_its_log(cli: Cli, study: Path, tmp_path: Path, command: str) -> None:
    folder = copied(study, tmp_path / "out")
    shutil.rmtree(folder / "trials")
    wanted = 2 if command in ("trials", "export") else 0
    assert held_to_its_word(cli, folder, tmp_path, command) == wanted
    (folder / "trials").touch()
    assert held_to_its_word(cli, folder, tmp_path, command) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("command", READERS)
def test_without_its_configuration_it_is_no_study(cli: Cli, study: Path, tmp_path: Path, command: str) -> None:
    folder = copied(study, tmp_path / "out")
    (folder / "config.json").unlink()
    assert held_to_its_word(cli, folder, tmp_path, command) == 2
