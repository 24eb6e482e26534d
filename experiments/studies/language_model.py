"""The connection of a study to a language model: its checks, its record of exchanges, and its lifetime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config import StudyConfig
from fedscout.search.config import RecommenderConfig
from fedscout.search.language_model import NAME, RecordedChat, Transcript, has_key, key_of, server_of
from fedscout.search.recommenders.language_model import LanguageModel
from fedscout.search.study import ASKS_A_LANGUAGE_MODEL


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
    elif not (folder / NAME).exists():
        raise ConfigurationError.of(
            f"search.kind={config.search.kind} asks a language model, so the environment "
            f"variable {settings.api_key_variable}",
            "hold its API key, but is not set",
            hint="alternatives are search.kind=genetic without a language model, recommender.replay with "
            "recorded answers, or recommender.base_url with recommender.api_key_variable=null for a "
            "server that needs no key",
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
    transcript = None if folder is None else Transcript(folder / NAME)
    with RecordedChat(config.recommender, transcript) as chat:
        yield LanguageModel(chat, config.recommender, config.seed)


def language_model_of_study(config: StudyConfig, folder: Path) -> AbstractContextManager[LanguageModel | None]:
    """Return the language model of a study; None if its searcher uses none."""
    return language_model(config, folder) if config.search.kind in ASKS_A_LANGUAGE_MODEL else nullcontext()
