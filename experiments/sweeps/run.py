"""Execution of a sweep: finished studies are read, the others are run, and all results are written.

read_sweep ─► open_sweep_folder ─► finished? ─► workers on one Ray, or this process ─► table, summary
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscout.engine.runtime.files import LOCK
from fedscout.engine.runtime.storage import Storage, refresh, storage_of
from fedscout.experiments.studies.checks import measures_of_study
from fedscout.experiments.studies.run_folder import has_changed_since
from fedscout.experiments.sweeps import workers
from fedscout.experiments.sweeps.results import (
    Group,
    ended_study,
    failed_before,
    groups_of,
    measure_of,
    table_of,
    write_table,
)
from fedscout.experiments.sweeps.sweep import (
    GridConfiguration,
    StudyEnd,
    Sweep,
    SweepFolder,
    SweepStudy,
    data_digests,
    open_sweep_folder,
    reason_against,
    run_one,
)
from fedscout.experiments.sweeps.workers import check_sequential, driver_nodes
from fedscout.search.objective import UNLIKE, Measure

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_SECONDS = 60.0
"""Seconds between writes of the table while studies run."""

logger = logging.getLogger("fedscout")


@dataclass(frozen=True)
class SweepDisplay:
    """Optional progress callbacks of a sweep.

    Attributes:
        known: Called once with the studies that need not be run, and those that must.
        begun: Called when a study starts.
        ended: Called when a study ends.
        tick: Called about twice a second while studies run in workers.
    """

    known: Callable[[Sequence[GridConfiguration], Sequence[GridConfiguration]], None] = lambda _known, _pending: None
    begun: Callable[[GridConfiguration], None] = lambda _: None
    ended: Callable[[GridConfiguration, StudyEnd], None] = lambda _one, _end: None
    tick: Callable[[SweepFolder], None] = lambda _: None


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
    display: SweepDisplay | None = None,
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
    display = display or SweepDisplay()
    with open_sweep_folder(out, sweep) as folder:
        studies = _known(folder, sweep)
        pending = [one for one in sweep.configurations if one.digest not in studies]
        display.known([one for one in sweep.configurations if one.digest in studies], pending)
        last_written = time.monotonic()
        for one, end in _run_all(folder, pending, display, parallel, verbose, search_path):
            for warning in end.warnings:
                logger.warning("%s: %s", one.name, warning)
            if end.details is not None:
                folder.write_text(f"lost/{one.name}.txt", end.details)
            studies[one.digest] = ended_study(folder, one, end)
            display.ended(one, end)
            if time.monotonic() - last_written > TABLE_SECONDS:
                write_table(table_of(sweep, list(studies.values())), folder)
                last_written = time.monotonic()
        return _conclude(folder, sweep, [studies[one.digest] for one in sweep.configurations])


def _known(folder: SweepFolder, sweep: Sweep) -> dict[str, SweepStudy]:
    """Return the studies that need not be run: finished with the current data and code, or unable to start."""
    studies: dict[str, SweepStudy] = {}
    failed = failed_before(folder.path)
    digest_of = data_digests()
    for one in sweep.configurations:
        changed = partial(has_changed_since, folder.study(one), one.config, partial(digest_of, one.config))
        if folder.result(one) is not None and not changed():
            studies[one.digest] = ended_study(folder, one, StudyEnd("completed"))
        elif one.digest in failed and (reason := reason_against(one.config)) is not None:
            studies[one.digest] = ended_study(folder, one, StudyEnd("failed", reason))
    return studies


def _run_all(
    folder: SweepFolder,
    pending: Sequence[GridConfiguration],
    display: SweepDisplay,
    parallel: int | None,
    verbose: bool,
    search_path: tuple[str, ...],
) -> Iterator[tuple[GridConfiguration, StudyEnd]]:
    """Run studies in this process, or by workers on one Ray, and yield each with its end."""
    if not pending:
        return
    engine = pending[0].config.engine
    if engine.grid == "local":
        check_sequential(parallel, "with engine.grid=local, which uses only this process")
        for one in pending:
            display.begun(one)
            yield one, run_one(one.config, folder.study(one), verbose, search_path)
        return
    from fedscout.engine.runtime.ray import ray_runtime

    configs = [one.config for one in pending]
    with ExitStack() as stack:
        ray = stack.enter_context(ray_runtime(engine, verbose))
        on_gpus = engine.host_device(has_gpu=ray.cluster_resources().get("GPU", 0) >= 1).on_gpu
        settings = (workers.worker_environment(), verbose, search_path)
        pool = workers.StudyWorkerPool(ray, *settings, nodes=driver_nodes(ray, configs))
        stack.callback(pool.close)
        pool.drop_differing_nodes([workers.with_share(config, 0) for config in configs])
        timed = any(config.training.has_time_limit for config in configs)
        if on_gpus:
            share = workers.share_gpus(parallel)
        else:
            cpus = workers.cluster_cpus(ray, pool.nodes)
            share = workers.share_out(cpus, len(pending), engine.num_hosts, parallel, timed)
        sweep_storage = storage_of(folder.path) or pool.storage_for(folder.path, folder.path / LOCK)

        def storage(one: GridConfiguration) -> Storage | None:
            below = folder.study(one).relative_to(folder.path).as_posix()
            return None if sweep_storage is None else sweep_storage.below(below)

        studies = [
            (workers.with_share(one.config, share.num_hosts), folder.study(one), storage(one)) for one in pending
        ]
        ends = pool.run(
            studies, share.parallel, lambda position: display.begun(pending[position]), lambda: display.tick(folder)
        )
        for position, end in ends:
            if storage_of(folder.path) is not None:
                refresh(folder.study(pending[position]))
            yield pending[position], end


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
    measures = [measures_of_study(one.config)[0] for one in configurations]
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
