"""The result of a study as one JSON document.

Everything in it but `timings` is the same for the same configuration, whatever the number of hosts, the grid, or how
often the study was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.data.federation import Federation
from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.description.realised_heterogeneity import Realised
from fedscout.experiments.studies.versions import versions
from fedscout.search.study.study import StudyOutcome


def federation_facts(federation: Federation) -> dict[str, Any]:
    """Return what was built, for the record."""
    return {
        "name": federation.name,
        "num_clients": federation.num_clients,
        "num_classes": federation.num_classes,
        "client_rows": federation.partition.sizes.tolist(),
        **({"unseen_clients": sorted(federation.unseen)} if federation.unseen else {}),
        "class_names": list(federation.class_names),
        **federation.facts,
    }


def result_document(
    config: StudyConfig,
    federation: Federation,
    found: tuple[Realised, Sequence[str]],
    report: HeterogeneityReport | None,
    outcome: StudyOutcome,
    timings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the whole result; `found` is what clients hold, and what must be known of rows that belong together."""

    def shown(trial: Trial | None) -> Mapping[str, Any] | None:
        return None if trial is None else trial.summary()

    confirmation = outcome.confirmation
    return {
        "config": config.identity(),
        "config_hash": config.digest(),
        "versions": versions(),
        "federation": federation_facts(federation),
        "realised": found[0].model_dump(mode="json"),
        "dependence": list(found[1]),
        "affected_clients": list(federation.affected_clients),
        "report": None if report is None else report.without_timings().model_dump(mode="json"),
        "trials": [trial.summary() for trial in [outcome.baseline, *outcome.trials]],
        "trainings": outcome.trainings,
        **({"notes": outcome.notes} if outcome.notes else {}),
        "warm_start": None if outcome.warm_start is None else outcome.warm_start.model_dump(mode="json"),
        **_advised(outcome),
        **({"front": [trial.summary() for trial in outcome.front]} if outcome.front else {}),
        "best": shown(outcome.best),
        "worst": shown(outcome.worst),
        "baseline": shown(outcome.baseline),
        **({} if outcome.levelled is None else {"num_rounds": outcome.levelled}),
        "tuned_baseline": shown(outcome.tuned[0].trials[0] if outcome.tuned else None),
        **({"tuning": [rate.document() for rate in outcome.tuned]} if outcome.tuned else {}),
        "confirmation": None if confirmation is None else confirmation.model_dump(mode="json"),
        "timings": dict(timings),
    }


def _advised(outcome: StudyOutcome) -> dict[str, Any]:
    """Return what the diagnosis said, if there was one: the rules' answer, and what it made the search try first.

    Of a one-shot study also the answer that was trained, and who gave it.
    """
    asked = outcome.recommendation
    one_shot = {} if asked is None else {"recommendation": asked.document()}
    advice = outcome.advice
    if advice is None:
        return one_shot
    (deciding, *_) = advice.grounds
    answer = {"strategy": {"kind": advice.spec.kind, **advice.spec.parameters()}, **vars(deciding)}
    return {
        **one_shot,
        "advice": answer,
        "first_generation": [candidate.document() for candidate in outcome.first_generation],
    }
