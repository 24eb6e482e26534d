"""The warm start of a study: worked out once, kept in its folder, and the same when the study goes on.

The earlier studies may change or go away in between; what they said when the study began is part of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.metrics.metric_table import ACCURACY
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.datasets.dataset_request import QUANTITIES
from fedscout.experiments.federations.environments.environment_table import ENVIRONMENTS
from fedscout.experiments.studies.run_folder import RunFolder
from fedscout.search.study.earlier_studies import read_earlier_studies
from fedscout.search.study.warm_start import SimilarStudy, WarmStart, warm_start
from fedscout.search.study_trials import BASELINE
from fedscout.strategies import SearchSpace

NAME = "warm_start.json"
SAME_FEDERATION = "of this federation: a study is not told its own results"
OF_THE_SEARCH = ("objective", "target")
"""Settings of a search that say what a fitness is."""

OTHER_MEASURE = "it searched for what is best by another measure"

logger = logging.getLogger("fedscout")

Compare = Callable[[HeterogeneityReport, SearchSpace], WarmStart]
"""Returns what to try first, and keeps it."""


def read_warm_start(config: StudyConfig, folder: RunFolder, data_digest: str, detection: bool) -> Compare | None:
    """Read what a study starts from, before anything is done; None if nothing was asked for.

    Raises:
        ConfigurationError: If a folder holds no study that can be used, or if there will be no report to compare.
    """
    if not config.search.warm_start:
        return None
    if not detection:
        raise ConfigurationError(
            Fault(
                "search.warm_start",
                "be left out where heterogeneity is not measured",
                list(config.search.warm_start),
                "it compares reports: `fedscout run` measures",
            )
        )
    kept = _kept(folder)
    if kept is None:
        return _comparing(config, folder, data_digest)

    def compare(report: HeterogeneityReport, space: SearchSpace) -> WarmStart:
        if kept.fits(space):
            return kept
        logger.warning("%s proposes what this study can't choose, and is made again", folder.path / NAME)
        return _comparing(config, folder, data_digest)(report, space)

    return compare


def _kept(folder: RunFolder) -> WarmStart | None:
    stored = folder.read_json(NAME)
    if stored is None:
        return None
    try:
        return WarmStart.model_validate(stored)
    except ValidationError:
        logger.warning("%s is not of this version and is made again", folder.path / NAME)
        return None


def _comparing(config: StudyConfig, folder: RunFolder, data_digest: str) -> Compare:
    studies, notes = read_earlier_studies(config.search.warm_start, folder.path)
    own = [study for study in studies if study.is_of(config.digest(), config.identity(), data_digest)]
    other = [study for study in studies if study not in own and _measures(study.config) != _measures(config.identity())]
    same_data = {study.name for study in studies if study.is_of_data(config.identity())}
    unused = [
        SimilarStudy(study=study.name, distance=None, note=note)
        for note, group in ((SAME_FEDERATION, own), (OTHER_MEASURE, other))
        for study in group
    ]

    def compare(report: HeterogeneityReport, space: SearchSpace) -> WarmStart:
        found = warm_start(
            [study for study in studies if study not in own and study not in other],
            report.model_dump(mode="json"),
            config.training.model_dump(mode="json"),
            space,
            config.search.generation_size,
            (BASELINE,),
        )
        if not found.proposals:
            notes.append("no earlier study proposes anything: the search starts as without them")
        for note in notes:
            logger.warning("warm start: %s", note)
        used = [each.model_copy(update={"same_data": each.study in same_data}) for each in found.studies]
        found = found.model_copy(update={"studies": (*used, *unused), "notes": tuple(notes)})
        folder.write_json(NAME, found.model_dump(mode="json"))
        return found

    return compare


def _measures(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration says of what a fitness is; nothing of what is as by default."""
    federation, search = config.get("federation", {}), config.get("search", {})
    said = {"metric": config.get("training", {}).get("metric"), **{key: search.get(key) for key in OF_THE_SEARCH}}
    data = federation.get("dataset")
    said["task"] = "regression" if data in QUANTITIES else federation.get("task")
    said["task"] = "reinforcement" if data in ENVIRONMENTS else said["task"]
    default = {"metric": ACCURACY, "objective": "accuracy", "task": "classification"}
    return {key: value for key, value in said.items() if value is not None and value != default.get(key)}
