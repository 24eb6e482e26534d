"""A user's strategy that misbehaves is a failed trial with a reason; the study goes on, its other trials unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.errors import EngineError
from fedscout.engine.grid.ray_grid import RayHosts
from fedscout.engine.trials import ray_runner
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.ray_runner import RayRunner
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.runner import LocalRunner
from tests.engine.choices import Choice, rounds_of, spec_of
from tests.engine.federations import uneven_federation
from tests.engine.results import started_hosts
from tests.experiments.cli.conftest import Cli
from tests.faults.conftest import trial_files
from tests.faults.faulty_strategies import PRINTED, Faulty

PATH = "tests.faults.faulty_strategies:Faulty"
DATA = ("engine.grid=local", "federation.dataset=wine", "federation.num_clients=4", "training.num_rounds=3")
NAMED = "['0.weight', '0.bias', '2.weight', '2.bias', '4.weight', '4.bias']"

OWN, DIVERGED = ["round 2: RuntimeError: my own fault"], ["round 2: ", "diverged"]
REASONS = {
    "configures None": ["round 2: TypeError: ", "NoneType"],
    "raises in aggregate_train": OWN,
    "raises in aggregate_evaluate": OWN,
    "gives None": ["Faulty.aggregate_train "],
    "gives an empty record": ["round 2: ValueError: ", f"{NAMED}, got []"],
    "gives NaN": DIVERGED,
    "gives what overflows float32": DIVERGED,
    "gives wrong shapes": ["round 2: ValueError: ", "'0.weight'", "(64, 13), got (63, 13)"],
    "gives text": ["round 2: ValueError: ", "float"],
    "exits": ["round 2: SystemExit: 3"],
}
"""How the reason begins, and what it names."""


def train(cli: Cli, fault: str, *more: str) -> Any:
    """Train with a fault; return the code, and the trial of the JSON on standard output."""
    strategy = ("strategy.kind=custom", f"strategy.path={PATH}", f"strategy.values.fault={fault}")
    done = cli("train", *DATA, *strategy, *more, "--json", "--out", "out")
    return done, json.loads(done.out)["trial"]


@pytest.mark.parametrize("fault", REASONS)
def test_the_trial_fails_with_a_reason(cli: Cli, tmp_path: Path, fault: str) -> None:
    done, trial = train(cli, fault)
    assert (done.code, done.warnings) == (1, "")
    assert (trial["status"], trial["fitness"]) == ("failed", 0.0)
    first, *named = REASONS[fault]
    assert trial["error"].startswith(first)
    assert [name for name in named if name not in trial["error"]] == []
    (file,) = trial_files(tmp_path / "out")
    (row,) = pq.ParquetFile(file).read().to_pylist()
    assert (row["status"], row["error"]) == ("failed", trial["error"])
    assert row["num_rounds"] == (2 if fault == "raises in aggregate_evaluate" else 1)  # what was scored before stays


@pytest.mark.parametrize("arrays", ["named", "flat"])
def test_a_model_that_is_only_scored_with_the_next_round_fails_the_trial(cli: Cli, arrays: str) -> None:
    """Without an evaluation of its own, the first use of its model is the next round."""
    done, trial = train(cli, "gives wrong shapes", "strategy.sees_evaluation=false", f"strategy.arrays={arrays}")
    assert (done.code, done.warnings) == (1, "")
    assert trial["status"] == "failed"
    assert ", got " in trial["error"]


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hangs", "hangs and survives errors"])
def test_a_trial_that_hangs_ends_at_its_limit(cli: Cli, fault: str) -> None:
    done, trial = train(cli, fault, "training.trial_timeout_seconds=1")
    assert done.code == 1
    assert trial["error"].endswith(" longer than 1 s")


def test_what_a_strategy_prints_stays_off_standard_output(cli: Cli) -> None:
    done, trial = train(cli, "prints megabytes")
    assert (done.code, trial["status"]) == (0, "completed")
    assert PRINTED in done.warnings  # in one process, which is for looking on


@pytest.mark.slow
def test_the_study_goes_on_and_its_other_trials_are_the_same(cli: Cli, tmp_path: Path) -> None:
    """One generation, so that what is tried does not depend on how it went."""
    logs = {}
    for fault in ("none", "gives NaN"):
        custom = f'{{path: "{PATH}", values: {{fault: {fault}}}}}'
        search = ("search.budget=6", "search.generation_size=6", "search.confirmation_seeds=0")
        out = tmp_path / fault.replace(" ", "-")
        done = cli("search", *DATA, *search, f"search.customs=[{custom}]", "search.strategies=[fedavgm]", "--out", out)
        assert (done.code, done.warnings) == (0, "")
        logs[fault] = read_trials(out).to_dict("records")
    kinds = [row["strategy"] for row in logs["none"]]
    assert set(kinds) == {"fedavg", "fedavgm", PATH}
    for sound, faulty in zip(logs["none"], logs["gives NaN"], strict=True):
        assert (sound["trial"], sound["strategy"]) == (faulty["trial"], faulty["strategy"])
        if sound["strategy"] == PATH:
            assert (sound["status"], faulty["status"]) == ("completed", "failed")
        else:
            assert (faulty["status"], faulty["round_accuracy"]) == ("completed", sound["round_accuracy"])


# On Ray.


@pytest.fixture(scope="module")
def hosts(ray_session: None) -> Iterator[RayHosts]:
    with started_hosts(uneven_federation(), 1) as started:
        yield started


def results(hosts: RayHosts, *faults: str, limits: Mapping[str, float] | None = None) -> list[Trial]:
    """Run trials side by side, some with a limit in seconds; return their results in order."""
    limits = limits or {}
    chosen = [(fault, Choice(Faulty, {"fault": fault})) for fault in faults]
    specs = [spec_of(choice, num_rounds=3, timeout_seconds=limits.get(fault)) for fault, choice in chosen]
    return [result for _, result in sorted(RayRunner(hosts, CheckpointStore(None), 4).run(specs))]


@pytest.mark.stress
@pytest.mark.ray
def test_faults_are_the_same_on_ray(hosts: RayHosts) -> None:
    faults = ("none", "exits", "prints megabytes", "gives NaN")
    undisturbed = spec_of(Choice(Faulty, {"fault": "none"}), num_rounds=3)
    ((_, reference),) = LocalRunner(ClientHost(uneven_federation(), {})).run([undisturbed])
    sound, exits, prints, diverges = results(hosts, *faults)
    assert rounds_of(sound) == rounds_of(prints) == rounds_of(reference)
    assert (exits.status, exits.error) == ("failed", *REASONS["exits"])
    assert (diverges.status, "diverged" in str(diverges.error)) == ("failed", True)


@pytest.mark.stress
@pytest.mark.ray
def test_a_trial_that_hangs_on_ray_does_not_hold_up_the_others(hosts: RayHosts) -> None:
    hangs, sound = results(hosts, "hangs", "none", limits={"hangs": 3})
    assert hangs.status == "failed"
    assert str(hangs.error).endswith(" longer than 3 s")
    assert sound.status == "completed"


@pytest.mark.slow
@pytest.mark.ray
def test_a_strategy_that_ends_its_process_stops_the_study(hosts: RayHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't be told from a process that was killed, so it is no result; after the retries, the study stops."""
    monkeypatch.setattr(ray_runner, "RETRIES", 1)
    with pytest.raises(EngineError, match="task"):
        results(hosts, "leaves the process")
