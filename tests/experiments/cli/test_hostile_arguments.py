"""Whatever stands on the command line or in a YAML file: an answer, or one line for each fault. Never a traceback."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from fedscout.engine.errors import DataError
from fedscout.engine.trials.log import TrialLog
from fedscout.experiments import federation as build
from fedscout.experiments.config import StudyConfig, known_keys
from fedscout.experiments.partitions.table import PARTITIONS
from fedscout.experiments.studies import workflow
from tests.experiments.cli.conftest import SMALL, Cli, Done, exit_code

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
    *("", "~", "true", "0", "-1", "1e400", ".nan", "9" * 5000, "0x" + "f" * 5000, "2020-13-45"),  # of one word
    *("${", "${seed}", "${oc.env:HOME}", "???"),  # what OmegaConf would replace
    *("[" * 200, "[" * 30 + "]" * 30, "{a: 1}", "{1: 2}", "[true]", "[0]", "[[1], [2, x]]"),  # lists and mappings
    *("!!int ''", "!!bool x", "!!timestamp x", "!!binary /w==", "!!python/object/apply:os.abort []"),  # YAML's tags
    *("&a [*a]", "-", "a: b: c", "'", '"\\ud800"', '"\\0"', "\x1b[2J", "\udcff"),  # its signs, and odd characters
    *("x" * 300, "x" * 3000, "a/b.csv", "a:b", "os:abort"),  # names, of files and of code, too
    *("{kind: label_flip, rate: true}", "[{kind: magic}]", "[{path: 'os:abort', values: {a: [1]}}]"),  # effects
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
        with redirect_stdout(out), redirect_stderr(err):
            code = exit_code(*arguments)
        return Done(code, out.getvalue(), err.getvalue())

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


@pytest.mark.slow
@pytest.mark.parametrize("value", HOSTILE)
def test_each_hostile_value_of_each_key(run: Run, value: str) -> None:
    for key in SOME_KEYS:
        check(run("strategies", f"{key}={value}"))


@pytest.mark.parametrize("arguments", [("run", "seed=\udcff"), ("trials", os.fsdecode(b"\xff")), ("\udcff",)])
def test_an_argument_that_is_no_text_is_one_line(cli: Cli, arguments: tuple[str, ...]) -> None:
    cli(*arguments).refuses("an argument", "UTF-8", f"got {arguments[-1]}".replace("\udcff", "\\udcff"))


# Names and messages that would steer a terminal: nothing that a command prints does.


STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e[red]\r"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e[red]"
FEW = ("engine.grid=local", "federation.num_clients=2", "federation.partition.kind=iid", "training.num_rounds=1")


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Return the setting of a table whose classes, clients and columns are named to steer."""
    path = tmp_path / "table.csv"
    rows = [f'{number % 7},{number % 3},"class{STEERING}{number % 2}"' for number in range(40)]
    path.write_text("\n".join([f'"a{STEERING}","b",grade', *rows]) + "\n", newline="")
    return f"federation.dataset={path}"


def harmless(done: Done) -> bool:
    return not {*"\x1b\x07\x9b\x7f\u202e\r"} & {*(done.out + done.err)}


def test_names_in_data_are_shown(cli: Cli, table: str) -> None:
    done = cli("describe", *FEW, table, "federation.label=grade", "--out", "out").silent
    assert f"class{SHOWN}" in done.out
    assert harmless(done)
    as_json = cli("describe", *FEW, table, "federation.label=grade", "--json").ok
    assert as_json.out.isascii()
    assert harmless(as_json)
    assert any(STEERING.strip() in name for name in as_json.document["class_names"])
    assert "\x1b" not in Path("out/clients.svg").read_text()


def test_a_log_is_shown(cli: Cli, tmp_path: Path) -> None:
    assert cli("train", *SMALL, "--out", "out").code == 0
    log = TrialLog(tmp_path / "out")
    (record,) = log.read(json.loads((tmp_path / "out" / "config.json").read_text())["config_hash"])
    (tmp_path / "out" / "trials").rename(tmp_path / "kept")
    log = TrialLog(tmp_path / "out")
    error = f"round 1: {STEERING}\nfedscout: all is well"
    log.append(replace(record, error=error, status="failed", fitness=0.0, own_fitness=0.0, clean_fitness=0.0))
    assert all(harmless(cli("trials", "out", *options).ok) for options in ((), ("--json",)))
    (tmp_path / "out" / "trials" / f"00009{STEERING}.parquet").write_text("no parquet")
    done = cli("trials", "out")
    assert SHOWN in done.err
    assert harmless(done)


