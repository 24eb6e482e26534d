"""The trials of a study of two objectives, and which of them no other beats: read from its log alone."""

from __future__ import annotations

import pandas as pd
from pydantic import ValidationError

from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.reports.page.pictures.objective_front import BEATEN, ON_FRONT
from fedscout.experiments.reports.page.study_files import StudyFiles
from fedscout.experiments.reports.page.study_tables import rows_of, strategy_name
from fedscout.experiments.studies.study_objective import measures_of_study
from fedscout.search.study_trials import beats


def front_table(study: StudyFiles) -> pd.DataFrame:
    """Return `trial`, `name`, `first`, `second` and `front` of FedAvg and what was searched; empty of one objective."""
    trials = study.trials[(study.trials["status"] == "completed") & study.trials["phase"].isin(["baseline", "search"])]
    searched = [trial for trial in rows_of(trials) if isinstance(trial["objectives"], list)]
    points = [trial["objectives"] for trial in searched]
    rows = [
        {
            "trial": trial["trial"],
            "name": strategy_name(trial),
            "first": own[0],
            "second": own[1],
            "front": BEATEN if any(beats(other, own) for other in points) else ON_FRONT,
        }
        for trial, own in zip(searched, points, strict=True)
    ]
    return pd.DataFrame(rows, columns=["trial", "name", "first", "second", "front"])


def objective_names(study: StudyFiles) -> tuple[str, str]:
    """Return what the two objectives measure; their keys where the configuration is of another version."""
    try:
        names = [measure.name for measure in measures_of_study(StudyConfig.model_validate(study.config))]
    except ValidationError:
        names = list(map(str, study.config["search"]["objective"]))
    return names[0], names[1]
