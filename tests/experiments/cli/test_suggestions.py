"""What is suggested: names that may have been meant, and values that a shell completes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.experiments.cli.options import complete
from fedscout.experiments.config import known_keys, load_config, named_values
from fedscout.strategies import STRATEGIES
from tests.experiments.cli.conftest import Cli

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


@pytest.mark.parametrize("key", ["federation.dataset", "federation.partition.kind", "model.kind", "strategy.kind"])
def test_every_value_that_is_completed_is_one_that_the_key_takes(key: str) -> None:
    values = named_values(key)
    assert len(values) > 5
    if key == "strategy.kind":
        assert set(values) == set(STRATEGIES)
        return
    for value in values:
        load_config([f"{key}={value}"])


@pytest.mark.parametrize(
    ("begun", "completed"),
    [
        ("federation.dataset=cif", ["federation.dataset=cifar10", "federation.dataset=cifar100"]),
        ("training.early_stopping=", ["training.early_stopping=true", "training.early_stopping=false"]),
        ("search.kind=gen", ["search.kind=genetic"]),
        ("federation.scenario=label_p", ["federation.scenario=label_poisoning"]),
        ("strategy.kind=fedprox", ["strategy.kind=fedprox"]),
        ("seed=", []),
        ("no.such.key=", []),
        ("seed.of=", []),
    ],
)
def test_a_shell_completes_values_after_a_key(begun: str, completed: list[str]) -> None:
    assert complete(begun) == completed


def test_a_shell_completes_keys() -> None:
    assert set(complete("")) >= {f"{key}=" for key in known_keys()}
    assert complete("federation.partition.k") == ["federation.partition.kind="]


@pytest.mark.parametrize(
    ("words", "place", "begun", "completed"),
    [
        ("fedscout run search.kind = gen", 4, "gen", ["genetic"]),
        ("fedscout run search.kind =", 3, "", list(named_values("search.kind"))),
        ("fedscout run seed=1 federation.partition.k", 3, "federation.partition.k", ["federation.partition.kind="]),
        ("fedscout run seed = 1 search.k", 5, "search.k", ["search.kind="]),
    ],
)
def test_in_bash_a_value_is_a_word_of_its_own(
    monkeypatch: pytest.MonkeyPatch, words: str, place: int, begun: str, completed: list[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(place))
    assert complete(begun) == completed
