"""The points of a sweep: the configurations of single studies, each once, with names that say which."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config import load_config
from fedscout.experiments.sweeps.sweep import NAME_CHARACTERS, read_sweep, study_name
from tests.kits.refusals import refused

AXES = ("federation.partition.alpha=0.1,0.5", "federation.num_clients=4,10", "seed=0,1,2")


def faults_of(*arguments: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        read_sweep(arguments)
    return caught.value.faults


def test_each_point_is_the_study_of_its_own_arguments() -> None:
    sweep = read_sweep([*AXES, "training.num_rounds=7"])
    assert sweep.axes == ("federation.partition.alpha", "federation.num_clients", "seed")
    assert len(sweep.configurations) == 2 * 2 * 3
    for point in sweep.configurations:
        single = load_config([*(f"{key}={value}" for key, value in point.setting.items()), "training.num_rounds=7"])
        assert point.config == single
        assert point.digest == single.digest()


def test_an_axis_has_its_values_also_where_the_identity_lacks_the_default() -> None:
    points = read_sweep(["search.informed=true,false", "federation.unseen_clients=0,2"]).configurations
    assert {(one.setting["search.informed"], one.setting["federation.unseen_clients"]) for one in points} == {
        (informed, unseen) for informed in (True, False) for unseen in (0, 2)
    }


def test_a_file_lies_under_all_points(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("training: {num_rounds: 3}\nseed: 5\n")
    for sweep in (read_sweep(["seed=0,1"], file), read_sweep([str(file), "seed=0,1"])):
        assert [(one.config.training.num_rounds, one.config.seed) for one in sweep.configurations] == [(3, 0), (3, 1)]


def test_without_an_axis_there_is_one_point() -> None:
    (point,) = read_sweep(["seed=3"]).configurations
    assert point.config == load_config(["seed=3"])
    assert point.setting == {}


def test_names_say_which_study_it_is() -> None:
    names = [point.name for point in read_sweep(AXES).configurations]
    assert names[0].startswith("alpha_0.1,num_clients_4,seed_0-")
    assert len(set(names)) == len(names)


def test_axes_with_the_same_last_part_keep_their_whole_key_in_names() -> None:
    names = [point.name for point in read_sweep(["seed=0,1", "federation.seed=2,3"]).configurations]
    assert names[0].startswith("seed_0,federation.seed_2-")


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["a.x", "b.x", "c", "d.e.f"]), st.text() | st.floats() | st.none()))
def test_a_name_is_a_short_folder_that_no_reader_takes_for_a_column(values: dict[str, object]) -> None:
    name = study_name(values, "0123456789abcdef")
    assert name.endswith("0123456789")
    assert not set(name) & set("=/\\ \n\0")
    assert not name.startswith((".", "-", "_"))
    assert len(name.encode()) <= NAME_CHARACTERS + 1 + 10


def test_every_fault_of_every_point_is_told_once() -> None:
    faults = faults_of("seed=-1,0", "federation.num_clients=0,4", "training.batch_size=0", "nonsense=1")
    assert len(faults) == len(set(faults)) == 4
    assert {fault.split()[0] for fault in faults} == {
        "seed",
        "federation.num_clients",
        "training.batch_size",
        "nonsense",
    }


@pytest.mark.parametrize("axis", ["seed=0,0", "federation.partition.alpha=0.1,0.10", "federation.num_clients=null,10"])
def test_the_same_study_twice_is_refused(axis: str) -> None:
    (fault,) = faults_of(axis)
    assert fault.count(axis.partition("=")[0]) == 2


def test_a_strategy_has_no_place_in_a_search() -> None:
    with refused(ConfigurationError, key="strategy", given="{'kind': 'krum'}"):
        read_sweep(["seed=0,1", "strategy.kind=krum"])


def test_the_default_folder_stays_when_values_are_added() -> None:
    one = read_sweep(["seed=0,1", "federation.dataset=wine"]).default_name
    assert one.startswith("sweep-wine-")
    assert read_sweep(["federation.dataset=wine", "seed=2,1,0", "engine.num_hosts=3"]).default_name == one
    others = (["seed=0,1"], ["seed=0,1", "federation.dataset=wine", "training.num_rounds=3"])
    assert one not in {read_sweep(arguments).default_name for arguments in others}


def test_what_all_points_share_is_what_no_axis_touches() -> None:
    fixed = read_sweep(AXES).fixed()
    whole = read_sweep([]).fixed()
    assert set(whole) - set(fixed) == {"federation.partition.alpha", "federation.num_clients", "seed"}
    assert {key: whole[key] for key in fixed} == fixed
