"""What the gallery says of a federation is what its command finds: two of the six are run as they stand there.

Accuracies may differ by a point, as results have the same bits on one kind of CPU alone; verdict and strategy may not.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.cli.conftest import exit_code
from tests.snippets import arguments, commands

PAGE = "gallery.md"
COMMANDS = {command.rpartition("/")[2]: command for page, command in commands() if page == PAGE}
TEXT = next(path for path in (Path(__file__).parents[1] / "docs").glob(PAGE)).read_text()


def told(section: str, pattern: str) -> float:
    """Return a number that the page tells below a heading, in percent."""
    text = re.sub(r"\s+", " ", TEXT.partition(f"## {section}\n")[2].partition("\n## ")[0])
    found = re.search(pattern, text)
    assert found, pattern
    return float(found[1]) / 100


@pytest.fixture
def confirmed(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    given = arguments(COMMANDS[request.param])
    given[given.index("--out") + 1] = str(tmp_path / "out")
    assert exit_code(*given, "--json") == 0
    confirmation: dict[str, Any] = json.loads(capsys.readouterr().out)["confirmation"]
    return confirmation


def mean(confirmation: dict[str, Any], role: str) -> float:
    (scores,) = (one["own"] for one in confirmation["contestants"] if one["role"] == role)
    return float(sum(scores) / len(scores))


def test_each_row_of_the_table_leads_to_a_command() -> None:
    sections = re.findall(r"^\| \[[^]]*\]\(#([\w-]+)\)", TEXT, re.MULTILINE)
    headings = [re.sub(r"\W+", "-", name).lower() for name in re.findall(r"^## (.*)$", TEXT, re.MULTILINE)]
    assert sections == headings
    assert len(COMMANDS) == len(sections) == 6


@pytest.mark.stress
@pytest.mark.parametrize("confirmed", ["wine"], indirect=True)
def test_nothing_is_gained_where_the_page_says_so(confirmed: dict[str, Any]) -> None:
    assert confirmed["verdict"] == "no difference"
    assert 1 - mean(confirmed, "fedavg") < confirmed["design"]["resolution"] / 2  # of one test row
    assert mean(confirmed, "fedavg") == pytest.approx(told("Nothing to gain", r"FedAvg reaches ([\d.]+) %"), abs=0.01)


@pytest.mark.stress
@pytest.mark.parametrize("confirmed", ["attacked"], indirect=True)
def test_attackers_are_met_as_the_page_says(confirmed: dict[str, Any]) -> None:
    assert confirmed["verdict"] == "better"
    assert confirmed["contestants"][0]["strategy"] == "rfa"
    assert mean(confirmed, "challenger") == pytest.approx(told("Two attackers", r"It reaches ([\d.]+) %"), abs=0.01)
    assert mean(confirmed, "fedavg") == pytest.approx(told("Two attackers", r"FedAvg ([\d.]+) %"), abs=0.01)
