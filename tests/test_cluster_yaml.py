"""`cluster.yaml` is a file that Ray accepts and says what it should; `test_running_cluster.py` runs its commands."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.commands import REPOSITORY

LOOPBACK = "127.0.0.1"

Config = dict[str, Any]


def load() -> Config:
    return yaml.safe_load((REPOSITORY / "cluster.yaml").read_text())


def prepared(config: Config) -> Config:
    """Fill in Ray's defaults and validate, in the order in which `ray up` does both."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    filled = prepare_config(config)
    validate_config(filled)
    return filled


def start_command(config: Config, kind: str) -> str:
    (command,) = [command for command in config[f"{kind}_start_ray_commands"] if "ray start" in command]
    return command


@pytest.mark.parametrize("num_nodes", [1, 2, 100])
def test_ray_validates_one_to_a_hundred_nodes_and_keeps_them_all(num_nodes: int) -> None:
    config = load()
    config["provider"]["worker_ips"] = [f"192.0.2.{100 + node}" for node in range(num_nodes - 1)]
    config["max_workers"] = num_nodes - 1
    filled = prepared(config)
    (node_type,) = filled["available_node_types"].values()
    assert node_type["min_workers"] == node_type["max_workers"] == num_nodes - 1
    assert filled["cluster_name"] == "fedscout"
    assert "constraints.txt" in " ".join(filled["head_setup_commands"])
    assert filled["head_setup_commands"] == filled["worker_setup_commands"]


def test_the_cloud_example_in_the_comments_validates() -> None:
    lines = (REPOSITORY / "cluster.yaml").read_text().splitlines()
    shown = [line for line in lines if re.match(r"#   (provider|head_node|avail|  )", line)]
    example = "\n".join(line.removeprefix("#   ") for line in shown)
    cloud = yaml.safe_load(example.partition("provider:")[1] + example.partition("provider:")[2])
    filled = prepared({**load(), **cloud, "max_workers": 99})
    assert filled["provider"]["type"] == "aws"
    assert filled["available_node_types"]["worker"]["max_workers"] == 99


@pytest.mark.parametrize(("kind", "dashboards"), [("head", [LOOPBACK]), ("worker", [])])
def test_a_node_starts_with_our_packages_and_demands_the_token(kind: str, dashboards: list[str]) -> None:
    """The head's dashboard listens on loopback only."""
    command = start_command(prepared(load()), kind)
    assert command.startswith("cd ~/fedscout && ")
    parts = 'PATH="$PWD/.venv/bin:$PATH"', "RAY_AUTH_MODE=token", "RAY_USAGE_STATS_ENABLED=0", "--object-store-memory="
    assert all(part in command for part in parts)
    assert re.findall(r"--dashboard-host[= ](\S+)", command) == dashboards
