"""The share of valid answers in records of a language model, for the federation that is configured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.assembly.build_federation import build_federation
from fedscout.experiments.studies.client_selection import own_selection
from fedscout.experiments.studies.workflow import cohort_of
from fedscout.search.plain_text import one_line
from fedscout.search.recommenders.answer_validity import Validity, count_valid
from fedscout.search.study.study import planned_space


def measure_answers(config: StudyConfig, files: Sequence[Path]) -> list[Validity]:
    """Return the validity of recorded answers; data are read only where they alone tell the number of clients.

    Raises:
        UserError: If a file can't be read, or was recorded for another federation.
    """
    num_clients = config.federation.num_seen or build_federation(config.federation, config.model).num_seen
    cohort = cohort_of(config, num_clients)
    space = planned_space(config.search, cohort, config.training.local(), own_selection(config))
    return count_valid(files, space)


def answer_lines(found: Sequence[Validity]) -> Iterator[str]:
    """Yield the table for people, and the most frequent faults below it."""
    yield "| format | schema | examples | valid | of first answers | share | valid after correction |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for each in found:
        shape = each.shape
        said = ("?",) * 3 if shape is None else (shape.format, _on(shape.show_schema), _on(shape.few_shot))
        share = "" if each.share is None else f"{each.share:.2f}"
        corrected = f"{each.num_corrected} of {each.num_corrections}" if each.num_corrections else ""
        cells = (*said, str(each.num_valid), str(each.num_first), share, corrected)
        yield f"| {' | '.join(cells)} |"
    for each in found:
        for fault, count in each.faults:
            yield f"{_named(each)}: {count} × {one_line(fault, 200)}"


def _named(found: Validity) -> str:
    shape = found.shape
    if shape is None:
        return "unknown prompts"
    left_out = [what for what, shown in (("schema", shape.show_schema), ("examples", shape.few_shot)) if not shown]
    return f"format {shape.format}" + (f" without {' and '.join(left_out)}" if left_out else "")


def _on(shown: bool) -> str:
    return "yes" if shown else "no"
