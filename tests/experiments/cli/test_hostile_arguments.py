"""Whatever stands on the command line or in a YAML file: an answer, or one line for each fault. Never a traceback."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedscout.engine.errors import DataError
from fedscout.experiments import federation as build
from fedscout.experiments.cli.main import main
from fedscout.experiments.config import known_keys
from fedscout.experiments.studies import workflow
from tests.experiments.cli.conftest import Cli, Done

KEYS = tuple(known_keys())
GROUPS = sorted({key.rpartition(".")[0] for key in KEYS} - {""})
MANY = settings(
    max_examples=80,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

HOSTILE = (
    "",
    "~",
    "true",
    "0",
    "-1",
    "1e400",
    ".nan",
    "9" * 5000,
    "0x" + "f" * 5000,
    "${",
    "${seed}",
    "${oc.env:HOME}",
    "???",
    "[" * 200,
    "[" * 30 + "]" * 30,
    "{a: 1}",
    "{1: 2}",
    "[true]",
    "[0]",
    "[[1], [2, x]]",
    "!!int ''",
    "!!bool x",
    "!!timestamp x",
    "!!binary /w==",
    "!!python/object/apply:os.abort []",
    "&a [*a]",
    '"\\ud800"',
    '"\\0"',
    "\x1b[2J",
    "\udcff",
    "x" * 300,
    "x" * 3000,
    "a/b.csv",
    "a:b",
    "os:abort",
    "2020-13-45",
    "-",
    "a: b: c",
    "'",
    "{kind: label_flip, rate: true}",
    "[{kind: magic}]",
    "[{path: 'os:abort', values: {a: [1]}}]",
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["digits", "wine", "krum", "custom", "dirichlet", "iid", "grid", "adam", "x" * 300])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
ANY_KEY = (
    st.sampled_from(KEYS)
    | st.sampled_from(GROUPS)
    | st.builds("{}.{}".format, st.sampled_from(KEYS), st.text(max_size=5))
    | st.text(max_size=20)
)
ARGUMENTS = st.lists(
    st.builds("{}={}".format, ANY_KEY, st.sampled_from(HOSTILE) | VALUES.map(str) | st.text(max_size=30))
    | st.text(max_size=20),
    max_size=4,
)


def nested(leaves: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys as groups; a value in the way of a group gives way."""
    tree: dict[str, Any] = {}
    for key, value in leaves.items():
        level = tree
        *groups, last = key.split(".")
        for group in groups:
            level = level.setdefault(group, {}) if isinstance(level.get(group, {}), dict) else {}
        level[last] = value
    return tree


DOCUMENTS = st.dictionaries(ANY_KEY, VALUES, max_size=4).map(lambda leaves: yaml.safe_dump(nested(leaves)).encode())
FILES = DOCUMENTS | st.text().map(lambda text: text.encode(errors="surrogatepass")) | st.binary(max_size=60)

Run = Callable[..., Done]


@pytest.fixture
def run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a quick `cli`, of which `strategies` reads a configuration and builds its space, without any data."""

    def no_data(*_: object) -> None:
        raise DataError("there are no data here")

    assert workflow.build_federation is not no_data  # whoever takes it by name has done so
    monkeypatch.setattr(build, "build_federation", no_data)

    def quick(*arguments: str) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(arguments)
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out.getvalue(), err.getvalue())

    return quick


def check(done: Done) -> None:
    """Hold that a command was done, or that it says what is wrong and nothing else."""
    lines = done.err.splitlines()
    assert done.code in (0, 2), done.err
    assert all(line.startswith("fedscout: ") and len(line) < 4000 for line in lines), lines
    assert done.code == 0 or (lines and not done.out)
    assert not [line for line in lines if " must must " in line or " should " in line]


@pytest.mark.slow
@MANY
@given(arguments=ARGUMENTS)
@example(arguments=["strategy=${seed}", "strategy.kind=krum"])
@example(arguments=["federation.dataset={a: 1}", "federation.dataset=[]"])
@example(arguments=["federation.dataset=cartpole", "federation.physics=[{gravity: true}]"])
def test_arguments(run: Run, arguments: list[str]) -> None:
    check(run("strategies", *arguments))


@pytest.mark.slow
@MANY
@given(content=FILES)
@example(content=b"model: {hidden: " + b"[" * 5000 + b"]" * 5000 + b"}")
@example(content=b"".join(b" " * level + b"a:\n" for level in range(900)))
@example(content=b"seed: " + b"9" * 5000)
@example(content=b"#" * 2_000_000)
@example(content=b'strategy: {a: "\\ud800"}')
def test_yaml_files(run: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "study.yaml").write_bytes(content)
    check(run("strategies", "study.yaml"))


SOME_KEYS = ("seed", "model.hidden", "federation.dataset", "federation.scenario", "search.customs", "strategy.x")


@pytest.mark.parametrize(("key", "value"), [*zip(cycle(SOME_KEYS), HOSTILE, strict=False)])
def test_each_hostile_value_of_some_key(run: Run, key: str, value: str) -> None:
    check(run("strategies", f"{key}={value}"))


@pytest.mark.slow
@pytest.mark.parametrize("value", HOSTILE)
def test_each_hostile_value_of_each_key(run: Run, value: str) -> None:
    for key in SOME_KEYS:
        check(run("strategies", f"{key}={value}"))


LONG = "x" * 300
PATHS = (
    ("strategies", "--config", LONG),
    ("strategies", f"{LONG}.yaml"),
    ("trials", LONG),
    ("export", LONG),
    ("recommend", "--report", LONG),
    ("recommend", "--replay", LONG),
    ("detect", "engine.grid=local", "federation.dataset=wine", "--out", LONG),
    ("train", "engine.grid=local", "federation.dataset=wine", "--out", LONG),
    ("sweep", "engine.grid=local", "federation.dataset=wine", "--dry-run", "--out", LONG),
    ("describe", "federation.dataset=wine", "--out", LONG),
    ("describe", f"federation.dataset={LONG}.csv"),
    ("describe", "federation.dataset=bearing", f"federation.folder={LONG}"),
)


@pytest.mark.parametrize("arguments", PATHS, ids=lambda arguments: " ".join(arguments)[:40])
def test_a_path_that_is_too_long_is_one_line(cli: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    line = cli(*arguments).refuses()
    assert any(reason in line for reason in ("too long", "without", "existing file"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("run", "seed=\udcff"), ("trials", os.fsdecode(b"\xff")), ("\udcff",)])
def test_an_argument_that_is_no_text_is_one_line(cli: Cli, arguments: tuple[str, ...]) -> None:
    cli(*arguments).refuses("an argument", "UTF-8", f"got {arguments[-1]}".replace("\udcff", "\\udcff"))
