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
from fedscout.engine.trials.record import Trial
from fedscout.search.config import PromptFormat, RecommenderConfig, SearchConfig
from fedscout.search.language_model import ChatReply, ChatRequest, RecordedChat, Transcript
from fedscout.search.recommenders.diagnosis import Diagnosis, Recommendation, RecommendationContext
from fedscout.search.searcher import Searcher, SearchTask
from fedscout.search.searchers.llm import LanguageModel, LLMGeneticSearcher, MultiShotLLMSearcher, recommend_by_llm
from fedscout.strategies import given_values, space_of
from tests.search.recommenders.reports import diagnosis_of
from tests.search.searcher_conformance import some_fitness

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


@pytest.fixture(scope="session")
def address() -> str:
    """The address of the server; the test is skipped where the environment names none."""
    if not (found := os.environ.get("FEDSCOUT_LANGUAGE_MODEL")):
        pytest.skip("FEDSCOUT_LANGUAGE_MODEL names no server")
    return found


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelAt]:
    """Return what connects to a server, with settings and a record in the test's folder."""
    with ExitStack() as stack:

        def connect(address: str, **settings: Any) -> LanguageModel:
            config = RecommenderConfig(
                base_url=address,
                api_key_variable=None,
                **{"timeout_seconds": 1800.0, "connection_retries": 0, **settings},
            )
            return LanguageModel(stack.enter_context(RecordedChat(config, Transcript(tmp_path / "llm.jsonl"))), config)

        yield connect


def situation(diagnosis: Diagnosis | None = None, **fields: Any) -> RecommendationContext:
    return RecommendationContext(SPACE, 30, diagnosis=diagnosis, **fields)


def assert_usable(found: Recommendation) -> None:
    assert SPACE.contains(found.spec)
    assert found.source == "llm"
    assert found.model_use.prompt_tokens > 500
    assert found.model_use.completion_tokens > 0
    (reason,) = found.reasons
    assert 0 < len(reason.explanation) <= 302


@pytest.mark.parametrize("show_schema", [True, False])
def test_one_shot_from_words(address: str, model: ModelAt, show_schema: bool) -> None:
    """Without the schema the model knows strategies from the measured gains and the examples alone."""
    words = "one of eight hospitals labels a third of its pictures at random"
    assert_usable(recommend_by_llm(situation(description=words), model(address, show_schema=show_schema)))


@pytest.mark.parametrize("prompt_format", get_args(PromptFormat))
@pytest.mark.parametrize("name", FEDERATIONS)
def test_one_shot_from_a_diagnosis(address: str, model: ModelAt, prompt_format: PromptFormat, name: str) -> None:
    assert_usable(recommend_by_llm(situation(FEDERATIONS[name]), model(address, format=prompt_format)))


class Distorted:
    """A chat that puts other texts in place of the model's first answers."""

    def __init__(self, model: LanguageModel, *texts: str) -> None:
        self._model, self._texts = model, texts
        self.asked: list[ChatRequest] = []

    def complete(self, request: ChatRequest) -> ChatReply:
        self.asked.append(request)
        number = len(self.asked)
        return (
            ChatReply(text=self._texts[number - 1])
            if number <= len(self._texts)
            else self._model.chat.complete(request)
        )


@pytest.mark.parametrize(
    "invalid", ['{"reason": "drift", "strategy": {"kind": "fedprox", "proximal_mu": 7}}', "FedProx would be my choice."]
)
@pytest.mark.parametrize("num_invalid", [1, 2])
def test_a_correction_is_understood(address: str, model: ModelAt, invalid: str, num_invalid: int) -> None:
    connected = model(address)
    chat = Distorted(connected, *[invalid] * num_invalid)
    found = recommend_by_llm(situation(FEDERATIONS["skewed labels"]), LanguageModel(chat, connected.settings))
    assert SPACE.contains(found.spec)
    assert len(chat.asked) > num_invalid
    assert (chat.asked[num_invalid].temperature > 0) == (num_invalid > 1)


@pytest.mark.parametrize("searcher_class", [MultiShotLLMSearcher, LLMGeneticSearcher])
def test_a_search_spends_its_budget_on_different_configurations(
    address: str, model: ModelAt, searcher_class: type[MultiShotLLMSearcher]
) -> None:
    """The model proposes all eight trials, or the first generation of four."""
    task = SearchTask(SPACE, 0, SearchConfig(budget=8, generation_size=4))
    searcher: Searcher = searcher_class(task, model(address), FEDERATIONS["skewed labels"])
    told: list[Trial] = []
    while len(told) < 8:
        proposed = searcher.ask(8 - len(told))
        assert proposed
        new = [some_fitness(spec) for spec in proposed]
        searcher.tell(new)
        told += new
    assert len({SPACE.digest(trial.spec) for trial in told}) == 8
    assert all(SPACE.contains(trial.spec) for trial in told)
    assert len(searcher.notes()) <= 1
