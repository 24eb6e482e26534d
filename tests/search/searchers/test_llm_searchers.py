"""Searches by a language model: the laws of all searchers, what the model is shown, and what a study keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.errors import NoValidAnswerError
from fedscout.engine.trials.record import Trial
from fedscout.search.config import RecommenderConfig, SearchConfig
from fedscout.search.language_model import Chat, ChatReply, ChatRequest, RecordedChat, Transcript
from fedscout.search.recommenders.language_model import LanguageModel
from fedscout.search.searcher import Searcher
from fedscout.search.searchers.genetic import GeneticSearcher
from fedscout.search.searchers.llm import LLMGeneticSearcher, MultiShotLLMSearcher
from fedscout.search.study import StudyOutcome, run_study
from fedscout.strategies import FedProxSpec, SearchSpace, StrategySpec, space_of
from tests.search.recommenders.loopback import KEY, Asked, ModelServer, Play, says
from tests.search.recommenders.played_chat import PlayedChat
from tests.search.recommenders.reports import report_of
from tests.search.searcher_conformance import COHORT, SearcherLaws, proposals, some_fitness, task
from tests.search.studies import ScriptedRunner, completed, document, keep_trials, open_ledger

SETTINGS = RecommenderConfig()


def multi_shot(space: SearchSpace, seed: int, chat: Chat | None = None, population: int = 4) -> MultiShotLLMSearcher:
    model = LanguageModel(chat or PlayedChat(space), SETTINGS)
    return MultiShotLLMSearcher(task(space, seed, generation_size=population), model)


def hybrid(space: SearchSpace, seed: int, chat: Chat | None = None) -> LLMGeneticSearcher:
    return LLMGeneticSearcher(task(space, seed), LanguageModel(chat or PlayedChat(space), SETTINGS))


class TestMultiShot(SearcherLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return multi_shot(space, seed)


class TestHybrid(SearcherLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return hybrid(space, seed)


class Scripted:
    """A chat that gives these answers in turn, the last one for ever, and keeps what it was asked."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts
        self.asked: list[ChatRequest] = []

    def complete(self, request: ChatRequest) -> ChatReply:
        self.asked.append(request)
        return ChatReply(text=self._texts[min(len(self.asked), len(self._texts)) - 1])

    def shown(self, number: int) -> dict[str, Any]:
        """What the user's first message of a request held."""
        found = json.loads(self.asked[number].messages[1].content)
        assert isinstance(found, dict)
        return found


def prox(mu: float) -> str:
    return json.dumps({"kind": "fedprox", "proximal_mu": mu})


SPACE = space_of(COHORT)
ALL_OF_MULTIKRUM = '{"kind": "multikrum", "num_malicious_nodes": 0, "num_nodes_to_select": 10}'


def asked_one_by_one(searcher: Searcher, count: int) -> list[StrategySpec]:
    """Ask for trials, each of which is told before the next is asked for."""
    found = []
    for _ in range(count):
        (spec,) = searcher.ask(count)
        searcher.tell([some_fitness(spec)])
        found.append(spec)
    return found


def test_the_model_is_shown_every_earlier_trial_with_its_result_best_first() -> None:
    chat = Scripted(prox(0.1), prox(0.2), prox(0.3))
    searcher = multi_shot(SPACE, 5, chat)
    assert searcher.ask(4) == [FedProxSpec(proximal_mu=0.1)]
    searcher.tell([Trial(FedProxSpec(proximal_mu=0.1), status="failed", error="reason with /a/path in it")])
    assert searcher.ask(4) == [FedProxSpec(proximal_mu=0.2)]
    searcher.tell([Trial(FedProxSpec(proximal_mu=0.2), fitness=0.25)])
    assert searcher.ask(4) == [FedProxSpec(proximal_mu=0.3)]
    bad = {"trial": 1, "strategy": {"kind": "fedprox", "proximal_mu": 0.1}, "fitness": 0.0, "failed": True}
    good = {"trial": 2, "strategy": {"kind": "fedprox", "proximal_mu": 0.2}, "fitness": 0.25}
    shown = [chat.shown(number) for number in range(3)]
    assert [told["trials"] for told in shown] == [[], [bad], [good, bad]]
    assert all(list(told) == ["trials", "what_to_do"] for told in shown)  # the question stands last
    assert {request.seed for request in chat.asked} == {5}


