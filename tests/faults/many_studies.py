"""Many studies in one process, one after the other, and what is left of each: memory, objects, processes, actors.

Usage: `python -m tests.faults.many_studies [--studies 100] [--grid ray]`; each line printed is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import psutil

STUDY = (
    "federation.dataset=wine",
    "federation.num_clients=4",
    "training.num_rounds=2",
    "search.budget=1",
    "search.generation_size=1",
    "search.confirmation_seeds=0",
    "engine.num_hosts=1",
)
"""Two trials of two rounds, after detection."""

SETTLING_SECONDS = 30.0


def own() -> dict[str, int]:
    """Return what this process holds."""
    gc.collect()
    process = psutil.Process()
    return {
        "resident_bytes": process.memory_info().rss,
        "objects": len(gc.get_objects()),
        "files": process.num_fds(),
        "import_path": len(sys.path),
    }


def is_busy(process: psutil.Process) -> bool:
    """Whether a process of Ray's is a host or a task."""
    with suppress(psutil.NoSuchProcess):
        return process.name().startswith(("ray::HostActor", "ray::_"))
    return False


def of_ray(ray: Any) -> dict[str, int]:
    """Return what Ray holds, once the last study's processes have ended.

    Actors that ended stay in Ray's table up to a limit of its own; only those alive are counted.
    """
    from ray._private.state import actors

    worker = ray._private.worker.global_worker
    deadline = time.monotonic() + SETTLING_SECONDS
    while True:
        processes = psutil.Process().children(recursive=True)
        alive = sum(actor["State"] != "DEAD" for actor in actors().values())
        busy = sum(is_busy(process) for process in processes)
        if not alive + busy or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    prefixes = b"RemoteFunction:", b"ActorClass:"
    exports = [key for prefix in prefixes for key in worker.gcs_client.internal_kv_keys(prefix, b"fun")]
    store = ray.cluster_resources()["object_store_memory"] - ray.available_resources()["object_store_memory"]
    return {
        "processes": len(processes),
        "actors": alive,
        "busy": busy,
        "references": len(worker.core_worker.get_all_reference_counts()),
        "exported": len(exports),
        "store_bytes": int(store),
    }


def many_studies(number: int, grid: str, folder: Path) -> Iterator[dict[str, int]]:
    """Run studies of different seeds and yield what is held after each."""
    from fedscout.engine.runtime.ray import prepare_environment

    prepare_environment(verbose=False)
    from fedscout.engine.config import EngineConfig
    from fedscout.engine.runtime.ray import ray_runtime
    from fedscout.experiments.config import load_config
    from fedscout.experiments.studies.workflow import Display, run_workflow
    from fedscout.search.ledger import StudyEvents

    display = Display(trials=StudyEvents(on_rounds=lambda rounds: None))  # with a board, as the command line's is
    with ExitStack() as stack:
        ray = stack.enter_context(ray_runtime(EngineConfig())) if grid == "ray" else None
        for study in range(number):
            config = load_config([*STUDY, f"engine.grid={grid}", f"seed={study}"])
            run_workflow(config, folder / str(study), display)
            yield {"study": study, **own(), **(of_ray(ray) if ray else {})}


def main(out: IO[str]) -> None:
    """Read the command line, run the studies, and write what is found to `out`, as Ray's runtime silences `print`."""
    parser = argparse.ArgumentParser(prog="many_studies", description="Run many studies in one process.")
    parser.add_argument("--studies", type=int, default=100, help="how many")
    parser.add_argument("--grid", choices=("ray", "local"), default="ray", help="where their trials run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for held in many_studies(given.studies, given.grid, Path(folder)):
            print(json.dumps(held), file=out, flush=True)


if __name__ == "__main__":
    main(sys.stdout)
