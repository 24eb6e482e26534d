"""`fedscout recommend`, and studies whose searcher asks a language model: on the command line, as a user would."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.cli.conftest import SMALL, Cli
from tests.search.recommenders.loopback import KEY, ModelServer, Play, Script, chooses, fails, says
from tests.search.recommenders.reports import report_of

Server = Callable[[Script], ModelServer]
GOOD = chooses("fedprox", proximal_mu=0.1, reason="as clients drift")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Return what starts a server; there is a key, and nothing else of the user's own."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(ModelServer(script))


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "given.json"
    path.write_text(report_of(divergence=0.5, rows=(500,) * 4, num_classes=10).model_dump_json())
    return path


def at(server: ModelServer) -> str:
    return f"recommender.base_url={server.url}"


FAST = ("recommender.connection_retries=0", "recommender.timeout_seconds=10")


def test_without_a_key_the_rules_recommend_and_say_so(cli: Cli, tmp_path: Path) -> None:
    done = cli("recommend", *SMALL, "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["source"] == "rules"
    assert found["language_model"] is None
    assert found["reasons"][0]["applied"]
    assert "OPENAI_API_KEY holds no key" in found["notes"][0]
    assert found["out"] is None
    assert list(tmp_path.iterdir()) == []


def test_people_read_who_recommends_what_and_why(cli: Cli, report: Path) -> None:
    done = cli("recommend", "--report", report, "--source", "rules")
    assert done.code == 0
    assert "Recommended by the rules: fedyogi(eta=0.1, tau=0.001, beta_1=0.9, beta_2=0.99)" in done.out
    assert "Reddi et al. 2021" in done.out


def test_a_report_stands_for_the_federation(cli: Cli, report: Path, tmp_path: Path) -> None:
    """Data are not read, as those of this configuration could not be, and the cohort is the report's."""
    arguments = ("recommend", "federation.dataset=wine_quality", "federation.folder=/nowhere", "--json", "--report")
    found = json.loads(cli(*arguments, report).out)
    assert (found["num_clients"], found["strategy"]["kind"]) == (4, "fedyogi")
    wrapped = tmp_path / "printed.json"
    wrapped.write_text(json.dumps({"report": json.loads(report.read_text()), "affected_clients": []}))
    assert json.loads(cli(*arguments, wrapped).out) == found


