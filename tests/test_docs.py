"""What the documents show is what the program does, and their site is complete; `test_snippets.py` reads every command.

Accuracies of the gallery may differ by a point, as results have the same bits on one kind of CPU alone; verdict and
strategy may not.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
import typer
from nbclient import NotebookClient

import fedscout
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.record import SCHEMA
from fedscout.experiments.cli.program import app
from fedscout.experiments.config import known_keys
from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, parse_strategy, space_of
from tests.commands import REPOSITORY, ran, ran_python
from tests.experiments.cli.conftest import SMALL, exit_code
from tests.snippets import arguments, blocks, commands

DOCS = REPOSITORY / "docs"
FILE = re.compile(r"^# file: (\S+)$", re.MULTILINE)
SETTINGS = (*SMALL, "federation.partition.alpha=1", "search.budget=4", "search.confirmation_seeds=0")


def test_log_document_names_every_column() -> None:
    documented = set(re.findall(r"`([a-z_*]+)`", (DOCS / "log.md").read_text()))
    prefixes = tuple(name.removesuffix("*") for name in documented if name.endswith("*"))
    assert [name for name in SCHEMA.names if name not in documented and not name.startswith(prefixes)] == []


def test_strategies_document_names_every_strategy_and_the_parameters_and_ranges_of_the_further_ones() -> None:
    text = (DOCS / "strategies.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", text, re.MULTILINE))
    assert [*rows] == [*CHOSEN_BY_NAME_KINDS]
    for kind, row in rows.items():
        spec = parse_strategy(kind)
        assert all(f"`{name}`" in row for name in spec.parameters()), kind
        assert spec.paper in row
        space = space_of(Cohort(10, 10, 0.1, server_rows=None, server_labels=True), kinds=[kind])
        for name, found in space.parameters_of(kind).items():
            default, low, high = re.search(rf"`{name}`(?: [^\d\s]+)? (\S+), (\S+) … ([^\s;]+)", row).groups()
            assert (float(default), float(low)) == (spec.parameters()[name], found.low), name
            assert high == "n" or float(high) == found.high, name
    assert all(f"`{kind}`" in text for kind in BUILT_IN_KINDS)


@pytest.mark.stress
def test_custom_strategy_example_runs_as_written(tmp_path: Path) -> None:
    for block in blocks():
        if block.page == "custom_strategy.md" and (name := FILE.search(block.text)):
            (tmp_path / name[1]).write_text(block.text)
    chosen, searched = (command for page, command in commands() if page == "custom_strategy.md")
    for number, command in enumerate((chosen, searched)):
        program = ("-m", "fedscout", *command.split(), *SETTINGS, "--out", str(number))
        ran = ran_python(*program, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        log = read_trials(tmp_path / str(number))
        assert (log["status"] == "completed").all(), log["error"].tolist()
        is_own = log["strategy"] == "damped:DampedAvg"
        assert is_own.any() if command == searched else is_own.all()


# The gallery: two of its six commands are run as they stand there.


GALLERY = {command.rpartition("/")[2]: command for page, command in commands() if page == "gallery.md"}
GALLERY_TEXT = (DOCS / "gallery.md").read_text()


def test_each_row_of_the_gallery_leads_to_a_command() -> None:
    sections = re.findall(r"^\| \[[^]]*\]\(#([\w-]+)\)", GALLERY_TEXT, re.MULTILINE)
    headings = [re.sub(r"\W+", "-", name).lower() for name in re.findall(r"^## (.*)$", GALLERY_TEXT, re.MULTILINE)]
    assert sections == headings
    assert len(GALLERY) == len(sections) == 6


@pytest.mark.stress
@pytest.mark.parametrize(
    ("name", "section", "chosen", "scores"),
    [
        ("wine", "Nothing to gain", None, {"fedavg": r"FedAvg reaches ([\d.]+) %"}),
        ("attacked", "Two attackers", "rfa", {"challenger": r"It reaches ([\d.]+) %", "fedavg": r"FedAvg ([\d.]+) %"}),
    ],
)
def test_the_gallery_tells_what_its_command_finds(
    name: str, section: str, chosen: str | None, scores: Mapping[str, str], tmp_path: Path, capsys: Any
) -> None:
    given = arguments(GALLERY[name])
    given[given.index("--out") + 1] = str(tmp_path / "out")
    assert exit_code(*given, "--json") == 0
    confirmation = json.loads(capsys.readouterr().out)["confirmation"]
    means = {one["role"]: sum(one["own"]) / len(one["own"]) for one in confirmation["candidates"]}
    assert confirmation["verdict"] == ("better" if chosen else "no difference")
    if chosen:
        assert confirmation["candidates"][0]["strategy"] == chosen
    else:
        assert 1 - means["fedavg"] < confirmation["design"]["resolution"] / 2  # of one test row
    text = re.sub(r"\s+", " ", GALLERY_TEXT.partition(f"## {section}\n")[2].partition("\n## ")[0])
    for role, pattern in scores.items():
        assert means[role] == pytest.approx(float(re.search(pattern, text)[1]) / 100, abs=0.01)


# The notebooks run from top to bottom, in an empty folder, and leave pictures.


NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_stored_without_what_a_run_left(file: Path) -> None:
    cells = nbformat.read(file, as_version=4).cells
    assert cells[0].source.startswith("# ")
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=() if file.stem == "own_table" else pytest.mark.stress) for file in NOTEBOOKS],
    ids=lambda file: file.stem,
)
def test_a_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "src"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output for output in outputs if "<table" in str(output.get("data", {}).get("text/html", ""))]
    assert [output.text for output in outputs if output.output_type == "stream"] == []


# The site: built without the network, strict on links, with everything that can be asked for.


LOADED = re.compile(r"<(?:script|img|iframe|source|video|audio|object|embed)\b[^>]*?(?:src|data)=\"([^\"]*)\"")
LINKED = re.compile(r"<link\b[^>]*>")
IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?([^\"')\s]+)")
OUTSIDE = re.compile(r"^(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    nobody = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment = {"PYTHONPATH": str(REPOSITORY / "src"), "NO_MKDOCS_2_WARNING": "1", **nobody}
    built = ran(sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder, **environment)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r": ([\w/]+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {page.name for page in DOCS.glob("*.md")} <= named


@pytest.mark.slow
def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text()
        links = [link for link in LINKED.findall(text) if 'rel="canonical"' not in link]
        loaded = [*LOADED.findall(text), *(re.findall(r'href="([^"]*)"', "".join(links)))]
        assert [where for where in loaded if OUTSIDE.match(where)] == [], page
        assert 'class="mermaid"' not in text  # the one thing that the theme's scripts would fetch
    for styles in site.rglob("*.css"):
        assert [where for where in IN_STYLES.findall(styles.read_text()) if OUTSIDE.match(where)] == [], styles


@pytest.mark.slow
def test_the_reference_is_complete(site: Path) -> None:
    names = "commands", "keys", "python"
    shown, keys, python = ((site / "reference" / f"{name}.html").read_text() for name in names)
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            assert all(f"<code>{option}</code>" in shown for option in parameter.opts if option[0] == "-"), name
    assert all(f"<code>{key}</code>" in keys for key in known_keys())
    assert all(f'id="{name.lower()}"' in python for name in fedscout.__all__)
