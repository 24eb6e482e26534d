"""How many hosts share a GPU, and that Ray deals them out so; the GPUs here are Ray's word for nothing."""

from __future__ import annotations

import sys

import pytest

from fedscout.engine.config import CPU, EngineConfig, HostDevice
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.grid.ray_grid import hosts_on_gpus, hosts_that_fit
from fedscout.engine.messages.calls import Session
from tests.commands import ran
from tests.engine.federations import QUERIES, uneven_federation, wide
from tests.kits.refusals import refused

GIB = 2**30


@pytest.mark.parametrize(
    ("busy_share", "host_gib", "cpus_each", "expected"),
    [
        (0.95, 2, 16, 1),  # one keeps it busy
        (0.25, 2, 16, 4),  # the others fill what it leaves
        (0.01, 2, 16, 8),  # contexts take memory, too
        (0.25, 30, 16, 2),  # no more fit: 0.8 of 80 GiB
        (0.25, 70, 16, 1),  # one there must be
        (0.25, 2, 3, 3),  # each needs a core
        (0.0, 2, 0.5, 1),
    ],
)
def test_hosts_keep_it_busy_and_fit(busy_share: float, host_gib: int, cpus_each: float, expected: int) -> None:
    assert hosts_that_fit(busy_share, host_gib * GIB, 80 * GIB, cpus_each) == expected


@pytest.mark.stress
@pytest.mark.ray
def test_one_round_is_tried_on_ray(ray_session: None) -> None:
    device = HostDevice("cpu", in_lanes=True)
    assert hosts_on_gpus(uneven_federation(wide), QUERIES, device, Session(), cpus_each=4) == 1


def test_the_device_is_what_is_asked_for_and_there() -> None:
    assert EngineConfig().host_device(has_gpu=False) is CPU
    assert EngineConfig(device="cpu").host_device(has_gpu=True) is CPU
    assert EngineConfig(clients_together=8).host_device(has_gpu=True) == HostDevice.gpu(8)
    assert EngineConfig(device="cuda").host_device(has_gpu=True) == HostDevice.gpu()
    with refused(ConfigurationError, key="engine.device", given="cuda"):
        EngineConfig(device="cuda").host_device(has_gpu=False)


DEALT = """
import os, time, warnings
warnings.simplefilter("ignore")
import ray
from fedscout.engine.grid.ray_grid import start_hosts
from fedscout.engine.config import HostDevice
from tests.engine.federations import QUERIES, uneven_federation, wide

ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False,
         object_store_memory=80 * 2**20, logging_level="ERROR")

def free():
    return ray.available_resources().get("GPU", 0.0)

hosts = start_hosts(uneven_federation(wide), QUERIES, 3, device=HostDevice("cpu", in_lanes=True), gpu_share=0.5)
print("HELD", 2 - free(), hosts.facts.trained_on)
hosts.stop()
until = time.monotonic() + 30
while free() < 2 and time.monotonic() < until:
    time.sleep(0.1)
print("FREE", free())
ray.shutdown()
"""


@pytest.mark.stress
@pytest.mark.ray
def test_hosts_hold_their_parts_of_gpus_and_let_them_go() -> None:
    """Two of 0.475 fit on a GPU, a third does not, so three hosts lie on both."""
    done = ran(sys.executable, "-c", DEALT, without=("CUDA_VISIBLE_DEVICES",))
    assert done.returncode == 0, done.stderr
    held, free = (line for line in done.stdout.splitlines() if line.startswith(("HELD", "FREE")))
    _, share, *device = held.split(maxsplit=2)
    assert float(share) == pytest.approx(3 * 0.475, abs=0.005)  # and what reservations take
    assert device == ["cpu, 8 clients in parallel"]
    assert free == "FREE 2.0"


def unmeasured() -> int:
    raise AssertionError("what is said needs no measurement")


def test_what_is_said_of_hosts_is_what_share_a_gpu() -> None:
    assert EngineConfig().hosts_each_gpu(2, lambda: 3) == 3
    assert EngineConfig(num_hosts=5).hosts_each_gpu(2, unmeasured) == 3
    assert EngineConfig(hosts_per_gpu=4).hosts_each_gpu(2, unmeasured) == 4
    assert EngineConfig(hosts_per_gpu=4, num_hosts=8).hosts_each_gpu(2, unmeasured) == 4
    with refused(ConfigurationError, key="engine.num_hosts", given=9, names="engine.hosts_per_gpu=4"):
        EngineConfig(hosts_per_gpu=4, num_hosts=9).hosts_each_gpu(2, unmeasured)
