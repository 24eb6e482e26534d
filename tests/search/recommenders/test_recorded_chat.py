"""The record: nothing is asked twice, it answers alone, and it answers only what was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.errors import EngineError, LogError, RecommenderError, UnreachableModelError
from fedscout.search.config import RecommenderConfig
from fedscout.search.language_model import ChatRequest, Exchange, Message, RecordedChat, Transcript
from fedscout.search.recommenders.language_model import LanguageModel
from tests.kits.refusals import refused
from tests.search.recommenders.loopback import KEY, ModelServer, Script, fails, says

Server = Callable[[Script], ModelServer]
ModelAt = Callable[..., LanguageModel]


def request(text: str = "which?", **fields: Any) -> ChatRequest:
    given = {"model": "gpt-4.1", "temperature": 0.0, "seed": 0, "max_answer_tokens": 100, "answer_schema": {"a": 1}}
    return ChatRequest(messages=(Message(role="user", content=text),), **{**given, **fields})


@pytest.fixture
def record(model_at: ModelAt, tmp_path: Path) -> Path:
    """Return a record of one exchange, whose server has gone."""
    with ModelServer([says("this")]) as gone:
        model_at(gone).chat.complete(request())
    return tmp_path / "llm.jsonl"


def test_what_was_answered_is_not_asked_again(server: Server, model_at: ModelAt) -> None:
    at = server([says("this"), says("that")])
    assert model_at(at).chat.complete(request()).text == "this"
    for _ in range(2):
        assert model_at(at).chat.complete(request()).text == "this"
    assert len(at.asked) == 1
    assert model_at(at).chat.complete(request("and now?")).text == "that"


def test_what_failed_is_asked_again(server: Server, model_at: ModelAt, tmp_path: Path) -> None:
    at = server([fails(500), says("this")])
    with pytest.raises(UnreachableModelError):
        model_at(at).chat.complete(request())
    assert model_at(at).chat.complete(request()).text == "this"
    kept = Transcript(tmp_path / "llm.jsonl").exchanges
    assert [exchange.error is None for exchange in kept] == [False, True]


def test_a_record_answers_alone_and_is_not_changed(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    before = record.read_bytes()
    with RecordedChat(RecommenderConfig(replay=record), None) as chat:
        assert chat.complete(request()).text == "this"
    copy = Transcript(tmp_path / "other" / "llm.jsonl")
    with RecordedChat(RecommenderConfig(replay=record), copy) as chat:
        for _ in range(2):
            assert chat.complete(request()).text == "this"
    assert record.read_bytes() == before
    assert copy.path.read_bytes() == before  # and so it can be replayed in turn


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"text": "other?"}, "message 1 (user)"),
        ({"model": "gpt-5"}, "model ('gpt-4.1' recorded, 'gpt-5' now)"),
        ({"temperature": 1.0}, "temperature (0.0 recorded, 1.0 now)"),
        ({"seed": 9}, "seed (0 recorded, 9 now)"),
        ({"max_answer_tokens": 50}, "max_answer_tokens (100 recorded, 50 now)"),
        ({"answer_schema": {}}, "strategies"),
    ],
)
def test_a_record_answers_only_the_request_that_was_made(record: Path, fields: dict[str, Any], named: str) -> None:
    with (
        RecordedChat(RecommenderConfig(replay=record), None) as chat,
        pytest.raises(RecommenderError, match="recorded") as caught,
    ):
        chat.complete(request(**fields))
    assert named in str(caught.value)


def test_what_one_server_answered_is_asked_of_another(server: Server, model_at: ModelAt, tmp_path: Path) -> None:
    """Both know a model of the same name, and share a record; each answers for itself."""
    one, other = server([says("this")]), server([says("that")])
    for at, text in ((one, "this"), (other, "that"), (one, "this"), (other, "that")):
        assert model_at(at).chat.complete(request()).text == text
    assert (len(one.asked), len(other.asked)) == (1, 1)
    for at, text in ((one, "this"), (other, "that")):
        settings = RecommenderConfig(replay=tmp_path / "llm.jsonl", base_url=at.url)
        with RecordedChat(settings, None) as chat:
            assert chat.complete(request()).text == text


def test_a_record_does_not_answer_for_a_server_that_was_not_asked(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    settings = RecommenderConfig(replay=record, base_url="http://127.0.0.1:1/v1")
    with RecordedChat(settings, None) as chat, pytest.raises(RecommenderError) as caught:
        chat.complete(request())
    assert "'http://127.0.0.1:1/v1' now" in str(caught.value)


def test_a_recorded_failure_fails_again(model_at: ModelAt, tmp_path: Path) -> None:
    with pytest.raises(UnreachableModelError):
        model_at([fails(503, "overloaded")]).chat.complete(request())
    with (
        RecordedChat(RecommenderConfig(replay=tmp_path / "llm.jsonl"), None) as chat,
        refused(RecommenderError, key="the recorded request"),
    ):
        chat.complete(request())


def test_a_record_holds_no_key(record: Path) -> None:
    text = record.read_text()
    assert KEY not in text
    assert "uthorization" not in text
    (line,) = text.splitlines()
    exchange = Exchange.model_validate_json(line)
    assert (exchange.request, exchange.request_digest) == (request(), request().digest())
    assert (exchange.reply.prompt_tokens, exchange.reply.completion_tokens) == (1000, 50)


def test_a_line_that_was_cut_off_is_passed_over_and_what_follows_can_be_read(
    server: Server, model_at: ModelAt, tmp_path: Path
) -> None:
    at, record = server([says("this"), says("that")]), tmp_path / "llm.jsonl"
    model_at(at).chat.complete(request())
    whole = record.read_text()
    record.write_text(whole + whole[: len(whole) // 2])
    model = model_at(at)
    assert model.chat.complete(request()).text == "this"
    assert model.chat.complete(request("and now?")).text == "that"
    assert len(Transcript(record).exchanges) == 2


def test_unusual_line_breaks_in_a_text_do_not_break_the_record(model_at: ModelAt, tmp_path: Path) -> None:
    text = "a\u2028b\u0085c\nd"
    model_at([says(text)]).chat.complete(request(text))
    (exchange,) = Transcript(tmp_path / "llm.jsonl").exchanges
    assert exchange.reply.text == text


@pytest.mark.parametrize("content", [None, b"", b"not json\n", b"\xff\xfe\x00", b'{"version": 2}\n'])
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "llm.jsonl"
    if content is not None:
        path.write_bytes(content)
    with refused(LogError, key="recorded exchanges", names=str(path)):
        Transcript(path, must_exist=True)
    with refused(LogError, key="recorded exchanges", names=str(tmp_path)):
        Transcript(tmp_path)  # a folder


def test_an_exchange_that_can_not_be_kept_stops_the_work(tmp_path: Path, model_at: ModelAt) -> None:
    model = model_at([says("this")])
    (tmp_path / "llm.jsonl").mkdir()
    with pytest.raises(EngineError, match="jsonl"):
        model.chat.complete(request())


def test_a_record_is_one_json_object_a_line(record: Path, model_at: ModelAt) -> None:
    model_at([says("that")]).chat.complete(request("and now?"))
    for line in record.read_text().splitlines():
        assert isinstance(json.loads(line), dict)
