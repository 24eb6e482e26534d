"""The language model of a study or a recommendation: checked before work begins, opened where exchanges are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.search.language_model.openai_chat import has_key, key_of, server_of
from fedscout.search.language_model.record import NAME, RecordedChat, Transcript
from fedscout.search.recommender_config import RecommenderConfig
from fedscout.search.recommenders.llm_recommender import LanguageModel
from fedscout.search.study.searcher_table import ASKS_A_LANGUAGE_MODEL


def check_language_model(config: StudyConfig, folder: Path) -> None:
    """Refuse a search by a language model that can't be asked, before anything is built or written.

    With a record of exchanges in the study's folder, no key is needed until something new is to be asked.

    Raises:
        ConfigurationError: If there is neither a key nor a record.
    """
    settings = config.recommender
    if config.search.kind not in ASKS_A_LANGUAGE_MODEL:
        return
    if settings.replay is not None or has_key(settings):
        check_answerer(settings)
    elif not (folder / NAME).exists():
        raise ConfigurationError(
            Fault(
                (
                    f"search.kind={config.search.kind} asks a language model, so the environment "
                    f"variable {settings.api_key_variable}"
                ),
                "hold its key, and is not set",
                hint=(
                    "search.kind=genetic asks none, recommender.replay names a record that answers, and "
                    "a server that needs no key is named by recommender.base_url with "
                    "recommender.api_key_variable=null"
                ),
            )
        )


def check_answerer(settings: RecommenderConfig) -> None:
    """Refuse a record that is none; without one, a key or an address that can't be used.

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
    """Return a language model; its connection, opened when it is first needed, is closed with the block.

    Exchanges are kept in the folder, if there is one, and looked up there before anything is asked.
    """
    transcript = None if folder is None else Transcript(folder / NAME)
    with RecordedChat(config.recommender, transcript) as chat:
        yield LanguageModel(chat, config.recommender, config.seed)


def language_model_of_study(config: StudyConfig, folder: Path) -> AbstractContextManager[LanguageModel | None]:
    """Return the language model of a study; None if its searcher asks none."""
    return language_model(config, folder) if config.search.kind in ASKS_A_LANGUAGE_MODEL else nullcontext()
