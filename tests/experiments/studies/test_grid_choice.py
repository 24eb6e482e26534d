"""`engine.grid=auto`: which place is sooner, what may not be chosen, and that trying leaves no trace."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedscout.engine.client.client_host import ClientHost
from fedscout.engine.data.federation import Federation
from fedscout.engine.engine_config import EngineConfig
from fedscout.engine.messages.host_calls import HostCall
from fedscout.engine.messages.session import Session
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.federations.assembly.build_federation import build_federation
from fedscout.experiments.studies import grid_choice, open_runner
from fedscout.experiments.studies.grid_choice import Estimate, ExpectedWork, host_if_sooner
from fedscout.experiments.studies.workflow import Display, Road, run_detection, run_training

ALL_DAY = 10**9


@pytest.fixture(scope="module")
def wine() -> Federation:
    config = load_config(["federation.dataset=wine", "federation.num_clients=3"])
    return build_federation(config.federation, config.model)


def test_short_work_stays_and_long_work_does_not() -> None:
    # S + R (o + t / h) against R t
    there = grid_choice.RAY_START_SECONDS + 4 * (grid_choice.RAY_ROUND_SECONDS + 0.25)
    assert Estimate.of(0.5, 4, 2) == Estimate(2.0, there)
    assert Estimate.of(0.5, 4, 2).is_local
    assert not Estimate.of(0.5, 400, 2).is_local


@pytest.mark.parametrize("round_seconds", [1e-4, 0.1, 100.0])
@pytest.mark.parametrize("num_rounds", [1, 1000])
def test_one_processor_gains_nothing_from_ray(round_seconds: float, num_rounds: int) -> None:
    assert Estimate.of(round_seconds, num_rounds, num_hosts=1).is_local


def test_rounds_that_cost_less_than_rays_own_share_stay_however_many_there_are() -> None:
    assert Estimate.of(grid_choice.RAY_ROUND_SECONDS, ALL_DAY, num_hosts=100).is_local


def test_the_line_names_the_choice_and_what_overrules_it() -> None:
    assert Estimate(2.4, 9.6).told() == (
        "rounds take about 2 s in this process, against 10 s on Ray; engine.grid=ray overrules this"
    )
    assert Estimate(100.0, 60.0).told().startswith("rounds take about 60 s on Ray, against 100 s in this process")
    assert Estimate(100.0, 60.0).told().endswith("engine.grid=local overrules this")


def test_what_is_long_by_its_operations_alone_is_not_tried(
    wine: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_training(*_: object) -> None:
        raise AssertionError("was tried")

    monkeypatch.setattr(grid_choice, "num_processors", lambda: 2)
    monkeypatch.setattr(ClientHost, "train", no_training)
    monkeypatch.setattr(grid_choice, "FASTEST_FLOPS_PER_SECOND", 1e3)
    with caplog.at_level(logging.INFO, "fedscout"):
        assert host_if_sooner(wine, ExpectedWork(Session(), num_rounds=1000)) is None
    assert "on Ray, against" in caplog.text


def test_a_slow_client_is_tried_alone(wine: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[HostCall] = []

    def slow(host: ClientHost, call: HostCall) -> object:
        calls.append(call)
        started = time.perf_counter()
        results = train(host, call)
        results.seconds = time.perf_counter() - started + 30.0
        return results

    train = ClientHost.train
    monkeypatch.setattr(grid_choice, "num_processors", lambda: 2)
    monkeypatch.setattr(ClientHost, "train", slow)
    assert host_if_sooner(wine, ExpectedWork(Session(), num_rounds=100)) is None
    smallest = (int(np.argmin(wine.partition.sizes)),)
    assert [call.clients for call in calls] == [smallest, smallest]


def test_the_first_work_of_a_process_does_not_count(wine: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[HostCall] = []

    def cold(host: ClientHost, call: HostCall) -> object:
        results = train(host, call)
        results.seconds = 0.001 if calls else 30.0
        results.evaluation.seconds = 0.0  # type: ignore[union-attr]
        calls.append(call)
        return results

    train = ClientHost.train
    monkeypatch.setattr(grid_choice, "num_processors", lambda: 2)
    monkeypatch.setattr(ClientHost, "train", cold)
    assert host_if_sooner(wine, ExpectedWork(Session(), num_rounds=1000)) is not None
    assert calls[-1].clients == (0, 1, 2)


def test_epochs_and_sampled_clients_count(wine: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(host: ClientHost, call: object) -> object:
        results = train(host, call)  # type: ignore[arg-type]
        results.seconds, results.evaluation.seconds = 3.0, 1.0  # type: ignore[union-attr]
        return results

    train = ClientHost.train
    monkeypatch.setattr(ClientHost, "train", timed)
    host = ClientHost(wine, {})
    session = Session()
    five = replace(session, training=session.training.model_copy(update={"local_epochs": 5}))
    everyone = [0, 1, 2]
    sizes = wine.partition.sizes
    # two seconds of training and one of scoring; scoring is of all clients, once
    assert grid_choice._seconds(host, ExpectedWork(session, 1), sizes, everyone) == pytest.approx(3)
    assert grid_choice._seconds(host, ExpectedWork(five, 1), sizes, everyone) == pytest.approx(11)
    assert grid_choice._seconds(host, ExpectedWork(five, 1, 0.5), sizes, everyone) == pytest.approx(6)


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
    assert EngineConfig().may_stay
    assert not EngineConfig(**given).may_stay  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", ["trial_timeout_seconds", "round_timeout_seconds"])
def test_limits_of_time_need_hosts_of_their_own(limit: str) -> None:
    def expected(*arguments: str) -> ExpectedWork | None:
        return Road(load_config(arguments), Display())._expected_work(7)

    work = expected("training.fraction_train=0.5")
    assert work is not None
    assert (work.num_rounds, work.fraction_train) == (7, 0.5)
    assert expected(f"training.{limit}=60") is None


def test_a_short_training_starts_no_ray_and_gives_threads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_ray(*_: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(open_runner, "ray_runtime", no_ray)
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

    monkeypatch.setattr(grid_choice, "num_processors", lambda: 2)
    monkeypatch.setattr(open_runner, "ray_runtime", on_ray)
    long = ["federation.dataset=wine", "federation.num_clients=3", "training.batch_size=1", "training.local_epochs=100"]
    with pytest.raises(GoesToRayError):
        run_training(load_config([*long, "training.num_rounds=1000"]), tmp_path)
