"""`fedscout recommend`, and studies whose searcher asks a language model: on the command line, as a user would."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.cli.conftest import SMALL, Cli
from tests.experiments.studies.language_models import Server, no_key, server
from tests.search.recommenders.loopback import KEY, ModelServer, Play, chooses, fails, says
from tests.search.recommenders.reports import report_of

__all__ = ["no_key", "server"]
GOOD = chooses("fedprox", proximal_mu=0.1, reason="as clients drift")
NAMED_KEY = "gsk_0123456789abcdefghij"
"""A key that could be the name of a variable."""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "given.json"
    path.write_text(report_of(divergence=0.5, rows=(500,) * 4, num_classes=10).model_dump_json())
    return path


def at(server: ModelServer) -> str:
    return f"recommender.base_url={server.url}"


FAST = ("recommender.connection_retries=0", "recommender.timeout_seconds=10")


def test_without_a_key_the_rules_recommend_and_say_so(cli: Cli, tmp_path: Path) -> None:
    found = cli("recommend", *SMALL, "--json").silent.document
    assert (found["source"], found["language_model"], found["out"]) == ("rules", None, None)
    assert found["reasons"][0]["applied"]
    assert "OPENAI_API_KEY" in found["notes"][0]
    assert list(tmp_path.iterdir()) == []


def test_a_report_stands_for_the_federation(cli: Cli, report: Path, tmp_path: Path) -> None:
    """Data are not read, as those of this configuration could not be, and the cohort is the report's."""
    arguments = ("recommend", "federation.dataset=wine_quality", "federation.folder=/nowhere", "--json", "--report")
    found = cli(*arguments, report).document
    assert (found["num_clients"], found["strategy"]["kind"]) == (4, "fedyogi")
    wrapped = tmp_path / "printed.json"
    wrapped.write_text(json.dumps({"report": json.loads(report.read_text()), "affected_clients": []}))
    assert cli(*arguments, wrapped).document == found


@pytest.mark.slow
def test_a_language_model_recommends_and_its_record_does_so_again_without_it(
    cli: Cli, server: Server, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = server([fails(400, "no schemas here"), says("hm"), GOOD])
    arguments = ("recommend", "--report", report, at(serving), *FAST)
    found = cli(*arguments, "--out", "first", "--json").silent.document
    assert (found["source"], found["strategy"]["kind"]) == ("llm", "fedprox")
    assert found["reasons"][0]["explanation"] == "as clients drift"
    asked = found["language_model"]
    assert (asked["num_answers"], asked["prompt_tokens"]) == (2, 2000)
    kept = {path.name: path.read_text() for path in (tmp_path / "first").rglob("*") if path.is_file()}
    assert {"llm.jsonl", "recommendation.json", "config.json"} <= set(kept)
    assert not [name for name, text in kept.items() if KEY in text]
    assert len(kept["llm.jsonl"].splitlines()) == len(serving.asked) == 3

    assert cli(*arguments, "--out", "first", "--json").document == found  # asks nothing twice
    monkeypatch.delenv("OPENAI_API_KEY")
    replay = ("recommend", "--report", report, "--replay", "first/llm.jsonl", "--out", "second", "--json")
    assert cli(*replay).document == {**found, "out": "second"}
    assert cli(*arguments, "--prompt", "--json").document["messages"] == serving.asked[0].body["messages"]
    assert len(serving.asked) == 3


def test_the_diagnosis_of_the_data_is_what_a_model_is_shown(cli: Cli, server: Server, tmp_path: Path) -> None:
    serving = server([GOOD])
    command = ("recommend", *SMALL, at(serving), *FAST, "--out", "out", "--json")
    assert cli(*command).ok
    shown = serving.asked[0].user["diagnosis"]
    assert (shown["num_clients"], shown["num_classes"]) == (4, 3)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["num_clients"] == 4
    assert cli(*command).ok
    assert len(serving.asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("play", "told"),
    [
        (fails(503, "overloaded"), "503"),
        (Play(body=b" " * 5_000_000), ""),
        (Play(status=307, headers={"location": "http://127.0.0.1:9/v1/chat/completions"}), ""),
    ],
    ids=["unreachable", "5 MB", "a redirection"],
)
def test_auto_takes_the_rules_where_no_model_answers(
    cli: Cli, server: Server, report: Path, play: Play, told: str
) -> None:
    """Whose answer is also told to be without a person's words; it is nothing that the user did."""
    asking = ("recommend", "--report", report, at(server([play])), *FAST)
    found = cli(*asking, "--text", "skewed", "--out", "out", "--json").silent.document
    assert found["source"] == "rules"
    assert told in found["notes"][0]
    assert found["instead_of_model"]
    strict = cli(*asking, "--source", "llm", "--out", "other")
    assert (strict.code, strict.out, len(strict.err.splitlines())) == (1, "", 1)
    assert told in strict.err


def test_a_password_in_the_environments_address_gets_nowhere(
    cli: Cli, server: Server, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = server([GOOD])
    monkeypatch.setenv("OPENAI_BASE_URL", serving.url.replace("http://", "http://user:geheim@"))
    for command in (["recommend", "--report", str(report)], ["search", *SMALL, "search.kind=multishot_llm"]):
        assert "geheim" not in cli(*command, "--out", "out").refuses("OPENAI_BASE_URL")
    assert serving.asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["given.json"]


WRONG: list[tuple[list[str], tuple[str, ...]]] = [
    (["--source", "llm"], ("the environment variable OPENAI_API_KEY",)),
    (["--source", "llm", "recommender.api_key_variable=MINE"], ("the environment variable MINE",)),
    (["--text", " "], ("recommender.text",)),
    (["--text", "x" * 4001], ("recommender.text", "4000")),
    *((["--report", name], (f"--report {name} ",)) for name in ("nowhere.json", "other.json", "broken.json", ".")),
    (["--replay", "nowhere.jsonl"], ("recorded exchanges", "got nowhere.jsonl")),
    (["--replay", "broken.json"], ("recorded exchanges", "got broken.json")),
    (["--source", "rules", "--replay", "x"], ("recommender.source=rules", "recommender.replay")),
    (["--source", "rules", "--prompt"], ("recommender.source=rules", "--prompt")),
    (["--text", "", "--prompt"], ("recommender.text", "nothing")),
    (["strategy.kind=krum"], ("strategy ", "'krum'")),
    *(([f"recommender.api_key_variable={key}"], ("recommender.api_key_variable",)) for key in (KEY, NAMED_KEY)),
]


@pytest.mark.parametrize(("arguments", "names"), WRONG)
def test_a_mistake_leaves_nothing(cli: Cli, tmp_path: Path, arguments: list[str], names: tuple[str, ...]) -> None:
    (tmp_path / "other.json").write_text('{"seed": 1}')
    (tmp_path / "broken.json").write_text("{")
    done = cli("recommend", *SMALL, *arguments)
    (line,) = [line for line in done.err.splitlines(keepends=True) if not line.startswith("fedscout: line ")]
    replace(done, err=line).refuses(*names)
    assert not [key for key in (KEY, NAMED_KEY) if key in line]
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"broken.json", "other.json"}


# Studies.


@pytest.mark.parametrize("kind", ["multishot_llm", "llm_genetic"])
def test_a_search_by_a_model_needs_a_key_before_anything_is_built(cli: Cli, tmp_path: Path, kind: str) -> None:
    cli("run", *SMALL, f"search.kind={kind}", "--out", "out").refuses(f"search.kind={kind}", "OPENAI_API_KEY")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("play", "code"),
    [(fails(503, "down"), 1), (says("no idea"), 1), (Play(body=b"<html>"), 1), (fails(401, f"bad key {KEY}"), 2)],
    ids=["fails", "no valid answer", "no protocol", "wrong key"],
)
@pytest.mark.parametrize("kind", ["multishot_llm", "llm_genetic"])
def test_exit_codes_of_a_search_whose_model_fails(cli: Cli, server: Server, kind: str, play: Play, code: int) -> None:
    done = cli("search", *SMALL, f"search.kind={kind}", at(server([play])), *FAST, "--out", "out")
    assert (done.code, done.out) == (code, "")
    stage, _ = done.err.splitlines()
    assert stage == "fedscout: running trials"
    assert KEY not in done.err


