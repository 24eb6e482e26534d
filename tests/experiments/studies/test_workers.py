"""Where studies run: in this process or on Ray, on which device, and how they share the CPUs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedscout.engine.arrays import IntArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.config import CPU, EngineConfig, HostDevice
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, EngineError, LogError
from fedscout.engine.messages.calls import HostCall, Session, TrainResults
from fedscout.engine.runtime.files import folder_lock, mounted, remove_file, write_atomically
from fedscout.experiments.config import load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies import runner, workers
from fedscout.experiments.studies.runner import Estimate, ExpectedWork, device_for, local_host_if_faster
from fedscout.experiments.studies.workflow import Display, Pipeline, run_detection, run_training
from tests.kits.refusals import refused

ROOMS = st.builds(
    lambda here, nodes, everywhere, work: workers.ClusterCpus(here * nodes, here * nodes if everywhere else here, work),
    st.integers(1, 64),
    st.integers(1, 100),
    st.booleans(),
    st.booleans(),
)
STUDIES = st.integers(1, 500)


def cpus_asked_for(there: workers.ClusterCpus, share: workers.Share) -> int:
    """Hosts ask for a CPU each; where one study has more hosts than there are CPUs, for all of them together."""
    return share.parallel * min(share.num_hosts, there.cpus)


@settings(deadline=None)
@given(ROOMS, STUDIES, *[st.none() | st.integers(1, 300)] * 2, st.booleans())
def test_a_share_takes_no_more_cpus_than_there_are_or_is_refused(
    there: workers.ClusterCpus, studies: int, num_hosts: int | None, parallel: int | None, timed: bool
) -> None:
    wanted = parallel
    try:
        share = workers.share_out(there, studies, num_hosts, parallel, timed)
    except ConfigurationError as error:
        assert parallel is not None
        wanted = int(str(error).split("at most ")[1].split()[0])
        assert 1 <= wanted < parallel
        share = workers.share_out(there, studies, num_hosts, wanted, timed)
    assert 1 <= share.parallel <= min(studies, wanted or there.driver_cpus)
    assert wanted is None or share.parallel == min(studies, wanted)
    assert cpus_asked_for(there, share) <= there.cpus
    assert num_hosts is None or share.num_hosts == num_hosts
    assert share.num_hosts or not timed


LAPTOP = workers.ClusterCpus(cpus=2, driver_cpus=2, driver_nodes_have_cpus=True)
HEAD_ALONE = workers.ClusterCpus(cpus=1600, driver_cpus=16, driver_nodes_have_cpus=False)
CLUSTER = workers.ClusterCpus(cpus=1600, driver_cpus=1600, driver_nodes_have_cpus=True)


@pytest.mark.parametrize(
    ("there", "studies", "num_hosts", "parallel", "share"),
    [
        (LAPTOP, 1, None, None, workers.Share(1, 2)),
        (LAPTOP, 48, None, None, workers.Share(2, 0)),
        (LAPTOP, 48, 4, None, workers.Share(1, 4)),
        (workers.ClusterCpus(1, 1, True), 3, None, None, workers.Share(1, 0)),
        (HEAD_ALONE, 48, None, None, workers.Share(16, 100)),
        (HEAD_ALONE, 48, None, 48, workers.Share(48, 33)),
        (CLUSTER, 480, 10, None, workers.Share(160, 10)),
        (CLUSTER, 3000, None, None, workers.Share(1600, 0)),
    ],
)
def test_examples(
    there: workers.ClusterCpus, studies: int, num_hosts: int | None, parallel: int | None, share: workers.Share
) -> None:
    assert workers.share_out(there, studies, num_hosts, parallel) == share


def test_on_gpus_studies_run_one_after_the_other() -> None:
    assert workers.share_gpus(None) == workers.share_gpus(1) == workers.Share(1, None)
    with refused(ConfigurationError, key="--parallel", given="2"):
        workers.share_gpus(2)


# The pool's bookkeeping, over a Ray of our own that dies when told: what is begun ends once, whatever dies.


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
        return SimpleNamespace(run=SimpleNamespace(remote=lambda _, position: (number, position)), number=number)

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        self.most_at_once = max(self.most_at_once, len(references))
        assert len({number for number, _ in references}) == len(references)  # one study a worker
        assert all(self.workers[number] for number, _ in references)
        return references[:num_returns], references[num_returns:]

    def get(self, reference: tuple[int, int]) -> workers.End:
        from ray.exceptions import RayActorError

        _, position = reference
        if self._deaths[position]:
            self._deaths[position] -= 1
            raise RayActorError(error_msg="The actor died.\nIts process exited: killed by signal 9")
        return workers.End("completed")

    def kill(self, worker: Any) -> None:
        self.workers[worker.number] = False

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: next(iter(self.cpus)))

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": node, "Alive": node in self.alive, "Resources": {"CPU": number}}
            for node, number in self.cpus.items()
        ]


def ends_of(
    ray: MortalRay,
    count: int,
    parallel: int,
    begun: Callable[[int], None] = lambda _: None,
    after: Sequence[set[int]] = (),
) -> Iterator[tuple[int, workers.End]]:
    """Run numbered pieces of work that nobody does, on all nodes, and end their workers."""
    pool = workers.WorkerPool(ray, nodes=ray.cpus)
    yield from pool.run(
        workers.End, {position: (position,) for position in range(count)}, parallel, workers.Display(begun=begun), after
    )
    pool.close()


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 4))
def test_every_study_ends_once_and_only_its_own_deaths_count(deaths: list[int], parallel: int) -> None:
    ray = MortalRay(deaths)
    begun: list[int] = []
    ends = list(ends_of(ray, len(deaths), parallel, begun.append))
    assert sorted(position for position, _ in ends) == list(range(len(deaths)))
    for position, end in ends:
        assert end.status == ("lost" if deaths[position] >= workers.ATTEMPTS else "completed")
        assert begun.count(position) == min(deaths[position] + 1, workers.ATTEMPTS)
    assert ray.most_at_once <= parallel
    assert not any(ray.workers.values())


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6))
def test_workers_are_spread_over_nodes_as_their_cpus_are(cpus: list[int]) -> None:
    ray = MortalRay([0] * sum(cpus), cpus)
    list(ends_of(ray, sum(cpus), sum(cpus)))
    nodes = [*ray.node_of.values()]
    assert {node: nodes.count(node) for node in ray.cpus} == ray.cpus


def test_a_lost_node_s_studies_begin_again_on_those_that_are_left() -> None:
    ray = MortalRay([0, 1, 0], (1, 1, 1))
    own, lost, third = ray.cpus

    def begun(position: int) -> None:
        if position == 2:
            ray.alive.discard(lost)

    ends = dict(ends_of(ray, 3, 3, begun))
    assert {end.status for end in ends.values()} == {"completed"}
    assert [*ray.node_of.values()][:3] == [own, lost, third]
    assert lost not in [*ray.node_of.values()][3:]


def test_a_study_begins_when_those_before_it_have_ended() -> None:
    before: list[set[int]] = [set(), {0}, set(), {1, 2}]
    ended: set[int] = set()
    begun: list[int] = []
    ray = MortalRay([1, 0, 0, 0])

    def begins(position: int) -> None:
        assert before[position] <= ended
        begun.append(position)

    for position, _ in ends_of(ray, 4, 4, begins, before):
        ended.add(position)
    assert len(ray.workers) < len(begun)  # a worker does one after the other
    assert sorted({*begun}) == [0, 1, 2, 3]


def test_a_study_gets_its_share_and_no_more_hosts_than_clients() -> None:
    config = load_config(["federation.num_clients=4", "engine.address=auto", "engine.checkpoint_every_rounds=3"])
    shared = workers.with_share(config, num_hosts=16)
    assert (shared.engine.grid, shared.engine.num_hosts, shared.engine.address) == ("ray", 4, None)
    whole = workers.with_share(config.model_copy(update={"engine": EngineConfig(num_hosts=3)}), num_hosts=None)
    assert (whole.engine.grid, whole.engine.num_hosts) == ("ray", 3)
    alone = workers.with_share(config, num_hosts=0)
    assert (alone.engine.grid, alone.engine.checkpoint_every_rounds) == ("local", 3)
    assert shared.digest() == alone.digest() == config.digest()


def test_a_worker_elsewhere_finds_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSCOUT_DATA", "data")
    config = load_config(["federation.folder=files"])
    assert workers.with_share(config, num_hosts=0).federation.folder == tmp_path / "files"
    assert workers.worker_environment() == {"FEDSCOUT_DATA": str(tmp_path / "data"), "FEDSCOUT_START": str(tmp_path)}


# Which nodes drive studies: those where a study finds what it finds here, and no study's files are left behind.


def test_a_head_without_cpus_drives_nothing_where_others_have_some() -> None:
    ray = MortalRay([], (0, 4, 2, 8))
    head, a, b, lost = ray.cpus
    ray.alive.discard(lost)
    assert workers.driver_nodes(ray, [load_config()]) == {a: 4, b: 2}
    assert workers.own_node(ray)[head] >= 1


@pytest.mark.parametrize("setting", ["search.warm_start=[runs/wine]", "search.kind=llm_genetic"])
def test_what_rests_on_this_machine_is_driven_here(setting: str) -> None:
    ray = MortalRay([], (2, 4))
    assert (
        workers.driver_nodes(ray, [load_config(), load_config([setting])])
        == workers.own_node(ray)
        == {min(ray.cpus): 2}
    )


def test_one_study_for_each_data_set_is_asked_about() -> None:
    wine = [load_config(["federation.dataset=wine", f"seed={seed}"]) for seed in range(3)]
    digits = load_config(["federation.dataset=digits"])
    assert workers.differing([*wine, digits]) == [wine[0], digits]


def test_nodes_that_answer_otherwise_are_left_out() -> None:
    """An answer is a pair here, as it must be hashable: which node, and what it says."""
    said = {"head": "these rows", "a": "these rows", "b": "no such file"}
    hired = {
        node: SimpleNamespace(run=SimpleNamespace(remote=lambda *_, node=node: (node, said[node]))) for node in said
    }
    ray = SimpleNamespace(wait=lambda calls, num_returns, timeout: (calls, []), get=lambda call: call[1])
    assert workers.matching_nodes(ray, "head", hired, [load_config()]) == {"head", "a"}


def test_other_rows_are_another_answer(tmp_path: Path) -> None:
    """The data of a file that has the same name on another node."""
    table = tmp_path / "table.csv"
    config = load_config([f"federation.dataset={table}", "federation.label=label", "federation.num_clients=2"])
    answers = []
    for value in (1, 1, 2):
        rows = [f"{row**value},{row % 2}" for row in range(40)]
        table.write_text("\n".join(["feature,label", *rows]))
        answers.append(workers.what_studies_rest_on([config]))
    table.unlink()
    answers.append(workers.what_studies_rest_on([config]))
    assert answers[0] == answers[1]
    assert answers[2] not in answers[:2]
    assert "table.csv" in answers[3][1][0]


# A folder of the command's node as a storage: what is written elsewhere is here, and nobody else has it meanwhile.


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> workers.NodeStorage:
    """The storage of `study`, with an actor in this process."""
    own: Any = workers.FolderActor()
    monkeypatch.setattr(workers, "_answer", lambda answer: answer)
    methods = ("names", "read", "write", "remove", "release")
    return workers.NodeStorage(
        SimpleNamespace(**{name: SimpleNamespace(remote=getattr(own, name)) for name in methods}), tmp_path / "study"
    )


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def write(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text))


def test_what_is_written_there_is_here(storage: workers.NodeStorage) -> None:
    (storage.folder / "trials").mkdir(parents=True)
    (storage.folder / "trials" / "0.parquet").write_text("first")
    with mounted(storage) as there:
        assert contents(there) == {"trials/0.parquet": "first"}
        write(there / "trials" / "1.parquet", "second")
        write(there / "config.json", "{}")
        assert contents(storage.folder) == contents(there)
        remove_file(there / "config.json")
    assert contents(storage.folder) == {"trials/0.parquet": "first", "trials/1.parquet": "second"}


def test_nobody_else_has_it_until_it_is_released(storage: workers.NodeStorage) -> None:
    with mounted(storage), pytest.raises(LogError), folder_lock(storage.folder):
        pass
    with mounted(storage):  # begun again, as the process that had it has died
        pass
    storage.release()
    assert not storage.folder.exists()  # as nothing was found out


def test_what_can_t_be_written_here_is_an_error_there(storage: workers.NodeStorage) -> None:
    (storage.folder / "config.json").mkdir(parents=True)
    (storage.folder / "config.json" / "file").write_text("in a folder of a file's name")
    with mounted(storage) as there, pytest.raises(EngineError):
        storage.write("config.json", b"{}")
    assert not there.exists()


# `engine.grid=auto`: which place is sooner, what may not be chosen, and that trying leaves no trace.


@pytest.fixture(scope="module")
def wine() -> Federation:
    config = load_config(["federation.dataset=wine", "federation.num_clients=3"])
    return build_federation(config.federation, config.model)


def test_short_work_stays_and_long_work_does_not() -> None:
    # S + R (o + t / h) against R (l + t)
    there = runner.RAY_START_SECONDS + 4 * (runner.RAY_ROUND_SECONDS + 0.25)
    assert Estimate.of(0.5, 4, 2) == Estimate(4 * (runner.LOCAL_ROUND_SECONDS + 0.5), there)
    assert Estimate.of(0.5, 4, 2).is_local
    assert not Estimate.of(0.5, 400, 2).is_local


class Clock:
    """This process's time on processors, which clients' work alone moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spent: Callable[[HostCall], tuple[float, float]]) -> None:
        """Let a call take `spent`: seconds of training and of scoring."""
        self.now = 0.0
        self.calls: list[HostCall] = []
        train = ClientHost.train

        def timed(host: ClientHost, call: HostCall) -> TrainResults:
            results = train(host, call)
            training, scoring = spent(call)
            self.calls.append(call)
            self.now += training + scoring
            # on a busy machine all take thrice as long by the wall
            results.seconds, results.evaluation.seconds = 3 * (training + scoring), 3 * scoring
            return results

        monkeypatch.setattr(runner, "num_processors", lambda: 2)
        monkeypatch.setattr(runner, "process_time", lambda: self.now)
        monkeypatch.setattr(ClientHost, "train", timed)


