"""Four raylets give the bits of one; data lie once on a node, models travel once a job, partial sums come back."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.grid.ray_grid import INLINE_BYTES
from fedscout.engine.trials.log import read_trials
from tests.engine.grid.cluster_observations import (
    DATA_BYTES,
    NUM_CLIENTS,
    NUM_HOSTS,
    NUM_NODES,
    NUM_ROUNDS,
    STUDY,
    TRIALS,
    Observations,
)
from tests.engine.trials.test_resume import assert_same
from tests.experiments.cli.conftest import without_progress
from tests.experiments.cli.processes import Command, lasting_result
from tests.marked_processes import MarkedProcesses, short_folder

REPOSITORY = Path(__file__).resolve().parents[3]
OBSERVE_SECONDS = 270.0

pytestmark = [pytest.mark.stress, pytest.mark.ray, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Seen:
    """The observations, and the folder of the study that was run on the four raylets."""

    observations: Observations
    study: Path
    left_over: list[str]


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    with short_folder() as folder, MarkedProcesses() as processes:
        process = processes.start(
            [
                sys.executable,
                "-c",
                "from tests.engine.grid.cluster_observations import main; main()",
                str(folder / "seen"),
                str(folder / "study"),
            ],
            # Ray notes its latest address below RAY_TMPDIR, where nobody else looks for one to join.
            environment={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY / "src"),
                "RAY_TMPDIR": str(folder),
                "RAY_prestart_worker_first_driver": "0",  # a process a CPU that nobody needs here
            },
            log=folder / "log",
            cwd=REPOSITORY,
        )
        code = process.wait(OBSERVE_SECONDS)
        assert code == 0, (folder / "log").read_text(errors="replace")
        processes.end()
        yield Seen(pickle.loads((folder / "seen").read_bytes()), folder / "study", processes.stubborn)


@pytest.fixture(scope="module")
def observations(seen: Seen) -> Observations:
    return seen.observations


@pytest.mark.parametrize("name", TRIALS)
def test_four_raylets_give_the_bits_of_one(observations: Observations, name: str) -> None:
    one, four = observations.one_node[name], observations.four_nodes[name]

    assert four.status == "completed"
    assert four.num_rounds == NUM_ROUNDS
    assert_same(four, one)
    assert four.fitness == one.fitness
    assert four.client_accuracy == one.client_accuracy


def test_trials_differ_from_each_other(observations: Observations) -> None:
    """Else the law above would hold of trials that do nothing."""
    assert len({result.vector.tobytes() for result in observations.four_nodes.values()}) == len(TRIALS)


def test_hosts_are_spread_over_the_nodes(observations: Observations) -> None:
    """One node has CPUs for half of them."""
    assert observations.hosts_on_node == [NUM_HOSTS // NUM_NODES] * NUM_NODES


def test_data_lie_once_on_each_node(observations: Observations) -> None:
    """Two hosts a node share them; what else is in a store, models and answers, is small beside 32 MiB."""
    assert [round(grown / DATA_BYTES) for grown in observations.data_bytes_on_node] == [1] * NUM_NODES


def test_a_large_model_is_stored_once_a_job(observations: Observations) -> None:
    """A round is two jobs at most, training and evaluation, for any number of hosts."""
    assert 4 * observations.num_parameters > INLINE_BYTES
    assert NUM_ROUNDS <= observations.four_nodes_traffic.models_stored <= 2 * NUM_ROUNDS
    assert observations.four_nodes_traffic.models_stored == observations.one_node_traffic.models_stored


def test_a_call_a_host_and_one_partial_sum_come_back(observations: Observations) -> None:
    """A sum is an int64 a parameter. A host's 8 clients' own models would be four times that."""
    one, four = observations.one_node_traffic, observations.four_nodes_traffic
    partial_sum = 8 * observations.num_parameters

    assert NUM_CLIENTS // NUM_HOSTS * 4 * observations.num_parameters == 4 * partial_sum
    assert one.calls <= 2 * NUM_ROUNDS
    assert four.calls == NUM_HOSTS * one.calls
    for num_hosts, traffic in ((1, one), (NUM_HOSTS, four)):
        assert len(traffic.result_bytes) == traffic.calls
        assert max(traffic.result_bytes) < 1.1 * partial_sum
        assert sum(size > 0.5 * partial_sum for size in traffic.result_bytes) == NUM_ROUNDS * num_hosts


def test_a_study_by_the_cluster_s_address_is_that_of_one_process(seen: Seen, tmp_path: Path) -> None:
    assert seen.observations.study_errors == ""
    with Command(tmp_path, "run", *STUDY, "engine.grid=local", "--out", "out") as command:
        code, _, err = command.end()
    assert (code, without_progress(err)) == (0, "")

    assert lasting_result(seen.study) == lasting_result(tmp_path / "out")
    assert log_without_times(seen.study) == log_without_times(tmp_path / "out")


def log_without_times(folder: Path) -> dict[str, list[str]]:
    """Return the columns of a log in the order of its trials, arrays and NaN as text that can be compared.

    The configuration is told without where it ran.
    """
    log = read_trials(folder).sort_values("trial")
    log["config"] = [json.dumps({**json.loads(config), "engine": None}) for config in log["config"]]
    lasting = [name for name in log.columns if not name.startswith("seconds") and name != "finished_at"]
    return {name: [repr(np.asarray(value).tolist()) for value in log[name]] for name in lasting}


def test_the_cluster_ends_with_its_process(seen: Seen) -> None:
    assert seen.left_over == []