@pytest.mark.slow
def test_a_study_by_a_model_is_replayed_without_a_key(
    cli: Cli, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = server([*(chooses("fedprox", proximal_mu=mu) for mu in (0.1, 0.2)), chooses("fedmedian")])
    arguments: tuple[Any, ...] = ("run", *SMALL, "search.kind=multishot_llm", at(serving), *FAST, "--json")
    found = cli(*arguments, "--out", "out").document
    assert [trial["strategy"] for trial in found["trials"]] == ["fedavg", "fedprox", "fedprox", "fedmedian"]
    assert serving.asked[2].user["trials"][0]["fitness"] > 0
    num_asked = len(serving.asked)

    monkeypatch.delenv("OPENAI_API_KEY")
    for more in (("--out", "out"), ("recommender.replay=out/llm.jsonl", "--out", "replayed")):
        document = cli(*arguments, *more).document
        for name in ("trials", "best", "confirmation"):
            assert document[name] == found[name]
    assert len(serving.asked) == num_asked


def test_words_take_the_place_of_the_data_and_a_key_in_them_is_sent_and_kept_nowhere(
    cli: Cli, server: Server, report: Path, tmp_path: Path
) -> None:
    serving = server([GOOD])
    words = 'one hospital labels at random"} {"kind": "custom", '
    nowhere = ("federation.dataset=wine_quality", "federation.folder=/nowhere")
    asking = ("recommend", *nowhere, at(serving), *FAST, "--text", words + NAMED_KEY, "--out", "out", "--json")
    found = cli(*asking).document
    assert (found["source"], found["diagnosis"]) == ("llm", None)
    assert [asked.user for asked in serving.asked] == [{"description_by_a_person": f"{words}[redacted]"}]
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and NAMED_KEY in path.read_text()]
    by_rules = ("recommend", "--report", report, at(serving), *FAST, "recommender.source=rules", "--json")
    assert cli(*by_rules).document["source"] == "rules"
    assert len(serving.asked) == 1
