"""Published studies run again, one after the other, each from its logs to its table.

OUT/SOURCE/studies/      ordinary trial logs, by federation; the studies of a source share them
OUT/SOURCE/TABLE.json    the numbers; also TABLE.md and TABLE.svg
OUT/reproduction.md      all tables that are there

What is in the logs is not trained again, so a run that was killed goes on; detections and times are taken anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.fault_text import did_you_mean
from fedscout.experiments.benchmarks.choice.choice_laboratory import measurement_folder
from fedscout.experiments.reports.page.figure_files import drawn
from fedscout.experiments.reproduction.benchmark_cells import BENCHMARK
from fedscout.experiments.reproduction.published_study import Desk, Note, PublishedStudy, Scale, Source
from fedscout.experiments.reproduction.reproduced import ReproducedStudy, cells_of, orderings_of
from fedscout.experiments.reproduction.reproduction_picture import reproduction_picture
from fedscout.experiments.reproduction.reproduction_tables import study_lines, summary_lines
from fedscout.experiments.studies.sweeps.sweep_folder import SweepFolder
from fedscout.experiments.studies.versions import versions
from fedscout.search.language_model.record import NAME as LLM_RECORD

WHOLE = "reproduction.md"

INTRODUCTION = """\
This page is what `fedscout reproduce` writes. It trains the studies of five sources again and sets what comes out
beside what they print:

```bash
fedscout reproduce
fedscout reproduce choice/table6
fedscout reproduce fedpilot --seeds 20 engine.grid=ray
fedscout reproduce all --scale published
```

Without a name they are listed; `all` are run one after the other. Trials lie in ordinary logs under `--out`, so what
was killed goes on, and more seeds train what is new. Keys hold for every training and win. `laptop` is what two cores
do in a quarter of an hour a study, and all of them in an hour and a half of one core's time; `published` has the
sources' sizes as far as they are known, and wants a cluster.

Absolute figures depend on splits that nobody has published; what can be looked for is their order. A statement that
one cell is above another is *seen* if the interval of the difference, taken seed by seed, lies above zero,
*contradicted* if it lies below, and *within noise* if it holds zero. That two are level is *not contradicted* by an
interval that holds zero. No federation, rate or strategy was tuned on what a study reports."""

Wanted = tuple[Source, PublishedStudy]


def studies_named(sources: Sequence[Source], names: Sequence[str], scale: Scale) -> list[Wanted]:
    """Return the studies of these names, such as `choice/table6` or `choice`; all that have the scale if there is none.

    Raises:
        ConfigurationError: If there is no such study, or it has no such scale.
    """
    every = [(source, study) for source in sources for study in source.studies]
    found = [pair for pair in every if scale in pair[1].measurements] if not names else []
    for name in names:
        named = [(source, study) for source, study in every if name in _names(source, study)]
        if not named:
            known = sorted({known for pair in every for known in _names(*pair)})
            raise ConfigurationError(
                f"{name!r} is no published study{did_you_mean(name, known)}; see fedscout reproduce"
            )
        if missing := [study.name for _, study in named if scale not in study.measurements]:
            raise ConfigurationError(f"{name!r} must be of --scale {scale}, which {', '.join(missing)} has not")
        found += [pair for pair in named if pair not in found]
    return found


def _names(source: Source, study: PublishedStudy) -> set[str]:
    return {source.name, *(f"{source.name}/{name}" for name in study.names)}


def reproduce(
    sources: Sequence[Source],
    wanted: Sequence[Wanted],
    scale: Scale,
    settings: Sequence[str],
    out: Path,
    num_seeds: int | None = None,
    note: Note = lambda _: None,
) -> Iterator[ReproducedStudy]:
    """Measure studies, write each into the folder, and yield it.

    Args:
        sources: All of them, of which the folder may hold more.
        wanted: From `studies_named`.
        scale: At which they are measured.
        settings: Arguments that hold for every training, which win.
        out: The folder; continued if it holds an earlier run.
        num_seeds: In place of each study's own number, >= 2.
        note: Told what is done next.

    Raises:
        UserError: If something can't be trained as asked for, or the folder can't be used.
    """
    for source, study in wanted:
        own = [f"{one.name}{ending}" for one in source.studies for ending in (".json", ".md", ".svg")]
        with measurement_folder(out / source.name, [*own, LLM_RECORD, BENCHMARK]) as folder:
            desk = Desk(folder.path, tuple(settings), num_seeds, partial(_note, note, study.name))
            found = _measured(source, study, scale, desk)
            folder.write_text(f"{study.name}.json", found.model_dump_json(indent=2) + "\n")
            folder.write_text(f"{study.name}.md", "\n".join(study_lines(found)) + "\n")
            folder.write_text(f"{study.name}.svg", drawn(reproduction_picture(found), "svg").decode())
        SweepFolder(out).write_text(WHOLE, "\n".join(document_lines(sources, earlier_studies(sources, out))) + "\n")
        yield found


def _note(note: Note, name: str, text: str) -> None:
    note(f"{name}: {text}")


def _measured(source: Source, study: PublishedStudy, scale: Scale, desk: Desk) -> ReproducedStudy:
    started = time.perf_counter()
    measured = study.measurements[scale].measure(desk)
    options = [
        "" if scale == "laptop" else f" --scale {scale}",
        "" if desk.num_seeds is None else f" --seeds {desk.num_seeds}",
    ]
    return ReproducedStudy(
        source=source.name,
        name=study.name,
        title=study.title,
        scale=scale,
        unit=study.unit,
        date=datetime.now(UTC).date().isoformat(),
        version=versions()["fedscout"],
        command=" ".join(["fedscout reproduce", f"{source.name}/{study.name}", *desk.settings]) + "".join(options),
        seconds=time.perf_counter() - started,
        test_to_train=measured.test_to_train,
        rows=study.rows,
        columns=study.columns,
        cells=cells_of(study, measured),
        orderings=orderings_of(study, measured),
        notes=(*study.notes, *study.scale_notes.get(scale, ())),
        absent=measured.absent,
        steps=study.steps,
    )


def earlier_studies(sources: Sequence[Source], out: Path) -> list[ReproducedStudy]:
    """Return the studies that a folder holds, in the order of the sources."""
    found = []
    for source in sources:
        for study in source.studies:
            with suppress(OSError, ValidationError):
                text = (out / source.name / f"{study.name}.json").read_text()
                found.append(ReproducedStudy.model_validate_json(text))
    return found


def document_lines(sources: Sequence[Source], studies: Sequence[ReproducedStudy]) -> list[str]:
    """Return all tables as one document, which names the studies that it lacks."""
    lines = ["# Published studies, run again", "", INTRODUCTION, "", *summary_lines(studies)]
    there = {f"{study.source}/{study.name}" for study in studies}
    every = [f"{source.name}/{study.name}" for source in sources for study in source.studies]
    if lacking := [name for name in every if name not in there]:
        lines += ["", f"Not run for this page: {', '.join(lacking)}."]
    for study in studies:
        lines += ["", *study_lines(study)]
    return lines
