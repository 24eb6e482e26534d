"""Every path that asks a language model, against a real one.

`make language-model` serves one; FEDSCOUT_LANGUAGE_MODEL names its address.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import pytest

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages.calls import Cohort
from fedscout.search.config import PromptFormat, RecommenderConfig, SearchConfig
from fedscout.search.language_model import ChatReply, ChatRequest, RecordedChat, Transcript
from fedscout.search.recommenders.diagnosis import RecommendationContext
from fedscout.search.searcher import SearchTask
from fedscout.search.searchers.llm import LanguageModel, LLMGeneticSearcher, MultiShotLLMSearcher, recommend_by_llm
from fedscout.strategies import given_values, space_of
from tests.search.recommenders.reports import diagnosis_of
from tests.search.searcher_conformance import proposals

pytestmark = [pytest.mark.language_model, pytest.mark.slow, pytest.mark.timeout(3600)]

TRAINING = LocalTraining()
COHORT = Cohort(8, 8, TRAINING.learning_rate)
SPACE = space_of(COHORT, given=given_values(TRAINING))
FEDERATIONS = {
    "alike": diagnosis_of(num_classes=10),
    "skewed labels": diagnosis_of(label_skew="high", num_classes=10),
    "outlier": diagnosis_of(outlier="high", num_classes=10),
}
ModelAt = Callable[..., LanguageModel]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelAt]:
    """Return what connects to the server, with settings and a record in the test's folder; skipped without one."""
    if not (address := os.environ.get("FEDSCOUT_LANGUAGE_MODEL")):
        pytest.skip("FEDSCOUT_LANGUAGE_MODEL names no server")
    with ExitStack() as stack:

        def connect(**settings: Any) -> LanguageModel:
            server = {"base_url": address, "api_key_variable": None, "connection_retries": 0, "timeout_seconds": 1800.0}
            config = RecommenderConfig.model_validate({**server, **settings})
            return LanguageModel(stack.enter_context(RecordedChat(config, Transcript(tmp_path / "llm.jsonl"))), config)

        yield connect


SKEWED = RecommendationContext(SPACE, 30, diagnosis=FEDERATIONS["skewed labels"])
WORDS = {"description": "one of eight hospitals labels a third of its pictures at random"}


@pytest.mark.parametrize(
    ("context", "settings"),
    [
        *((WORDS, {"show_schema": shown}) for shown in (True, False)),
        *(({"diagnosis": FEDERATIONS[name]}, {"format": f}) for name in FEDERATIONS for f in get_args(PromptFormat)),
    ],
)
def test_one_shot_from_words_or_a_diagnosis(model: ModelAt, context: dict[str, Any], settings: dict[str, Any]) -> None:
    """Without the schema the model knows strategies from the measured gains and the examples alone."""
    found = recommend_by_llm(RecommendationContext(SPACE, 30, **context), model(**settings))
    assert SPACE.contains(found.spec)
    assert found.source == "llm"
    assert found.model_use.prompt_tokens > 500
    assert found.model_use.completion_tokens > 0
    (reason,) = found.reasons
    assert 0 < len(reason.explanation) <= 302


class Distorted:
    """A chat that puts other texts in place of the model's first answers."""

    def __init__(self, model: LanguageModel, *texts: str) -> None:
        self._model, self._texts = model, texts
        self.asked: list[ChatRequest] = []

    def complete(self, request: ChatRequest) -> ChatReply:
        self.asked.append(request)
        text = dict(enumerate(self._texts, 1)).get(len(self.asked))
        return self._model.chat.complete(request) if text is None else ChatReply(text=text)


@pytest.mark.parametrize(
    "invalid", ['{"reason": "drift", "strategy": {"kind": "fedprox", "proximal_mu": 7}}', "FedProx would be my choice."]
)
@pytest.mark.parametrize("num_invalid", [1, 2])
def test_a_correction_is_understood(model: ModelAt, invalid: str, num_invalid: int) -> None:
    connected = model()
    chat = Distorted(connected, *[invalid] * num_invalid)
    found = recommend_by_llm(SKEWED, LanguageModel(chat, connected.settings))
    assert SPACE.contains(found.spec)
    assert len(chat.asked) > num_invalid
    assert (chat.asked[num_invalid].temperature > 0) == (num_invalid > 1)


@pytest.mark.parametrize("searcher_class", [MultiShotLLMSearcher, LLMGeneticSearcher])
def test_a_search_spends_its_budget_on_different_configurations(
    model: ModelAt, searcher_class: type[MultiShotLLMSearcher]
) -> None:
    """The model proposes all eight trials, or the first generation of four."""
    task = SearchTask(SPACE, 0, SearchConfig(budget=8, generation_size=4))
    proposed = proposals(searcher_class(task, model(), FEDERATIONS["skewed labels"]))
    assert len({SPACE.digest(spec) for spec in proposed}) == 8
    assert all(map(SPACE.contains, proposed))
