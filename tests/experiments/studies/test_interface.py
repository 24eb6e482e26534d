"""The Python interface gives what the command line gives, and takes what a notebook has at hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import fedscout
from fedscout.engine.errors import DataError, UserError
from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.record import Trial
from fedscout.experiments.studies.interface import notebook_progress
from fedscout.experiments.studies.workflow import SILENT
from tests.conftest import REPOSITORY
from tests.experiments.cli.conftest import exit_code
from tests.kits.refusals import refused
from tests.snippets import blocks

KINDS = ("fedavg", "ditto")
HERE = {"grid": "local"}
KRUM = {"strategies": ["krum"]}
WINE = {"num_clients": 4, "partition": {"kind": "dirichlet", "alpha": 0.3}}
SEARCH = {"budget": 2, "generation_size": 2, "confirmation_seeds": 2, "tuned_baseline": False}


@pytest.mark.slow
def test_a_study_is_that_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    federation = fedscout.Federation("wine", **WINE)
    found = fedscout.study(federation, training={"num_rounds": 2}, search=SEARCH, engine=HERE, out="python")
    settings = ["federation.num_clients=4", "federation.partition.kind=dirichlet", "federation.partition.alpha=0.3"]
    settings += ["training.num_rounds=2", "engine.grid=local", *(f"search.{key}={SEARCH[key]}" for key in SEARCH)]
    assert exit_code("run", "federation.dataset=wine", *settings, "--json", "--out", "command") == 0

    document = json.loads(Path("command/result.json").read_text())
    assert {**document, "timings": 0} == {**json.loads(json.dumps(found.document)), "timings": 0}
    assert found.best == found.document["best"]
    assert found.confirmation.model_dump(mode="json") == document["confirmation"]
    assert list(found.trials["fitness"]) == list(read_trials("command").sort_values("trial")["fitness"])
    assert federation.detect(engine=HERE).without_timings().model_dump(mode="json") == document["report"]
    assert federation.describe().realised.model_dump(mode="json") == document["realised"]


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
    table = pd.DataFrame({"age": [None, *generator.integers(20, 90, 119)], "ward": ["a", "b", "c"] * 40})
    table["dose"] = generator.choice(["low", "high", ""], 120)
    table["since"] = pd.date_range("2024-01-01", periods=120)
    table["smokes"] = generator.random(120) > 0.5
    table["well"] = generator.choice(["no", "yes"], 120)
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
        ([([[0.0], [1.0]], [0, np.nan])], "the labels of client 0", None),
        (pd.DataFrame({"a": [1.0, 2.0]}), "federation.label", "nothing"),
        (pd.DataFrame({"a": [1, "b"], "y": [0, 1]}), "the DataFrame", None),
        (pd.DataFrame({"a": [], "y": []}), "the DataFrame", None),
    ],
)
def test_data_that_make_no_federation_are_refused(data: Any, key: str, given: str | None) -> None:
    with refused(DataError, key=key, given=given):
        fedscout.Federation(data, **({"label": "y"} if isinstance(data, pd.DataFrame) and "y" in data else {}))


@pytest.mark.parametrize(
    ("call", "key", "given"),
    [
        (lambda: fedscout.Federation("wine", clients=3), "federation.clients", None),
        (lambda: fedscout.Federation("given"), "federation.dataset", "'given'"),
        (lambda: fedscout.train(fedscout.Federation("wine"), model={"kind": "mlp"}), "model", "{'kind': 'mlp'}"),
        (lambda: fedscout.study(fedscout.Federation("wine"), training={"num_rounds": 0}), "training.num_rounds", "0"),
        (lambda: fedscout.train(fedscout.Federation("wine"), "fedbest"), "strategy.kind", "'fedbest'"),
        (lambda: fedscout.study(fedscout.Federation("wine", num_clients=2), search=KRUM), "krum", "2"),
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
    for example in blocks():
        if (example.page, example.language) == ("python.md", "python"):
            exec(example.text, names)


# What a notebook shows of federations, reports, studies and trainings, and how it is told of progress.


def tree(shown: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<page>{shown}</page>")


def cells(shown: str) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row.iter("td")] for row in tree(shown).iter("tr")]


@pytest.fixture(scope="module")
def federation() -> fedscout.Federation:
    return fedscout.Federation("wine", num_clients=3, scenario="label_poisoning")


@pytest.fixture(scope="module")
def study(federation: fedscout.Federation, tmp_path_factory: pytest.TempPathFactory) -> fedscout.Study:
    out = tmp_path_factory.mktemp("study")
    return fedscout.study(federation, training={"num_rounds": 2}, search=SEARCH, engine=HERE, out=out)


def test_a_federation_shows_each_client(federation: fedscout.Federation) -> None:
    rows = cells(federation._repr_html_())
    assert [row[:3] for row in rows[1:]] == [
        [str(client), "", str(n)] for client, n in enumerate(federation.client_rows)
    ]
    assert [row[3] for row in rows[1:]] == [str(count) for count in federation.clients["class_0"]]


def test_names_of_clients_and_classes_are_shown_and_not_obeyed() -> None:
    table = pd.DataFrame({"x": np.arange(40.0), "who": ["<b>a</b>", "b"] * 20, "y": ["<i>no</i>", "yes"] * 20})
    shown = fedscout.Federation(table, label="y", client_column="who")._repr_html_()
    assert {"b", "i"}.isdisjoint(element.tag for element in tree(shown).iter())
    assert "<b>a</b>" in [row[1] for row in cells(shown)[1:]]


def test_a_report_names_what_was_found_and_where(federation: fedscout.Federation) -> None:
    report = federation.detect(engine=HERE)
    rows = cells(report._repr_html_())[1:]
    assert [row[3] for row in rows] == [report.calibrated_finding(one.name).sentence for one in report.findings]


def test_a_study_and_a_training_show_fitness(study: fedscout.Study, federation: fedscout.Federation) -> None:
    shown = study._repr_html_()
    assert study.confirmation.advised in "".join(tree(shown).itertext())
    best = study.trials[study.trials["phase"] != "confirmation"].sort_values("fitness", ascending=False)
    assert [row[0] for row in cells(shown)[1:]] == [str(number) for number in best["trial"]]
    rounds = pd.DataFrame({"round": [1, 2], "accuracy": [0.25, 0.5]}).set_index("round")
    trial = {"strategy": "<b>mine</b>", "parameters": {"eta": 1}, "status": "completed", "fitness": 0.375}
    trained = fedscout.TrainedStrategy(Path(), trial, rounds)._repr_html_()
    assert "<b>mine</b>(eta=1): 0.3750" in "".join(tree(trained).itertext())
    assert cells(trained)[1:] == [["1", "0.25"], ["2", "0.50"]]


def test_curves_and_seeds_are_the_logs(study: fedscout.Study) -> None:
    assert study.curves.columns.tolist() == study.trials["trial"].tolist()
    assert study.curves.loc[2].tolist() == [one[1] for one in study.trials["round_accuracy"]]
    assert study.seeds.index.tolist() == list(study.confirmation.seeds)
    assert study.seeds.iloc[:, 0].tolist() == list(study.confirmation.candidates[0].own)
    difference = study.seeds.iloc[:, 0] - study.seeds.iloc[:, 1]
    assert difference.tolist() == list(study.confirmation.versus["own"].differences)


def test_a_notebook_is_told_of_stages_and_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    line = SimpleNamespace(update=texts.append)
    display_of_ipython: Any = SimpleNamespace(display=lambda _, display_id: line, HTML=lambda data: data)
    ipython: Any = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()), display=display_of_ipython)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display_of_ipython)
    with notebook_progress() as display:
        display.stage("detection")
        display.stage("search")
        display.trials.on_record(Trial(), False)
    monkeypatch.delitem(sys.modules, "IPython")
    with notebook_progress() as display:
        assert display is SILENT
    assert len(texts) == 3
    assert texts[-1] == ""
