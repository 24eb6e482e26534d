"""The command line in this process: fast, and with everything that a command changes put back."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedscout.experiments.cli.main import main

SMALL = (
    "engine.grid=local",
    "federation.dataset=wine",
    "federation.num_clients=4",
    "training.num_rounds=2",
    "search.budget=3",
    "search.generation_size=2",
    "search.confirmation_seeds=2",
    "search.tuned_baseline=false",
    "detection.outlier_repetitions=2",
    "detection.outlier_min_flags=2",
)


STRATEGY = """
from flwr.serverapp.strategy import FedAvg
from my_factor import FACTOR


class Scaled(FedAvg):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        for name in arrays:
            arrays[name] = type(arrays[name])(arrays[name].numpy() * FACTOR)
        return arrays, metrics
"""
"""A user's own: FedAvg whose mean is multiplied by a factor of another module."""


_PROGRESS = re.compile(
    r"fedscout: (measuring heterogeneity|running trials|"
    r"(generation \d+|tuning FedAvg|confirmation): .*; \d+/\d+ trials)\n"
)


def without_progress(err: str) -> str:
    """Return what a command says on standard error, but for how far a study is."""
    return _PROGRESS.sub("", err)


@dataclass(frozen=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def warnings(self) -> str:
        """Standard error without the lines of progress."""
        return without_progress(self.err)

    @property
    def ok(self) -> Done:
        """This, of a command that succeeded."""
        assert self.code == 0, self.err
        return self

    @property
    def silent(self) -> Done:
        """This, of a command that succeeded and wrote nothing to standard error."""
        assert (self.code, self.err) == (0, "")
        return self

    @property
    def document(self) -> Any:
        """The JSON that is alone on standard output, of a command that succeeded."""
        return parsed(self.ok.out)

    def refuses(self, subject: str = "", *names: str) -> str:
        """Hold that this is one line on a subject with these names, exit code 2 and nothing else; return the line."""
        assert (self.code, self.out, len(self.err.splitlines())) == (2, "", 1), self
        line = self.err.rstrip("\n")
        assert line.startswith(f"fedscout: {subject}"), line
        assert not [name for name in names if name not in line], line
        return line


def parsed(text: str) -> Any:
    """Return JSON, which has no NaN and the like."""
    return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


def exit_code(*arguments: str | Path) -> int:
    """Run `fedscout` with these arguments in this process."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code)


Cli = Callable[..., Done]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Return a function that runs `fedscout` with these arguments in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    environment = dict(os.environ)
    flower = logging.getLogger("flwr")
    kept = flower.handlers[:], flower.propagate

    def run(*arguments: str | Path) -> Done:
        capfd.readouterr()
        code = exit_code(*arguments)
        out, err = capfd.readouterr()
        assert not re.search(r"^\S+:\d+: \w*Warning\b", err, re.MULTILINE), err  # no library's warning reaches a user
        return Done(code, out, err)

    yield run
    flower.handlers[:], flower.propagate = kept
    os.environ.clear()
    os.environ.update(environment)