SPENT: Mapping[str, tuple[Callable[[Clock, IntArray, HostCall], float], int, bool, int]] = {
    "long by its operations alone": (lambda *_: pytest.fail("was tried"), 1000, False, 0),
    "a slow client is tried alone": (lambda *_: 30.0, 100, False, 2),
    "the first work of a process does not count": (lambda clock, *_: 0.001 if clock.calls else 30.0, 1000, True, 3),
    # the smallest client alone takes eighty times its part of the whole, more than any gain that is assumed
    "what is timed quickly is timed whole": (
        lambda _, rows, call: 80 * 0.02 * rows.min() / rows.sum() if len(call.clients) == 1 else 0.02,
        *(1000, True, 3),
    ),
}
"""Seconds that a call takes, rounds, whether this process is chosen, and how many clients the last call has."""


@pytest.mark.parametrize("case", SPENT)
def test_what_is_tried_and_chosen(wine: Federation, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    seconds, num_rounds, stays, num_calls = SPENT[case]
    rows = wine.partition.sizes
    clock = Clock(monkeypatch, lambda call: (seconds(clock, rows, call), 0.0))
    if num_calls == 0:
        monkeypatch.setattr(runner, "FASTEST_FLOPS_PER_SECOND", 1e3)
    assert (local_host_if_faster(wine, ExpectedWork(Session(), num_rounds)) is not None) == stays
    smallest = (int(np.argmin(rows)),)
    assert [call.clients for call in clock.calls[:2]] == [smallest] * min(num_calls, 2)
    assert not stays or clock.calls[-1].clients == (0, 1, 2)


@pytest.mark.parametrize(("unit", "epochs", "share"), [(1e-5, 1, 1.0), (1e-2, 5, 1.0), (1e-2, 5, 0.5)])
def test_what_is_told_is_clients_rows_by_epochs_by_rounds(
    wine: Federation,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    unit: float,
    epochs: int,
    share: float,
) -> None:
    # two units a row and epoch of training and one of scoring a row, which is of all clients, once
    sizes = wine.partition.sizes

    def spent(call: HostCall) -> tuple[float, float]:
        rows = unit * float(sizes[[*call.clients]].sum())
        return 2 * rows * call.session.training.local_epochs, rows

    Clock(monkeypatch, spent)
    session = Session()
    session = replace(session, training=session.training.model_copy(update={"local_epochs": epochs}))
    monkeypatch.setattr(runner, "num_processors", lambda: 1)  # so that all is tried, whatever it takes
    with caplog.at_level(logging.INFO, "fedscout"):
        assert local_host_if_faster(wine, ExpectedWork(session, 10_000, share)) is not None
    round_seconds = runner.LOCAL_ROUND_SECONDS + unit * sizes.sum() * (2 * epochs * share + 1)
    rounds, local, _ = map(float, re.findall(r"\d+", caplog.messages[-1]))
    assert rounds == 10_000
    assert local == pytest.approx(10_000 * round_seconds, abs=0.5)


def test_who_says_where_is_not_asked_and_limits_of_time_need_hosts_of_their_own() -> None:
    def work(*arguments: str) -> ExpectedWork | None:
        return Pipeline(load_config(arguments), Display())._expected_work(7)

    assert EngineConfig().allows_in_process
    places = ("num_hosts=1", "address=auto", "object_store_bytes=2000000000", "grid=ray", "grid=local", "device=cuda")
    for place in (*places, "hosts_per_gpu=2"):
        assert not load_config([f"engine.{place}"]).engine.allows_in_process
    expected = work("training.fraction_train=0.5")
    assert (expected.num_rounds, expected.fraction_train) == (7, 0.5)
    for limit in ("trial_timeout_seconds", "round_timeout_seconds"):
        assert work(f"training.{limit}=60") is None


def test_a_short_training_starts_no_ray_and_gives_threads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ray_runtime", lambda *_: pytest.fail("Ray was started"))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        small = ["federation.dataset=wine", "federation.num_clients=3", "training.num_rounds=2"]
        auto = run_training(load_config(small), tmp_path / "auto")[1]
        local = run_training(load_config([*small, "engine.grid=local"]), tmp_path / "local")[1]
        assert (auto.rounds["accuracy"], auto.rounds["loss"]) == (local.rounds["accuracy"], local.rounds["loss"])
        report = run_detection(load_config(small))[1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert report.num_clients == 3


def test_a_long_training_goes_to_ray(wine: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class GoesToRayError(Exception):
        pass

    def on_ray(*_: object) -> None:
        raise GoesToRayError

    monkeypatch.setattr(runner, "num_processors", lambda: 2)
    monkeypatch.setattr(runner, "ray_runtime", on_ray)
    long = ["federation.dataset=wine", "federation.num_clients=3", "training.batch_size=1", "training.local_epochs=100"]
    with pytest.raises(GoesToRayError):
        run_training(load_config([*long, "training.num_rounds=1000"]), tmp_path)


# What hosts train on, by what is asked for, what is there and what clients do.


@pytest.fixture(scope="module", params=["cartpole", "wine"])
def federation(request: pytest.FixtureRequest) -> Federation:
    config = load_config([f"federation.dataset={request.param}", "federation.num_clients=2"])
    return build_federation(config.federation, config.model)


def test_clients_that_play_do_so_on_cores(federation: Federation) -> None:
    plays = federation.task is not None
    assert device_for(federation, EngineConfig(), has_gpu=True) == (CPU if plays else HostDevice.gpu())
    assert device_for(federation, EngineConfig(), has_gpu=False) == CPU
    if plays:
        with refused(ConfigurationError, key="engine.device"):
            device_for(federation, EngineConfig(device="cuda"), has_gpu=True)
    else:
        assert device_for(federation, EngineConfig(device="cuda"), has_gpu=True) == HostDevice.gpu()
