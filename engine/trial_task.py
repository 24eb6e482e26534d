"""A trial as a Ray task: it drives rounds over shared hosts, and needs neither a CPU slot nor torch.

It runs on the driver's node where possible, so that its checkpoints land in the study's folder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from engine.checkpoint import CheckpointStore
from engine.ray_grid import RayGrid, RayHosts
from engine.trial import TrialResult, TrialSpec, run_trial

RETRIES = 10
"""A task whose process dies is repeated from its checkpoint; a trial that fails by itself is a result, not a retry."""


def _run(hosts: RayHosts, spec: TrialSpec, store: CheckpointStore, search_path: Sequence[str]) -> TrialResult:
    for folder in search_path:
        if folder not in sys.path:
            sys.path.append(folder)
    return run_trial(spec, RayGrid(hosts, spec.session()), store)


def start_trial(
    hosts: RayHosts,
    spec: TrialSpec,
    store: CheckpointStore,
    search_path: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> Any:
    """Start a trial and return the reference of its `TrialResult`.

    Args:
        hosts: Shared by any number of trials.
        spec: The trial.
        store: Where its checkpoints go.
        search_path: Folders put last on the import path, for a user's own strategy.
        environment: Environment variables of the task's process.
    """
    node = ray.get_runtime_context().get_node_id()
    task = ray.remote(_run).options(
        num_cpus=0,
        max_retries=RETRIES,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=True),
        runtime_env={"env_vars": environment} if environment else None,
    )
    return task.remote(hosts, spec, store, tuple(search_path))