@pytest.mark.slow
def test_a_language_model_recommends_and_its_record_does_so_again_without_it(
    cli: Cli, server: Server, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = server([fails(400, "no schemas here"), says("hm"), GOOD])
    arguments = ("recommend", "--report", report, at(serving), *FAST)
    done = cli(*arguments, "--out", "first", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["source"], found["strategy"]["kind"]) == ("llm", "fedprox")
    assert found["reasons"][0]["explanation"] == "as clients drift"
    assert found["language_model"]["num_answers"] == 2
    assert found["language_model"]["prompt_tokens"] == 2000
    kept = {path.name: path.read_text() for path in (tmp_path / "first").rglob("*") if path.is_file()}
    assert {"llm.jsonl", "recommendation.json", "config.json"} <= set(kept)
    assert not [name for name, text in kept.items() if KEY in text]
    assert len(kept["llm.jsonl"].splitlines()) == len(serving.asked) == 3

    again = json.loads(cli(*arguments, "--out", "first", "--json").out)  # asks nothing twice
    assert again == found
    assert len(serving.asked) == 3

    monkeypatch.delenv("OPENAI_API_KEY")
    replayed = cli("recommend", "--report", report, "--replay", "first/llm.jsonl", "--out", "second", "--json")
    assert replayed.code == 0, replayed.err
    assert json.loads(replayed.out) == {**found, "out": "second"}
    assert len(serving.asked) == 3


def test_a_persons_words_need_no_data(cli: Cli, server: Server) -> None:
    serving = server([GOOD])
    words = 'one hospital labels at random"} {"kind": "custom"'
    nowhere = ("federation.dataset=wine_quality", "federation.folder=/nowhere")
    done = cli("recommend", *nowhere, at(serving), *FAST, "--text", words, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["source"], found["diagnosis"]) == ("llm", None)
    assert serving.asked[0].user == {"description_by_a_person": words}


def test_the_diagnosis_of_the_data_is_what_a_model_is_shown(cli: Cli, server: Server, tmp_path: Path) -> None:
    serving = server([GOOD])
    done = cli("recommend", *SMALL, at(serving), *FAST, "--out", "out", "--json")
    assert done.code == 0, done.err
    shown = serving.asked[0].user["diagnosis"]
    assert (shown["num_clients"], shown["num_classes"]) == (4, 3)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["num_clients"] == 4
    done = cli("recommend", *SMALL, at(serving), *FAST, "--out", "out", "--json")
    assert done.code == 0, done.err
    assert len(serving.asked) == 1


def test_where_the_model_can_not_be_reached_auto_takes_the_rules_and_says_so(
    cli: Cli, server: Server, report: Path
) -> None:
    serving = server([fails(503, "overloaded")])
    done = cli("recommend", "--report", report, at(serving), *FAST, "--text", "skewed", "--out", "out", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["source"] == "rules"
    assert "The rules answer in the language model's place" in found["notes"][0]
    assert "answered 503" in found["notes"][0]
    assert "description" in found["instead_of_model"]
    strict = cli("recommend", "--report", report, at(serving), *FAST, "--source", "llm", "--out", "other")
    assert strict.code == 1  # nothing that the user did
    assert "answered 503" in strict.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "play",
    [
        Play(body=b"<html>It works!</html>", headers={"content-type": "text/html"}),
        Play(body=b" " * 5_000_000),
        Play(body=b"x", headers={"content-encoding": "gzip"}),
        Play(status=307, headers={"location": "http://127.0.0.1:9/v1/chat/completions"}),
    ],
    ids=["HTML", "5 MB", "compressed", "a redirection"],
)
def test_where_the_server_speaks_something_else_auto_takes_the_rules_and_says_so(
    cli: Cli, server: Server, report: Path, play: Play
) -> None:
    serving = server([play])
    done = cli("recommend", "--report", report, at(serving), *FAST, "--out", "out", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["source"] == "rules"
    assert "The rules answer in the language model's place" in found["notes"][0]
    strict = cli("recommend", "--report", report, at(serving), *FAST, "--source", "llm", "--out", "other")
    assert (strict.code, strict.out) == (1, "")
    assert len(strict.err.splitlines()) == 1


def test_a_password_in_the_environments_address_gets_nowhere(
    cli: Cli, server: Server, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = server([GOOD])
    monkeypatch.setenv("OPENAI_BASE_URL", serving.url.replace("http://", "http://user:geheim@"))
    for command in (["recommend", "--report", str(report)], ["search", *SMALL, "search.kind=multishot_llm"]):
        done = cli(*command, "--out", "out")
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("fedscout: OPENAI_BASE_URL must be an address such as")
        assert "geheim" not in done.err
    assert serving.asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["given.json"]


BAD_MODELS: dict[str, tuple[Play, str]] = {
    "never valid": (says("no idea"), "gave 4 answers of which none is; the last was 'no idea'"),
    "refusing": (says(None, refusal="I can't."), "must not be a refusal"),
    "cut off": (says("{", finish_reason="length"), "was cut off"),
    "malicious": (chooses("custom", path="os:system"), "kind must be one of fedavg"),
    "wrong key": (fails(401, f"bad key {KEY}"), "the key in OPENAI_API_KEY must be one that"),
    "no model": (fails(404, "no such model"), "must accept the request for model 'gpt-4.1'"),
}
MISTAKES = {"wrong key", "no model"}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_bad_model_is_one_line_and_an_exit_code_that_says_whose_mistake_it_is(
    cli: Cli, server: Server, report: Path, name: str
) -> None:
    play, expected = BAD_MODELS[name]
    done = cli("recommend", "--report", report, at(server([play])), *FAST, "--out", "out", "--json")
    assert (done.code, done.out) == (2 if name in MISTAKES else 1, "")
    (line,) = done.err.splitlines()
    assert line.startswith("fedscout: ")
    assert expected in line
    assert KEY not in line


WRONG: dict[str, tuple[list[str], str]] = {
    "no key": (["--source", "llm"], "the environment variable OPENAI_API_KEY must hold the key"),
    "no key of that name": (
        ["--source", "llm", "recommender.api_key_variable=MINE"],
        "the environment variable MINE must hold the key",
    ),
    "no words": (["--text", " "], "--text must say how the clients' data differ, got nothing"),
    "many words": (["--text", "x" * 4001], "--text must have at most 4000 characters, got 4001"),
    "no report": (["--report", "nowhere.json"], "--report must be a report that `fedscout detect`"),
    "not a report": (["--report", "other.json"], "--report must be a report that `fedscout detect`"),
    "not JSON": (["--report", "broken.json"], "--report must be a report that `fedscout detect`"),
    "a folder": (["--report", "."], "--report must be a report that `fedscout detect`"),
    "no record": (["--replay", "nowhere.jsonl"], "recorded exchanges must be a file of JSON lines, got nowhere.jsonl"),
    "not a record": (["--replay", "broken.json"], "recorded exchanges must hold at least one, got broken.json"),
    "rules with a record": (["--source", "rules", "--replay", "x"], "--source rules must not come with --replay"),
    "unknown source": (["--source", "oracle"], "Invalid value for '--source': 'oracle' is not one of"),
    "a strategy": (["strategy.kind=krum"], "strategy must be left out of a search"),
    "an address": (["recommender.base_url=here"], "recommender.base_url must be an address such as"),
    "a key in place of its variable": (
        [f"recommender.api_key_variable={KEY}"],
        "recommender.api_key_variable must be the name of an environment variable",
    ),
    "a key that could be a name": (
        ["recommender.api_key_variable=gsk_0123456789abcdefghij"],
        "recommender.api_key_variable must be the name of an environment variable",
    ),
    "a format": (["recommender.format=D"], "recommender.format must be 'A', 'B' or 'C', got 'D'"),
    "a strategy that is impossible": (
        ["search.strategies=[krum]", "federation.num_clients=2"],
        "krum must have at least 3 clients a round",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line_and_leaves_nothing(cli: Cli, tmp_path: Path, case: str) -> None:
    (tmp_path / "other.json").write_text('{"seed": 1}')
    (tmp_path / "broken.json").write_text("{")
    arguments, expected = WRONG[case]
    done = cli("recommend", *SMALL, *arguments)
    assert (done.code, done.out) == (2, "")
    lines = [line for line in done.err.splitlines() if "is passed over" not in line]
    assert len(lines) == 1, done.err
    assert lines[0].startswith(f"fedscout: {expected}")
    assert KEY not in lines[0]
    assert "gsk_" not in lines[0]
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["broken.json", "other.json"]


# Studies.


@pytest.mark.parametrize("kind", ["multishot_llm", "llm_genetic"])
def test_a_search_by_a_model_needs_a_key_before_anything_is_built(cli: Cli, tmp_path: Path, kind: str) -> None:
    done = cli("run", *SMALL, f"search.kind={kind}", "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"fedscout: search.kind={kind} asks a language model, so the environment variable")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("play", "code"),
    [(fails(503, "down"), 1), (says("no idea"), 1), (Play(body=b"<html>"), 1), (fails(401, "bad key"), 2)],
    ids=["fails", "no valid answer", "no protocol", "wrong key"],
)
@pytest.mark.parametrize("kind", ["multishot_llm", "llm_genetic"])
def test_a_search_whose_model_fails_ends_with_1_and_one_that_the_user_can_mend_with_2(
    cli: Cli, server: Server, kind: str, play: Play, code: int
) -> None:
    done = cli("search", *SMALL, f"search.kind={kind}", at(server([play])), *FAST, "--out", "out")
    assert (done.code, done.out) == (code, "")
    stage, _ = done.err.splitlines()
    assert stage == "fedscout: running trials"


@pytest.mark.slow
def test_a_study_by_a_model_is_told_from_its_record_without_a_key(
    cli: Cli, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposals = [chooses("fedprox", proximal_mu=mu) for mu in (0.1, 0.2)] + [chooses("fedmedian")]
    serving = server(proposals)
    arguments: tuple[Any, ...] = ("run", *SMALL, "search.kind=multishot_llm", at(serving), *FAST, "--json")
    done = cli(*arguments, "--out", "out")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [trial["strategy"] for trial in found["trials"]] == ["fedavg", "fedprox", "fedprox", "fedmedian"]
    assert serving.asked[2].user["trials"][0]["fitness"] > 0
    num_asked = len(serving.asked)

    monkeypatch.delenv("OPENAI_API_KEY")
    again = cli(*arguments, "--out", "out")
    assert again.code == 0, again.err
    replayed = cli(*arguments, "recommender.replay=out/llm.jsonl", "--out", "replayed")
    assert replayed.code == 0, replayed.err
    for other in (again, replayed):
        document = json.loads(other.out)
        assert [document[name] for name in ("trials", "best", "confirmation")] == [
            found[name] for name in ("trials", "best", "confirmation")
        ]
    assert len(serving.asked) == num_asked


@pytest.mark.slow
def test_one_shot_is_one_command_from_words_to_a_verdict(cli: Cli, server: Server) -> None:
    serving = server([GOOD])
    words = 'one site\'s "labels" are: random\n# 😀 {x: [1'
    command = ("run", *SMALL, at(serving), *FAST, "--one-shot", "--text", words, "--out", "out")
    done = cli(*command)
    assert done.code == 0, done.err
    assert serving.asked[0].user == {"description_by_a_person": words}
    assert "  The language model gpt-4.1 answers.\n" in done.out
    assert "as clients drift" in " ".join(done.out.split())
    assert "fedprox" in done.out
    document = json.loads(cli(*command, "--json").out)
    assert document["recommendation"]["source"] == "llm"
    assert document["config"]["search"]["kind"] == "one_shot"
    assert len(serving.asked) == 1
    assert "Seconds of this run: data" in cli(*command, "--verbose").out


@pytest.mark.slow
def test_one_shot_by_rules_says_that_they_are_the_rules(cli: Cli) -> None:
    done = cli("run", *SMALL, "--one-shot", "--out", "out")
    assert done.code == 0, done.err
    assert "  The rules answer, as OPENAI_API_KEY holds no key of a language model.\n" in done.out
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_words_without_one_shot_are_refused(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", *SMALL, "--text", "skewed", "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert "recommender.text must be left out of a search, which goes by its trials: --one-shot reads it" in done.err
    assert list(tmp_path.iterdir()) == []


def test_words_and_source_of_a_recommendation_may_be_keys(cli: Cli, server: Server, report: Path) -> None:
    serving = server([GOOD])
    words = ("recommend", at(serving), *FAST, "recommender.text=skewed", "--json")
    assert json.loads(cli(*words).out)["source"] == "llm"
    assert serving.asked[0].user == {"description_by_a_person": "skewed"}
    found = cli("recommend", "--report", report, at(serving), *FAST, "recommender.source=rules", "--json")
    assert json.loads(found.out)["source"] == "rules"
    assert len(serving.asked) == 1


def test_one_shot_beside_another_searcher_is_refused(cli: Cli) -> None:
    done = cli("run", *SMALL, "--one-shot", "search.kind=genetic")
    assert (done.code, done.out) == (2, "")
    assert "search.kind" in done.err
