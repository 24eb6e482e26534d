"""Catalogues of built-in experiments: lookup by name, sequential runs, and their results.

A folder of a catalogue holds `source.yaml`, with the source of the experiments, their order and what of the source is
absent, and one file for each experiment.

OUT/SOURCE/studies/, cells/   trials and finished cells; the experiments of a source share the trials
OUT/SOURCE/TABLE.json         the numbers; also TABLE.md and TABLE.svg
OUT/reproduction.md           a page of all results, of `fedscout reproduce`
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.text import did_you_mean
from fedscout.experiments.charts import drawn
from fedscout.experiments.config import load_config
from fedscout.experiments.grids.cells import CELLS, CellContext, Note, run_cells
from fedscout.experiments.grids.comparison import ExperimentResult, experiment_picture, result_of
from fedscout.experiments.grids.experiment import Experiment, Method, read_experiment
from fedscout.experiments.studies.run_folder import GridFolder, measurement_folder, read_json
from fedscout.search.config import RecommenderConfig
from fedscout.search.language_model import NAME as LLM_RECORD, has_key, read_exchanges

ANSWERS = "answers.jsonl.gz"
"""A language model's answers beside the experiments of a source, from which they run where no model is configured."""
PAGE = "reproduction.md"
BENCHMARK = "benchmark"
"""Subfolder of results for a measurement that writes its own files."""


@dataclass(frozen=True)
class Entry:
    """An experiment of a catalogue.

    Attributes:
        source: The folder's name.
        table: The file's name, without suffix.
        path: Of the file.
    """

    source: str
    table: str
    path: Path

    @property
    def name(self) -> str:
        """Its full name, as on the command line."""
        return f"{self.source}/{self.table}"

    @property
    def names(self) -> set[str]:
        """All names that it is selected by."""
        return {self.source, self.name}

    def read(self, scale: str | None = None) -> Experiment:
        """Return the experiment at a scale."""
        return read_experiment(self.path).at(scale)


def catalogue(folder: Path) -> list[Entry]:
    """Return the experiments of a folder of sources, in the order of each source's list."""
    import yaml

    return [
        Entry(path.parent.name, table, path.with_name(f"{table}.yaml"))
        for path in sorted(folder.glob("*/source.yaml"))
        for table in yaml.safe_load(path.read_text())["tables"]
    ]


def absent_tables(folder: Path) -> dict[str, str]:
    """Return the tables of the sources that no experiment measures, such as `choice/fig1`, and the reason of each."""
    import yaml

    absent = {
        path.parent.name: yaml.safe_load(path.read_text()).get("absent", {}) for path in folder.glob("*/source.yaml")
    }
    return {f"{name}/{table}": why for name in sorted(absent) for why in absent[name] for table in absent[name][why]}


def entries_named(
    entries: Sequence[Entry], names: Sequence[str], absent: Mapping[str, str] | None = None
) -> list[Entry]:
    """Return the entries of these names, such as `choice/table6` or `choice`; all of them without names.

    `absent` holds the reasons why further names have no experiment.

    Raises:
        ConfigurationError: If a name is unknown.
    """
    selected = [] if names else [*entries]
    for name in names:
        matches = [entry for entry in entries if name in entry.names]
        if not matches:
            known = sorted({known for entry in entries for known in entry.names})
            hint = (absent or {}).get(name) or did_you_mean(name, known)
            raise ConfigurationError.of("an experiment", f"be one of {', '.join(known)}", repr(name), hint)
        selected += [entry for entry in matches if entry not in selected]
    return selected


