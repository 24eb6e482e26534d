"""Strategies outside the default search space: trained, searched, listed and logged because a study names them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fedscout.engine.trials.log import read_trials
from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, STRATEGIES, parse_strategy
from tests.experiments.cli.conftest import SMALL, Cli

NAMED = (*SMALL, "search.strategies=[fedavg,rfa,fedexp]", "search.confirmation_seeds=0", "search.budget=4")

SERVER = ("federation.server_rows=20", "federation.server_labels=true")
CLOCK = "federation.scenario={kind: latency, clients: all, mean_seconds: 1}"
"""These are what some strategies need."""

EVERYTHING = f"search.strategies=[{','.join(CHOSEN_BY_NAME_KINDS)}]"


def test_those_that_need_rows_of_the_server_s_or_a_clock_are_listed_as_not_possible_without(cli: Cli) -> None:
    listed = " ".join(cli("strategies").out.split())
    assert [kind for kind in ("fedbuff", "feddf", "fedbio") if f"unavailable: {kind} " not in listed] == []


TOLD = {
    **dict.fromkeys(("communities", "rhfl"), "models"),
    **dict.fromkeys(("ditto", "fedper", "fedrep", "fine_tuning", "fedbabu", "pfedme", "fedrod"), "the saved model"),
    **dict.fromkeys(("fedex", "fedpop"), "9 configurations"),
    "dp_fedavg": "scores",
}
"""A word of what is said of some before they are trained."""


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", [kind for kind in CHOSEN_BY_NAME_KINDS if not STRATEGIES[kind].needs_layers])
def test_one_is_trained_by_name(cli: Cli, tmp_path: Path, kind: str) -> None:
    timed = [CLOCK] if kind == "fedbuff" else []
    done = cli("train", *SMALL, *SERVER, *timed, f"strategy.kind={kind}", "--out", "out", "--json").ok
    assert all(TOLD.get(kind, "nothing") in line for line in done.err.splitlines())
    (row,) = read_trials(tmp_path / "out").to_dict("records")
    assert (row["strategy"], row["status"]) == (kind, "completed")
    for name, value in parse_strategy(kind).parameters().items():
        assert row[f"param_{name}"] == value


@pytest.mark.slow
def test_a_study_that_names_some_searches_and_logs_them_and_goes_on(cli: Cli, tmp_path: Path) -> None:
    """Told twice, it trains nothing again; a trial that is lost is trained again and is the same."""
    document = cli("search", *NAMED, "--out", "out", "--json").document
    tried = {trial["strategy"] for trial in document["trials"]}
    assert {"fedavg", "rfa", "fedexp"} >= tried > {"fedavg"}
    assert {trial["status"] for trial in document["trials"]} == {"completed"}
    log = read_trials(tmp_path / "out").set_index("trial")

    files = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "out" / "trials").iterdir())}
    lost = [*files][-1]
    lost.unlink()
    del files[lost]
    assert cli("search", *NAMED, "--out", "out", "--json").document["trials"] == document["trials"]
    assert {path: path.stat().st_mtime_ns for path in files} == files
    resumed = read_trials(tmp_path / "out").set_index("trial")
    timeless = [name for name in log.columns if not name.startswith("seconds") and name != "finished_at"]
    pd.testing.assert_frame_equal(resumed[timeless], log[timeless])
    assert not (tmp_path / "out" / "quarantine").exists()
    assert cli("trials", "out", "--json").document[0]["strategy"] == "fedavg"


def test_they_are_listed_after_the_search_space_with_how_to_name_them(cli: Cli) -> None:
    listed = " ".join(cli("strategies", *SERVER, CLOCK).out.split())
    for kind in CHOSEN_BY_NAME_KINDS:
        assert f" search.strategies=[{kind}]" in listed
    assert listed.index("qfedavg") < listed.index("rfa") < listed.index("fedexp")
    named = " ".join(cli("strategies", *SERVER, CLOCK, EVERYTHING).out.split())
    assert not [kind for kind in CHOSEN_BY_NAME_KINDS if f" search.strategies=[{kind}]" in named]
    assert "fedadam" not in named.partition("Pairs, such as")[0]


def test_the_schema_of_the_search_space_is_without_them(cli: Cli) -> None:
    document = cli("strategies", *SERVER, CLOCK, "--json").document
    kinds = {name: [entry["title"] for entry in document[name]["oneOf"]] for name in ("schema", "by_name")}
    assert kinds == {"schema": [*BUILT_IN_KINDS], "by_name": [*CHOSEN_BY_NAME_KINDS]}
    assert cli("strategies", *SERVER, CLOCK, "--json", EVERYTHING).document["by_name"] is None


@pytest.mark.parametrize(
    ("command", "settings", "names"),
    [
        ("train", ["strategy.kind=rfa", "strategy.num_iterations=0"], ("num_iterations of rfa", "got 0")),
        ("train", ["strategy.kind=rfa", "strategy.smoothing=0"], ("smoothing of rfa", "got 0")),
        ("train", ["strategy.kind=rfa", "strategy.tau=1"], ("tau", "rfa", "got 1", "num_iterations, smoothing")),
        ("train", ["strategy.kind=fedbn"], ("fedbn", "batch normalisation")),
        ("train", ["strategy.kind=fedadam+scaffold"], ("scaffold", "got fedadam+scaffold")),
        ("search", ["search.strategies=[fedadam+scaffold]"], ("scaffold", "got fedadam+scaffold")),
        ("search", ["search.strategies=[fedavg,fedbuff]"], ("fedbuff", "clock")),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_trained(
    cli: Cli, tmp_path: Path, command: str, settings: list[str], names: tuple[str, ...]
) -> None:
    cli(command, *SMALL, *settings, "--out", "out").refuses(*names)
    assert not (tmp_path / "out" / "trials").exists()
