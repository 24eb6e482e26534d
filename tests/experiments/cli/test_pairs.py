"""Pairs on the command line: trained, searched, resumed, listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.engine.trials.log import read_trials
from fedscout.strategies import CLIENT_KINDS, SERVER_RULE_KINDS
from tests.experiments.cli.conftest import SMALL, Cli


def test_one_is_trained_and_logged_with_the_parameters_of_both(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", *SMALL, "model.norm=batch", "strategy.kind=fedyogi+fedbn", "strategy.eta=0.03", "--out", "out")
    assert (done.code, len(done.err.splitlines())) == (0, 1)  # what stays with the clients
    (row,) = read_trials(tmp_path / "out").to_dict("records")
    assert (row["strategy"], row["status"], row["param_eta"]) == ("fedyogi+fedbn", "completed", 0.03)
    assert [trial["strategy"] for trial in cli("trials", "out", "--json").document] == ["fedyogi+fedbn"]


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ["genetic", "random"])
def test_a_search_draws_logs_and_resumes_them(cli: Cli, tmp_path: Path, searcher: str) -> None:
    """Told twice, it trains nothing again; a trial that is lost is trained again and is the same."""
    named = (
        "search.strategies=[fedadam+fedprox,fedtrimmedavg+fedlc]",
        f"search.kind={searcher}",
        "seed=1",
        "search.confirmation_seeds=0",
        "search.budget=6",
        "search.generation_size=3",
    )
    command = ("search", *SMALL, *named, "--out", "out", "--json")
    document = cli(*command).document
    tried = {trial["strategy"] for trial in document["trials"]}
    assert tried == {"fedavg", "fedadam+fedprox", "fedtrimmedavg+fedlc"}
    assert {trial["status"] for trial in document["trials"]} == {"completed"}
    files = sorted((tmp_path / "out" / "trials").iterdir())
    assert {"param_calibration", "param_proximal_mu", "param_beta"} <= {*read_trials(tmp_path / "out")}
    files[-1].unlink()
    assert cli(*command).document["trials"] == document["trials"]
    assert not (tmp_path / "out" / "quarantine").exists()
    assert cli("export", "out").silent


@pytest.mark.slow
def test_all_strategies_are_searched_and_what_is_impossible_is_left_out(cli: Cli, tmp_path: Path) -> None:
    command = ("search", *SMALL, "search.strategies=all", "search.confirmation_seeds=0", "training.momentum=0.5")
    assert {trial["status"] for trial in cli(*command, "--out", "out", "--json").document["trials"]} == {"completed"}


def test_what_makes_pairs_is_listed(cli: Cli) -> None:
    listed = " ".join(cli("strategies").out.split())
    assert listed.index(", ".join(SERVER_RULE_KINDS)) < listed.index(", ".join(CLIENT_KINDS))
    document = cli("strategies", "--json", "search.strategies=[fedavg,fedadam+fedprox]").document
    assert document["pairs"] == {"server_rules": [*SERVER_RULE_KINDS], "clients": [*CLIENT_KINDS]}
    _, pair = document["schema"]["oneOf"]
    assert pair["required"] == ["kind", "eta", "tau", "beta_1", "beta_2", "proximal_mu"]
    assert pair["properties"]["kind"] == {"const": "fedadam+fedprox"}


def test_what_is_impossible_by_name_is_listed_with_its_reason(cli: Cli) -> None:
    assert "unavailable: scaffold " in " ".join(cli("strategies", "training.momentum=0.9").ok.out.split())
