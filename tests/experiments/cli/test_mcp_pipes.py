"""`fedscout mcp` whose pipes are closed ends in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")
pytestmark = pytest.mark.slow

COMMAND = f"exec {sys.executable} -m fedscout.experiments.cli.main mcp"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}},
}


@pytest.mark.parametrize("closed", ["<&-", ">&- </dev/null"])
def test_a_pipe_that_was_never_open(tmp_path: Path, closed: str) -> None:
    command = ["sh", "-c", f"{COMMAND} {closed}"]
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_a_pipe_whose_reader_is_gone(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    server = subprocess.Popen(
        ["sh", "-c", COMMAND], cwd=tmp_path, stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    os.close(reader)
    _, err = server.communicate(json.dumps(HELLO).encode() + b"\n", timeout=60)
    assert (server.returncode, len(err.splitlines())) == (1, 1)
