"""What is known before a first study: configurations that did well in the project's own studies of like federations.

The file beside this one holds the development half of the published table of trials (docs/choice.md): of each
federation the best configurations at several settings of the clients, and in the joint space with them. They are of
accuracy in classification, and speak of no other task or measure. Which federation is like the present one, and that
none is told its own result: `fedscout.search.study.warm_start`. A study of the same data in other hands is told as
such, and left out where the search itself is measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fedscout.detectors.report import HeterogeneityReport
from fedscout.search.ledger import StudyFacts
from fedscout.search.recommenders.recommendation import Alternative
from fedscout.search.study.earlier_studies import EarlierStudy
from fedscout.search.study.study_archive import read_studies
from fedscout.search.study.warm_start import warm_start
from fedscout.strategies import SearchSpace, StrategySpec, parse_strategy
from fedscout.strategies.specification import SELECTION

FILE = Path(__file__).with_name("priors.parquet")
SOURCE = "docs/choice.md, the table of trials"


@cache
def project_studies() -> tuple[EarlierStudy, ...]:
    """Return the project's own studies."""
    return tuple(read_studies(FILE))


def priors(
    report: HeterogeneityReport,
    facts: StudyFacts,
    space: SearchSpace,
    count: int,
    references: Sequence[StrategySpec] = (),
    studies: Sequence[EarlierStudy] | None = None,
) -> tuple[Alternative, ...]:
    """Return what did well in federations that are like the present one, the nearest first.

    Args:
        report: How the clients' data differ.
        facts: Of the present study.
        space: In which it searches; where the clients' settings are searched, too, studies of the joint space speak.
        count: At most so many configurations.
        references: Never proposed.
        studies: In place of the project's own.
    """
    if not facts.config or not facts.measure.is_accuracy:
        return ()
    config = json.loads(facts.config)
    others = [
        study
        for study in (project_studies() if studies is None else studies)
        if _is_joint(study) == bool(space.client_ranges.keys() - {SELECTION})
        and not study.is_of(facts.config_hash, config, facts.data_digest)
        and not (facts.is_measured and study.is_of_data(config))
    ]
    same_data = {study.name for study in others if study.is_of_data(config)}
    training = {**config["training"], "num_rounds": facts.num_rounds}
    found = warm_start(others, report.model_dump(mode="json"), training, space, count, references)
    return tuple(
        Alternative(
            parse_strategy(each.strategy),
            f"It gained {100 * each.gain:.1f} points on FedAvg in {_described(each.study in same_data)}: {each.study}.",
            SOURCE,
        )
        for each in found.proposals
    )


def _described(same_data: bool) -> str:
    return "a federation of the same data" if same_data else "a similar federation"


def _is_joint(study: EarlierStudy) -> bool:
    return any(spec.client_values() for spec, _ in study.gains)