@dataclass(frozen=True)
class Run:
    """The options of a run of experiments.

    Attributes:
        command: As it is printed; for a catalogue, with fields of its `entry`: `fedscout reproduce {entry.name}`.
        markdown: Returns the lines of a result's text.
        settings: Arguments that override those of every cell.
        scale: Of the files; None uses them unchanged.
        num_seeds: Overrides each experiment's own number, >= 2.
        parallel: Maximum number of parallel cells.
        rows: Of each experiment, in addition to the reference; None keeps all.
        columns: Of each experiment; None keeps all.
        note: Called with a description of the next step.
        more_rows: Additional rows of every experiment, by the searchers that choose.
        answers: Settings of every cell besides: the record of a language model's answers.
    """

    command: str
    markdown: Callable[[ExperimentResult], Sequence[str]]
    settings: tuple[str, ...] = ()
    scale: str | None = None
    num_seeds: int | None = None
    parallel: int | None = None
    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    note: Note = lambda _: None
    more_rows: Mapping[str, Method] = field(default_factory=dict)
    answers: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The command line with its options."""
        options = {"scale": self.scale, "seeds": self.num_seeds}
        given = [f"--{name} {value}" for name, value in options.items() if value]
        parts = {"rows": self.rows, "columns": self.columns}
        given += [f"--{name} {shlex.quote(','.join(names))}" for name, names in parts.items() if names is not None]
        given += [f"--searcher {name}" for name in self.more_rows]
        return " ".join([self.command, *self.settings, *given])

    def context(self, experiment: Experiment, folder: Path, note: Note = lambda _: None) -> CellContext:
        """Return the context in which an experiment's cells are measured."""
        return CellContext(
            folder,
            (*(setting for setting in self.settings if not setting.startswith("engine.")), *self.answers),
            self.num_seeds or experiment.seeds,
            note,
            experiment.fresh_stream,
            experiment.tuning_stream,
        )


def run_entries(entries: Sequence[Entry], wanted: Sequence[Entry], out: Path, run: Run) -> Iterator[ExperimentResult]:
    """Run experiments, write the result of each into the folder, and yield it.

    Args:
        entries: The whole catalogue, of which the folder may hold other results.
        wanted: The entries to run.
        out: The folder; resumed if it holds an earlier run.
        run: The options.

    Raises:
        UserError: If something can't be trained as configured, or the folder can't be used.
    """
    for entry in wanted:
        experiment = entry.read(run.scale).only(run.rows, run.columns).with_rows(run.more_rows)
        tables = [name for other in entries for name in written_files(other.table)]
        with measurement_folder(out / entry.source, [*tables, CELLS, LLM_RECORD, BENCHMARK]) as folder:
            answers = recorded_answers(entry.path.with_name(ANSWERS), run.settings)
            entry_run = replace(run, command=run.command.format(entry=entry), answers=answers)
            result = run_one(experiment, entry.name, folder, entry_run)
        yield result


def results_in(entries: Sequence[Entry], out: Path) -> list[ExperimentResult]:
    """Return the results of a catalogue that a folder holds."""
    results = []
    for entry in entries:
        with suppress(ValidationError):
            stored = read_json(out / entry.source / f"{entry.table}.json") or {}
            results.append(ExperimentResult.model_validate(stored))
    return results


def recorded_answers(path: Path, settings: Sequence[str]) -> tuple[str, ...]:
    """Return the settings that replay a file of answers; none if the user or the environment names a model."""
    is_configured = any(setting.startswith("recommender.") for setting in settings) or has_key(RecommenderConfig())
    if is_configured or not path.exists():
        return ()
    exchanges, _ = read_exchanges(path)
    return (f"recommender.replay={path}", f"recommender.model={exchanges[0].request.model}")


def run_one(experiment: Experiment, name: str, folder: GridFolder, run: Run) -> ExperimentResult:
    """Run an experiment into a locked folder, write its result there, and return it.

    Raises:
        UserError: As for `run_entries`.
    """
    started = time.perf_counter()
    context = run.context(experiment, folder.path, lambda text: run.note(f"{name}: {text}"))
    engine = load_config(["engine.grid=ray", *(text for text in run.settings if text.startswith("engine."))]).engine
    parts = run_cells(experiment.parts(), folder, context, engine, run.parallel)
    result = result_of(experiment, parts, name, run.shown, time.perf_counter() - started)
    table = name.rpartition("/")[2]
    folder.write_text(f"{table}.json", result.model_dump_json(indent=2) + "\n")
    folder.write_text(f"{table}.md", "\n".join(run.markdown(result)) + "\n")
    folder.write_text(f"{table}.svg", drawn(experiment_picture(result), "svg").decode())
    return result


def run_file(path: Path, out: Path, run: Run) -> ExperimentResult:
    """Run a user's own experiment into a folder, write its result there, and return it.

    Raises:
        UserError: As for `run_entries`.
    """
    experiment = read_experiment(path).only(run.rows, run.columns)
    with measurement_folder(out, [*written_files(path.stem), CELLS, LLM_RECORD]) as folder:
        return run_one(experiment, path.stem, folder, run)


def written_files(table: str) -> list[str]:
    """Return the names of the files that an experiment writes."""
    return [f"{table}{ending}" for ending in (".json", ".md", ".svg")]
