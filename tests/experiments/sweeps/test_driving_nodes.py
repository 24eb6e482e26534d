"""Which nodes drive studies: those where a study finds what it finds here, and no study's files are left behind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedscout.experiments.config import load_config
from fedscout.experiments.sweeps.workers import differing, driver_nodes, matching_nodes, own_node, what_studies_rest_on


def ray_of(cpus: dict[str, float], own: str = "head") -> Any:
    """Return as much of Ray as is asked: nodes with CPUs, and calls that have their answers at once."""
    nodes = [{"NodeID": name, "Alive": True, "Resources": {"CPU": number}} for name, number in cpus.items()]
    return SimpleNamespace(
        nodes=lambda: [*nodes, {"NodeID": "lost", "Alive": False, "Resources": {"CPU": 8}}],
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: own),
        wait=lambda calls, num_returns, timeout: (calls, []),
        get=lambda call: call[1],
    )


def test_a_head_without_cpus_drives_nothing_where_others_have_some() -> None:
    assert driver_nodes(ray_of({"head": 0, "a": 4, "b": 2}), [load_config()]) == {"a": 4, "b": 2}
    assert own_node(ray_of({"head": 0}))["head"] >= 1


@pytest.mark.parametrize("setting", ["search.warm_start=[runs/wine]", "search.kind=llm_genetic"])
def test_what_rests_on_this_machine_is_driven_here(setting: str) -> None:
    assert driver_nodes(ray_of({"head": 2, "a": 4}), [load_config(), load_config([setting])]) == {"head": 2}


def test_one_study_for_each_data_set_is_asked_about() -> None:
    wine = [load_config(["federation.dataset=wine", f"seed={seed}"]) for seed in range(3)]
    digits = load_config(["federation.dataset=digits"])
    assert differing([*wine, digits]) == [wine[0], digits]


def test_nodes_that_answer_otherwise_are_left_out() -> None:
    """An answer is a pair here, as it must be hashable: which node, and what it says."""
    said = {"head": "these rows", "a": "these rows", "b": "no such file"}
    workers = {
        node: SimpleNamespace(versions_and_digests=SimpleNamespace(remote=lambda _, node=node: (node, said[node])))
        for node in said
    }
    assert matching_nodes(ray_of({"head": 1, "a": 1, "b": 1}), "head", workers, [load_config()]) == {"head", "a"}


def test_other_rows_are_another_answer(tmp_path: Path) -> None:
    """The data of a file that has the same name on another node."""
    table = tmp_path / "table.csv"
    config = load_config([f"federation.dataset={table}", "federation.label=label", "federation.num_clients=2"])
    answers = []
    for value in (1, 1, 2):
        rows = [f"{row**value},{row % 2}" for row in range(40)]
        table.write_text("\n".join(["feature,label", *rows]))
        answers.append(what_studies_rest_on([config]))
    table.unlink()
    answers.append(what_studies_rest_on([config]))
    assert answers[0] == answers[1]
    assert answers[2] not in answers[:2]
    assert "table.csv" in answers[3][1][0]
