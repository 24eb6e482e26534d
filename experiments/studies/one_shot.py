"""Recommendation of a strategy without a trial, its storage in one-shot studies, and a study's language model.

The source of a recommendation:

| source | with a key | without |
| --- | --- | --- |
| auto | the language model; the rules, if none of its answers can be parsed | the rules |
| rules | the rules | the rules |
| llm | the language model | an error |

A replayed record replaces a key. Rules use only a diagnosis, so when they replace a language model, the user's
description is not used; the recommendation says so.

A one-shot study trains a recommendation that is requested once, stored in its folder as OUT/one_shot.json (source,
reasons, and the configuration of the space), and read back when the study resumes. It is stored because a language
model may answer differently the next time, and because whether one is available depends on the environment. A stored
answer must be a configuration of the space, like any answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.errors import ConfigurationError, UnreachableModelError
from fedscout.experiments.config import StudyConfig, check_searchable
from fedscout.experiments.studies.run_folder import RunFolder
from fedscout.search.config import ONE_SHOT, RecommenderConfig
from fedscout.search.language_model import NAME as TRANSCRIPT, RecordedChat, Transcript, has_key, key_of, server_of
from fedscout.search.recommenders.diagnosis import (
    RULES_WERE_ASKED,
    Diagnosis,
    ModelUse,
    Reason,
    Recommendation,
    RecommendationContext,
    Source,
)
from fedscout.search.recommenders.prompt import AnswerError, strategy_document, to_spec
from fedscout.search.recommenders.rules import alternatives, recommend_by_rules
from fedscout.search.searchers.llm import LanguageModel, recommend_by_llm
from fedscout.search.study import ASKS_A_LANGUAGE_MODEL


@dataclass(frozen=True)
class Recommended:
    """A recommendation, its context, and the heterogeneity report if the detectors ran."""

    recommendation: Recommendation
    context: RecommendationContext
    report: HeterogeneityReport | None

    def document(self, config: StudyConfig) -> dict[str, Any]:
        """Return everything as JSON-serialisable values."""
        cohort = self.context.cohort
        return {
            **self.recommendation.document(),
            "num_clients": cohort.num_clients,
            "num_sampled": cohort.num_sampled,
            "num_rounds": self.context.num_rounds,
            "config_hash": config.digest(),
        }


def asks_model(config: StudyConfig) -> bool:
    """Return whether a language model will be queried."""
    settings = config.recommender
    return settings.source == "llm" or (
        settings.source == "auto" and (settings.replay is not None or has_key(settings))
    )


def check_recommender(config: StudyConfig, sends: bool = True) -> None:
    """Check the settings of a recommendation before anything is built; one that sends nothing needs no key.

    Raises:
        UserError: With a hint on how to fix it.
    """
    check_searchable(config)
    settings = config.recommender
    if settings.source == "rules" and (settings.replay is not None or not sends):
        must = "not be given with recommender.replay or --prompt, which are of a language model"
        raise ConfigurationError.of("recommender.source=rules", must)
    if sends and asks_model(config):
        check_answerer(settings)


def choose(
    config: StudyConfig, context: RecommendationContext, diagnosis: Callable[[], Diagnosis], folder: Path | None
) -> tuple[Recommendation, RecommendationContext]:
    """Return the recommendation and its context: the given one, with a diagnosis if it is needed.

    Exchanges with a language model are stored in the folder, if one is given.
    """
    fallback_reason, settings = None, config.recommender
    if asks_model(config):
        context = context_for_model(context, diagnosis)
        try:
            with language_model(config, folder) as model:
                return recommend_by_llm(context, model), context
        except UnreachableModelError as error:
            if settings.source == "llm":
                raise
            fallback_reason = f"The rules are used instead of the language model: {error}."
    elif settings.source == "auto":
        variable = settings.api_key_variable
        fallback_reason = f"The rules are used because {variable} holds no API key of a language model."
    if context.description is not None:
        fallback_reason = f"{fallback_reason or RULES_WERE_ASKED} They use only the diagnosis, not the description."
    context = replace(context, diagnosis=diagnosis())
    recommendation = recommend_by_rules(context)
    notes = () if fallback_reason is None else (fallback_reason,)
    return replace(recommendation, notes=(*notes, *recommendation.notes), instead_of_model=fallback_reason), context


def context_for_model(context: RecommendationContext, diagnosis: Callable[[], Diagnosis]) -> RecommendationContext:
    """Return what a language model receives: the context, with a diagnosis if it has neither one nor a description."""
    suffices = context.description is not None or context.diagnosis is not None
    return context if suffices else replace(context, diagnosis=diagnosis())


NAME = "one_shot.json"

logger = logging.getLogger("fedscout")


class KeptAnswer(BaseModel, frozen=True, extra="ignore"):
    """A stored recommendation.

    Attributes:
        answer: The configuration, in the form of a language model's answer.
        source: The recommender that gave it.
        reasons: The reasons.
        notes: Further notes.
        instead_of_model: Why the rules answered in place of a language model.
        diagnosis: The diagnosis it is based on; None if it is based on the user's description alone.
        language_model: The use of a language model; None if none was queried.
    """

    answer: dict[str, Any]
    source: Source
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]
    instead_of_model: str | None
    diagnosis: Diagnosis | None
    language_model: ModelUse | None

    def recommendation(self, context: RecommendationContext) -> Recommendation:
        """Return the stored recommendation.

        Raises:
            AnswerError: If it is not in the context's space.
        """
        recommendation = Recommendation(
            spec=to_spec(self.answer, context.space),
            source=self.source,
            reasons=self.reasons,
            notes=self.notes,
            diagnosis=self.diagnosis,
            model_use=self.language_model,
            instead_of_model=self.instead_of_model,
        )
        if self.source == "llm" or self.diagnosis is None:
            return recommendation
        others = alternatives(context.diagnosed(self.diagnosis), recommendation.spec)
        return replace(recommendation, alternatives=tuple(others))


def check_one_shot(config: StudyConfig, detection: bool, has_answer: bool) -> None:
    """Check that a one-shot study can get a recommendation, and that a text is used, before any work.

    Args:
        config: The study's configuration.
        detection: Whether the clients' data are diagnosed.
        has_answer: Whether there is a recommendation of an earlier run.

    Raises:
        UserError: With a hint on how to fix it.
    """
    if config.search.kind != ONE_SHOT:
        if config.recommender.text is not None:
            must = "be left out of a search, which uses only its trials; --one-shot reads it"
            raise ConfigurationError.of("recommender.text", must, f"search.kind={config.search.kind}")
        return
    if not detection:
        must = "be run by `fedscout run`, as it needs a diagnosis or a description"
        raise ConfigurationError.of(f"search.kind={ONE_SHOT}", must, "a study without either")
    if not has_answer:
        check_recommender(config)


def one_shot_answer(
    config: StudyConfig, folder: RunFolder, context: RecommendationContext, diagnosis: Callable[[], Diagnosis]
) -> Recommendation:
    """Return the recommendation of an earlier run, or else a new one, which is stored.

    Args:
        config: The study's configuration.
        folder: Stores the recommendation, and exchanges with a language model.
        context: The federation, and the user's description if there is one.
        diagnosis: Runs the detectors, if the recommendation needs them.

    Raises:
        RecommenderError: If a required language model does not answer.
    """
    stored = folder.read_model(NAME, KeptAnswer)
    if stored is not None:
        try:
            return stored.recommendation(context)
        except AnswerError:
            logger.warning("%s does not fit this search space, so a new recommendation is requested", NAME)
    recommendation, _ = choose(config, context, diagnosis, folder.path)
    folder.write_json(NAME, {**recommendation.document(), "answer": strategy_document(recommendation.spec)})
    return recommendation


# A study's language model: its checks, its record of exchanges, and its lifetime.


def check_language_model(config: StudyConfig, folder: Path) -> None:
    """Check that a search by a language model has a key or a record, before anything is built or written.

    With a record of exchanges in the study's folder, a key is needed only for new requests.

    Raises:
        ConfigurationError: If there is neither a key nor a record.
    """
    settings = config.recommender
    if config.search.kind not in ASKS_A_LANGUAGE_MODEL:
        return
    if settings.replay is not None or has_key(settings):
        check_answerer(settings)
    elif not (folder / TRANSCRIPT).exists():
        raise ConfigurationError.of(
            f"search.kind={config.search.kind}",
            f"have an API key of a language model in the environment variable {settings.api_key_variable}",
            hint="alternatives are search.kind=genetic, recommender.replay with recorded answers, or "
            "recommender.base_url with recommender.api_key_variable=null for a server that needs no key",
        )


def check_answerer(settings: RecommenderConfig) -> None:
    """Check the record to replay; without one, the key and the server's address.

    Raises:
        UserError: If there is no record to replay, or neither key nor server.
    """
    if settings.replay is not None:
        Transcript(settings.replay, must_exist=True)
    else:
        key_of(settings)
        server_of(settings)


@contextmanager
def language_model(config: StudyConfig, folder: Path | None) -> Iterator[LanguageModel]:
    """Yield a language model; its connection is opened on first use and closed with the block.

    Exchanges are stored in the folder, if one is given, and looked up there before each request.
    """
    transcript = None if folder is None else Transcript(folder / TRANSCRIPT)
    with RecordedChat(config.recommender, transcript) as chat:
        yield LanguageModel(chat, config.recommender, config.seed)


def model_of_search(config: StudyConfig, folder: Path) -> AbstractContextManager[LanguageModel | None]:
    """Return a context manager of the language model that a study's search asks, or of None."""
    return language_model(config, folder) if config.search.kind in ASKS_A_LANGUAGE_MODEL else nullcontext()
