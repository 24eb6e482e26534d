"""Experiments that come with the program, found by name, run one after the other, written as one document.

A folder of a catalogue holds `source.yaml`, what the experiments are from and their order, and one file each.

OUT/SOURCE/studies/, cells/   trials and finished cells; the experiments of a source share the trials
OUT/SOURCE/TABLE.json         the numbers; also TABLE.md and TABLE.svg
OUT/all.md                    all tables that are there
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from fedscout.engine.config import EngineConfig
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.text import did_you_mean
from fedscout.experiments.charts import drawn
from fedscout.experiments.config import load_config
from fedscout.experiments.grids.cells import CellContext, Note
from fedscout.experiments.grids.comparison import ExperimentResult, cell_results, group_means, means, statement_results
from fedscout.experiments.grids.experiment import Experiment, read_experiment
from fedscout.experiments.grids.federation_runner import measurement_folder
from fedscout.experiments.grids.methods import Method
from fedscout.experiments.grids.runner import CELLS, run_cells
from fedscout.experiments.grids.tables import experiment_picture, result_lines, summary_lines
from fedscout.experiments.studies.run_folder import versions
from fedscout.experiments.sweeps.sweep import SweepFolder
from fedscout.search.language_model import NAME as LLM_RECORD

WHOLE = "all.md"
BENCHMARK = "benchmark"
"""Of a folder of results, where a measurement of its own writes."""


@dataclass(frozen=True)
class Entry:
    """An experiment of a catalogue.

    Attributes:
        source: The folder's name.
        table: The file's, without its ending.
        also: Further names.
        path: Of the file.
    """

    source: str
    table: str
    also: tuple[str, ...]
    path: Path

    @property
    def name(self) -> str:
        """As it is asked for."""
        return f"{self.source}/{self.table}"

    @property
    def names(self) -> set[str]:
        """All that it can be asked for by."""
        return {self.source, *(f"{self.source}/{table}" for table in (self.table, *self.also))}

    def read(self, scale: str | None = None) -> Experiment:
        """Return the experiment at a scale."""
        return read_experiment(self.path).at(scale)


def catalogue(folder: Path) -> list[Entry]:
    """Return the experiments of a folder of sources, in the order of each source's list."""
    import yaml

    found = []
    for about in sorted(folder.glob("*/source.yaml")):
        for table in yaml.safe_load(about.read_text())["tables"]:
            path = about.with_name(f"{table}.yaml")
            also = yaml.safe_load(path.read_text()).get("also", ())
            found.append(Entry(about.parent.name, table, tuple(also), path))
    return found


def entries_named(entries: Sequence[Entry], names: Sequence[str]) -> list[Entry]:
    """Return the entries of these names, such as `choice/table6` or `choice`, or all of them.

    Raises:
        ConfigurationError: If there is none of a name.
    """
    found = [] if names else [*entries]
    for name in names:
        named = [entry for entry in entries if name in entry.names]
        if not named:
            known = sorted({known for entry in entries for known in entry.names})
            raise ConfigurationError(
                Fault("an experiment", f"be one of {', '.join(known)}", repr(name), did_you_mean(name, known))
            )
        found += [entry for entry in named if entry not in found]
    return found


@dataclass(frozen=True)
class Run:
    """How experiments are run.

    Attributes:
        command: As it is printed; of a catalogue's, with fields of its `entry`: `fedscout reproduce {entry.name}`.
        settings: Arguments that hold for every cell, which win.
        scale: Of the files; None takes them as they are.
        num_seeds: In place of each experiment's own number, >= 2.
        parallel: Cells at once at most.
        rows: Of each experiment, the reference included; None keeps all.
        columns: Likewise.
        note: Told what is done next.
        more_rows: Of every experiment, beside its own.
    """

    command: str
    settings: tuple[str, ...] = ()
    scale: str | None = None
    num_seeds: int | None = None
    parallel: int | None = None
    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    note: Note = lambda _: None
    more_rows: Mapping[str, Method] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The whole command."""
        options = {"scale": self.scale, "seeds": self.num_seeds}
        given = [f"--{name} {value}" for name, value in options.items() if value]
        parts = {"rows": self.rows, "columns": self.columns}
        given += [f"--{name} {shlex.quote(','.join(names))}" for name, names in parts.items() if names is not None]
        return " ".join([self.command, *self.settings, *given])

    def context(self, experiment: Experiment, folder: Path, note: Note = lambda _: None) -> CellContext:
        """Return where an experiment's cells are measured."""
        return CellContext(
            folder,
            tuple(setting for setting in self.settings if not setting.startswith("engine.")),
            self.num_seeds or experiment.seeds,
            note,
            experiment.fresh_stream,
            experiment.tuning_stream,
        )


