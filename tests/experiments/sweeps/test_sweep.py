"""What is an axis: commas outside brackets and quotes, and nothing else."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from fedscout.engine.errors import ConfigurationError, LogError
from fedscout.experiments.config import load_config
from fedscout.experiments.studies.run_folder import open_run_folder
from fedscout.experiments.studies.workers import await_release
from fedscout.experiments.sweeps import sweep as sweeps
from fedscout.experiments.sweeps.sweep import Sweep, argument_choices, check_sweep_folder, open_sweep_folder, read_sweep
from tests.kits.refusals import refused


def split_values(text: str) -> tuple[str, ...]:
    """Return the values that a sweep gives a key."""
    (choices,) = argument_choices([f"key={text}"])
    return tuple(choice.removeprefix("key=") for choice in choices)


PLAIN = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"[a-z_][a-z0-9_.'-]{0,8}", fullmatch=True),
)
SINGLE_QUOTED = st.text(st.sampled_from('a,[]{}" \\:'), max_size=6).map(lambda text: f"'{text}'")
DOUBLE_QUOTED = st.text(st.sampled_from("a,[]{}' :"), max_size=6).map(lambda text: f'"{text}\\",\\""')
VALUES = st.recursive(
    st.one_of(PLAIN, SINGLE_QUOTED, DOUBLE_QUOTED),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        st.lists(inner, max_size=3).map(
            lambda parts: "{" + ", ".join(f"k{number}: {part}" for number, part in enumerate(parts)) + "}"
        ),
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4), st.sampled_from([",", ", ", " ,"]))
def test_values_joined_by_commas_come_apart_as_they_were(values: list[str], comma: str) -> None:
    assert split_values(comma.join(values)) == tuple(values)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("seed,[1, 2]", ("seed", "[1, 2]")),
        ("it's,fine", ("it's", "fine")),
        ("", ("",)),
        ("rows[1].csv,b.csv", ("rows[1].csv", "b.csv")),
        ("${seed},1", ("${seed}", "1")),
    ],
)
def test_commas_outside_brackets_and_quotes_separate(text: str, values: tuple[str, ...]) -> None:
    assert split_values(text) == values


@pytest.mark.parametrize("text", ["[1,2", "a,'b", "0,*b"])
def test_what_yaml_can_t_read_is_a_fault_of_its_key(text: str) -> None:
    with refused(ConfigurationError, key="seed"):
        read_sweep([f"seed={text}"])


def test_all_faults_are_told_at_once_and_each_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_sweep(["seed=-1,0", "federation.num_clients=0,4", "training.batch_size=0", "nonsense=1"])
    assert sorted(caught.value.keys) == ["federation.num_clients", "nonsense", "seed", "training.batch_size"]
    with pytest.raises(ConfigurationError) as caught:
        argument_choices(["seed=0,", "a=1,2", "a=3,4", "engine.num_hosts=1,2", "b=,1", "c=1,,2"])
    assert [fault.split()[0] for fault in caught.value.faults] == ["seed", "a", "engine.num_hosts", "b", "c"]


# The points of a sweep: the configurations of single studies, each once, with names that say which.


AXES = ("federation.partition.alpha=0.1,0.5", "federation.num_clients=4,10", "seed=0,1,2")


def test_each_point_is_the_study_of_its_own_arguments() -> None:
    sweep = read_sweep([*AXES, "training.num_rounds=7"])
    assert sweep.axes == ("federation.partition.alpha", "federation.num_clients", "seed")
    values = [tuple(point.setting.values()) for point in sweep.configurations]
    assert values == [*product((0.1, 0.5), (4, 10), (0, 1, 2))], "the last axis runs fastest"
    for point in sweep.configurations:
        single = load_config([*(f"{key}={value}" for key, value in point.setting.items()), "training.num_rounds=7"])
        assert point.config == single
        assert point.digest == single.digest()


def test_an_axis_has_its_values_also_where_the_identity_lacks_the_default() -> None:
    points = read_sweep(["search.informed=true,false", "federation.unseen_clients=0,2"]).configurations
    assert [tuple(one.setting.values()) for one in points] == [*product((True, False), (0, 2))]


def test_a_file_lies_under_all_points(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("training: {num_rounds: 3}\nseed: 5\n")
    for sweep in (read_sweep(["seed=0,1"], file), read_sweep([str(file), "seed=0,1"])):
        assert [(one.config.training.num_rounds, one.config.seed) for one in sweep.configurations] == [(3, 0), (3, 1)]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["a.x", "b.x", "c", "d.e.f"]), st.text() | st.floats() | st.none()))
def test_a_name_is_a_short_folder_that_no_reader_takes_for_a_column(values: dict[str, object]) -> None:
    name = sweeps.study_name(values, "0123456789abcdef")
    assert name.endswith("0123456789")
    assert not set(name) & set("=/\\ \n\0")
    assert not name.startswith((".", "-", "_"))
    assert len(name.encode()) <= sweeps.NAME_CHARACTERS + 1 + 10


@pytest.mark.parametrize("axis", ["seed=0,0", "federation.partition.alpha=0.1,0.10", "federation.num_clients=null,10"])
def test_the_same_study_twice_is_refused(axis: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_sweep([axis])
    (fault,) = caught.value.faults
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


# The folder of a sweep: for one process at a time, and for one sweep, whose axes may grow.


def opened(out: Path, *arguments: str) -> Sweep:
    sweep = read_sweep(arguments)
    with open_sweep_folder(out, sweep):
        return sweep


def test_a_second_sweep_on_the_folder_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    sweep = read_sweep(["seed=0,1"])
    with open_sweep_folder(tmp_path / "out", sweep):
        with refused(LogError, key="out"), open_sweep_folder(tmp_path / "out", sweep):
            pass
        check_sweep_folder(tmp_path / "out", sweep)  # reading is no use
    opened(tmp_path / "out", "seed=0,1")


@pytest.mark.parametrize(
    "later",
    [
        ("seed=0,1,2", "training.num_rounds=10"),
        ("seed=2", "training.num_rounds=10"),
        ("seed=0,1", "training.num_rounds=10,20"),
        ("seed=0,1", "training.num_rounds=10", "engine.num_hosts=3"),
        ("seed=0,1", "training.num_rounds=10", "federation.scenario=null,label_skew"),
    ],
)
def test_values_and_axes_may_be_added(tmp_path: Path, later: tuple[str, ...]) -> None:
    opened(tmp_path, "seed=0,1", "training.num_rounds=10")
    opened(tmp_path, *later)
    opened(tmp_path, "seed=0,1", "training.num_rounds=10")
    axes = [setting.partition("=")[0] for setting in ("seed", *later[1:]) if "," in setting]
    assert json.loads((tmp_path / "sweep.json").read_text())["axes"] == ["seed", *axes]


def test_another_single_value_is_refused_with_the_way_out(tmp_path: Path) -> None:
    opened(tmp_path, "seed=0,1", "training.num_rounds=10")
    before = (tmp_path / "sweep.json").read_text()
    with refused(LogError, key=tmp_path.name, names="training.num_rounds=10,20"):
        opened(tmp_path, "seed=0,1", "training.num_rounds=20")
    assert (tmp_path / "sweep.json").read_text() == before


@pytest.mark.parametrize("content", ["a study", "notes"])
def test_a_folder_of_something_else_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    sweep = read_sweep(["seed=0,1"])
    if content == "a study":
        with open_run_folder(tmp_path, sweep.configurations[0].config):
            pass
    else:
        (tmp_path / "notes.txt").write_text("mine")
    before = sorted(tmp_path.iterdir())
    with refused(LogError, key="--out"):
        opened(tmp_path, "seed=0,1")
    assert sorted(tmp_path.iterdir()) == before


def test_a_study_is_found_under_the_name_that_an_earlier_command_gave_it(tmp_path: Path) -> None:
    (old,) = (point for point in read_sweep(["seed=0,1"]).configurations if point.config.seed == 1)
    opened(tmp_path, "seed=0,1")
    (tmp_path / "studies" / old.name).mkdir(parents=True)
    sweep = read_sweep(["seed=0,1", "federation.num_clients=10,20"])
    (same,) = (point for point in sweep.configurations if point.digest == old.digest)
    assert same.name != old.name
    assert check_sweep_folder(tmp_path, sweep).study(same) == tmp_path / "studies" / old.name


@pytest.mark.parametrize("content", ['{"config_hash": "of another"}', "[]", "no JSON"])
def test_a_result_that_is_not_the_study_s_is_none(tmp_path: Path, content: str) -> None:
    sweep = read_sweep(["seed=0,1"])
    folder = check_sweep_folder(tmp_path, sweep)
    study = folder.study(sweep.configurations[0])
    study.mkdir(parents=True)
    (study / "result.json").write_text(content)
    assert folder.result(sweep.configurations[0]) is None


def test_a_study_that_a_dying_process_holds_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    with ExitStack() as holder:
        holder.enter_context(open_run_folder(tmp_path / "study", read_sweep(["seed=0"]).configurations[0].config))
        started = time.monotonic()
        await_release(tmp_path / "study", seconds=0.3)
        assert time.monotonic() - started >= 0.3
        release = threading.Timer(0.5, holder.close)
        release.start()
        await_release(tmp_path / "study")
        assert time.monotonic() - started >= 0.8
        release.join()
    await_release(tmp_path / "new")
    assert not (tmp_path / "new").exists()
