"""The command of a report has the digest of the study that it is of."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from fedscout.experiments.config import load_config
from fedscout.experiments.reports.page import command_of
from fedscout.experiments.reports.page_tables import read_study_files
from tests.experiments.reports.page.written_study import write_study

SETTINGS = [
    [],
    ["federation.num_clients=7", "federation.partition.alpha=0.5", "seed=3"],
    ["federation.dataset=my data/it's.csv", 'federation.label="true"', "federation.partition.kind=iid"],
    ["federation.scenario=[{kind: label_flip, clients: [2], rate: 0.4}]", "model.hidden=[64, 32]"],
    ["search.kind=racing", "search.strategies=[fedavg, fedadam]", "training.metric=macro_f1"],
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_command_makes_the_same_configuration(tmp_path: Path, settings: list[str]) -> None:
    config = load_config(settings)
    study = read_study_files(write_study(tmp_path / "out"))
    claim = {"config": config.identity(), "config_hash": config.digest()}
    command = command_of(replace(study, claim=claim))
    assert command is not None
    words = shlex.split(command)
    assert words[:2] == ["fedscout", "run"]
    assert load_config(words[2:]).digest() == config.digest()


def test_a_configuration_that_is_not_known_has_no_command(tmp_path: Path) -> None:
    study = read_study_files(write_study(tmp_path / "out"))
    claim = {"config": {"training": {"no_such_key": 1}}, "config_hash": "0"}
    assert command_of(replace(study, claim=claim)) is None