def run_entries(entries: Sequence[Entry], wanted: Sequence[Entry], out: Path, run: Run) -> Iterator[ExperimentResult]:
    """Run experiments, write each into the folder, and yield it.

    Args:
        entries: The whole catalogue, of which the folder may hold more.
        wanted: Which are run.
        out: The folder; continued if it holds an earlier run.
        run: How.

    Raises:
        UserError: If something can't be trained as asked for, or the folder can't be used.
    """
    for entry in wanted:
        experiment = entry.read(run.scale).only(run.rows, run.columns).with_rows(run.more_rows)
        tables = [name for one in entries for name in written_files(one.table)]
        with measurement_folder(out / entry.source, [*tables, CELLS, LLM_RECORD, BENCHMARK]) as folder:
            named = replace(run, command=run.command.format(entry=entry))
            result = run_one(experiment, entry.name, folder, named)
        SweepFolder(out).write_text(WHOLE, "\n".join(document_lines(entries, earlier_results(entries, out))) + "\n")
        yield result


def run_one(experiment: Experiment, name: str, folder: SweepFolder, run: Run) -> ExperimentResult:
    """Run an experiment into a folder that is locked, and return its result, which is written there.

    Raises:
        UserError: As for `run_entries`.
    """
    started = time.perf_counter()
    context = run.context(experiment, folder.path, lambda text: run.note(f"{name}: {text}"))
    parts = run_cells(experiment.parts(), folder, context, engine_of(run.settings), run.parallel)
    measured = means(experiment, parts)
    result = ExperimentResult(
        name=name,
        title=experiment.title,
        scale=run.scale or "",
        unit=experiment.unit,
        date=datetime.now(UTC).date().isoformat(),
        version=versions()["fedscout"],
        command=run.shown,
        seconds=time.perf_counter() - started,
        test_to_train=measured.test_to_train,
        rows=tuple(experiment.rows),
        columns=tuple(experiment.federations),
        reference=experiment.reference,
        cells=cell_results(experiment, measured),
        statements=statement_results(experiment, measured),
        notes=experiment.notes,
        absent=measured.absent,
        steps=experiment.steps,
        groups=group_means(experiment, measured),
        levels=tuple(experiment.levels),
        parts=cell_results(experiment.parts(), parts) if experiment.levels else (),
    )
    table = name.rpartition("/")[2]
    folder.write_text(f"{table}.json", result.model_dump_json(indent=2) + "\n")
    folder.write_text(f"{table}.md", "\n".join(result_lines(result)) + "\n")
    folder.write_text(f"{table}.svg", drawn(experiment_picture(result), "svg").decode())
    return result


def run_file(path: Path, out: Path, run: Run) -> ExperimentResult:
    """Run an experiment of a user's own into a folder, and return its result, which is written there.

    Raises:
        UserError: As for `run_entries`.
    """
    experiment = read_experiment(path).only(run.rows, run.columns)
    with measurement_folder(out, [*written_files(path.stem), CELLS, LLM_RECORD]) as folder:
        return run_one(experiment, path.stem, folder, run)


def written_files(table: str) -> list[str]:
    """Return the names of the files that an experiment writes."""
    return [f"{table}{ending}" for ending in (".json", ".md", ".svg")]


def engine_of(settings: Sequence[str]) -> EngineConfig:
    """Return where cells run: on Ray, side by side, unless `engine.grid=local` is among the settings."""
    own = [setting for setting in settings if setting.startswith("engine.")]
    return load_config(["engine.grid=ray", *own]).engine


def earlier_results(entries: Sequence[Entry], out: Path) -> list[ExperimentResult]:
    """Return the results that a folder holds, in the order of the catalogue."""
    found = []
    for entry in entries:
        with suppress(OSError, ValidationError):
            text = (out / entry.source / f"{entry.table}.json").read_text()
            found.append(ExperimentResult.model_validate_json(text))
    return found


def document_lines(entries: Sequence[Entry], results: Sequence[ExperimentResult]) -> list[str]:
    """Return all tables as one document, which names the experiments that it lacks."""
    lines = [*summary_lines(results)]
    there = {result.name for result in results}
    if lacking := [entry.name for entry in entries if entry.name not in there]:
        lines += ["", f"Not run: {', '.join(lacking)}."]
    for result in results:
        lines += ["", *result_lines(result)]
    return lines
