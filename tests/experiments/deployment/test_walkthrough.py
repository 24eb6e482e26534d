"""The commands that docs/real_federation.md prints, run as they stand there, in their order, in an empty folder."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.experiments.cli.processes import REPOSITORY
from tests.experiments.deployment.superlink import RUN_SECONDS, Started, free_port

pytestmark = [pytest.mark.stress, pytest.mark.timeout(600)]

PAGE = REPOSITORY / "docs" / "real_federation.md"
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STAYS = ("flower-superlink", "flower-supernode")
"""What the page has in a terminal each."""

READY = {"flower-superlink": r"Uvicorn running", "flower-supernode": r"SuperNode ID"}


def commands() -> Iterator[str]:
    """Yield the page's commands, on ports that are free here."""
    ports = {port: str(free_port()) for port in ("8000", "9094", "9095")}
    for block in SHELL_BLOCK.findall(PAGE.read_text()):
        for line in block.splitlines():
            port = " --port 8000" if line.startswith("flower-superlink") else ""
            yield re.sub(r"\b(8000|9094|9095)\b", lambda found: ports[found[0]], f"{line}{port}")


def test_a_newcomer_gets_from_a_study_to_a_model_of_two_nodes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("FLWR_HOME", "RAY_ADDRESS")},
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY / "src"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_LOG_LEVEL": "INFO",
    }
    ran, output = [], ""
    with ExitStack() as stack:
        for number, line in enumerate(commands()):
            started = Started(["bash", "-c", line], environment, tmp_path / f"{number}.log")
            stack.callback(started.kill)
            program = line.split()[0]
            ran.append(program)
            if program in STAYS:
                started.wait_for(READY[program])
            else:
                assert started.wait(RUN_SECONDS) == 0, f"{line}\n{started.text()}"
            output = started.text()
    assert ran == ["fedscout", "fedscout", "mkdir", "printf", *STAYS, "flower-supernode", "flwr", "python"]
    assert "round_accuracy" in output
    assert (tmp_path / "wine_app-out" / "model.safetensors").is_file()
