"""Ray, started while the program's own modules are still being imported: both take seconds, Ray's mostly waiting."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from experiments.engine_config import EngineConfig
from experiments.ray_runtime import ray_runtime

IMPORTED = ("experiments.workflow", "engine.trial_runner")


@contextmanager
def early_start(config: EngineConfig, folder: Path | None, verbose: bool) -> Iterator[None]:
    """Have Ray ready inside the block, if the command will need it.

    Args:
        config: Ray or this process alone.
        folder: Of the study; one that holds a result is told from its log, without Ray.
        verbose: Whether Ray's own messages are shown.
    """
    if config.grid != "ray" or (folder is not None and (folder / "result.json").exists()):
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        imports = pool.submit(lambda: [import_module(name) for name in IMPORTED])
        with ray_runtime(config, verbose):
            imports.result()
            yield
