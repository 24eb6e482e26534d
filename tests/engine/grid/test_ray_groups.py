"""Hosts that add their sums in groups change no bit, nor does a group that fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fedscout.engine.grid import ray_grid
from fedscout.engine.grid.ray_grid import RayCall, RayGrid, RayHosts
from tests.engine.choices import FEDADAM, FEDAVG, Choice, Variates, spec_of
from tests.engine.federations import uneven_federation
from tests.engine.results import local_result, ray_result, started_hosts
from tests.engine.trials.test_resume import assert_same

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(120)]

CHOICES = {"merged": FEDAVG, "adaptive": FEDADAM, "with client states": replace(FEDAVG, algorithm=Variates())}


@pytest.fixture(scope="module")
def hosts(ray_session: None) -> Iterator[RayHosts]:
    with started_hosts(uneven_federation(), 3) as started:
        yield started


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Groups of two, whatever the number of hosts, and a record of those that were asked for."""
    asked: list[Any] = []
    monkeypatch.setattr(ray_grid, "group_size", lambda *_: 2)
    original = RayGrid._add_in_groups

    def noted(grid: RayGrid, calls: list[RayCall]) -> None:
        original(grid, calls)
        asked.extend(call.group for call in calls)

    monkeypatch.setattr(RayGrid, "_add_in_groups", noted)
    return asked


@pytest.mark.sampled(1)
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("seconds", [None, 60.0], ids=["no limit", "limited"])
def test_groups_have_the_local_bits(hosts: RayHosts, groups: list[Any], choice: Choice, seconds: float | None) -> None:
    spec = spec_of(choice, num_sampled=4, round_timeout_seconds=seconds)
    added = ray_result(spec, hosts)

    assert groups
    assert None not in groups
    assert_same(added, local_result(spec, uneven_federation()))


def test_of_a_failed_group_each_is_fetched(hosts: RayHosts, groups: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(FEDAVG)
    original = RayGrid._add_in_groups

    def failing(grid: RayGrid, calls: list[RayCall]) -> None:
        original(grid, calls)
        for call in calls:
            call.group = hosts.actors[0].initial_vector.remote("no seed")

    monkeypatch.setattr(RayGrid, "_add_in_groups", failing)
    alone = ray_result(spec, hosts)

    assert_same(alone, local_result(spec, uneven_federation()))
