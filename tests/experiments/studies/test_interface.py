"""The Python interface gives what the command line gives, and takes what a notebook has at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedscout
from fedscout.engine.errors import DataError, UserError
from fedscout.engine.trials.log import read_trials
from fedscout.experiments.cli.main import main
from tests.conftest import REPOSITORY
from tests.kits.refusals import refused
from tests.test_docs import fences
from tests.test_layers import HEAVY

KINDS = ("fedavg", "ditto")
HERE = {"grid": "local"}
WINE = {"num_clients": 4, "partition": {"kind": "dirichlet", "alpha": 0.3}}
SEARCH = {"budget": 2, "generation_size": 2, "confirmation_seeds": 2, "tuned_baseline": False}


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code in (0, None)


def test_the_import_is_quick_and_loads_nothing_heavy() -> None:
    program = (
        "import sys, time\n"
        "began = time.process_time()\n"
        "import fedscout\n"
        "print(time.process_time() - began)\n"
        f"print({HEAVY!r} & {{*sys.modules}})\n"
    )
    command = [sys.executable, "-c", program]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines() for _ in range(3)]
    assert {heavy for _, heavy in runs} == {"set()"}
    assert min(float(seconds) for seconds, _ in runs) <= 0.1


@pytest.mark.slow
def test_a_study_is_that_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    federation = fedscout.Federation("wine", **WINE)
    found = fedscout.study(federation, training={"num_rounds": 2}, search=SEARCH, engine=HERE, out="python")
    settings = ["federation.num_clients=4", "federation.partition.kind=dirichlet", "federation.partition.alpha=0.3"]
    settings += ["training.num_rounds=2", "engine.grid=local", *(f"search.{key}={SEARCH[key]}" for key in SEARCH)]
    run("run", "federation.dataset=wine", *settings, "--json", "--out", "command")

    document = json.loads(Path("command/result.json").read_text())
    assert {**document, "timings": 0} == {**json.loads(json.dumps(found.document)), "timings": 0}
    assert found.best == found.document["best"]
    assert found.confirmation is not None
    assert found.confirmation.model_dump(mode="json") == document["confirmation"]
    assert list(found.trials["fitness"]) == list(read_trials("command").sort_values("trial")["fitness"])
    assert federation.detect(engine=HERE).without_timings().model_dump(mode="json") == document["report"]
    assert federation.describe().realised.model_dump(mode="json") == document["realised"]


def test_the_log_of_a_study_has_the_columns_of_the_strategies_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    federation = fedscout.Federation("wine", **WINE)
    search = {**SEARCH, "confirmation_seeds": 0, "strategies": ["rfa"]}
    found = fedscout.study(federation, training={"num_rounds": 2}, search=search, engine=HERE, detection_first=False)
    assert list(found.trials["strategy"]) == ["fedavg", "rfa", "rfa"]
    assert found.trials["param_num_iterations"][1:].between(1, 10).all()
    assert "param_epsilon" not in found.trials


def test_a_training_is_that_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained = fedscout.train(
        fedscout.Federation("wine", num_clients=4),
        {"kind": "fedadam", "eta": 0.1},
        training={"num_rounds": 2},
        engine=HERE,
    )
    settings = ["federation.num_clients=4", "strategy.kind=fedadam", "strategy.eta=0.1", "training.num_rounds=2"]
    run("train", "federation.dataset=wine", *settings, "engine.grid=local", "--out", "command")

    (row,) = read_trials("command").to_dict("records")
    assert list(trained.rounds["accuracy"]) == list(row["round_accuracy"])
    assert list(trained.rounds["loss"]) == list(row["round_loss"])
    assert trained.trial["fitness"] == row["fitness"]
    assert trained.folder.parent == tmp_path / "runs"


def test_a_training_tells_three_accuracies_where_there_are_so_many(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    federation = fedscout.Federation("wine", num_clients=4, unseen_clients=1)
    trained = {kind: fedscout.train(federation, kind, training={"num_rounds": 2}, engine=HERE) for kind in KINDS}
    usual = ["accuracy", "loss", "train_loss"]
    assert [*trained["fedavg"].rounds] == [*usual, "new_client_accuracy"]
    assert [*trained["ditto"].rounds] == [*usual, "global_accuracy", "new_client_accuracy"]
    assert list(trained["ditto"].rounds["global_accuracy"]) == list(trained["fedavg"].rounds["accuracy"])
    for kind, one in trained.items():
        assert one.trial["new_client_accuracy"] == pytest.approx(one.rounds["new_client_accuracy"].mean())
        assert ("global_accuracy" in one.trial) == (kind == "ditto")
    assert trained["fedavg"].trial["bytes_up"] == trained["ditto"].trial["bytes_up"] > 0


def clients() -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    generator = np.random.default_rng(1)
    sizes = [30, *[20] * 11]  # as texts, "10" would come before "2"
    return [(generator.normal(size=(rows, 3)), generator.choice(["cat", "dog"], rows)) for rows in sizes]


def test_arrays_are_taken_as_they_are_client_by_client() -> None:
    federation = fedscout.Federation(clients())
    assert federation.client_rows == (30, *[20] * 11)
    for client, (features, labels) in enumerate(clients()):
        own = federation._built.client_data(client).own
        held, classes = own.take(np.arange(len(own)))  # in another order
        rows = {(*row.tolist(), label) for row, label in zip(features.astype(np.float32), labels, strict=True)}
        assert {(*row.tolist(), ("cat", "dog")[label]) for row, label in zip(held, classes, strict=True)} == rows


def test_a_table_is_what_it_is_in_a_file(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    table = pd.DataFrame(
        {
            "age": [None, *generator.integers(20, 90, 119)],
            "dose": generator.choice(["low", "high", ""], 120),
            "ward": ["a", "b", "c"] * 40,
            "since": pd.date_range("2024-01-01", periods=120),
            "smokes": generator.random(120) > 0.5,
            "well": generator.choice(["no", "yes"], 120),
        }
    )
    table.to_parquet(tmp_path / "table.parquet", index=False)
    roles = {"label": "well", "client_column": "ward", "drop_columns": ["since"]}
    given = fedscout.Federation(table, **roles)._built
    read = fedscout.Federation(tmp_path / "table.parquet", **roles)._built
    np.testing.assert_array_equal(given.features, read.features)
    np.testing.assert_array_equal(given.labels, read.labels)
    assert given.feature_names == read.feature_names
    np.testing.assert_array_equal(given.partition.rows, read.partition.rows)


@pytest.mark.parametrize(
    ("data", "key", "given"),
    [
        ([], "a federation", "none"),
        ([(np.ones((3, 2)), [0, 1])], "client 0", "(3, 2) and (2,)"),
        ([(np.ones((2, 2)), [0, 1]), (np.ones((2, 3)), [0, 1])], "the clients' features", "(2,), (3,)"),
        ([([[np.nan], [1.0]], [0, 1])], "the features of client 0", None),
        (pd.DataFrame({"a": [1.0, 2.0]}), "federation.label", "nothing"),
    ],
)
def test_data_that_make_no_federation_are_refused(data: Any, key: str, given: str | None) -> None:
    with refused(DataError, key=key, given=given):
        fedscout.Federation(data)


@pytest.mark.parametrize(("column", "names"), [([1, "b"], "column a "), ([], "rows")])
def test_a_table_that_makes_no_federation_is_refused(column: list[Any], names: str) -> None:
    with refused(DataError, key="the DataFrame", names=names):
        fedscout.Federation(pd.DataFrame({"a": column, "y": [*range(len(column))]}), label="y")


@pytest.mark.parametrize(
    ("call", "key", "given"),
    [
        (lambda: fedscout.Federation("wine", clients=3), "federation.clients", None),
        (lambda: fedscout.Federation("given"), "federation.dataset", "'given'"),
        (lambda: fedscout.train(fedscout.Federation("wine"), model={"kind": "mlp"}), "model", "{'kind': 'mlp'}"),
        (lambda: fedscout.study(fedscout.Federation("wine"), training={"num_rounds": 0}), "training.num_rounds", "0"),
        (lambda: fedscout.train(fedscout.Federation("wine"), "fedbest"), "strategy.kind", "'fedbest'"),
    ],
)
def test_settings_are_refused_as_on_the_command_line(call: Any, key: str, given: str | None) -> None:
    with refused(UserError, key=key, given=given):
        call()


@pytest.mark.slow
def test_what_the_document_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(REPOSITORY))
    names: dict[str, Any] = {}
    for example in fences("python.md"):
        exec(example, names)
