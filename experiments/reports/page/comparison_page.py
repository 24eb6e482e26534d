"""Several studies on one page: what each advises, how sure, and at what cost, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.reports.page.page_parts import Page, Picture, Section, Table
from fedscout.experiments.reports.page.pictures.confirmed_difference import confirmed_difference
from fedscout.experiments.reports.page.pictures.learning_curves import learning_curves
from fedscout.experiments.reports.page.study_files import StudyFiles, read_study_files
from fedscout.experiments.reports.page.study_tables import gain_rows, searched
from fedscout.experiments.reports.page.verdict_words import verdict

MOST = 8


def comparison_page(folders: Sequence[Path]) -> Page:
    """Return the page of two studies or more, in the order in which they are given.

    Raises:
        LogError: If a folder holds no study.
        ConfigurationError: If there are too many, or they measure different things.
    """
    if len(folders) > MOST:
        raise ConfigurationError(Fault("--compare", f"name at most {MOST - 1} folders", len(folders) - 1))
    studies = {name: read_study_files(folder) for name, folder in zip(_names(folders), folders, strict=True)}
    measures = {study.measure.name for study in studies.values()}
    if len(measures) > 1:
        raise ConfigurationError(Fault("--compare", "name studies of one measure", ", ".join(sorted(measures))))
    num_better = sum(_is_better(study) for study in studies.values())
    headline = f"Another strategy beats FedAvg in {num_better} of {len(studies)} studies."
    return Page(", ".join(studies), headline, (), (), (_verdicts(studies), _gains(studies), _curves(studies)))


def _names(folders: Sequence[Path]) -> list[str]:
    """Return a name of each folder that no other has."""
    names = [folder.resolve().name for folder in folders]
    return [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]


def _is_better(study: StudyFiles) -> bool:
    return study.confirmation is not None and study.confirmation.verdict == "better"


def _verdicts(studies: dict[str, StudyFiles]) -> Section:
    rows = []
    for name, study in studies.items():
        headline, _, figures = verdict(study)
        told = dict.fromkeys(("gain", "interval", "cost"), "")
        if study.confirmation is not None:
            told["gain"] = figures[0][1]
            told["interval"] = figures[1][1] if len(figures) > 2 else ""
        told["cost"] = figures[-1][1] if figures else ""
        rows.append((name, study.name, headline, *told.values()))
    headings = ("study", "of", "verdict", "gain", "95 % interval", "cost")
    return Section("verdicts", "Verdicts", table=Table(headings, rows, ("of", "verdict")))


def _gains(studies: dict[str, StudyFiles]) -> Section:
    means, seeds, unit = [], [], ""
    for name, study in studies.items():
        confirmation = study.confirmation
        if confirmation is None:
            continue
        found, unit = confirmation.versus[confirmation.reference][confirmation.view], confirmation.measure.unit
        mean, each = gain_rows(name, confirmation, found)
        means.append(mean)
        seeds += each
    if not means:
        return Section("gains", "Gains", missing=("None of the studies was confirmed on fresh seeds.",))
    caption = (
        "What each study's pick gains on the stronger of FedAvg and tuned FedAvg. Thin line: 95 % interval for new "
        "data; thick: for another run; ticks: fresh seeds."
    )
    same_rows = [name for name, study in studies.items() if (one := study.confirmation) and one.design.same_rows]
    if same_rows:
        caption += f" Every seed of {', '.join(same_rows)} tests on the same rows, for which both are too short."
    chart = confirmed_difference(pd.DataFrame(means), pd.DataFrame(seeds), unit)
    return Section("gains", "Gains", pictures=(Picture("gains", caption, chart),))


def _curves(studies: dict[str, StudyFiles]) -> Section:
    picks = []
    for number, (name, study) in enumerate(studies.items()):
        trials = searched(study)
        own = trials[trials["chosen"]].head(1)
        picks.append(own.assign(role=name, trial=number))
    frame = pd.concat(picks, ignore_index=True)
    if frame.empty:
        return Section("curves", "Learning curves", missing=("None of the studies has a trial yet.",))
    measure = next(iter(studies.values())).score_measure.name
    caption = f"Mean {measure} after each round of every study's pick, on its search's seed."
    return Section("curves", "Learning curves", pictures=(Picture("curves", caption, learning_curves(frame, measure)),))
