"""Execution of a sweep: finished studies are read, the others are run, and all results are written.

read_sweep ─► open_sweep_folder ─► finished? ─► workers on one Ray, or this process ─► table, summary
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedscout.engine.runtime.files import LOCK, Storage, refresh, storage_of
from fedscout.engine.runtime.ray import ray_runtime
from fedscout.experiments.config import planned_trials
from fedscout.experiments.studies.checks import measure_of_study
from fedscout.experiments.studies.run_folder import has_changed_since
from fedscout.experiments.studies.workers import (
    Display,
    End,
    Piece,
    WorkerPool,
    cluster_cpus,
    driver_nodes,
    run_pieces,
    share_gpus,
    share_out,
    with_share,
)
from fedscout.experiments.sweeps.results import Group, ended_study, groups_of, measure_of, table_of, write_table
from fedscout.experiments.sweeps.sweep import (
    GridConfiguration,
    Sweep,
    SweepFolder,
    SweepStudy,
    data_digests,
    open_sweep_folder,
    run_one,
    run_stored,
)
from fedscout.search.objective import UNLIKE, Measure

TABLE_SECONDS = 60.0
"""Seconds between writes of the table while studies run."""

logger = logging.getLogger("fedscout")


@dataclass(frozen=True)
class SweepOutcome:
    """The outcome of a sweep.

    Attributes:
        table: One row per study and chooser.
        groups: Means over seeds.
        measure: The column of the groups' accuracy.
        scored: The studies' measure.
        studies: In the order of the grid.
    """

    folder: Path
    table: pa.Table
    groups: list[Group]
    measure: str
    scored: Measure
    studies: tuple[SweepStudy, ...]

    def with_status(self, status: str) -> list[SweepStudy]:
        """Return the studies with a status."""
        return [study for study in self.studies if study.end.status == status]


def run_sweep(
    sweep: Sweep,
    out: Path,
    display: Display | None = None,
    parallel: int | None = None,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
) -> SweepOutcome:
    """Run a sweep to its end, resuming an earlier run.

    Args:
        sweep: From `read_sweep`.
        out: Its folder.
        display: Progress callbacks.
        parallel: Maximum number of parallel studies; None chooses by the available CPUs.
        verbose: Whether Ray's and Flower's own messages are shown.
        search_path: Folders for a user's own strategies.

    Raises:
        UserError: If the folder can't be used, Ray can't be reached, or `parallel` is too large.
    """
    display, configurations = display or Display(), sweep.configurations
    with open_sweep_folder(out, sweep) as folder:
        studies = _known(folder, sweep)
        planned = [planned_trials(one.config)[0] for one in configurations]
        display.known(
            [Piece(one.name, folder.study(one), n, n) for one, n in zip(configurations, planned, strict=True)],
            list(studies),
        )
        pending = [position for position in range(len(configurations)) if position not in studies]
        last_written = time.monotonic()
        runs = [configurations[position] for position in pending]
        for place, end in _run_all(folder, runs, display.of(pending), parallel, verbose, search_path):
            one = runs[place]
            for warning in end.warnings:
                logger.warning("%s: %s", one.name, warning)
            if end.details is not None:
                folder.write_text(f"lost/{one.name}.txt", end.details)
            studies[pending[place]] = ended_study(folder, one, end)
            display.ended(pending[place])
            if time.monotonic() - last_written > TABLE_SECONDS:
                write_table(table_of(sweep, [studies[place] for place in sorted(studies)]), folder)
                last_written = time.monotonic()
        return _conclude(folder, sweep, [studies[position] for position in sorted(studies)])


def _known(folder: SweepFolder, sweep: Sweep) -> dict[int, SweepStudy]:
    """Return the studies that are finished with the current data and code, by position."""
    studies: dict[int, SweepStudy] = {}
    digest_of = data_digests()
    for position, one in enumerate(sweep.configurations):
        changed = partial(has_changed_since, folder.study(one), one.config, partial(digest_of, one.config))
        if folder.result(one) is not None and not changed():
            studies[position] = ended_study(folder, one, End("completed"))
    return studies


def _run_all(
    folder: SweepFolder,
    pending: Sequence[GridConfiguration],
    display: Display,
    parallel: int | None,
    verbose: bool,
    search_path: tuple[str, ...],
) -> Iterator[tuple[int, End]]:
    """Run studies in this process, or by workers on one Ray, and yield the position of each with its end."""
    if not pending:
        return
    engine, configs = pending[0].config.engine, [one.config for one in pending]
    if engine.grid == "local":
        studies = [(one.config, folder.study(one), verbose, search_path) for one in pending]
        yield from run_pieces(engine, run_one, studies, parallel, display)
        return
    with ExitStack() as stack:
        ray = stack.enter_context(ray_runtime(engine, verbose))
        on_gpus = engine.host_device(has_gpu=ray.cluster_resources().get("GPU", 0) >= 1).on_gpu
        pool = stack.enter_context(closing(WorkerPool(ray, search_path, driver_nodes(ray, configs))))
        pool.drop_differing_nodes([with_share(config, 0) for config in configs])
        if on_gpus:
            share = share_gpus(parallel)
        else:
            timed = any(config.training.has_time_limit for config in configs)
            share = share_out(cluster_cpus(ray, pool.nodes), len(pending), engine.num_hosts, parallel, timed)
        sweep_storage = storage_of(folder.path) or pool.storage_for(folder.path, folder.path / LOCK)

        def storage(study: Path) -> Storage | None:
            return sweep_storage and sweep_storage.below(study.relative_to(folder.path).as_posix())

        paths = [folder.study(one) for one in pending]
        shared = [with_share(config, share.num_hosts) for config in configs]
        pieces = [
            (config, path, storage(path), verbose, search_path) for config, path in zip(shared, paths, strict=True)
        ]
        for position, end in pool.run(run_stored, pieces, share.parallel, display):
            refresh(paths[position])
            yield position, end


def _conclude(folder: SweepFolder, sweep: Sweep, studies: Sequence[SweepStudy]) -> SweepOutcome:
    table = table_of(sweep, studies)
    write_table(table, folder)
    rows = table.to_pylist()
    scored = scored_by([study.configuration for study in studies])
    groups = groups_of(rows, sweep.axes)
    outcome = SweepOutcome(folder.path, table, groups, measure_of(rows), scored, tuple(studies))
    folder.write_json("summary.json", summary_document(outcome))
    return outcome


def scored_by(configurations: Sequence[GridConfiguration]) -> Measure:
    """Return the common measure of all studies; if they differ, plain fitness."""
    measures = [measure_of_study(one.config) for one in configurations]
    return measures[0] if measures and all(measure == measures[0] for measure in measures) else UNLIKE


def summary_document(outcome: SweepOutcome) -> dict[str, Any]:
    """Return the outcome as a JSON-serialisable dictionary, which does not depend on the machine's speed."""
    counts = {status: len(outcome.with_status(status)) for status in ("completed", "failed", "lost")}
    return {
        "studies": {"total": len(outcome.studies), **counts},
        "measure": outcome.measure,
        "scored": outcome.scored.name,
        "groups": [asdict(group) for group in outcome.groups],
        "not_completed": [
            {"study": study.folder.name, "status": study.end.status, "error": study.end.error}
            for study in outcome.studies
            if study.end.status != "completed"
        ],
    }
