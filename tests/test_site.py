"""The site of the documentation: built without the network, strict on links, with everything that can be asked for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import fedscout
from fedscout.experiments.cli.program import app
from fedscout.experiments.config import known_keys
from tests.commands import REPOSITORY, ran

CONFIG = REPOSITORY / "mkdocs.yml"
LOADED = re.compile(r"<(?:script|img|iframe|source|video|audio|object|embed)\b[^>]*?(?:src|data)=\"([^\"]*)\"")
LINKED = re.compile(r"<link\b[^>]*>")
IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?([^\"')\s]+)")
OUTSIDE = re.compile(r"^(?:https?:)?//")

pytestmark = pytest.mark.slow


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    nobody = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment = {"PYTHONPATH": str(REPOSITORY / "src"), "NO_MKDOCS_2_WARNING": "1", **nobody}
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", site)
    return ran(*command, **environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(CONFIG, folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r": ([\w/]+\.md)$", CONFIG.read_text(), re.MULTILINE))
    assert {page.name for page in (REPOSITORY / "docs").glob("*.md")} <= named


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


def test_the_reference_is_complete(site: Path) -> None:
    commands, keys, python = (
        (site / "reference" / f"{page}.html").read_text() for page in ("commands", "keys", "python")
    )
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            assert all(f"<code>{option}</code>" in commands for option in parameter.opts if option[0] == "-"), name
    assert all(f"<code>{key}</code>" in keys for key in known_keys())
    assert all(f'id="{name.lower()}"' in python for name in fedscout.__all__)
