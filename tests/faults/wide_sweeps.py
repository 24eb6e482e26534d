"""A sweep of many short studies on several raylets of this machine: how quick it is, and what its head holds meanwhile.

Usage: `python -m tests.faults.wide_sweeps [--nodes 4] [--studies 1000] [--alone]`; each line printed is JSON. With
`--alone` the same studies are run by as many commands as there are nodes, which know nothing of each other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.experiments.cli.processes import REPOSITORY
from tests.experiments.sweeps.clusters import Raylets, raylets

SHORT = (
    "federation.dataset=wine",
    "federation.partition.alpha=0.1,1",
    "federation.num_clients=2,4",
    "training.num_rounds=1",
    "search.budget=1",
    "search.generation_size=1",
    "search.confirmation_seeds=0",
    "detection.outlier_repetitions=2",
    "detection.outlier_min_flags=2",
)
STUDIES_A_SEED = 4
MARKS = (25, 50, 100, 200, 300, 500, 700, 900, 980)
POLL_SECONDS = 0.5


def sweep(seeds: Sequence[int], out: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a sweep of four studies a seed."""
    chosen = f"seed={','.join(map(str, seeds))}"
    command = [sys.executable, "-m", "fedscout.experiments.cli.main", "sweep", *SHORT, chosen, *arguments]
    return subprocess.Popen(
        [*command, "--out", str(out), "--json"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def ended(folder: Path) -> list[float]:
    """Return when each finished study below a folder wrote its result."""
    return sorted(path.stat().st_mtime for path in folder.glob("*/studies/*/result.json"))


def megabytes(cluster: Raylets, command: psutil.Process) -> dict[str, int]:
    """Return what the processes of the head hold, and the mean of a worker."""
    head = next(one for one in cluster.all() if any(child.name().startswith("ray::Folder") for child in one.children()))
    (keeper,) = (child for child in head.children() if child.name().startswith("ray::Folder"))
    workers = cluster.workers()
    held = {"command": command, "server": cluster.server(), "raylet": head, "folders": keeper}
    sizes = {name: process.memory_info().rss >> 20 for name, process in held.items()}
    return {**sizes, "worker": sum(one.memory_info().rss >> 20 for one in workers) // max(1, len(workers))}


def on_cluster(num_nodes: int, num_studies: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Run one sweep over all nodes; yield what is held as it goes on, and how quick it was."""
    with raylets(num_nodes) as cluster:
        process = sweep(range(num_studies // STUDIES_A_SEED), folder / "0", f"engine.address={cluster.address}")
        command, marks = psutil.Process(process.pid), [mark for mark in MARKS if mark <= num_studies]
        with stopped(process):
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                done = len(ended(folder))
                if marks and done >= marks[0]:
                    with suppress(psutil.NoSuchProcess, StopIteration, ValueError):
                        yield {"done": done, "megabytes": megabytes(cluster, command)}
                    marks = [mark for mark in marks if mark > done]
        assert process.returncode == 0


def alone(num_nodes: int, num_studies: int, folder: Path) -> None:
    """Run the studies by commands that know nothing of each other, each in one process."""
    seeds = range(num_studies // STUDIES_A_SEED)
    with ExitStack() as stack:
        commands = [sweep(seeds[one::num_nodes], folder / str(one), "engine.grid=local") for one in range(num_nodes)]
        for process in commands:
            stack.enter_context(stopped(process))
        assert [process.wait() for process in commands] == [0] * num_nodes


def stopped(process: subprocess.Popen[bytes]) -> ExitStack:
    """End a process with the block."""
    stack = ExitStack()
    stack.callback(process.wait)
    stack.callback(process.kill)
    return stack


def pace(folder: Path) -> dict[str, float]:
    """Return studies a second from the first tenth to the last: what starts has started by then."""
    times = ended(folder)
    first, last = len(times) // 10, len(times) - len(times) // 10 - 1
    return {"studies": len(times), "studies_per_second": round((last - first) / (times[last] - times[first]), 3)}


def main() -> None:
    """Read the command line, run the sweep, and print what is found."""
    parser = argparse.ArgumentParser(prog="wide_sweeps", description="Run a sweep of many short studies.")
    parser.add_argument("--nodes", type=int, default=4, help="raylets of one CPU, or commands")
    parser.add_argument("--studies", type=int, default=1000, help="how many")
    parser.add_argument("--alone", action="store_true", help="commands that know nothing of each other")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        started = time.monotonic()
        if given.alone:
            alone(given.nodes, given.studies, Path(name))
        else:
            for held in on_cluster(given.nodes, given.studies, Path(name)):
                print(json.dumps(held), flush=True)
        print(json.dumps({**pace(Path(name)), "seconds": round(time.monotonic() - started, 1)}), flush=True)


if __name__ == "__main__":
    main()