@pytest.mark.parametrize("repeated", [prox(0.1), '{"kind": "fedavg"}', ALL_OF_MULTIKRUM])
def test_a_repetition_or_a_twin_of_fedavg_goes_back_with_what_was_tried_and_then_with_temperature(
    repeated: str,
) -> None:
    chat = Scripted(prox(0.1), repeated, repeated, repeated, prox(0.2))
    searcher = multi_shot(SPACE, 0, chat)
    assert asked_one_by_one(searcher, 2) == [FedProxSpec(proximal_mu=0.1), FedProxSpec(proximal_mu=0.2)]
    for request in chat.asked[2:]:
        told = json.loads(request.messages[-1].content)
        assert told["already_tried"] == [{"kind": "fedprox", "proximal_mu": 0.1}, {"kind": "fedavg"}]
        assert ("is that of trial 1" in told["your_answer_is_not_valid"][0]) == (repeated == prox(0.1))
    assert [request.temperature for request in chat.asked] == [0.0, 0.0, 0.0, 0.7, 1.0]
    assert searcher.notes() == []


def test_a_temperature_that_was_asked_for_is_never_lowered() -> None:
    chat = Scripted(prox(0.1))
    model = LanguageModel(chat, RecommenderConfig(temperature=0.9))
    asked_one_by_one(MultiShotLLMSearcher(task(SPACE, 0), model), 2)
    assert [request.temperature for request in chat.asked] == [0.9, 0.9, 0.9, 0.9, 1.0]


@pytest.mark.parametrize("last", [prox(0.1), "no idea"])
def test_from_a_trial_for_which_a_model_only_repeats_itself_the_genetic_search_goes_on(last: str) -> None:
    """Trial 3 is refused four times, or three times before an answer that can't be read; then nothing is asked."""
    chat = Scripted(prox(0.1), prox(0.2), *[prox(0.1)] * 3, last)
    searcher, genetic = multi_shot(SPACE, 0, chat), GeneticSearcher(task(SPACE, 0))
    genetic.tell([some_fitness(spec) for spec in asked_one_by_one(searcher, 2)])
    for _ in range(6):
        (spec,) = searcher.ask(1)
        assert [spec] == genetic.ask(1)
        for each in (searcher, genetic):
            each.tell([some_fitness(spec)])
    assert len({SPACE.digest(trial.spec) for trial in searcher.archive.searched}) == 8
    assert len(chat.asked) == 6
    (note,) = searcher.notes()
    assert "trial 3" in note
    assert "6 of 8 trials" in note


def test_a_searcher_that_is_told_the_earlier_trials_knows_where_the_model_gave_up() -> None:
    stubborn = Scripted(prox(0.1))
    searcher = multi_shot(SPACE, 0, stubborn)
    told = [some_fitness(spec) for spec in asked_one_by_one(searcher, 5)]
    resumed = multi_shot(SPACE, 0, Scripted(prox(0.1)))
    resumed.tell(told)
    assert resumed.ask(1) == searcher.ask(1)
    assert resumed.notes() == searcher.notes()


def test_for_trials_that_were_given_the_model_is_not_asked() -> None:
    chat, first = Scripted(prox(0.3)), [FedProxSpec(proximal_mu=mu) for mu in (0.1, 0.2)]
    searcher = MultiShotLLMSearcher(task(SPACE, first=first), LanguageModel(chat, SETTINGS))
    assert asked_one_by_one(searcher, 3) == [*first, FedProxSpec(proximal_mu=0.3)]
    assert len(chat.asked) == 1


def test_a_model_that_gives_no_valid_answer_stops_the_search() -> None:
    chat = Scripted("no idea")
    with pytest.raises(NoValidAnswerError):
        multi_shot(SPACE, 0, chat).ask(1)
    assert len(chat.asked) == 4


def test_the_hybrid_goes_on_from_the_models_generation_as_the_genetic_search_would() -> None:
    chat = PlayedChat(SPACE)
    searcher, genetic = hybrid(SPACE, 3, chat), GeneticSearcher(task(SPACE, 3))
    first = asked_one_by_one(searcher, 4)
    assert first == asked_one_by_one(multi_shot(SPACE, 3), 4)
    genetic.tell([some_fitness(spec) for spec in first])
    asked = chat.num_asked
    for _ in range(3):
        children = searcher.ask(4)
        assert len(children) == 4
        assert children == genetic.ask(4)
        for each in (searcher, genetic):
            each.tell([some_fitness(spec) for spec in children])
    assert chat.num_asked == asked


