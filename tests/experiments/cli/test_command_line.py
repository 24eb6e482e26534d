"""The commands that a finished study names."""

from __future__ import annotations

import pytest

from fedscout.experiments.cli.command_line import training_command

STRATEGY = {"kind": "fedavg"}


@pytest.mark.parametrize(
    "asked", [["training.num_rounds=auto"], ["training.num_rounds=80", "training.early_stopping=true"]]
)
def test_of_a_study_that_found_out_how_many_rounds_these_alone_are_named(asked: list[str]) -> None:
    words = training_command(["seed=3", *asked, "search.budget=4"], None, STRATEGY, num_rounds=40)
    assert words == ["fedscout", "train", "seed=3", "training.num_rounds=40", "strategy.kind=fedavg"]


def test_rounds_that_were_given_are_kept() -> None:
    words = training_command(["training.num_rounds=80"], None, STRATEGY)
    assert words == ["fedscout", "train", "training.num_rounds=80", "strategy.kind=fedavg"]
