"""Timed rounds, and peer programs that run the same benchmark task.

Each peer is a program that prints one line of JSON; it and its child processes are killed afterwards. They share
`peers/work.py`.

- `bare-loop`: plain PyTorch, one process, one thread: the cost of a loop over clients without any framework.
- `flower`: Flower's simulation, with as many actors as fedscout has hosts.
- `pfl`: pfl-research's simulation in one process. Its requirements may conflict with fedscout's, so it has an
environment of its own, whose interpreter the variable FEDSCOUT_PFL_PYTHON names.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pydantic import BaseModel, Field, ValidationError, computed_field

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages.calls import Session
from fedscout.engine.runtime.processes import MARK, end_marked
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.experiments.timings.peers.work import Task
from fedscout.strategies import StrategySpec

FIGURES = ("seconds_per_round", "median_seconds_per_round", "min_seconds_per_round")


def run_rounds(
    grid: Callable[[Session], Any],
    strategy: StrategySpec,
    num_clients: int,
    training: LocalTraining,
    num_rounds: int,
    on_round: Callable[[int], None],
    num_scored: int | None = None,
) -> Trial:
    """Return one trial, scored on training rows and driven from this process like a trial task.

    Args:
        grid: Returns the grid of a session.
        strategy: The strategy.
        num_clients: Clients that train in a round.
        training: Local training of the clients.
        num_rounds: Number of rounds.
        on_round: Called after each round.
        num_scored: Clients that score each model; None for all.

    Raises:
        RuntimeError: If the trial fails.
    """
    from fedscout.engine.trials.trial import run_trial

    settings = TrialSettings(
        strategy=strategy,
        num_rounds=num_rounds,
        num_sampled=num_clients,
        session=Session(training=training, evaluate_on="train", test_fraction=0.0, num_scored=num_scored),
    )
    trial = run_trial(settings, grid(settings.session), on_round=on_round)
    if trial.status == "failed":
        raise RuntimeError(f"{strategy} failed: {trial.error}")
    return trial


class RoundTimes(BaseModel, frozen=True):
    """Round times of one program on one task.

    Attributes:
        round_seconds: Duration of every round. Under other load, the minimum is the least affected.
        accuracy: After the last round, as evidence that the work was done.
    """

    round_seconds: tuple[float, ...] = Field(min_length=1)
    accuracy: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def seconds_per_round(self) -> float:
        """Mean duration of a round."""
        return fmean(self.round_seconds)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def median_seconds_per_round(self) -> float:
        """Median duration of a round."""
        return median(self.round_seconds)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def min_seconds_per_round(self) -> float:
        """Minimum duration of a round."""
        return min(self.round_seconds)

    def times(self, other: RoundTimes) -> dict[str, float]:
        """Return the ratio of round durations to those of another program, by each of the three figures."""
        return {name: getattr(self, name) / getattr(other, name) for name in FIGURES}


PFL_PYTHON = "FEDSCOUT_PFL_PYTHON"

PROGRAMS = Path(__file__).parent / "peers"

ENVIRONMENT = {
    "FLWR_LOG_LEVEL": "ERROR",
    "FLWR_TELEMETRY_ENABLED": "0",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # so that Ray listens on loopback alone, as it does there
    "RAY_USAGE_STATS_ENABLED": "0",
    "SPT_NOENV": "1",  # or Ray's agents would write their title over their environment, and the mark in it
}
"""One thread per process, no GPU, no log messages, no usage statistics."""

NOT_INHERITED = ("PYTHON", "RAY_", "VIRTUAL_ENV")
"""Prefixes of variables that configure this program; a peer runs with its own defaults."""

LIBRARY_MISSING = ("ModuleNotFoundError:", "ImportError:")


@dataclass(frozen=True)
class Peer:
    """A program to compare with.

    Attributes:
        name: Display name.
        module: Its file in the folder of peers.
        install: How to install it.
        python_variable: Environment variable with its interpreter; None if it runs in this environment.
    """

    name: str
    module: str
    install: str
    python_variable: str | None = None

    def python(self) -> Path | None:
        """Return its interpreter; None if the variable is not set."""
        interpreter = sys.executable if self.python_variable is None else os.environ.get(self.python_variable)
        return Path(interpreter).expanduser().absolute() if interpreter else None


PEERS = (
    Peer("bare-loop", "bare_loop", "pip install torch"),
    Peer("flower", "flower_simulation", "pip install 'fedscout[peers]'"),
    Peer(
        "pfl",
        "pfl_simulation",
        f"pip install 'pfl[pytorch]' in an environment of its own, and {PFL_PYTHON}=/path/to/its/python",
        PFL_PYTHON,
    ),
)


class PeerTiming(RoundTimes):
    """A peer's round times, with the versions of its libraries."""

    versions: dict[str, str]


class MissingPeer(BaseModel, frozen=True):
    """Why a peer has no result."""

    missing: str


PeerResult = PeerTiming | MissingPeer


def run_peer(peer: Peer, task: Task, seconds: float) -> PeerResult:
    """Return the timing of a peer, which is killed with its child processes after the time limit."""
    python = peer.python()
    if python is None:
        return MissingPeer(missing=f"not installed: {peer.install}")
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / PROGRAMS.name).symlink_to(PROGRAMS)  # so that it finds the peers, and nothing else of ours
        command = [str(python), "-m", f"{PROGRAMS.name}.{peer.module}", *task.arguments()]
        out, err = folder / "out", folder / "err"
        try:
            code = _run(command, folder, out, err, seconds)
        except OSError as error:
            return MissingPeer(
                missing=f"{peer.python_variable} must name a Python, got {str(python)!r}: {error.strerror}"
            )
        if code is None:
            return MissingPeer(missing=f"no result within {seconds:g} s")
        last_line = next((line for line in reversed(err.read_text(errors="replace").splitlines()) if line.strip()), "")
        if code != 0:
            reason = f"it exited with code {code}: {last_line or 'nothing'}"
            is_installed = not last_line.startswith(LIBRARY_MISSING)
            return MissingPeer(missing=reason if is_installed else f"not installed ({last_line}): {peer.install}")
        lines = out.read_text(errors="replace").splitlines()
    answer = next((line for line in reversed(lines) if line.startswith("{")), "{}")
    try:
        return PeerTiming.model_validate_json(answer)
    except ValidationError:
        return MissingPeer(missing=f"its output contains no round times: {answer}")


def _run(command: list[str], folder: Path, out: Path, err: Path, seconds: float) -> int | None:
    """Return a command's exit code, or None after the time limit; all its processes are killed."""
    mark = secrets.token_hex(16)
    with out.open("wb") as output, err.open("wb") as errors:
        process = subprocess.Popen(  # noqa: S603  # one of the programs beside this file
            command,
            cwd=folder,
            env=_environment(folder, mark, on_gpu="cuda" in command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        end_marked(mark)  # Ray's daemons are in groups of their own


def _environment(folder: Path, mark: str, on_gpu: bool) -> dict[str, str]:
    """Return the environment of a peer: all its files lie in the folder, and GPUs are hidden unless it uses them."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    folders = {"PYTHONPATH": str(folder), "RAY_TMPDIR": str(folder), "TMPDIR": str(folder), MARK: mark}
    return inherited | ENVIRONMENT | folders | ({} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""})