def test_where_the_model_has_less_than_a_generation_the_hybrid_fills_it() -> None:
    searcher = hybrid(SPACE, 3, Scripted(prox(0.1)))
    found = proposals(searcher)
    assert found[0] == FedProxSpec(proximal_mu=0.1)
    assert len({SPACE.digest(spec) for spec in found}) == 8


# In a study, with the real client.


@pytest.fixture
def played_server(monkeypatch: pytest.MonkeyPatch) -> Callable[[SearchSpace], ModelServer]:
    """Return what makes a server that proposes as `PlayedChat` does."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def serve(space: SearchSpace) -> ModelServer:
        played = PlayedChat(space)

        def answer(asked: Asked) -> Play:
            request = ChatRequest(
                model="m",
                temperature=0,
                seed=0,
                max_answer_tokens=1,
                messages=[{"role": role, "content": content} for role, content in asked.turns],
                answer_schema={},
            )
            return says(played.complete(request).text)

        return ModelServer(answer)

    return serve


def by_spec(spec: Any) -> Any:
    return completed(some_fitness(spec.strategy).fitness)


def studied(folder: Path, url: str, config: SearchConfig, runner: ScriptedRunner | None = None) -> StudyOutcome:
    """Run a study that asks the server at an address, or the rest of one."""
    settings = RecommenderConfig(base_url=url, connection_retries=0)
    with RecordedChat(settings, Transcript(folder / "llm.jsonl")) as chat:
        ledger = open_ledger(folder, runner or ScriptedRunner(by_spec), cohort=COHORT)
        return run_study(config, ledger, report_of(), model=LanguageModel(chat, settings))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["multishot_llm", "llm_genetic"])
def test_a_study_that_was_cut_off_asks_nothing_twice(
    tmp_path: Path, played_server: Callable[[SearchSpace], ModelServer], kind: Any
) -> None:
    config = SearchConfig(kind=kind, budget=8, confirmation_seeds=0)
    with played_server(SPACE) as server:
        whole = document(studied(tmp_path / "whole", server.url, config))
        num_asked = len(server.asked)
        assert num_asked >= (8 if kind == "multishot_llm" else 4)
        assert server.asked[0].user["diagnosis"]["label_skew"] == "no"
        for num_kept in (0, 1, 5, 9):
            again = tmp_path / f"kept {num_kept}"
            keep_trials(tmp_path / "whole", again, range(num_kept).__contains__)
            (again / "llm.jsonl").write_bytes((tmp_path / "whole" / "llm.jsonl").read_bytes())
            assert document(studied(again, server.url, config)) == whole
        assert len(server.asked) == num_asked

        # a record that lacks its end is completed
        cut = tmp_path / "cut"
        cut.mkdir()
        lines = (tmp_path / "whole" / "llm.jsonl").read_text().splitlines(keepends=True)
        (cut / "llm.jsonl").write_text("".join(lines[:2]))
        assert document(studied(cut, server.url, config)) == whole
        assert len(server.asked) == 2 * num_asked - 2


@pytest.mark.slow
def test_a_study_that_failed_at_the_model_goes_on_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model says nothing of use for the third trial until the study is run again; the first two are kept."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    config, runner = SearchConfig(kind="multishot_llm", budget=3, confirmation_seeds=0), ScriptedRunner(by_spec)
    answers = iter([prox(0.1), prox(0.2), *["no idea"] * 4, prox(0.3)])
    with ModelServer(lambda _: says(next(answers))) as server:
        with pytest.raises(NoValidAnswerError):
            studied(tmp_path, server.url, config, runner)
        trained = len(runner.ran)
        found = studied(tmp_path, server.url, config, runner)
        assert [trial.spec for trial in found.trials] == [FedProxSpec(proximal_mu=mu) for mu in (0.1, 0.2, 0.3)]
        assert len(runner.ran) == trained + 1
        assert len(server.asked) == 7
        assert document(studied(tmp_path, server.url, config, runner)) == document(found)
        assert len(server.asked) == 7
