"""Mistakes on the command line and broken study folders: one clear line each on standard error and exit code 2."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedscout.experiments.cli import program
from fedscout.experiments.cli.options import complete
from fedscout.experiments.config import known_keys
from tests.experiments.cli.conftest import SMALL, Cli, exit_code

LOCAL = ("engine.grid=local",)
STUDIES = ("run", "search", "detect", "train")
DEFAULT_KINDS = (
    *("fedavg", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi"),
    *("fedmedian", "fedtrimmedavg", "krum", "multikrum", "bulyan", "qfedavg"),
)

WRONG: dict[str, list[tuple[str, ...]]] = {
    "run training.learning_rat=1": [("training.learning_rat ", "training.learning_rate?")],
    "detect training.batch_size=0": [("training.batch_size", "got 0")],
    "search seed=x nonsense training.batch_size=0": [
        ("an argument", "'nonsense'"),
        ("training.batch_size", "got 0"),
        ("seed", "got 'x'"),
    ],
    "run study.yaml": [("the configuration file", "study.yaml")],
    "run --config study.yaml": [("the configuration file", "study.yaml")],
    "run federation.dataset=imagenet": [("federation.dataset", "digits, breast_cancer, wine", "got 'imagenet'")],
    "run federation.dataset=wine federation.num_clients=500": [("federation.num_clients", "178", "got 500")],
    "train strategy.kind=magic": [("strategy.kind", "got 'magic'", *DEFAULT_KINDS)],
    "train strategy.kind=fedavgm strategy.server_momentum=1.5 strategy.eta=1": [
        ("server_momentum of fedavgm", "got 1.5"),
        ("eta", "fedavgm", "got 1"),
    ],
    "train strategy.kind=krum federation.num_clients=2": [("krum", "at least 3", "got 2")],
    "search search.strategies=[magic]": [("kinds", "got 'magic'", *DEFAULT_KINDS)],
    "run strategy.kind=krum": [("strategy ", "'krum'")],
    "train strategy.kind=custom strategy.path=no_such_module:Thing": [("no_such_module:Thing", "ModuleNotFoundError")],
    "train strategy.kind=rfa strategy.num_iterations=0": [("num_iterations of rfa", "got 0")],
    "train strategy.kind=rfa strategy.smoothing=0": [("smoothing of rfa", "got 0")],
    "train strategy.kind=rfa strategy.tau=1": [("tau", "rfa", "got 1", "num_iterations, smoothing")],
    "train strategy.kind=fedbn": [("fedbn", "batch normalisation")],
    "train strategy.kind=fedadam+scaffold": [("scaffold", "got fedadam+scaffold")],
    "search search.strategies=[fedadam+scaffold]": [("scaffold", "got fedadam+scaffold")],
    "search search.strategies=[fedavg,fedbuff]": [("fedbuff", "clock")],
    "train strategy.kind=dp_fedavg strategy.around=bulyan": [("around of dp_fedavg", "got 'bulyan'")],
    "run --text skewed": [("recommender.text", "--one-shot")],
    "run --one-shot search.kind=genetic": [("search.kind", "genetic")],
    "reproduce choice/tabel6": [("", "choice/tabel6", "choice/table6 or")],
    "magic": [("", "'magic'", "fedscout --help")],
    "run --magic": [("", "'--magic'", "fedscout run --help")],
    "run --out": [("", "'--out'")],
    "trials": [("", "FOLDER")],
    "trials nowhere": [("the folder", "got nowhere")],
}


@pytest.mark.parametrize("given", WRONG)
@pytest.mark.parametrize("as_json", [False, True], ids=["", "json"])
def test_each_fault_is_one_line(cli: Cli, tmp_path: Path, given: str, as_json: bool) -> None:
    command, *rest = given.split()
    local = LOCAL if command in STUDIES else ()
    json_option = ("--json",) if as_json and command != "magic" and "--out" not in rest else ()
    done = cli(command, *local, *json_option, *rest)
    for line, names in zip(done.err.splitlines(), WRONG[given], strict=True):
        replace(done, err=line).refuses(*names)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", STUDIES)
def test_a_wrong_output_folder_is_left_as_it_is(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    cli(command, *SMALL, "--out", "mine").refuses("--out", f"got {tmp_path / 'mine'}", "notes.txt", "config.json")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("command", STUDIES)
def test_data_that_are_missing_leave_no_folder(cli: Cli, tmp_path: Path, command: str) -> None:
    data = ("federation.dataset=bearing", "federation.folder=nowhere")
    cli(command, *LOCAL, *data, "--out", "deep/out").refuses("", "nowhere")
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


WINE = ("federation.dataset=wine",)
WRITING = {
    "app": ("app", *WINE),
    "describe": ("describe", *WINE),
    "detect": ("detect", *SMALL),
    "train": ("train", *SMALL),
    "run": ("run", *SMALL),
}


@pytest.mark.slow
@pytest.mark.parametrize("out", ["file/below.npz", "/proc/nothing.npz", "/dev/null/x.npz", "x" * 300 + ".npz"])
@pytest.mark.parametrize("command", WRITING)
def test_a_place_that_can_be_none_is_one_line(cli: Cli, tmp_path: Path, command: str, out: str) -> None:
    (tmp_path / "file").touch()
    done = cli(*WRITING[command], "--out", out)
    assert done.code in (1, 2)
    assert len(done.warnings.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


@pytest.mark.parametrize("command", ["trials", "report", "plot", "export", "predict"])
@pytest.mark.parametrize("folder", ["nothing", "file", "file/below", "/proc/1/mem", "x" * 300])
def test_a_folder_that_is_none_is_refused(cli: Cli, tmp_path: Path, command: str, folder: str) -> None:
    (tmp_path / "file").touch()
    done = cli(command, folder, *(["file"] if command == "predict" else []))
    assert (done.code, len(done.warnings.splitlines())) == (2, 1)


# What is suggested: names that may have been meant, and keys that a shell completes.


MEANT = {
    "strategy.kind=fedprx": "fedprox",
    "strategy.kind=fedadm+fedprx": "fedadam+fedprox",
    "federation.dataset=cifar": "cifar10 or cifar100",
    "federation.server_dataset=mnst": "mnist",
    "federation.partition.kind=dirichlt": "dirichlet",
    "federation.scenario=label_poisn": "label_poisoning",
    "federation.scenario=[{kind: label_flp}]": "label_flip",
    "model.kind=desne": "dense",
    "training.metric=accurcy": "accuracy",
    "search.kind=genetc": "genetic",
    "search.strategies=[fedprx]": "fedprox",
    "selection.kind=ort": "oort",
    "report=report.json": "--report",
}


@pytest.mark.parametrize("setting", MEANT)
def test_a_value_that_is_nearly_right_is_recognised(cli: Cli, setting: str) -> None:
    command = "train" if setting.startswith("strategy.") else "search"
    cli(command, "engine.grid=local", setting).refuses("", f"did you mean {MEANT[setting]}")


def test_a_column_that_is_nearly_right_is_recognised(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("speed,fault\n" + "".join(f"{row},{row % 2}\n" for row in range(40)))
    data = ("federation.dataset=t.csv", "federation.label=faults")
    cli("train", "engine.grid=local", *data).refuses("federation.label", " fault?")


def test_a_command_that_is_nearly_right_is_recognised_once(cli: Cli) -> None:
    assert cli("detcet").refuses().count("detect") == 1


def test_a_shell_completes_keys() -> None:
    assert set(complete("")) >= {f"{key}=" for key in known_keys()}
    assert complete("federation.partition.k") == ["federation.partition.kind="]


# Faulty tables on the command line: one clear line each on standard error, exit code 2, and nothing else.


HEADER = "site,x,y,note,grade"
ROWS = [f"{'ns'[row % 2]},{row},{row % 3}.5,word{row},{'ab'[row % 2]}" for row in range(20)]
GOOD = "\n".join([HEADER, *ROWS, ""])


class Harm:
    """Leaves a trace when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open, ("harm-was-done", "w")  # type: ignore[return-value]


