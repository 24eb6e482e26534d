"""Devices that a scenario gives to clients: values, classes, log-normal ones, and those of a file."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from scipy import stats

from fedscout.engine.data.client import Partition
from fedscout.engine.data.devices import Device
from fedscout.engine.errors import DataError
from fedscout.experiments.federation import data_digest
from fedscout.experiments.scenarios.base import EffectRequest
from fedscout.experiments.scenarios.table import parse_effects, stack_effects
from tests.engine.federations import uneven_federation
from tests.kits.refusals import refused

STEP = {"kind": "devices", "clients": "all", "seconds_per_step": 0.5}


def devices(*effects: dict[str, Any], num_clients: int = 4, seed: int = 0) -> dict[int, Device]:
    partition = Partition.from_lists([np.array([client]) for client in range(num_clients)])
    request = EffectRequest(partition, np.zeros(num_clients, np.int64), 2, (3,), seed)
    return stack_effects(parse_effects(list(effects)), request).devices


def test_values_hold_for_everybody_who_is_named() -> None:
    assert devices({**STEP, "clients": [1, 3]}) == dict.fromkeys((1, 3), Device(seconds_per_step=0.5))


def test_effects_stack_value_by_value() -> None:
    up = {"kind": "devices", "clients": [0], "bytes_per_second_up": 10.0, "latency_seconds": 9.0}
    latency = {"kind": "latency", "clients": "all", "shift_seconds": 1.0, "mean_seconds": 2.0}
    found = devices(STEP, up, latency)
    both = Device(seconds_per_step=0.5, shift_seconds=1.0, mean_seconds=2.0)
    assert found == {0: replace(both, bytes_per_second_up=10.0), 1: both, 2: both, 3: both}
    assert devices(latency, up)[0].shift_seconds == 9.0


def test_drawn_values_are_log_normal_and_each_client_s_own() -> None:
    drawn = devices({**STEP, "sigma": 0.7}, num_clients=2000)
    logs = np.log([drawn[client].seconds_per_step / 0.5 for client in range(2000)]) / 0.7
    assert stats.kstest(logs, stats.norm.cdf).pvalue > 1e-3
    some = devices({**STEP, "sigma": 0.7, "clients": [5, 9]}, num_clients=2000)
    assert some == {client: drawn[client] for client in (5, 9)}


def test_classes_have_their_shares() -> None:
    classes = [{"share": 0.5, "seconds_per_step": 1.0}, {"share": 0.3, "latency_seconds": 4.0}, {"share": 0.2}]
    found = devices({"kind": "devices", "clients": "all", "classes": classes}, num_clients=50)
    counts = Counter(found.values())
    assert counts == {Device(seconds_per_step=1.0): 25, Device(shift_seconds=4.0): 15, Device(): 10}
    assert found != devices({"kind": "devices", "clients": "all", "classes": classes}, num_clients=50, seed=1)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_says_what_each_client_has(tmp_path: Path, suffix: str) -> None:
    table = pd.DataFrame({"client": [2, 0, 1, 7], "latency_seconds": [2.0, 0.0, 1, 7], "bytes_per_second_up": [5] * 4})
    path = tmp_path / f"devices{suffix}"
    table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)
    found = devices({"kind": "devices", "clients": [0, 1, 2], "path": str(path)})
    assert found == {c: Device(shift_seconds=c, bytes_per_second_up=5.0) for c in range(3)}


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("client,seconds_per_step\n0,1\n2,1", "none for client 1 and 1 more"),
        ("client,seconds_per_step\n0,1\n1,-2", "-2 in row 2"),
        ("client,bytes_per_second_up\n0,0\n", "0 in row 1"),
        ("client,seconds_per_step\n0,\n1,2", "nan in row 1"),
        ("client,seconds_per_step\n0,fast\n1,2", "nan in row 1"),
        ("client,speed\n0,1\n", "client, speed"),
        ("client,seconds_per_step\n0,1\n0,2", "2 rows of 1 clients"),
        ("client,seconds_per_step\n0.5,1", "0.5 in row 1"),
    ],
)
def test_a_faulty_file_is_told_in_one_line(tmp_path: Path, text: str, given: str) -> None:
    path = tmp_path / "devices.csv"
    path.write_text(text)
    with refused(DataError, key="devices.csv", given=given) as raised:
        devices({"kind": "devices", "clients": "all", "path": str(path)})
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_told() -> None:
    with refused(DataError, key="the file of devices", given="nowhere.csv"):
        devices({"kind": "devices", "path": "nowhere.csv"})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seconds_per_step": None}, "classes and path"),
        ({"path": "x.csv"}, "got values and path"),
        ({"seconds_per_step": -1}, "0.seconds_per_step"),
        ({"bytes_per_second_up": 0}, "0.bytes_per_second_up"),
        ({"seconds_per_step": None, "path": "x.csv", "sigma": 1}, "sigma"),
        ({"seconds_per_step": None, "classes": [{"share": 0.5}]}, "got 0.5"),
        ({"seconds_per_step": float("nan")}, "0.seconds_per_step"),
    ],
)
def test_faulty_values_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        parse_effects({**STEP, **changes})


def test_a_study_rests_on_what_the_file_holds() -> None:
    """A configuration names the file alone, so its contents are in the digest; nothing changes where there is none."""
    federation = uneven_federation()
    digests = {
        data_digest(replace(federation, facts={"effects": [{"kind": "devices", "sha256": text}]})) for text in "ab"
    }
    plain = data_digest(replace(federation, facts={"effects": [{"kind": "latency"}]}))
    assert len({*digests, plain}) == 3
    assert plain == data_digest(federation)
