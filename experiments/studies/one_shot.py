"""The answer that a one-shot study trains: asked for once, kept in its folder, and read back when the study goes on.

OUT/one_shot.json    the recommendation: by whom, why, and what of the space it names

A model that is asked again may answer otherwise, and whether one can be asked at all depends on the environment. So the
answer is part of the study from when it was given, whoever gave it. What is read back must be a configuration of the
space, like any answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.studies.recommending import Wanted, check_wanted, choose
from fedscout.experiments.studies.run_folder import RunFolder
from fedscout.search.recommenders.answers import AnswerError, strategy_document, to_spec
from fedscout.search.recommenders.diagnosis import Diagnosis
from fedscout.search.recommenders.published_advice import alternatives
from fedscout.search.recommenders.recommendation import Ground, ModelUse, Recommendation, Situation, Source
from fedscout.search.search_config import ONE_SHOT

NAME = "one_shot.json"

logger = logging.getLogger("fedscout")


class KeptAnswer(BaseModel, frozen=True, extra="ignore"):
    """A recommendation as its file holds it.

    Attributes:
        answer: The configuration, as an answer names it.
        source: Who gave it.
        grounds: Why.
        notes: What else is worth knowing.
        instead_of_model: Why the rules answered, where a model might have.
        diagnosis: What it rests on; None if that were a person's words alone.
        language_model: What a model was asked; None if none was.
    """

    answer: dict[str, Any]
    source: Source
    grounds: tuple[Ground, ...]
    notes: tuple[str, ...]
    instead_of_model: str | None
    diagnosis: Diagnosis | None
    language_model: ModelUse | None

    def recommendation(self, situation: Situation) -> Recommendation:
        """Return it as it was given.

        Raises:
            AnswerError: If it is none of the situation's space.
        """
        found = Recommendation(
            spec=to_spec(self.answer, situation.space),
            source=self.source,
            grounds=self.grounds,
            notes=self.notes,
            diagnosis=self.diagnosis,
            model_use=self.language_model,
            instead_of_model=self.instead_of_model,
        )
        if self.source == "llm" or self.diagnosis is None:
            return found
        return found.with_alternatives(alternatives(situation.diagnosed(self.diagnosis), found.spec))


def wanted_of(config: StudyConfig) -> Wanted:
    """Return who is to answer, and on what."""
    return Wanted(config.recommender.source, config.recommender.text)


def check_one_shot(config: StudyConfig, detection: bool, has_answer: bool) -> None:
    """Refuse a one-shot study that can't be answered, and words that nobody reads, before anything is built.

    Args:
        config: Of the study.
        detection: Whether the clients' data are diagnosed.
        has_answer: Whether there is an answer of an earlier run.

    Raises:
        UserError: With what would help.
    """
    if config.search.kind != ONE_SHOT:
        if config.recommender.text is not None:
            raise ConfigurationError(
                Fault(
                    "recommender.text",
                    "be left out of a search, which goes by its trials: --one-shot reads it",
                    f"search.kind={config.search.kind}",
                )
            )
        return
    if not detection:
        raise ConfigurationError(
            Fault(
                f"search.kind={ONE_SHOT}",
                "be run by `fedscout run`, as its answer rests on the diagnosis or on words",
                "a study without either",
            )
        )
    if not has_answer:
        check_wanted(config, wanted_of(config))


def one_shot_answer(
    config: StudyConfig, folder: RunFolder, asked: Situation, diagnosis: Callable[[], Diagnosis]
) -> Recommendation:
    """Return the recommendation: that of an earlier run, or else a new one, which is kept.

    Args:
        config: Of the study.
        folder: Where it is kept, and exchanges with a model.
        asked: The federation, and a person's words if there are any.
        diagnosis: Asks the detectors, where the answer needs them.

    Raises:
        RecommenderError: If a model that must answer does not.
    """
    stored = folder.read_json(NAME)
    if stored is not None and (kept := _kept(stored, asked)) is not None:
        return kept
    folder.check_writable()
    found, _ = choose(config, wanted_of(config), asked, diagnosis, folder.path)
    folder.write_json(NAME, {**found.document(), "answer": strategy_document(found.spec)})
    return found


def _kept(stored: Mapping[str, Any], asked: Situation) -> Recommendation | None:
    try:
        return KeptAnswer.model_validate(stored).recommendation(asked)
    except (ValidationError, AnswerError):
        logger.warning("%s is not of this version or space, and is asked for again", NAME)
        return None
