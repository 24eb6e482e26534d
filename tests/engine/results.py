"""Results of trials in this process and on Ray's hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fedscout.engine.arrays import FloatArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, RayHosts, start_hosts
from fedscout.engine.grid.replies import base_config
from fedscout.engine.messages.calls import HostCall, Session, TrainResults
from fedscout.engine.messages.contents import Scalars, TrainAnswers, Training, exchange
from fedscout.engine.messages.keys import REPLY_KEY
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from tests.engine.federations import QUERIES


def local_result(settings: TrialSettings, source: Federation | ClientHost, *arguments: Any, **named: Any) -> Trial:
    """Run a trial on the local grid of a federation, or of a host; further arguments are `run_trial`'s."""
    return run_trial(settings, LocalGrid(source, QUERIES, settings.session), *arguments, **named)


def completed(settings: TrialSettings, source: Federation | ClientHost) -> Trial:
    """Return the result of a trial that does not fail."""
    result = local_result(settings, source)
    assert result.error is None
    return result


def ray_result(settings: TrialSettings, hosts: RayHosts, *arguments: Any, **named: Any) -> Trial:
    """Run a trial on Ray's hosts."""
    return run_trial(settings, RayGrid(hosts, settings.session), *arguments, **named)


@contextmanager
def started_hosts(federation: Federation, num_hosts: int, **options: Any) -> Iterator[RayHosts]:
    """Start hosts on Ray, and stop them at the end."""
    hosts = start_hosts(federation, QUERIES, num_hosts, **options)
    try:
        yield hosts
    finally:
        hosts.stop()


def trained_by(host: ClientHost, clients: Sequence[int], session: Session, **call: Any) -> TrainResults:
    """Return what a host answers to clients that train in the first round from one initial model."""
    config = {**base_config(session, 1), REPLY_KEY: "individual"}
    return host.train(HostCall(tuple(clients), session, config, host.initial_vector(0), **call))


def trained(grid: HostGrid[Any], vector: FloatArray, config: Scalars, clients: Any = None) -> TrainAnswers:
    """Let clients train from a vector, without a strategy."""
    _, (answers,) = exchange(grid, trainings=[Training(vector, config, clients)])
    return answers
