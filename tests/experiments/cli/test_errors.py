"""Mistakes, hostile arguments and broken study folders: one clear line each on standard error and exit code 2."""

from __future__ import annotations

import copy
import functools
import io
import json
import operator
import os
import pickle
import random
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings, strategies as st

from fedscout.engine.errors import DataError
from fedscout.engine.trials.log import TrialLog
from fedscout.experiments import federation as build
from fedscout.experiments.cli import program
from fedscout.experiments.cli.options import complete
from fedscout.experiments.config import known_keys
from fedscout.experiments.partitions.table import PARTITIONS
from fedscout.experiments.studies import workflow
from tests.experiments.cli.conftest import SMALL, Cli, Done, exit_code

WINE = ("federation.dataset=wine",)
STUDIES = ("run", "search", "detect", "train")
DEFAULT_KINDS = (
    *("fedavg", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi"),
    *("fedmedian", "fedtrimmedavg", "krum", "multikrum", "bulyan", "qfedavg"),
)

WRONG: dict[str, list[tuple[str, ...]]] = {
    "run --config study.yaml": [("the configuration file", "study.yaml")],
    "run federation.dataset=wine federation.num_clients=500": [("federation.num_clients", "178", "got 500")],
    "run federation.dataset=bearing federation.folder=nowhere --out deep/out": [("", "nowhere")],
    "train --json strategy.kind=fedavgm strategy.server_momentum=1.5 strategy.eta=1": [
        ("server_momentum of fedavgm", "got 1.5"),
        ("eta", "fedavgm", "got 1"),
    ],
    "train strategy.kind=fedbn": [("fedbn", "batch normalisation")],
    "search search.strategies=[magic]": [("kinds", "got 'magic'", *DEFAULT_KINDS)],
    "run strategy.kind=krum": [("strategy ", "'krum'")],
    "run --text skewed": [("recommender.text", "--one-shot")],
    "run --one-shot search.kind=genetic": [("search.kind", "genetic")],
    "reproduce choice/tabel6": [("", "choice/tabel6", "choice/table6 or")],
    "detcet": [("", "'detcet'", "detect", "fedscout --help")],
    "run --magic": [("", "'--magic'", "fedscout run --help")],
    # what may be meant is looked for in lists of their own
    "train strategy.kind=fedadm+fedprx": [("", "fedadam+fedprox")],
    "run federation.dataset=cifar": [("", "cifar10 or cifar100")],
    "run 'federation.scenario=[{kind: label_flp}]'": [("", "label_flip?")],
    "run selection.kind=ort": [("", "oort?")],
    "run model.kind=desne": [("", "dense")],
    "run report=report.json": [("", "--report")],
}


@pytest.mark.parametrize("given", WRONG)
def test_each_fault_is_one_line(cli: Cli, tmp_path: Path, given: str) -> None:
    done = cli(*shlex.split(given))
    for line, names in zip(done.err.splitlines(), WRONG[given], strict=True):
        replace(done, err=line).refuses(*names)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:99999"])
def test_a_ray_that_is_not_there_is_told_and_leaves_no_folder(cli: Cli, tmp_path: Path, address: str) -> None:
    done = cli("run", "federation.dataset=wine", f"engine.address={address}", "--out", "out")
    done.refuses("engine.address", f"got '{address}'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", [BrokenPipeError(), SystemExit(1)], ids=["pipe", "what typer makes of it"])
def test_a_pipe_that_breaks_after_a_signal_is_the_end_by_the_signal(
    end: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As does one to a process of Ray's that is ending."""

    def broken(**_: object) -> None:
        raise end

    monkeypatch.setattr(program, "_program", lambda: broken)
    assert program.exit_code([], [signal.SIGINT]) == 130
    assert capsys.readouterr().err.startswith("fedscout: interrupted; ")


# A path that can't be one: a line, exit code 2, and nothing written, whichever command it was given to.


WRITING = {"app": WINE, "describe": WINE, "detect": SMALL, "train": SMALL, "run": SMALL}


@pytest.mark.slow
@pytest.mark.parametrize("out", ["file/below.npz", "/proc/nothing.npz", "x" * 300 + ".npz"])
@pytest.mark.parametrize("command", WRITING)
def test_a_place_that_can_be_none_is_one_line(cli: Cli, tmp_path: Path, command: str, out: str) -> None:
    (tmp_path / "file").touch()
    done = cli(command, *WRITING[command], "--out", out)
    assert (done.code in (1, 2), len(done.warnings.splitlines())) == (True, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


@pytest.mark.parametrize("command", ["trials", "report", "plot", "export", "predict"])
@pytest.mark.parametrize("folder", ["nothing", "file", "/proc/1/mem", "x" * 300])
def test_a_folder_that_is_none_is_refused(cli: Cli, tmp_path: Path, command: str, folder: str) -> None:
    (tmp_path / "file").touch()
    done = cli(command, folder, *(["file"] if command == "predict" else []))
    assert (done.code, len(done.warnings.splitlines())) == (2, 1)


def test_a_shell_completes_keys() -> None:
    assert set(complete("")) >= {f"{key}=" for key in known_keys()}
    assert complete("federation.partition.k") == ["federation.partition.kind="]


class Harm:
    """Leaves a trace when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open, ("harm-was-done", "w")  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.xlsx"])
def test_a_pickle_in_place_of_a_table_is_refused_and_not_run(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Harm()))
    cli("detect", f"federation.dataset={name}", "federation.label=grade").refuses(name)
    assert not (tmp_path / "harm-was-done").exists()


NO_FEATURES = "site,grade\n" + "n,a\ns,b\n" * 9
SMALL_CLIENTS = "site,x,grade\n" + "".join(f"s{row},{row},{'ab'[row % 2]}\n" for row in range(20))


@pytest.mark.parametrize("content", [NO_FEATURES, SMALL_CLIENTS], ids=["no features", "small clients"])
def test_a_table_that_makes_no_federation_is_refused(cli: Cli, tmp_path: Path, content: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    roles = ("federation.label=grade", "federation.client_column=site")
    cli("detect", "federation.dataset=t.csv", *roles).refuses("data set 't.csv'")


# A study folder that was edited or is half there: one line and exit code 2, or what is left of it.


READERS = {
    "app": ("app", "--out", "new", "--from"),
    "report": ("report",),
    "plot": ("plot", "--format", "svg"),
    "trials": ("trials",),
    "export": ("export", "--to", "tensorboard"),
}
DOCUMENTS = ("config.json", "result.json", "report.json")
OTHERS: tuple[Any, ...] = (None, "text", 7, [], {}, [[]], [{}])
"""What may stand in the place of any value."""

GONE = object()
"""Stands for nothing at all."""

DEPTH = 4
"""To which values are edited."""

SAMPLED = 3
"""Edits of a file for a command in the quick tests, drawn from all; one where a command draws pictures.

Thirty times as many are drawn under `stress`: all would take hours.
"""
SLOWER = ("plot", "report")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished study."""
    folder = tmp_path_factory.mktemp("study") / "out"
    assert exit_code("run", *SMALL, "--out", folder) == 0
    return folder


def copied(study: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(study, to))


def held_to_its_word(cli: Cli, folder: Path, tmp_path: Path, command: str) -> int:
    """Run a command over a folder: it does what it can, or says in one line why it can't; return its exit code."""
    done = cli(*READERS[command], folder)  # a traceback is no SystemExit
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    assert done.code in (0, 2), done
    if done.code == 2:
        assert (done.out, len(done.err.splitlines())) == ("", 1), done
    assert "Warning" not in done.err
    return done.code


def places(document: Any, depth: int) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values; of a list, its first."""
    inner = document.items() if isinstance(document, dict) else enumerate(document[:1])
    for key, value in inner:
        yield (key,)
        if depth > 1 and isinstance(value, dict | list):
            yield from ((key, *rest) for rest in places(value, depth - 1))


def edits(document: Any, depth: int) -> Iterator[Any]:
    """Yield the document with each of its values gone, and in turn with another in its place."""
    for *groups, last in places(document, depth):
        for other in (GONE, *OTHERS):
            changed = copy.deepcopy(document)
            holder = functools.reduce(operator.getitem, groups, changed)
            holder[last] = other
            if other is GONE:
                del holder[last]
            yield changed


@pytest.mark.sampled(3)
@pytest.mark.parametrize("share", [1, pytest.param(30, marks=pytest.mark.stress)])
@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_edited_value(cli: Cli, study: Path, tmp_path: Path, name: str, command: str, share: int) -> None:
    folder = copied(study, tmp_path / "out")
    documents = [*edits(json.loads((study / name).read_text()), DEPTH)]
    wanted = share * (1 if command in SLOWER else SAMPLED)
    for document in random.Random(f"{name} {command}").sample(documents, wanted):
        (folder / name).write_text(json.dumps(document))
        held_to_its_word(cli, folder, tmp_path, command)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "a list": lambda path: path.write_text("[1, 2]"),
    "nested": lambda path: path.write_text("[" * 100_000),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_file_may_be_gone_or_damaged(cli: Cli, study: Path, tmp_path: Path, damage: str, command: str) -> None:
    for name in DOCUMENTS:
        folder = copied(study, tmp_path / "out")
        DAMAGES[damage](folder / name)
        held_to_its_word(cli, folder, tmp_path, command)
    folder = copied(study, tmp_path / "out")
    for path in (folder / "trials").iterdir():
        DAMAGES[damage](path)
    assert held_to_its_word(cli, folder, tmp_path, command) == (2 if command in ("trials", "export") else 0)


# Whatever stands on the command line or in a YAML file: an answer, or one line for each fault. Never a traceback.


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


YAML_DOCUMENTS = st.dictionaries(ANY_KEY, VALUES, max_size=4).map(
    lambda leaves: yaml.safe_dump(nested(leaves)).encode()
)
YAML_FILES = YAML_DOCUMENTS | st.text().map(lambda text: text.encode(errors="surrogatepass")) | st.binary(max_size=60)

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
@given(content=YAML_FILES)
@example(content=b"model: {hidden: " + b"[" * 5000 + b"]" * 5000 + b"}")
@example(content=b"".join(b" " * level + b"a:\n" for level in range(900)))
@example(content=b"seed: " + b"9" * 5000)
@example(content=b"#" * 2_000_000)
@example(content=b'strategy: {a: "\\ud800"}')
def test_yaml_files(run: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "study.yaml").write_bytes(content)
    check(run("strategies", "study.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("value", HOSTILE)
def test_each_hostile_value_of_each_key(run: Run, value: str) -> None:
    for key in ("seed", "model.hidden", "federation.dataset", "federation.scenario", "search.customs", "strategy.x"):
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
LEGAL = {
    *("seed", "federation.seed"),  # any number is one
    *("federation.max_rows", "federation.max_file_bytes", "federation.max_file_rows"),  # bounds
    *("detection.max_features", "detection.max_pairwise_clients"),  # bounds, too
    "federation.text.stride",  # one window a text
    "detection.projection_size",  # models with fewer parameters are compared as they are
    "engine.checkpoint_every_rounds",  # no checkpoint but the end
    "engine.object_store_bytes",  # a gigabyte
}
"""Keys of counts that may be larger than anything there is."""

EMPTY = {
    *("federation.drop_columns", "federation.missing_values", "search.customs", "search.warm_start"),  # none
    "federation.physics",  # clients do not differ
    "federation.partition.quantities",  # all rows are used
}
"""Keys of lists that may be empty."""


def keys_of(kind: type) -> list[str]:
    """Return the keys whose values are, or may be, of a type."""

    def kinds(annotation: Any) -> set[Any]:
        parts = get_args(annotation)
        return {get_origin(annotation) or annotation}.union(*map(kinds, parts))

    return [key for key, field in known_keys().items() if kind in kinds(field.annotation)]


@pytest.fixture
def refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that says whether a study with these settings is refused, by one line with its key."""

    class ReachedError(Exception):
        """The study would begin."""

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


@pytest.mark.parametrize("key", keys_of(int))
def test_a_count_larger_than_anything_there_is(refused: Any, key: str) -> None:
    for more in [*readers(key)] or [f"seed={HUGE}"]:
        assert refused(key, more, f"{key}={HUGE}") is (key not in LEGAL), more


@pytest.mark.parametrize("key", keys_of(tuple))
def test_a_list_of_nothing(refused: Any, key: str) -> None:
    assert refused(key, f"{key}=[]") is (key not in EMPTY)


@pytest.mark.parametrize("value", ["nonsense", "http://[", "http://", "ray://[", "127.0.0.1"])
@pytest.mark.parametrize("key", ["engine.address", "recommender.base_url"])
def test_an_address_that_is_none(refused: Any, key: str, value: str) -> None:
    assert refused(key, f"{key}={value}")
    if key == "engine.address":
        assert refused(key, "engine.grid=auto", f"{key}={value}")
