"""Who recommends a strategy without a trial, and on what.

| source | with a key | without |
| --- | --- | --- |
| auto | the language model; the rules, if no answer of it can be read | the rules |
| rules | the rules | the rules |
| llm | the language model | an error |

A record that is replayed takes the place of a key. Rules rest on a diagnosis alone, so where they answer in a language
model's place what a person wrote is not used; the recommendation says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.errors import ConfigurationError, Fault, UnreachableModelError
from fedscout.experiments.config.study_config import StudyConfig, check_searchable
from fedscout.experiments.studies.study_language_model import check_answerer, language_model
from fedscout.search.language_model.openai_chat import has_key
from fedscout.search.recommender_config import LONGEST_DESCRIPTION, SourceChoice
from fedscout.search.recommenders.diagnosis import Diagnosis
from fedscout.search.recommenders.llm_recommender import recommend_by_llm
from fedscout.search.recommenders.recommendation import RULES_WERE_ASKED, Recommendation, Situation
from fedscout.search.recommenders.rules import recommend_by_rules


@dataclass(frozen=True)
class Wanted:
    """Who is to recommend, and on what: a person's words, the file of a report, or else the federation itself."""

    source: SourceChoice = "auto"
    text: str | None = None
    report: Path | None = None


@dataclass(frozen=True)
class Recommended:
    """A recommendation, what it was made for, and what the detectors said if they were asked."""

    recommendation: Recommendation
    situation: Situation
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


def check_wanted(config: StudyConfig, wanted: Wanted) -> None:
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
    config: StudyConfig, wanted: Wanted, asked: Situation, diagnosis: Callable[[], Diagnosis], folder: Path | None
) -> tuple[Recommendation, Situation]:
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
