"""Every command and snippet of README and docs: parsed by the real command line, its settings read, its names found.

Nothing is trained here but what takes a second. What runs in full: `tests/test_docs.py`, the walk-through of real
clients, the page on Python, the models' page.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from fedscout.experiments.cli.program import app
from fedscout.experiments.config import StudyConfig, known_keys, load_config
from fedscout.experiments.grids.experiment import read_experiment
from fedscout.experiments.sweeps.sweep import read_sweep
from tests.conftest import REPOSITORY
from tests.experiments.cli.conftest import exit_code
from tests.snippets import INLINE, PAGES, Block, arguments, blocks, commands, missing_files
from tests.test_layers import imported

NOT_AS_WRITTEN = {
    ("recommend.md", "recommend --source rules | llm | auto"): "a choice of words, not a command",
    ("sweep.md", "sweep seed=0,1,2 engine.address=auto --out s3://bucket/alpha"): "a bucket that is not there is asked",
    ("sweep.md", "run --out 's3://bucket/one"): "a bucket that is not there is asked",
}
"""Commands that no command line takes, by page and beginning: why they are written so."""

QUICK = ("keys", "strategies", "scenarios")


def not_as_written(page: str, command: str) -> tuple[str, str] | None:
    return next((key for key in NOT_AS_WRITTEN if key[0] == page and command.startswith(key[1])), None)


PARSED = [found for found in commands() if not_as_written(*found) is None]


def parsed(command: str) -> tuple[str, click.Context]:
    """Return a command's name and what the real command line makes of its arguments, without running it."""
    group = typer.main.get_command(app)
    context, rest, name = click.Context(group, info_name="fedscout"), arguments(command), ""
    while isinstance(group, click.Group):
        name, group, rest = group.resolve_command(context, rest)
    return str(name), group.make_context(name, rest, parent=context)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory with the modules that the pages have one write."""
    for block in blocks():
        if found := re.match(r"# (?:file: )?(\w+\.py)$", block.text.partition("\n")[0]):
            (tmp_path / found[1]).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [file.stem for file in tmp_path.glob("*.py")]:
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command"), PARSED, ids=[f"{page}: {command[:60]}" for page, command in PARSED])
def test_a_command_is_one_and_its_settings_are_read(page: str, command: str, folder: Path) -> None:
    for file in missing_files(arguments(command), folder):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("seed: 1\n")
    name, context = parsed(command)
    settings = context.params.get("settings") or []
    read_sweep(settings) if name == "sweep" else load_config(settings)


def test_what_is_not_as_written_is_still_there() -> None:
    found = {not_as_written(*each) for each in commands()} - {None}
    assert found == set(NOT_AS_WRITTEN)


def test_commands_are_found_wherever_a_shell_would_run_them() -> None:
    shown = "A=1 fedscout run x=1  # why\nray exec 'cd ~/fedscout && fedscout run \\\n  y=2'\nfedscout: a message\n"
    assert [*Block("", "", shown).commands] == ["run x=1", "run    y=2"]
    assert len(PARSED) > 100


def test_commands_in_sentences_exist() -> None:
    groups: Any = typer.main.get_command(app)
    known = {*groups.commands, *(f"bench {name}" for name in groups.commands["bench"].commands)}
    for page in PAGES:
        for named in INLINE.findall(page.read_text()):
            assert named.removeprefix("fedscout ") in known, (page.name, named)


@pytest.mark.parametrize("command", sorted({command for _, command in PARSED if command.split()[0] in QUICK}))
def test_a_quick_command_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*arguments(command)) == 0
    shown = capsys.readouterr().out
    assert all(f"`{key}`" in shown for key in known_keys()) if command == "keys" else shown


@pytest.mark.parametrize("block", [one for one in blocks() if one.language == "yaml"], ids=lambda block: block.page)
def test_yaml_is_a_configuration(block: Block, folder: Path) -> None:
    document = yaml.safe_load(block.text)
    (folder / "shown.yaml").write_text(block.text)
    if "rows" in document:
        assert read_experiment(folder / "shown.yaml").cells()
    elif set(document) <= {key.partition(".")[0] for key in known_keys()}:
        assert isinstance(load_config(["shown.yaml"]), StudyConfig)
    else:
        pytest.fail(f"{block.page} shows YAML that is no configuration: {[*document]}")


@pytest.mark.parametrize("block", [one for one in blocks() if one.language == "python"], ids=lambda block: block.page)
def test_python_compiles_and_its_names_exist(block: Block) -> None:
    named = [(module, name) for _, module, name in imported(block.text, "")]
    for module, name in (*named, *(("fedscout", name) for name in re.findall(r"\bfedscout\.(\w+)", block.text))):
        found = importlib.import_module(module)
        assert name is None or hasattr(found, name) or importlib.import_module(f"{module}.{name}")


@pytest.mark.slow
def test_the_first_snippet_runs(folder: Path) -> None:
    (block,) = [one for one in blocks() if (one.page, one.language) == ("index.md", "python")]
    scope: dict[str, object] = {}
    exec(compile(block.text, "index.md", "exec"), scope)
    assert getattr(scope["study"], "confirmation").sentence  # noqa: B009


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_pages_beside_docs_lead_somewhere(name: str) -> None:
    """Those within docs are followed when the site is built."""
    links = re.findall(r"\]\(([^)#\s]+)", (REPOSITORY / name).read_text())
    assert [link for link in links if "://" not in link and not (REPOSITORY / link).exists()] == []


@pytest.mark.slow
def test_make_targets_exist() -> None:
    rules = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = {name for one in blocks() for name in re.findall(r"^make ([\w-]+)", one.text, re.MULTILINE)}
    named |= {name for page in PAGES for name in re.findall(r"`make ([\w-]+)`", page.read_text())}
    assert named
    assert named <= rules