def changed(row: int, cells: str) -> str:
    """Return the good table with another line in one row, counted from 1."""
    return "\n".join([HEADER, *ROWS[: row - 1], cells, *ROWS[row:], ""])


LABEL, SEPARATED = "column 'grade'", "the columns of t.csv"
FIELDS, FEATURES = "every row of t.csv", "data set 't.csv' must have a feature column"
MALFORMED: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty file": ("", ("t.csv", "empty")),
    "header alone": (HEADER + "\n", ("t.csv", "rows", "none")),
    "another delimiter": (GOOD.replace(",", "#"), (SEPARATED, "got 'site#x#y#note#grade'", "federation.separator")),
    "label missing": (GOOD.replace("grade", "mark"), ("federation.label", "got 'grade'", "mark")),
    "one class": (GOOD.replace(",b\n", ",a\n"), (LABEL, "(20)", "got 1: a")),
    "a class a row": ("site,grade\n" + "".join(f"n,c{n}\n" for n in range(9)), (LABEL, "(9)", "got 9")),
    "client missing": (GOOD.replace("site", "place"), ("federation.client_column", "got 'site'", "place")),
    "clients all small": (
        "\n".join([HEADER, *(f"s{row},1,{row},w,{'ab'[row % 2]}" for row in range(20))]),
        ("data set 't.csv'", "federation.min_release=5", "none of 20"),
    ),
    "column name twice": (GOOD.replace("x,y", "x,x"), ("the column names", "'x'")),
    "short row": (changed(3, "n,1,1"), (FIELDS, "5 fields", "got 3")),
    "long row": (changed(3, "n,1,1,w,a,7"), (FIELDS, "5 fields", "got 6")),
    "quote left open": (changed(3, 'n,1,1,"w,a'), (FIELDS, "5 fields", "quote")),
    "dates": (GOOD.replace(".5,", "-02-2024,"), ("column 'y'", "got '0-02-2024' in")),
    "identifiers": (
        "site,note,grade\n" + "".join(f"{'ns'[row % 2]},word{row},{'ab'[row % 2]}\n" for row in range(20)),
        (FEATURES, "'note'", "20 different"),
    ),
    "column of nothing": ("site,x,grade\n" + "n,,a\ns,,b\n" * 9, (FEATURES, "'x'", "0 of 18 cells")),
    "no features": ("site,grade\n" + "n,a\ns,b\n" * 9, (FEATURES, "none")),
    "binary": (bytes(range(256)) * 9, ("t.csv", "UTF-8")),
    "pickle": (pickle.dumps(Harm()), ("t.csv", "encoding")),
}
FILES: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "t.parquet": (pickle.dumps(Harm()), ("t.parquet", "Parquet")),
    "text.parquet": (GOOD, ("text.parquet", "Parquet")),
    "t.xlsx": (b"PK\x03\x04", ("t.xlsx", "Excel")),
    "t.csv.gz": (GOOD, ("t.csv.gz",)),
}


