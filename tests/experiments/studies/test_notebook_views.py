"""What a notebook shows of federations, reports, studies and trainings, and how it is told of progress."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import fedscout
from fedscout.engine.trials.record import Trial
from fedscout.experiments.studies.interface import MOST_CLIENTS, federation_view, in_notebook, notebook_progress
from fedscout.experiments.studies.workflow import SILENT

HERE = {"grid": "local"}
ROUNDS = {"num_rounds": 2}


def tree(shown: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<page>{shown}</page>")


def cells(shown: str) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row.iter("td")] for row in tree(shown).iter("tr")]


@pytest.fixture(scope="module")
def federation() -> fedscout.Federation:
    return fedscout.Federation("wine", num_clients=3, scenario="label_poisoning")


@pytest.fixture(scope="module")
def study(federation: fedscout.Federation, tmp_path_factory: pytest.TempPathFactory) -> fedscout.Study:
    search = {"budget": 2, "generation_size": 2, "confirmation_seeds": 2, "tuned_baseline": False}
    return fedscout.study(federation, training=ROUNDS, search=search, engine=HERE, out=tmp_path_factory.mktemp("study"))


def test_clients_are_what_a_description_counts(federation: fedscout.Federation) -> None:
    described = federation.describe().clients
    assert federation.clients["rows"].tolist() == [client.num_rows for client in described]
    assert federation.clients.iloc[:, 2:].to_numpy().tolist() == [list(client.label_counts) for client in described]
    assert federation.clients.columns[2:].tolist() == ["class_0", "class_1", "class_2"]


def test_a_federation_shows_each_client(federation: fedscout.Federation) -> None:
    rows = cells(federation._repr_html_())
    assert [row[:3] for row in rows[1:]] == [
        [str(client), "", str(n)] for client, n in enumerate(federation.client_rows)
    ]
    shares = [cell.get("title") for cell in tree(federation._repr_html_()).iter("td") if cell.get("title")]
    first = federation.clients.iloc[0]
    assert shares[0] == f"class_0: {first['class_0']} of {first['rows']}"


def test_names_of_clients_and_classes_are_shown_and_not_obeyed() -> None:
    table = pd.DataFrame({"x": np.arange(40.0), "who": ["<b>a</b>", "b"] * 20, "y": ["<i>no</i>", "yes"] * 20})
    shown = fedscout.Federation(table, label="y", client_column="who")._repr_html_()
    assert {"b", "i"}.isdisjoint(element.tag for element in tree(shown).iter())
    assert "<b>a</b>" in [row[1] for row in cells(shown)[1:]]


def test_of_many_clients_some_are_shown_and_the_rest_counted() -> None:
    clients = pd.DataFrame({"name": None, "rows": [3] * 1000, "no": [1] * 1000, "yes": [2] * 1000})
    shown = federation_view("many", clients)
    assert len(cells(shown)) == 1 + MOST_CLIENTS
    assert f"{1000 - MOST_CLIENTS} more clients" in shown


def test_a_report_names_what_was_found_and_where(federation: fedscout.Federation) -> None:
    report = federation.detect(engine=HERE)
    rows = cells(report._repr_html_())[1:]
    assert [row[0] for row in rows] == ["Label skew", "Feature skew", "Outlier clients"]
    assert [row[3] for row in rows] == [report.calibrated_finding(one.name).sentence for one in report.findings]


def test_a_study_shows_verdict_intervals_and_trials(study: fedscout.Study) -> None:
    assert study.confirmation is not None
    shown = study._repr_html_()
    texts = list(tree(shown).itertext())
    assert study.confirmation.sentence in texts
    searched = study.trials[study.trials["phase"] != "confirmation"]
    assert [row[0] for row in cells(shown) if len(row) == 5] == [
        str(trial) for trial in searched.sort_values("fitness", ascending=False)["trial"]
    ]
    assert len(list(tree(shown).iter("circle"))) == len(study.confirmation.versus)


def test_curves_and_seeds_are_the_logs(study: fedscout.Study) -> None:
    assert study.confirmation is not None
    assert study.curves.columns.tolist() == study.trials["trial"].tolist()
    assert study.curves.loc[2].tolist() == [one[1] for one in study.trials["round_accuracy"]]
    assert study.seeds.index.tolist() == list(study.confirmation.seeds)
    assert study.seeds.iloc[:, 0].tolist() == list(study.confirmation.contestants[0].own)
    difference = study.seeds.iloc[:, 0] - study.seeds.iloc[:, 1]
    assert difference.tolist() == list(study.confirmation.versus["fedavg"]["own"].differences)


def test_a_training_shows_its_curve(federation: fedscout.Federation, tmp_path: Path) -> None:
    trained = fedscout.train(federation, training=ROUNDS, engine=HERE, out=tmp_path)
    ((strategy, _, fitness, _),) = cells(trained._repr_html_())[1:]
    assert (strategy, fitness) == ("fedavg", f"{trained.trial['fitness']:.4f}")
    assert len(list(tree(trained._repr_html_()).iter("polyline"))) == 1


def test_a_trial_that_failed_says_why() -> None:
    shown = Trial(strategy="fedadam", parameters={"eta": 0.25}, status="failed", error="<diverged>")._repr_html_()
    (row,) = cells(shown)[1:]
    assert row[2:] == ["fedadam", "eta=0.25", "failed: <diverged>", ""]


def test_no_notebook_is_told_nothing() -> None:
    with notebook_progress() as display:
        assert display is SILENT


class Shown:
    """Stands for IPython's display of one line."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def update(self, html: SimpleNamespace) -> None:
        self.texts.append(html.data)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Shown:
    shown = Shown()
    told = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=object()),
        display=SimpleNamespace(display=lambda _, display_id: shown, HTML=lambda data: SimpleNamespace(data=data)),
    )
    monkeypatch.setitem(sys.modules, "IPython", told)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", told.display)
    return shown


def test_a_notebook_is_told_of_stages_and_is_left_clean(notebook: Shown, study: fedscout.Study) -> None:
    assert in_notebook()
    with notebook_progress() as display:
        display.stage("detection")
        display.stage("search")
        assert display.trials.on_record is not None
        display.trials.on_record(Trial(), False)
    assert notebook.texts == ["<p>measuring heterogeneity …</p>", "<p>running trials …</p>", ""]
