"""The pool's bookkeeping, over a Ray of our own that dies when told: what is begun ends once, whatever dies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscout.engine.config import EngineConfig
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.sweeps.sweep import StudyEnd
from fedscout.experiments.sweeps.workers import ATTEMPTS, StudyWorkerPool, with_share, worker_environment


class MortalRay:
    """As much of Ray as a pool needs. Calls end in the order of their begin.

    Args:
        deaths: By position of the task, how many times its worker dies.
        cpus: Of each node; the first is the command's own.
    """

    def __init__(self, deaths: Sequence[int], cpus: Sequence[int] = (1,)) -> None:
        self.cpus = {f"{number:056x}": own for number, own in enumerate(cpus)}
        self.alive = {*self.cpus}
        self.node_of: dict[int, str] = {}
        self._deaths = list(deaths)
        self.most_at_once = 0
        self.workers: dict[int, bool] = {}

    def remote(self, _: type) -> Any:
        return SimpleNamespace(options=lambda **given: SimpleNamespace(remote=lambda *_: self._start(**given)))

    def _start(self, num_cpus: int, scheduling_strategy: Any) -> Any:
        number = len(self.workers)
        self.node_of[number] = scheduling_strategy.node_id
        self.workers[number] = True
        return SimpleNamespace(run=SimpleNamespace(remote=lambda _, out: (number, int(out.name))), number=number)

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        self.most_at_once = max(self.most_at_once, len(references))
        assert len({number for number, _ in references}) == len(references)  # one study a worker
        assert all(self.workers[number] for number, _ in references)
        return references[:num_returns], references[num_returns:]

    def get(self, reference: tuple[int, int]) -> StudyEnd:
        from ray.exceptions import RayActorError

        _, position = reference
        if self._deaths[position]:
            self._deaths[position] -= 1
            raise RayActorError(error_msg="The actor died.\nIts process exited: killed by signal 9")
        return StudyEnd("completed")

    def kill(self, worker: Any) -> None:
        self.workers[worker.number] = False

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: next(iter(self.cpus)))

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": node, "Alive": node in self.alive, "Resources": {"CPU": number}}
            for node, number in self.cpus.items()
        ]


def studies(count: int) -> list[tuple[StudyConfig, Path]]:
    config = load_config()
    return [(config, Path("/nowhere") / str(position)) for position in range(count)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 4))
def test_every_study_ends_once_and_only_its_own_deaths_count(deaths: list[int], parallel: int) -> None:
    ray = MortalRay(deaths)
    pool = StudyWorkerPool(ray)
    begun: list[int] = []
    ends = list(pool.run(studies(len(deaths)), parallel, begun.append, lambda: None))
    pool.close()
    assert sorted(position for position, _ in ends) == list(range(len(deaths)))
    for position, end in ends:
        assert end.status == ("lost" if deaths[position] >= ATTEMPTS else "completed")
        assert begun.count(position) == min(deaths[position] + 1, ATTEMPTS)
    assert ray.most_at_once <= parallel
    assert not any(ray.workers.values())


def test_a_worker_runs_one_study_after_the_other() -> None:
    ray = MortalRay([0] * 6)
    list(StudyWorkerPool(ray).run(studies(6), 2, lambda _: None, lambda: None))
    assert len(ray.workers) == 2


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6))
def test_workers_are_spread_over_nodes_as_their_cpus_are(cpus: list[int]) -> None:
    ray = MortalRay([0] * sum(cpus), cpus)
    pool = StudyWorkerPool(ray, nodes=ray.cpus)
    list(pool.run(studies(sum(cpus)), sum(cpus), lambda _: None, lambda: None))
    workers = [*ray.node_of.values()]
    assert {node: workers.count(node) for node in ray.cpus} == ray.cpus


def test_a_lost_node_s_studies_begin_again_on_those_that_are_left() -> None:
    ray = MortalRay([0, 1, 0], (1, 1, 1))
    own, lost, third = ray.cpus

    def begun(position: int) -> None:
        if position == 2:
            ray.alive.discard(lost)

    ends = dict(StudyWorkerPool(ray, nodes=ray.cpus).run(studies(3), 3, begun, lambda: None))
    assert {end.status for end in ends.values()} == {"completed"}
    assert [*ray.node_of.values()][:3] == [own, lost, third]
    assert lost not in [*ray.node_of.values()][3:]


def test_a_study_begins_when_those_before_it_have_ended() -> None:
    before: list[set[int]] = [set(), {0}, set(), {1, 2}]
    ended: set[int] = set()
    begun: list[int] = []

    def begins(position: int) -> None:
        assert before[position] <= ended
        begun.append(position)

    pool = StudyWorkerPool(MortalRay([1, 0, 0, 0]))
    for position, _ in pool.run(studies(4), 4, begins, lambda: None, before):
        ended.add(position)
    assert sorted({*begun}) == [0, 1, 2, 3]


def test_the_reason_of_a_death_is_told_in_a_line() -> None:
    ((_, end),) = StudyWorkerPool(MortalRay([2])).run(studies(1), 1, lambda _: None, lambda: None)
    assert end.error == "its process died: Its process exited: killed by signal 9"


def test_a_study_gets_its_share_and_no_more_hosts_than_clients() -> None:
    config = load_config(["federation.num_clients=4", "engine.address=auto", "engine.checkpoint_every_rounds=3"])
    shared = with_share(config, num_hosts=16)
    assert (shared.engine.grid, shared.engine.num_hosts, shared.engine.address) == ("ray", 4, None)
    whole = with_share(config.model_copy(update={"engine": EngineConfig(num_hosts=3)}), num_hosts=None)
    assert (whole.engine.grid, whole.engine.num_hosts) == ("ray", 3)
    alone = with_share(config, num_hosts=0)
    assert (alone.engine.grid, alone.engine.checkpoint_every_rounds) == ("local", 3)
    assert shared.digest() == alone.digest() == config.digest()


def test_a_worker_elsewhere_finds_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSCOUT_DATA", "data")
    config = load_config(["federation.folder=files"])
    assert with_share(config, num_hosts=0).federation.folder == tmp_path / "files"
    assert worker_environment() == {"FEDSCOUT_DATA": str(tmp_path / "data"), "FEDSCOUT_START": str(tmp_path)}
