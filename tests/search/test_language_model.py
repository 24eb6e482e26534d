"""OpenAI's own client against a server on this machine: what it is sent, what is made of answers, and their record."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fedscout.engine.errors import ConfigurationError, EngineError, LogError, RecommenderError, UnreachableModelError
from fedscout.experiments.config import load_config
from fedscout.search import language_model
from fedscout.search.config import RecommenderConfig, redact
from tests.kits.refusals import refused
from tests.search.recommenders.loopback import KEY, Asked, ModelServer, Play, Script, chooses, fails, says

Server = Callable[[Script], ModelServer]
SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
REQUEST = language_model.ChatRequest(
    model="gpt-4.1",
    temperature=0.5,
    seed=3,
    max_answer_tokens=77,
    messages=({"role": "system", "content": "choose"}, {"role": "user", "content": "{}"}),
    answer_schema=SCHEMA,
)


class Talk:
    """A connection to a server that plays a script, with the exchanges that it told."""

    def __init__(self, script: Script | ModelServer, stack: ExitStack, **settings: Any) -> None:
        self.at = script if isinstance(script, ModelServer) else stack.enter_context(ModelServer(script))
        self.asked = self.at.asked
        self.exchanges: list[language_model.Exchange] = []
        given = {"base_url": self.at.url, "timeout_seconds": 10.0, "connection_retries": 0, **settings}
        self.chat = stack.enter_context(language_model.OpenAIChat(RecommenderConfig(**given), self.exchanges.append))

    def fails(self, kind: type[RecommenderError], *named: object, key: str | None = None) -> None:
        """Ask, and hold that this is an error of one line, which names these and tells no key."""
        with pytest.raises(RecommenderError) as caught:
            self.chat.complete(REQUEST)
        assert type(caught.value) is kind
        (line,) = caught.value.faults
        assert line.key == (key or f"the language model's server {self.chat.server}")
        assert [name for name in named if str(name) not in line] == []
        assert line.isprintable()
        assert KEY not in line
        assert (self.exchanges[-1].error, self.exchanges[-1].reply) == (line, None)


TalkTo = Callable[..., Talk]


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Iterator[TalkTo]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ExitStack() as stack:
        yield lambda script, **settings: Talk(script, stack, **settings)


def test_a_request_asks_for_the_schema_and_an_answer_comes_with_tokens(talk: TalkTo) -> None:
    asking = talk([chooses("fedavg")])
    reply = asking.chat.complete(REQUEST)

    (asked,) = asking.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    named = {"name": "strategy_choice", "schema": SCHEMA, "strict": True}
    assert asked.body == {
        "model": "gpt-4.1",
        "messages": [{"role": "system", "content": "choose"}, {"role": "user", "content": "{}"}],
        "temperature": 0.5,
        "seed": 3,
        "max_tokens": 77,
        "response_format": {"type": "json_schema", "json_schema": named},
    }
    assert json.loads(reply.text)["strategy"] == {"kind": "fedavg"}
    assert (reply.model, reply.finish_reason, reply.refusal) == ("played", "stop", None)
    assert (reply.prompt_tokens, reply.completion_tokens) == (1000, 50)
    (exchange,) = asking.exchanges
    assert (exchange.reply, exchange.request, exchange.statuses) == (reply, REQUEST, (200,))
    assert (exchange.request_digest, exchange.server) == (REQUEST.digest(), asking.at.url)


@pytest.mark.parametrize("usage", [None, 7, {}, *({"prompt_tokens": count} for count in ("many", -1, True))])
def test_a_count_that_is_none_is_not_known(talk: TalkTo, usage: Any) -> None:
    assert talk([says("{}", usage=usage)]).chat.complete(REQUEST).prompt_tokens is None


# Servers that know less of the protocol.


@pytest.mark.parametrize("status", [400, 422])
def test_what_a_server_refuses_is_left_out_one_by_one_and_never_sent_again(talk: TalkTo, status: int) -> None:
    """It has no schemas, JSON mode, temperature, seed and the usual name of the token limit."""

    def picky(asked: Asked) -> Play:
        for name in ("temperature", "seed", "max_tokens", "response_format"):
            if name in asked.body:
                return fails(status, f"Unsupported parameter: '{name}'")
        return says("{}")

    asking = talk(picky)
    for _ in range(2):
        assert asking.chat.complete(REQUEST).text == "{}"
    last = asking.asked[-1].body
    assert set(last) == {"model", "messages", "max_completion_tokens"}
    assert last["max_completion_tokens"] == 77
    formats = [exchange.response_format for exchange in asking.exchanges]
    assert formats == [*["json_schema"] * 4, "json_object", "text", "text"]
    assert [exchange.statuses for exchange in asking.exchanges] == [*[(status,)] * 5, (200,), (200,)]
    assert asking.exchanges[-1].left_out == ("temperature", "seed")
    without_schema = talk([says("{}")])
    without_schema.chat.complete(REQUEST.model_copy(update={"answer_schema": None}))
    assert without_schema.asked[0].body["response_format"] == {"type": "json_object"}


def test_a_server_that_refuses_the_length_of_a_string_is_asked_for_the_schema_without_it(talk: TalkTo) -> None:
    def strict(asked: Asked) -> Play:
        limited = "maxLength" in json.dumps(asked.body["response_format"])
        return fails(400, "Invalid schema: 'maxLength' is not permitted.") if limited else says("{}")

    asking = talk(strict)
    parts = {"type": "object", "properties": {"reason": {"type": "string", "maxLength": 300}}}
    request = REQUEST.model_copy(update={"answer_schema": {"anyOf": [parts]}})
    assert asking.chat.complete(request).text == "{}"
    shown = asking.asked[-1].body["response_format"]["json_schema"]["schema"]
    assert shown == {"anyOf": [{"type": "object", "properties": {"reason": {"type": "string"}}}]}
    assert [exchange.left_out for exchange in asking.exchanges] == [(), ("maxLength",)]
    assert asking.exchanges[-1].request == request


def test_a_server_that_refuses_everything_is_told_so_and_asked_no_more_than_six_times(talk: TalkTo) -> None:
    asking = talk([fails(400, "temperature seed max_tokens max_completion_tokens: no")])
    asking.fails(RecommenderError, "'gpt-4.1'", 400)
    assert len(asking.asked) == 6


# Servers that fail.


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_not_accepted(talk: TalkTo, status: int) -> None:
    asking = talk([fails(status, f"Incorrect API key provided: {KEY}")])
    asking.fails(RecommenderError, status, key="the key in OPENAI_API_KEY")


COMPRESSED = Play(body=gzip.compress(b" " * 1000), headers={"content-encoding": "gzip"})
BUSY = {f"{status}": fails(status, "try\nlater", retry_after_ms="5") for status in (408, 429, 500, 529)}
USELESS: dict[str, tuple[Play, type[RecommenderError], list[object], int]] = {
    **{status: (play, UnreachableModelError, [status], 3) for status, play in BUSY.items()},
    "unknown model": (fails(404, "The model `gpt-4.1` does not exist"), RecommenderError, ["'gpt-4.1'", 404], 1),
    "slow": (Play(delay_seconds=20), UnreachableModelError, ["0.3 s"], 1),
    "dripping": (Play(body=chooses("fedavg").body, drip_seconds=0.05), UnreachableModelError, ["0.3 s"], 1),
    "endless": (Play(body=b"x" * 65536, endless=True), UnreachableModelError, [language_model.MAX_BYTES], 1),
    "endless refusal": (Play(status=400, body=b"x" * 65536, endless=True), UnreachableModelError, [], 1),
    "compressed": (COMPRESSED, UnreachableModelError, ["'gzip'"], 1),
}


@pytest.mark.parametrize("name", USELESS)
def test_a_server_of_no_use(talk: TalkTo, name: str) -> None:
    play, kind, named, num_asked = USELESS[name]
    timeout_seconds = 0.3 if play.delay_seconds or play.drip_seconds else 10.0
    asking = talk([play], timeout_seconds=timeout_seconds, connection_retries=2 if play.status >= 404 else 0)
    started = time.monotonic()
    asking.fails(kind, *named)
    assert time.monotonic() - started < 8
    assert len(asking.asked) == num_asked
    assert asking.asked[0].headers["accept-encoding"] == "identity"


def test_nobody_listens(talk: TalkTo) -> None:
    with ModelServer([chooses("fedavg")]) as gone:
        pass
    talk(gone).fails(UnreachableModelError, "Connection error")


NO_COMPLETIONS = (
    *(b"", b"<html>It works!</html>", b"null", b"[]", b'"text"', b"[" * 50_000, b"\xff\xfe"),
    *(b'{"choices": []}', b'{"choices": [{"message": null}]}', b'{"choices": {"0": {}}}', b'{"error": {"message": 0}}'),
)


@pytest.mark.parametrize("body", NO_COMPLETIONS)
def test_a_server_that_does_not_speak_the_protocol(talk: TalkTo, body: bytes) -> None:
    talk([Play(body=body, headers={"content-type": "text/html"})]).fails(UnreachableModelError, "chat completion")


@pytest.mark.parametrize(
    ("content", "text"), [(None, ""), (7, ""), (["part"], ""), ({"a": 1}, ""), ("a\ud800b", "a?b")]
)
def test_a_content_that_is_no_text_is_empty_and_lone_surrogates_can_be_kept(
    talk: TalkTo, content: Any, text: str
) -> None:
    reply = talk([says(content, refusal="\udfff")]).chat.complete(REQUEST)
    assert reply.model_dump_json()
    assert (reply.text, reply.refusal) == (text, "?")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_does_not_take_the_prompt_along(server: Server, talk: TalkTo, status: int) -> None:
    elsewhere = server([chooses("fedavg")])
    target = elsewhere.url.replace("http://", "http://user:secret@") + "/chat/completions?token=secret"
    asking = talk([Play(status=status, headers={"location": target})], connection_retries=2)
    asking.fails(UnreachableModelError, status)
    assert "secret" not in str(asking.exchanges[-1].error)
    assert elsewhere.asked == []


# The key.


@pytest.mark.parametrize("key", ["hunter2", "x", "(a+", "1234567", "12345678", "not-of-any-known-form-42"])
def test_a_key_of_any_length_is_neither_sent_nor_kept_nor_shown(
    talk: TalkTo, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Also where the server writes it in another way that JSON allows."""
    monkeypatch.setenv("OPENAI_API_KEY", key)
    escaped = "".join(f"\\u{ord(character):04x}" for character in key)
    body = json.dumps(says("your key is KEY; xylophones").body).replace("KEY", escaped).encode()
    asking = talk([fails(429, f"no more for '{key}'!"), Play(body=body)])
    request = REQUEST.model_copy(update={"messages": (language_model.Message(role="user", content=f"psst: {key}."),)})
    with pytest.raises(UnreachableModelError, match="redacted"):
        asking.chat.complete(request)
    assert asking.chat.complete(request).text == "your key is [redacted]; xylophones"
    assert {turn for asked in asking.asked for _, turn in asked.turns} == {"psst: [redacted]."}
    assert all(asked.headers["authorization"] == f"Bearer {key}" for asked in asking.asked)
    for exchange in asking.exchanges:
        assert exchange.request_digest == request.digest()
        kept = f"{exchange.error} {exchange.reply and exchange.reply.text} {exchange.request.messages[0].content}"
        assert not [written for written in (f"'{key}'", f" {key};", f" {key}.") if written in kept]