def refuses(cli: Cli, settings: tuple[str, ...], subject: str, *names: str) -> None:
    cli("detect", "engine.grid=local", *(f"federation.{setting}" for setting in settings)).refuses(subject, *names)


@pytest.mark.parametrize("case", [*MALFORMED, *FILES])
def test_a_faulty_table_is_one_clear_line(cli: Cli, tmp_path: Path, case: str) -> None:
    content, names = (MALFORMED | FILES)[case]
    path = tmp_path / (case if case in FILES else "t.csv")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refuses(cli, (f"dataset={path.name}", "label=grade", "client_column=site"), *names)
    assert not (tmp_path / "harm-was-done").exists()


def test_a_nested_column_of_parquet_is_one_clear_line(cli: Cli, tmp_path: Path) -> None:
    pd.DataFrame({"x": [[1], [2]] * 6, "grade": ["a", "b"] * 6}).to_parquet(tmp_path / "t.parquet")
    refuses(cli, ("dataset=t.parquet", "label=grade"), "column 'x' of t.parquet", "got list")


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ((), ("federation.label", "'t.csv'", "got nothing", "site, x, y, note, grade")),
        (("label=grade", "drop_columns=[z]"), ("federation.drop_columns", "got 'z'")),
        (("label=grade", "drop_columns=[grade]"), ("federation.drop_columns", "federation.label", "got 'grade'")),
        (("label=grade", "drop_columns=note"), ("federation.drop_columns", "got 'note'")),
        (("label=grade", "client_column=grade"), ("federation.label and federation.client_column", "got 'grade'")),
        (("label=grade", "text_column=z"), ("federation.text_column", "got 'z'")),
        (("label=grade", "text_column=grade"), ("federation.text_column", "got 'grade'")),
        (("label=site", "client_column=x"), ("data set 't.csv'", "federation.min_release=5", "none of 20")),
        (("label=grad",), ("federation.label", "got 'grad'", "site, x, y, note, grade;", "grade?")),
    ],
)
def test_a_choice_that_does_not_fit(
    cli: Cli, tmp_path: Path, settings: tuple[str, ...], names: tuple[str, ...]
) -> None:
    (tmp_path / "t.csv").write_text(GOOD)
    refuses(cli, ("dataset=t.csv", *settings), *names)


def test_a_path_that_leads_nowhere_is_answered_by_what_is_like_it(cli: Cli, tmp_path: Path) -> None:
    refuses(cli, ("dataset=none.csv",), "federation.dataset", "got 'none.csv'")
    (tmp_path / "Tweets.csv").write_text(GOOD)
    refuses(cli, ("dataset=Twets.csv", "label=grade"), "federation.dataset", "got 'Twets.csv'", "Tweets.csv?")


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


def edited(document: Any, place: tuple[Any, ...], other: Any) -> Any:
    changed = json.loads(json.dumps(document))
    holder = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = other
    if other is GONE:
        del holder[place[-1]]
    return changed


def edits(document: Any, depth: int) -> Iterator[Any]:
    """Yield the document with each of its values gone, and in turn with another in its place."""
    for place in places(document, depth):
        for other in (GONE, *OTHERS):
            yield edited(document, place, other)


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


@pytest.mark.slow
@pytest.mark.parametrize("command", READERS)
def test_a_folder_without_its_log_or_its_configuration(cli: Cli, study: Path, tmp_path: Path, command: str) -> None:
    folder = copied(study, tmp_path / "out")
    shutil.rmtree(folder / "trials")
    wanted = 2 if command in ("trials", "export") else 0
    assert held_to_its_word(cli, folder, tmp_path, command) == wanted
    (folder / "trials").touch()
    assert held_to_its_word(cli, folder, tmp_path, command) == wanted
    (folder / "config.json").unlink()
    assert held_to_its_word(cli, folder, tmp_path, command) == 2
