"""One study of a sweep, from its configuration to its end, whatever the end is."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedscout.engine.errors import UnreachableModelError, UserError
from fedscout.engine.trials.cheap_collections import cheap_collections
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.studies.sweeps.grid_configurations import GridConfiguration
from fedscout.experiments.studies.sweeps.sweep_folder import await_release

Status = Literal["completed", "failed", "lost"]


@dataclass(frozen=True)
class StudyEnd:
    """How a study ended.

    Attributes:
        status: `completed`; `failed` for a reason of its own, such as more clients than rows, which it would have
            again; `lost` if the machinery failed, so that it goes on when the sweep is run again.
        error: The reason; None if completed.
        details: The traceback of a study that was lost to a defect.
        warnings: What the program had to say meanwhile.
    """

    status: Status
    error: str | None = None
    details: str | None = None
    warnings: tuple[str, ...] = ()

    def told_of(self, here: Path, there: str) -> StudyEnd:
        """Return the end of a study that ran in one folder in words about where it is kept."""

        def said(text: str | None) -> str | None:
            return None if text is None else text.replace(str(here), there)

        warnings = tuple(warning.replace(str(here), there) for warning in self.warnings)
        return replace(self, error=said(self.error), details=said(self.details), warnings=warnings)


@dataclass(frozen=True)
class SweepStudy:
    """A study of a sweep: what it was asked, and what came out, by its rows of the table; its result is a file."""

    configuration: GridConfiguration
    folder: Path
    end: StudyEnd
    rows: tuple[Mapping[str, Any], ...]


def run_one(config: StudyConfig, out: Path, verbose: bool = False, search_path: tuple[str, ...] = ()) -> StudyEnd:
    """Run a study, or the rest of it, as `fedscout run` does; only an interruption leaves this function as an error."""
    from fedscout.experiments.studies.workflow import Display, run_workflow

    with _warnings_noted() as warnings, cheap_collections():
        try:
            await_release(out)
            run_workflow(config, out, Display(), verbose=verbose, search_path=search_path)
            end = StudyEnd("completed")
        except Exception as error:  # one study's end is not the sweep's
            end = end_by(error)
        gc.collect()  # federation, hosts and strategies hold each other in cycles
    return replace(end, warnings=tuple(warnings))


def end_by(error: Exception) -> StudyEnd:
    """Return how a study ended that an error ended; called where it is caught."""
    if isinstance(error, UserError) and not isinstance(error, UnreachableModelError):  # which may pass
        return StudyEnd("failed", str(error))
    return StudyEnd("lost", one_line(error), traceback.format_exc())


def one_line(defect: Exception) -> str:
    """Return an unexpected error in a line."""
    reason = next(iter(str(defect).strip().splitlines()), "")
    return f"{type(defect).__name__}: {reason}" if reason else type(defect).__name__


def reason_against(config: StudyConfig) -> str | None:
    """Return why a study can't begin, found without running anything of it; None if it may."""
    from fedscout.experiments.federations.assembly.build_federation import build_federation
    from fedscout.experiments.studies.client_selection import own_selection
    from fedscout.experiments.studies.workflow import cohort_of
    from fedscout.search.study.study import planned_space

    try:
        federation = build_federation(config.federation, config.model)
        planned_space(config.search, cohort_of(config, federation.num_seen), selection=own_selection(config))
    except UserError as mistake:
        return str(mistake)
    return None


def data_digests() -> Callable[[StudyConfig], str | None]:
    """Return what tells the digest of a study's data as they are now, None if they can't be read; each is read once."""
    from fedscout.experiments.federations.assembly.build_federation import build_federation, data_digest

    known: dict[str, str | None] = {}

    def digest(config: StudyConfig) -> str | None:
        what = config.federation.model_dump_json() + config.model.model_dump_json()
        if what not in known:
            try:
                known[what] = data_digest(build_federation(config.federation, config.model))
            except UserError:
                known[what] = None
        return known[what]

    return digest


@contextmanager
def _warnings_noted() -> Iterator[list[str]]:
    """Gather the program's own warnings instead of printing them."""
    noted: list[str] = []
    note = logging.Handler(logging.WARNING)
    note.emit = lambda record: noted.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("fedscout")
    kept = logger.handlers[:], logger.propagate
    logger.handlers[:], logger.propagate = [note], False
    try:
        yield noted
    finally:
        logger.handlers[:], logger.propagate = kept