# Every count, list and address of the configuration: what there can't be so many of is refused by its key.


HUGE = 10**9
LEGAL: Final = {
    "seed": "any number is one",
    "federation.seed": "any number is one",
    "federation.max_rows": "at most so many: all rows",
    "federation.max_file_bytes": "a bound",
    "federation.max_file_rows": "a bound",
    "federation.text.stride": "one window a text",
    "detection.max_features": "a bound",
    "detection.max_pairwise_clients": "a bound",
    "detection.projection_size": "models with fewer parameters are compared as they are",
    "engine.checkpoint_every_rounds": "no checkpoint but the end",
    "engine.object_store_bytes": "a gigabyte",
}
"""Keys of counts that may be larger than anything there is, with the reason."""

EMPTY: Final = {
    "federation.drop_columns": "none",
    "federation.missing_values": "none",
    "federation.physics": "clients do not differ",
    "federation.partition.quantities": "all rows are used",
    "search.customs": "none",
    "search.warm_start": "nothing",
}
"""Keys of lists that may be empty, with what that means."""

NO_ADDRESS: Final = ("nonsense", "http://[", "http://", "ray://[", "127.0.0.1")


class ReachedError(Exception):
    """The study would begin."""


def typed_keys(kind: type, model: type[BaseModel] = StudyConfig, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all keys whose values are, or may be, of a type."""
    for name, field in model.model_fields.items():
        annotation: Any = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from typed_keys(kind, annotation, f"{prefix}{name}.")
        elif kind in _parts(annotation):
            yield prefix + name


def _parts(annotation: Any) -> Iterator[Any]:
    yield getattr(annotation, "__origin__", annotation)
    for part in get_args(annotation):
        yield from _parts(part)


@pytest.fixture
def refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that says whether a study with these settings is refused, by one line with its key."""

    def begins(*_: object, **__: object) -> None:
        raise ReachedError

    monkeypatch.setattr(workflow, "open_runner", begins)

    def refuses(key: str, *more: str) -> bool:
        try:
            done = cli("run", *SMALL, "federation.num_clients=3", *more, "--out", key)  # a client a class
        except ReachedError:
            return False
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), done
        group, _, leaf = key.rpartition(".")
        assert group in done.err, done
        assert leaf in done.err, done
        return True

    return refuses


def readers(key: str) -> Iterator[str]:
    """Yield what makes something read a key that is not always read."""
    group, _, leaf = key.rpartition(".")
    if group == "federation.partition":
        yield from (f"{group}.kind={kind}" for kind, partition in PARTITIONS.items() if leaf in partition.reads)
    elif group == "search.racing":
        yield "search.kind=racing"


@pytest.mark.parametrize("key", [*typed_keys(int)])
def test_a_count_larger_than_anything_there_is(refused: Any, key: str) -> None:
    for more in [*readers(key)] or [f"seed={HUGE}"]:
        assert refused(key, more, f"{key}={HUGE}") is (key not in LEGAL), more


@pytest.mark.parametrize("key", [*typed_keys(tuple)])
def test_a_list_of_nothing(refused: Any, key: str) -> None:
    assert refused(key, f"{key}=[]") is (key not in EMPTY)


@pytest.mark.parametrize("value", NO_ADDRESS)
@pytest.mark.parametrize("key", ["engine.address", "recommender.base_url"])
def test_an_address_that_is_none(refused: Any, key: str, value: str) -> None:
    assert refused(key, f"{key}={value}")
    if key == "engine.address":
        assert refused(key, "engine.grid=auto", f"{key}={value}")


def test_exceptions_are_keys() -> None:
    assert {*LEGAL} <= {*typed_keys(int)}
    assert {*EMPTY} <= {*typed_keys(tuple)}


@pytest.mark.parametrize("more", [1, 5])
@pytest.mark.parametrize("kept", ["detect", "train", "run"])
def test_no_answer_could_have_so_many_rows_behind_it(cli: Cli, kept: str, more: int) -> None:
    cli(kept, *SMALL[:4], f"federation.min_release={178 + more}").refuses("", "federation.min_release")
