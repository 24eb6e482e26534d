"""What is said of rows that belong together, and of whom nothing is said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation
from fedscout.experiments.data.loaders.bearing import BY_SPLIT, SERIES
from fedscout.experiments.description import dependence_notes, near_copies_of_test_rows, scored_notes
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.reports.console import paragraph
from tests.experiments.description.federations import NoModel


def visits(spread: float, num_clients: int = 4) -> Federation:
    """Return 100 subjects with five visits each, dealt to clients as whole subjects."""
    generator = np.random.default_rng(0)
    subject = np.repeat(np.arange(100), 5)
    features = generator.normal(size=(100, 8))[subject] + spread * generator.normal(size=(500, 8))
    return Federation(
        name="visits",
        features=features.astype(np.float32),
        labels=(subject % 2).astype(np.int64),
        num_classes=2,
        partition=Partition(np.arange(500), np.linspace(0, 500, num_clients + 1).astype(np.int64)),
        model=NoModel(),
    )


def test_near_copies_across_the_split_are_told_and_gone_with_groups() -> None:
    plain = visits(0.05)
    (note,) = dependence_notes(plain, 0, 0.2)
    assert "near copies among the training rows" in note
    on_screen = " ".join(line.plain.strip() for line in paragraph(note, 80))
    assert "federation.group_column keeps" in on_screen
    assert "federation.split=last splits" in on_screen
    assert dependence_notes(replace(plain, groups=np.arange(500) // 5), 0, 0.2) == ()


def test_of_independent_rows_nothing_is_said() -> None:
    assert dependence_notes(visits(10.0), 0, 0.2) == ()


@pytest.mark.parametrize("name", ["digits", "wine", "breast_cancer"])
def test_of_usual_data_sets_nothing_is_said(name: str) -> None:
    federation = build_federation(FederationConfig(dataset=name, partition={"kind": "iid"}), ModelConfig())
    assert dependence_notes(federation, 0, 0.2) == ()


def test_groups_that_clients_share_are_counted() -> None:
    """Clients of 125 rows each are 25 subjects; of 3, 167 rows: borders within two of the subjects."""
    groups = np.arange(500) // 5
    assert dependence_notes(replace(visits(10.0), groups=groups), 0, 0.2) == ()
    (note,) = dependence_notes(replace(visits(10.0, num_clients=3), groups=groups), 0, 0.2)
    assert "2 of 100 " in note


def test_a_series_that_is_drawn_from_is_told() -> None:
    series = replace(visits(10.0), facts={"series": "snapshots of a run to failure"})
    (note,) = dependence_notes(series, 0, 0.2)
    assert "snapshots of a run to failure" in note
    assert "federation.split=last" in note
    assert "FedAvg" not in note
    (cut,) = dependence_notes(replace(series, split="last"), 0, 0.2)
    assert "same test rows" in cut


@pytest.mark.parametrize("name", BY_SPLIT)
def test_a_series_that_was_measured_is_told_with_the_figures_of_its_page(name: str) -> None:
    facts = {"series": SERIES, "accuracy_by_split": BY_SPLIT[name]}
    (note,) = dependence_notes(replace(visits(10.0), facts=facts), 0, 0.2)
    *lines, last = paragraph(note, 80)
    told = " ".join(line.plain.strip() for line in (*lines, last))
    assert told == note  # all of it is on a screen
    page = (Path(__file__).parents[3] / "docs" / "bearing.md").read_text()
    column = ("bearing", "bearing_faults").index(name) + 2
    rows = [line.split("|") for line in page.partition("| test rows |")[2].splitlines()[2:5]]
    published = [row[column].split()[0] for row in rows]
    assert re.findall(r"\d?\.\d{3}", note) == published


def test_texts_are_not_compared() -> None:
    assert near_copies_of_test_rows(replace(visits(0.05), facts={"data_kind": "tokens"}), 0, 0.2) is None


def test_many_clients_are_drawn_from() -> None:
    found = near_copies_of_test_rows(visits(0.05, num_clients=250), 0, 0.5)
    assert found is not None
    assert found.num_rows == 100  # one test row each of 100 clients of two rows


def test_that_few_clients_are_scored_is_told() -> None:
    federation = visits(10.0)
    assert scored_notes(federation, None) == scored_notes(federation, federation.num_clients) == ()
    (note,) = scored_notes(federation, 1)
    assert f" 1 of {federation.num_clients} clients" in note
