"""What `run` and `search` print by default: a screen, and commands that do what they say."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.cli.conftest import SMALL, Cli
from tests.experiments.cli.test_commands import OWN_STRATEGY

UNCONFIRMED = [setting for setting in SMALL if not setting.startswith("search.conf")] + ["search.confirmation_seeds=0"]


def command_of(screen: str, label: str) -> list[str]:
    """Return the arguments of a command on a screen, as a shell reads them."""
    lines = screen.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"{label} "))
    text = lines[start].removeprefix(label).strip()
    for line in lines[start + 1 :]:
        if not text.endswith("\\"):
            break
        text = f"{text[:-1]} {line.strip()}"
    program, *arguments = shlex.split(text)
    assert program == "fedscout"
    return arguments


def trained(cli: Cli, screen: str) -> dict[str, Any]:
    """Do what the screen says trains the winner, and return the trial."""
    trial: dict[str, Any] = cli(*command_of(screen, "Train"), "--json").document["trial"]
    return trial


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "search"])
def test_lines_fit_a_terminal(cli: Cli, name: str) -> None:
    done = cli(name, *SMALL, "--out", "out").ok
    assert max(map(len, done.out.splitlines())) <= 80
    assert done.out.startswith("Use ")
    assert ("Label skew" in done.out) == (name == "run")
    assert "fedscout: generation 1: " in done.err


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ["federation.num_clients=30", "federation.dataset=digits"],
        ["federation.dataset=diabetes", "search.tuned_baseline=true"],
        ["federation.scenario=label_poisoning", "search.strategies=[fedadam+fedprox]"],
        ["search.objective=[accuracy,bytes_to_target]", "search.target=0.4"],
        ["search.kind=racing"],
    ],
    ids=lambda more: more[0].partition("=")[2],
)
def test_screens_of_other_studies_fit_as_well(cli: Cli, more: list[str]) -> None:
    assert max(map(len, cli("run", *SMALL, *more, "--out", "out").ok.out.splitlines())) <= 80


def test_the_command_to_train_gives_the_very_trial(cli: Cli, tmp_path: Path) -> None:
    """On the search's seed, so that its score is the one of the search."""
    screen = cli("search", *UNCONFIRMED, "--out", "out").out
    best = json.loads((tmp_path / "out" / "result.json").read_text())["best"]
    trial = trained(cli, screen)
    assert (trial["strategy"], trial["parameters"]) == (best["strategy"], best["parameters"])
    assert trial["fitness"] == best["fitness"]


@pytest.mark.slow
def test_the_command_to_train_a_user_s_own_strategy(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own_on_screen.py").write_text(OWN_STRATEGY.format(name="Scaled"))
    (tmp_path / "own study.yaml").write_text(
        "search:\n"
        "  strategies: []\n"
        "  customs:\n"
        "    - {path: 'own_on_screen:Scaled', ranges: {scale: {low: 1.5, high: 3.0}}}\n"
    )
    screen = cli("search", "-c", "own study.yaml", *UNCONFIRMED, "--out", "out").out
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    best = result["best"]
    assert best["strategy"] == "own_on_screen:Scaled"
    trial = trained(cli, screen)
    assert trial["parameters"]["values"] == best["parameters"]["values"]
    assert trial["fitness"] == best["fitness"]


@pytest.mark.slow
def test_the_command_to_train_fedavg_at_its_tuned_rate(cli: Cli, tmp_path: Path) -> None:
    screen = cli("search", *SMALL, "search.strategies=[fedmedian]", "--tuned-baseline", "--out", "out").out
    rate = json.loads((tmp_path / "out" / "result.json").read_text())["tuned_baseline"]["learning_rate"]
    assert screen.startswith("Use FedAvg ")
    assert f"rate {rate:g}" in screen.splitlines()[0]
    trial = trained(cli, screen)
    assert (trial["strategy"], trial["learning_rate"]) == ("fedavg", rate)


@pytest.mark.slow
def test_the_command_to_export_writes_the_app(cli: Cli, tmp_path: Path) -> None:
    screen = cli("search", *SMALL, "--out", "a folder").out
    assert cli(*command_of(screen, "Export")).silent
    assert (tmp_path / "federation_app" / "pyproject.toml").is_file()


@pytest.mark.slow
def test_a_report_is_offered_where_there_is_one(cli: Cli, tmp_path: Path) -> None:
    assert command_of(cli("search", *SMALL, "--out", "out").out, "Report") == ["report", "out", "--open"]
    (tmp_path / "out" / "report.html").unlink()
    (tmp_path / "out" / "report.html").mkdir()  # in whose place no file can be written
    assert "\nReport " not in cli("search", *SMALL, "--out", "out").out


@pytest.mark.slow
def test_clients_are_called_by_their_names(cli: Cli, tmp_path: Path) -> None:
    """Three hospitals; in the last one every label is exchanged."""
    rows = []
    for row in range(180):
        hospital, ill = ("Mercy", "St Mary", "North")[row % 3], (row // 3) % 2
        label = ("well", "ill")[ill ^ (hospital == "North")]
        rows.append(f"{ill + (row * 7919 % 101) / 300:.4f},{(row * 104729 % 97) / 97:.4f},{label},{hospital}")
    (tmp_path / "t.csv").write_text("\n".join(["a,b,outcome,hospital", *rows]) + "\n")
    own = ["federation.dataset=t.csv", "federation.label=outcome", "federation.client_column=hospital"]
    settings = [setting for setting in SMALL if not setting.startswith("federation.")]
    for shown in (cli("detect", *settings, *own), cli("run", *settings, *own, "--out", "out")):
        (line,) = [line for line in shown.out.splitlines() if line.startswith("  Outlier clients ")]
        assert line.split()[2] == "yes"
        assert line.endswith(" client North")
    document = cli("detect", *settings, *own, "--json").document
    found = document["report"]["calibrated"][2]
    assert document["report"]["names"]["clients"][found["flagged_clients"][0]] == "North"
    assert "client North" in found["sentence"]


def test_nothing_is_coloured_unless_wanted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes what it writes to for a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[31m" in cli("detect", *SMALL, "federation.scenario=label_poisoning").out
    assert "\x1b[31m" not in cli("--no-color", "detect", *SMALL, "federation.scenario=label_poisoning").out


@pytest.mark.slow
def test_of_a_quantity_with_models_of_their_own_json_has_finite_numbers_alone(cli: Cli) -> None:
    few = ("federation.num_clients=4", "training.num_rounds=2", "engine.grid=local", "federation.unseen_clients=1")
    few = ("federation.dataset=diabetes", *few, "strategy.kind=ditto")
    rounds = cli("train", *few, "--json", "--out", "out").document["rounds"]
    assert {"loss", "metric", "global_metric", "new_client_metric"} <= {*rounds}
    assert not {name for name in rounds if name.endswith("accuracy")}
