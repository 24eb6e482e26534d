"""Optuna's own dashboard, started on what was exported and asked over HTTP."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from fedscout.experiments.reports.exports.optuna_export import export_to_optuna
from tests.experiments.reports.exports.conftest import MakeStudy

pytest.importorskip("optuna_dashboard", reason="the extra tracking is not installed")


@contextmanager
def dashboard(storage: str) -> Iterator[str]:
    """Serve the storage, and yield the server's address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = shutil.which("optuna-dashboard", path=str(Path(sys.executable).parent))
    assert program is not None
    process = subprocess.Popen(
        [program, storage, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def asked(address: str) -> Any:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return json.load(answer)
        except (URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.mark.parametrize("name", ["trials.db", "trials.log"])
def test_the_dashboard_shows_the_study(make_study: MakeStudy, tmp_path: Path, name: str) -> None:
    study = make_study("search.strategies=[fedadam,fedprox]", "search.budget=4", "search.confirmation_seeds=0")
    file = tmp_path / name
    export_to_optuna(study, file)
    with dashboard(f"sqlite:///{file}" if name.endswith(".db") else str(file)) as address:
        (summary,) = asked(f"{address}/api/studies")["study_summaries"]
        detail = asked(f"{address}/api/studies/{summary['study_id']}")
    assert summary["study_name"] == study.name
    values = {trial["number"]: trial["values"] for trial in detail["trials"] if trial["state"] == "Complete"}
    expected = [record.fitness for record in study.records if record.status == "completed"]
    assert sorted(value for (value,) in values.values()) == pytest.approx(sorted(expected))
