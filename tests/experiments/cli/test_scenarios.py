"""`fedscout scenarios`, and what the documentation shows of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedscout.experiments.scenarios.table import EFFECTS, SCENARIOS
from tests.experiments.cli.conftest import Cli

DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "scenarios.md"
QUICK = ("federation.dataset=wine", "detection.outlier_repetitions=2", "detection.outlier_min_flags=2")


def test_every_effect_is_listed(cli: Cli) -> None:
    published, table = cli("scenarios").silent.out.split("\n\n", 1)
    assert published.endswith(f": {', '.join(SCENARIOS)}")
    assert all(f"\n| `{kind}` |" in table for kind in EFFECTS)


def test_the_documentation_names_every_effect_and_its_keys(cli: Cli) -> None:
    effects = cli("scenarios", "--json").document["effects"]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)\|$", DOCUMENTATION.read_text(), re.MULTILINE))
    for kind, schema in effects.items():
        named = {"kind", "clients", "num_clients", *re.findall(r"`(\w+)`", rows[kind])}
        assert {*schema["properties"]} <= named, kind


def test_schemas_of_all_effects(cli: Cli) -> None:
    document = cli("scenarios", "--json").document
    assert document["scenarios"] == list(SCENARIOS)
    assert set(document["effects"]) == set(EFFECTS)
    assert "std" in document["effects"]["feature_noise"]["required"]


def test_a_mistake_in_an_effect_is_one_line(cli: Cli) -> None:
    wine = ("detect", "engine.grid=local", "federation.dataset=wine", "federation.num_clients=4")
    cli(*wine, "federation.scenario={kind: feature_noise}").refuses("federation.scenario.0.std", "feature_noise")
    absent = cli(*wine, "federation.scenario={kind: poisoning, clients: [4]}")
    absent.refuses("federation.scenario.0.clients", "4", "got 4")


def test_a_diagnosis_tells_of_slow_clients(cli: Cli) -> None:
    scenario = "federation.scenario={kind: latency, clients: [1], mean_seconds: 3}"
    settings = ("federation.num_clients=4", "federation.partition.kind=iid", "engine.grid=local", scenario)
    assert "Speed: client 1 takes 3 " in " ".join(cli("detect", *QUICK, *settings).ok.out.split())
    assert "speed_skew" not in cli("detect", *QUICK, *settings[:-1], "--json").ok.out


TRAINED = ("engine.grid=local", "federation.dataset=wine", "federation.num_clients=4", "training.num_rounds=1")
FLIPPED = "federation.scenario={kind: label_flip, rate: 1, clients: [2]}"


@pytest.mark.slow
@pytest.mark.parametrize("view", ["own", "clean"])
def test_a_training_under_label_noise_tells_its_score_against_the_other_labels_too(cli: Cli, view: str) -> None:
    settings = (*TRAINED, FLIPPED, f"search.view={view}")
    told = cli("train", *settings, "--json", "--out", "json").document
    assert told["view"] == view
    other = told["trial"]["clean_fitness" if view == "own" else "own_fitness"]
    shown = cli("train", *settings, "--out", "screen").out
    assert f"{other:.4f}" in shown
    assert "client 2" in " ".join(shown.split())


@pytest.mark.slow
def test_a_training_without_wrong_labels_tells_one_score(cli: Cli) -> None:
    assert "labels" not in cli("train", *TRAINED, "--out", "screen").out
