"""A user's own algorithm reaches a process that has never heard of its module."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.messages.calls import Session

READ = "import pickle, sys; session = pickle.load(sys.stdin.buffer); print(session.algorithm, session.seed)"


def test_it_is_imported_from_where_it_was(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "own_algorithms"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "anchors.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedscout.engine.contracts.algorithm import ClientAlgorithm\n"
        "@dataclass(frozen=True)\n"
        "class Anchored(ClientAlgorithm):\n"
        "    strength: float\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from own_algorithms.anchors import Anchored  # type: ignore[import-not-found]

    sent = pickle.dumps(Session(seed=7, algorithm=Anchored(0.5)))
    told = subprocess.run([sys.executable, "-c", READ], input=sent, capture_output=True, check=True, cwd="/")
    assert told.stdout.decode().split() == ["Anchored(strength=0.5)", "7"]


def test_one_of_this_program_travels_as_it_is() -> None:
    session = Session(algorithm=ClientAlgorithm())
    assert session.__getstate__() == session.__dict__
    assert pickle.loads(pickle.dumps(session)) == session
