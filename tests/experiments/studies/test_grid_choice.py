"""`engine.grid=auto`: which place is sooner, what may not be chosen, and that trying leaves no trace."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedscout.engine.client.host import ClientHost
from fedscout.engine.config import CPU, EngineConfig, HostDevice
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.messages.calls import HostCall, Session, TrainResults
from fedscout.experiments.config import load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies import runner
from fedscout.experiments.studies.runner import Estimate, ExpectedWork, device_for, local_host_if_faster
from fedscout.experiments.studies.workflow import Display, Pipeline, run_detection, run_training
from tests.kits.refusals import refused

ALL_DAY = 10**9


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


def test_what_is_long_by_its_operations_alone_is_not_tried(
    wine: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "num_processors", lambda: 2)
    monkeypatch.setattr(ClientHost, "train", lambda *_: pytest.fail("was tried"))
    monkeypatch.setattr(runner, "FASTEST_FLOPS_PER_SECOND", 1e3)
    with caplog.at_level(logging.INFO, "fedscout"):
        assert local_host_if_faster(wine, ExpectedWork(Session(), num_rounds=1000)) is None
    assert not re.search(r"\d", caplog.messages[-1])  # of what was not tried, no seconds are told
    assert "engine.grid=local" in caplog.messages[-1]


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
            assert results.evaluation is not None
            # on a busy machine all take thrice as long by the wall
            results.seconds, results.evaluation.seconds = 3 * (training + scoring), 3 * scoring
            return results

        monkeypatch.setattr(runner, "num_processors", lambda: 2)
        monkeypatch.setattr(runner, "process_time", lambda: self.now)
        monkeypatch.setattr(ClientHost, "train", timed)


def test_a_slow_client_is_tried_alone(
    wine: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch, lambda _: (30.0, 0.0))
    with caplog.at_level(logging.INFO, "fedscout"):
        assert local_host_if_faster(wine, ExpectedWork(Session(), num_rounds=100)) is None
    smallest = (int(np.argmin(wine.partition.sizes)),)
    assert [call.clients for call in clock.calls] == [smallest, smallest]
    assert not re.search(r"\d", caplog.messages[-1])


def test_the_first_work_of_a_process_does_not_count(wine: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, lambda _: (0.001 if clock.calls else 30.0, 0.0))
    assert local_host_if_faster(wine, ExpectedWork(Session(), num_rounds=1000)) is not None
    assert clock.calls[-1].clients == (0, 1, 2)


def test_what_is_timed_quickly_is_timed_whole(wine: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest client alone takes eighty times its part of the whole, more than any gain that is assumed."""
    rows = wine.partition.sizes
    alone = 80 * 0.02 * rows.min() / rows.sum()
    clock = Clock(monkeypatch, lambda call: (alone if len(call.clients) == 1 else 0.02, 0.0))
    assert local_host_if_faster(wine, ExpectedWork(Session(), num_rounds=1000)) is not None
    assert clock.calls[-1].clients == (0, 1, 2)


@pytest.mark.parametrize("unit", [1e-5, 1e-2])
@pytest.mark.parametrize(("epochs", "share"), [(1, 1.0), (5, 1.0), (5, 0.5)])
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


@pytest.mark.parametrize(
    "given",
    [
        {"num_hosts": 1},
        {"address": "auto"},
        {"object_store_bytes": 2**30},
        {"grid": "ray"},
        {"grid": "local"},
        {"device": "cuda"},
        {"hosts_per_gpu": 2},
    ],
)
def test_who_says_where_is_not_asked(given: dict[str, object]) -> None:
    assert EngineConfig().allows_in_process
    assert not EngineConfig(**given).allows_in_process  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", ["trial_timeout_seconds", "round_timeout_seconds"])
def test_limits_of_time_need_hosts_of_their_own(limit: str) -> None:
    def expected(*arguments: str) -> ExpectedWork | None:
        return Pipeline(load_config(arguments), Display())._expected_work(7)

    work = expected("training.fraction_train=0.5")
    assert work is not None
    assert (work.num_rounds, work.fraction_train) == (7, 0.5)
    assert expected(f"training.{limit}=60") is None


def test_a_short_training_starts_no_ray_and_gives_threads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ray_runtime", lambda *_: pytest.fail("Ray was started"))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        small = ["federation.dataset=wine", "federation.num_clients=3", "training.num_rounds=2"]
        auto = run_training(load_config(small), tmp_path / "auto")[1]
        local = run_training(load_config([*small, "engine.grid=local"]), tmp_path / "local")[1]
        assert (auto.round_accuracy, auto.round_loss) == (local.round_accuracy, local.round_loss)
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