def test_the_key_comes_from_the_variable_that_is_named_or_none_is_needed(
    talk: TalkTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", " sk-mine-0123456789 \n")
    mine, none = (talk([says("none of them")], api_key_variable=name) for name in ("MY_KEY", None))
    assert [each.chat.complete(REQUEST).text for each in (mine, none)] == ["none of them"] * 2  # "none" is no secret
    assert mine.asked[0].headers["authorization"] == "Bearer sk-mine-0123456789"
    assert KEY not in str(none.asked[0].headers)


@pytest.mark.parametrize("key", [None, "", "  \n"])
def test_without_a_key_nothing_is_opened(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    assert not language_model.has_key(RecommenderConfig())
    with refused(RecommenderError, key="the environment variable OPENAI_API_KEY"):
        language_model.OpenAIChat(RecommenderConfig())


def test_a_key_that_can_not_be_sent_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "schlüssel")
    with refused(RecommenderError, key="the key in OPENAI_API_KEY") as caught:
        language_model.key_of(RecommenderConfig())
    assert "schlüssel" not in str(caught.value)


@pytest.mark.parametrize("address", [language_model.OPENAI_URL, "http://127.0.0.1:9/v1"])
def test_openai_or_the_environment_s_is_the_server_if_none_is_named(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "" if address == language_model.OPENAI_URL else address)
    with language_model.OpenAIChat(RecommenderConfig()) as chat:
        assert chat.server == address


# -- The record: nothing is asked twice, it answers alone, and it answers only what was asked --------------------------


def request(text: str = "which?", **fields: Any) -> language_model.ChatRequest:
    return REQUEST.model_copy(update={"messages": (language_model.Message(role="user", content=text),), **fields})


def replayed(record: Path, base_url: str | None = None, **asked: Any) -> str:
    """Return what a record alone answers to a request."""
    with language_model.RecordedChat(RecommenderConfig(replay=record, base_url=base_url), None) as chat:
        return chat.complete(request(**asked)).text


ModelAt = Callable[..., Any]


@pytest.fixture
def record(model_at: ModelAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a record of one exchange, whose server has gone, and the key with it."""
    with ModelServer([says("this")]) as gone:
        model_at(gone).chat.complete(request())
    monkeypatch.delenv("OPENAI_API_KEY")
    return tmp_path / "llm.jsonl"


def test_what_failed_is_asked_again_but_a_record_alone_fails_again(
    server: Server, model_at: ModelAt, tmp_path: Path
) -> None:
    at, path = server([fails(500), says("this")]), tmp_path / "llm.jsonl"
    with pytest.raises(UnreachableModelError):
        model_at(at).chat.complete(request())
    with refused(RecommenderError, key="the recorded request"):
        replayed(path)
    assert model_at(at).chat.complete(request()).text == replayed(path) == "this"
    assert [exchange.error is None for exchange in language_model.Transcript(path).exchanges] == [False, True]


def test_a_record_answers_alone_and_is_not_changed(record: Path, tmp_path: Path) -> None:
    before = record.read_bytes()
    assert replayed(record) == "this"
    copy = language_model.Transcript(tmp_path / "other" / "llm.jsonl")
    with language_model.RecordedChat(RecommenderConfig(replay=record), copy) as chat:
        for _ in range(2):
            assert chat.complete(request()).text == "this"
    assert record.read_bytes() == before
    assert copy.path.read_bytes() == before  # and so it can be replayed in turn
    assert KEY not in record.read_text()


OTHER_REQUESTS = {"text": "?", "model": "gpt-5", "temperature": 1.0, "seed": 9, "max_answer_tokens": 50}


@pytest.mark.parametrize("changed", [*OTHER_REQUESTS, "answer_schema"])
def test_a_record_answers_only_the_request_that_was_made(record: Path, changed: str) -> None:
    with refused(RecommenderError, key="recorded exchanges", names=str(record)):
        replayed(record, **{changed: OTHER_REQUESTS.get(changed, {})})


def test_what_one_server_answered_is_asked_of_another(server: Server, model_at: ModelAt, tmp_path: Path) -> None:
    """Both know a model of the same name, and share a record; each answers for itself, and for no third one."""
    one, other = server([says("this")]), server([says("that")])
    for at, text in ((one, "this"), (other, "that"), (one, "this"), (other, "that")):
        assert model_at(at).chat.complete(request()).text == text
    assert (len(one.asked), len(other.asked)) == (1, 1)
    for at, text in ((one, "this"), (other, "that")):
        assert replayed(tmp_path / "llm.jsonl", at.url) == text
    with refused(RecommenderError, key="recorded exchanges"):
        replayed(tmp_path / "llm.jsonl", "http://127.0.0.1:1/v1")


def test_a_line_that_was_cut_off_is_passed_over_and_unusual_line_breaks_are_kept(
    server: Server, model_at: ModelAt, tmp_path: Path
) -> None:
    at, record, text = server([says("this"), says("a\u2028b\u0085c\nd")]), tmp_path / "llm.jsonl", "a\u2028b\u0085c\nd"
    model_at(at).chat.complete(request())
    whole = record.read_text()
    record.write_text(whole + whole[: len(whole) // 2])
    model = model_at(at)
    assert model.chat.complete(request()).text == "this"
    assert model.chat.complete(request(text)).text == text
    assert [exchange.reply.text for exchange in language_model.Transcript(record).exchanges] == ["this", text]


DAMAGED = (WHOLE := gzip.compress(b'{"version": 1}\n', mtime=0))[:12] + bytes([WHOLE[12] ^ 0xFF]) + WHOLE[13:]
NO_RECORDS = [("llm.jsonl", content) for content in (None, b"", b"not json\n", b"\xff\xfe\x00", b'{"version": 2}\n')]
NO_RECORDS += [("llm.jsonl.gz", content) for content in (b"not compressed", WHOLE[:-4], DAMAGED)]


@pytest.mark.parametrize(("name", "content"), NO_RECORDS)
def test_what_is_no_record_is_refused(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    for wrong in (path, tmp_path):
        with refused(LogError, key="recorded exchanges", names=str(wrong)):
            language_model.Transcript(wrong, must_exist=True)


def test_an_exchange_that_can_not_be_kept_stops_the_work(tmp_path: Path, model_at: ModelAt) -> None:
    model = model_at([says("this")])
    (tmp_path / "llm.jsonl").mkdir()
    with pytest.raises(EngineError, match="jsonl"):
        model.chat.complete(request())


# -- What may be configured, and that nothing of it gives a secret away ------------------------------------------------


NO_ADDRESSES = (
    *("", "example.org", "ftp://example.org", "file:///etc/passwd"),
    *("http://", "http://h:x/v1", "http://a..b/v1", "http://a b/"),
)


@pytest.mark.parametrize("url", NO_ADDRESSES)
def test_what_is_no_address_is_refused(url: str) -> None:
    for address in ("http://127.0.0.1:8000/v1", "https://example.org", "http://[::1]:11434/v1/"):
        assert RecommenderConfig(base_url=address).base_url == address
    with refused(ConfigurationError, key="recommender.base_url"):
        load_config([f'recommender.base_url="{url}"'])


@pytest.mark.parametrize("secret", ["http://me:hidden@h", "http://hidden@h", "http://h?key=hidden", "http://h/#hidden"])
def test_a_secret_in_an_address_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", secret)
    with refused(RecommenderError, key="OPENAI_BASE_URL") as unset:
        language_model.OpenAIChat(RecommenderConfig())
    assert "hidden" not in str(unset.value)
    with pytest.raises(ValidationError) as caught:
        RecommenderConfig(base_url=secret)
    assert "hidden" not in caught.value.errors()[0]["msg"]
    assert caught.value.errors()[0]["type"] == "value_error"  # whose own text alone is shown


def test_openai_needs_a_key_and_other_servers_need_none() -> None:
    with refused(ConfigurationError, key="recommender.api_key_variable"):
        load_config(["recommender.api_key_variable=null"])
    assert RecommenderConfig(api_key_variable=None, base_url="http://127.0.0.1:1/v1").api_key_variable is None


def test_secrets_are_taken_out_and_nothing_else() -> None:
    expected = {
        "it is 0123456789!": "it is [redacted]!",
        "sk-proj-abcDEF_123-456 and gsk_abcdefgh1234": "[redacted] and [redacted]",
        "Authorization: Bearer abcdefgh.12345": "Authorization: Bearer [redacted]",
        "the risk-averse bearer of news": "the risk-averse bearer of news",
        "none of the nonesuch, says none": "[redacted] of the nonesuch, says [redacted]",
    }
    assert {text: redact(text, ("0123456789", "none")) for text in expected} == expected
