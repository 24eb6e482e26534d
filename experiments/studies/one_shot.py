"""Recommendations of a study, and the one-shot study that trains one.

The answer that a one-shot study trains: asked for once, kept in its folder, and read back when the study goes on.

OUT/one_shot.json    the recommendation: by whom, why, and what of the space it names

A model that is asked again may answer otherwise, and whether one can be asked at all depends on the environment. So the
answer is part of the study from when it was given, whoever gave it. What is read back must be a configuration of the
space, like any answer.

Who recommends a strategy without a trial, and on what.

| source | with a key | without |
| --- | --- | --- |
| auto | the language model; the rules, if no answer of it can be read | the rules |
| rules | the rules | the rules |
| llm | the language model | an error |

A record that is replayed takes the place of a key. Rules rest on a diagnosis alone, so where they answer in a language
model's place what a person wrote is not used; the recommendation says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.errors import ConfigurationError, Fault, UnreachableModelError
from fedscout.experiments.config import StudyConfig, check_searchable
from fedscout.experiments.studies.checks import check_answerer, language_model
from fedscout.experiments.studies.run_folder import RunFolder
from fedscout.search.config import LONGEST_DESCRIPTION, ONE_SHOT, SourceChoice
from fedscout.search.language_model import has_key
from fedscout.search.recommenders.diagnosis import (
    RULES_WERE_ASKED,
    Diagnosis,
    ModelUse,
    Reason,
    Recommendation,
    RecommendationContext,
    Source,
)
from fedscout.search.recommenders.language_model import recommend_by_llm
from fedscout.search.recommenders.prompt import AnswerError, strategy_document, to_spec
from fedscout.search.recommenders.rules import alternatives, recommend_by_rules


@dataclass(frozen=True)
class RecommendationRequest:
    """Who is to recommend, and on what: a person's words, the file of a report, or else the federation itself."""

    source: SourceChoice = "auto"
    text: str | None = None
    report: Path | None = None


@dataclass(frozen=True)
class Recommended:
    """A recommendation, what it was made for, and what the detectors said if they were asked."""

    recommendation: Recommendation
    situation: RecommendationContext
    report: HeterogeneityReport | None

    def document(self, config: StudyConfig) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        cohort = self.situation.cohort
        return {
            **self.recommendation.document(),
            "num_clients": cohort.num_clients,
            "num_sampled": cohort.num_sampled,
            "num_rounds": self.situation.num_rounds,
            "config_hash": config.digest(),
        }


def asks_model(config: StudyConfig, source: SourceChoice) -> bool:
    """Return whether a language model is to be asked."""
    available = config.recommender.replay is not None or has_key(config.recommender)
    return source == "llm" or (source == "auto" and available)


def check_wanted(config: StudyConfig, wanted: RecommendationRequest) -> None:
    """Refuse what can't be done, before anything is built.

    Raises:
        UserError: With every fault that was found.
    """
    check_searchable(config)
    faults = []
    if wanted.text is not None and not wanted.text.strip():
        faults.append(Fault("--text", "say how the clients' data differ", "nothing"))
    if wanted.text is not None and len(wanted.text) > LONGEST_DESCRIPTION:
        faults.append(Fault("--text", f"have at most {LONGEST_DESCRIPTION} characters", len(wanted.text)))
    if wanted.source == "rules" and config.recommender.replay is not None:
        faults.append(Fault("--source rules", "not come with --replay: a record holds a language model's answers"))
    if faults:
        raise ConfigurationError(faults)
    if asks_model(config, wanted.source):
        check_answerer(config.recommender)


def choose(
    config: StudyConfig,
    wanted: RecommendationRequest,
    asked: RecommendationContext,
    diagnosis: Callable[[], Diagnosis],
    folder: Path | None,
) -> tuple[Recommendation, RecommendationContext]:
    """Return the recommendation, and what it was made for: what was asked, with a diagnosis where one is needed.

    Exchanges with a language model are kept in the folder, if there is one.
    """
    instead = None
    if asks_model(config, wanted.source):
        enough = wanted.text is not None and wanted.report is None
        situation = asked if enough else replace(asked, diagnosis=diagnosis())
        try:
            with language_model(config, folder) as model:
                return recommend_by_llm(situation, model), situation
        except UnreachableModelError as error:
            if wanted.source == "llm":
                raise
            instead = f"The rules answer in the language model's place: {error}."
    elif wanted.source == "auto":
        variable = config.recommender.api_key_variable
        instead = f"The rules answer, as {variable} holds no key of a language model."
    if wanted.text is not None:
        instead = f"{instead or RULES_WERE_ASKED} They use none of the description, but the diagnosis alone."
    situation = replace(asked, diagnosis=diagnosis())
    found = recommend_by_rules(situation)
    notes = () if instead is None else (instead,)
    return replace(found, notes=(*notes, *found.notes), instead_of_model=instead), situation


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
    grounds: tuple[Reason, ...]
    notes: tuple[str, ...]
    instead_of_model: str | None
    diagnosis: Diagnosis | None
    language_model: ModelUse | None

    def recommendation(self, situation: RecommendationContext) -> Recommendation:
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


def wanted_of(config: StudyConfig) -> RecommendationRequest:
    """Return who is to answer, and on what."""
    return RecommendationRequest(config.recommender.source, config.recommender.text)


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
    config: StudyConfig, folder: RunFolder, asked: RecommendationContext, diagnosis: Callable[[], Diagnosis]
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


def _kept(stored: Mapping[str, Any], asked: RecommendationContext) -> Recommendation | None:
    try:
        return KeptAnswer.model_validate(stored).recommendation(asked)
    except (ValidationError, AnswerError):
        logger.warning("%s is not of this version or space, and is asked for again", NAME)
        return None
