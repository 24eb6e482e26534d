"""The share of valid answers: of what a server said, by what was shown to it, long after it has gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedscout.engine.errors import LogError, RecommenderError
from fedscout.search.recommender_config import PromptShape
from fedscout.search.recommenders.answer_validity import count_valid
from fedscout.search.recommenders.llm_recommender import LanguageModel, recommend_by_llm
from fedscout.search.recommenders.recommendation import Situation
from tests.search.recommenders.loopback import Asked, ModelServer, Play, Script, chooses, says

Server = Callable[[Script], ModelServer]
ModelAt = Callable[..., LanguageModel]
GOOD = chooses("fedprox", proximal_mu=0.1)
RECORD = "llm.jsonl"


def knows_what_it_is_shown(asked: Asked) -> Play:
    """Play a model that needs the schema, or luck: without it, it makes up a parameter on three seeds of five."""
    invents = "Its JSON schema" not in asked.system and asked.body["seed"] >= 2
    return chooses("fedprox", mu=0.1) if invents else GOOD


def ask(model: LanguageModel, situation: Situation, seed: int) -> None:
    try:
        recommend_by_llm(situation, LanguageModel(model.chat, model.settings, seed))
    except RecommenderError:
        assert model.settings.max_corrections == 0


def test_the_share_is_counted_from_the_record_of_a_server_that_has_gone(
    model_at: ModelAt, situation: Situation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As published: two of five without the schema, five of five with it."""
    shapes = [{"show_schema": True}, {"show_schema": False}, {"few_shot": False}, {"format": "A"}]
    with ModelServer(knows_what_it_is_shown) as gone:
        for shape in shapes:
            model = model_at(gone, max_corrections=0, temperature=1.0, **shape)
            for seed in range(5):
                ask(model, situation, seed)
        told_schema = ["json_schema" in json.dumps(asked.body["response_format"]) for asked in gone.asked]
    assert told_schema == [True] * 5 + [False] * 5 + [True] * 10
    monkeypatch.delenv("OPENAI_API_KEY")
    found = {each.shape: each for each in count_valid([tmp_path / RECORD], situation.space)}
    assert list(found) == [PromptShape(**shape) for shape in (shapes[3], shapes[0], shapes[2], shapes[1])]
    assert [(each.num_valid, each.num_first, each.share) for each in found.values()] == [
        *[(5, 5, 1.0)] * 3,
        (2, 5, 0.4),
    ]
    ((fault, count),) = found[PromptShape(show_schema=False)].faults
    assert count == 3
    assert "'mu' is no parameter of fedprox; its parameters are proximal_mu" in fault


def test_a_corrected_answer_is_no_first_answer(
    server: Server, model_at: ModelAt, situation: Situation, tmp_path: Path
) -> None:
    recommend_by_llm(situation, model_at(server([says("hm"), says("still hm"), GOOD])))
    (found,) = count_valid([tmp_path / RECORD], situation.space)
    assert (found.num_valid, found.num_first, found.num_corrected, found.num_corrections) == (0, 1, 1, 2)


def test_an_exchange_that_two_records_hold_counts_once(
    server: Server, model_at: ModelAt, situation: Situation, tmp_path: Path
) -> None:
    recommend_by_llm(situation, model_at(server([GOOD])))
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes((tmp_path / RECORD).read_bytes())
    (found,) = count_valid([tmp_path / RECORD, copy], situation.space)
    assert found.num_first == 1


def test_answers_from_elsewhere_are_texts_with_the_shape_of_their_prompt(situation: Situation, tmp_path: Path) -> None:
    good, bad = '{"kind": "fedprox", "proximal_mu": 0.1}', '{"kind": "fedbest"}'
    lines = [
        {"text": good, "format": "C"},
        {"text": bad, "format": "C"},
        {"text": good, "format": "C"},  # the same answer, given twice, is two answers
        {"text": bad, "format": "A", "few_shot": False},
        {"text": good, "finish_reason": "length"},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = count_valid([path], situation.space)
    assert [(each.shape, each.num_valid, each.num_first) for each in found] == [
        (PromptShape(format="A", few_shot=False), 0, 1),
        (PromptShape(format="B"), 0, 1),
        (PromptShape(format="C"), 2, 3),
    ]


def test_a_record_of_other_strategies_is_refused(
    server: Server, model_at: ModelAt, situation: Situation, situation_of: Callable[..., Situation], tmp_path: Path
) -> None:
    recommend_by_llm(situation, model_at(server([GOOD])))
    with pytest.raises(LogError, match="recorded answers must be to the strategies and ranges of the federation"):
        count_valid([tmp_path / RECORD], situation_of(kinds=("fedavg", "fedprox")).space)


@pytest.mark.parametrize("text", ["", "{", '{"text": "x", "format": "D"}'])
def test_a_file_without_an_answer_is_refused(situation: Situation, tmp_path: Path, text: str) -> None:
    (tmp_path / "answers.jsonl").write_text(text)
    with pytest.raises(LogError, match="recorded answers must be at least one"):
        count_valid([tmp_path / "answers.jsonl"], situation.space)
