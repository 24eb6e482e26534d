"""What is an axis: commas outside brackets and quotes, and nothing else."""

from __future__ import annotations

import math
from itertools import product

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.sweeps.sweep import argument_choices, read_sweep
from tests.kits.refusals import refused


def split_values(text: str) -> tuple[str, ...]:
    """Return the values that a sweep gives a key."""
    (choices,) = argument_choices([f"key={text}"])
    return tuple(choice.removeprefix("key=") for choice in choices)


def combinations(arguments: list[str]) -> list[tuple[str, ...]]:
    """Return the arguments of each study."""
    return list(product(*argument_choices(arguments)))


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


@settings(deadline=None)
@given(st.lists(VALUES, min_size=2, max_size=4))
def test_each_part_is_yaml_that_means_what_it_meant_in_a_list(values: list[str]) -> None:
    together = yaml.safe_load(f"[{', '.join(values)}]")
    assert [yaml.safe_load(part) for part in split_values(",".join(values))] == together


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1", ("0.1",)),
        ("0.05,0.1,0.5,1", ("0.05", "0.1", "0.5", "1")),
        ("[64,32]", ("[64,32]",)),
        ("[64,32],[128]", ("[64,32]", "[128]")),
        ("{kind: iid, min_size: 2},{kind: dirichlet}", ("{kind: iid, min_size: 2}", "{kind: dirichlet}")),
        ("'a,b',c", ("'a,b'", "c")),
        ("it's,fine", ("it's", "fine")),
        ("", ("",)),
        ("null,wine", ("null", "wine")),
        ("rows[1].csv,b.csv", ("rows[1].csv", "b.csv")),
        ("${seed},1", ("${seed}", "1")),
    ],
)
def test_commas_outside_brackets_and_quotes_separate(text: str, values: tuple[str, ...]) -> None:
    assert split_values(text) == values


def test_a_single_value_and_a_file_are_no_axis() -> None:
    alone = ["seed=1", "model.hidden=[64,32]", "some,study.yaml"]
    assert argument_choices(alone) == [(argument,) for argument in alone]


@pytest.mark.parametrize("text", ["[1,2", "a,'b", "0,*b"])
def test_what_yaml_can_t_read_is_a_fault_of_its_key(text: str) -> None:
    with refused(ConfigurationError, key="seed"):
        read_sweep([f"seed={text}"])


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_every_combination_comes_once_and_the_last_axis_runs_fastest(sizes: list[int]) -> None:
    arguments = [f"k{axis}={','.join(str(value) for value in range(size))}" for axis, size in enumerate(sizes)]
    points = combinations(arguments)
    assert len(points) == math.prod(sizes)
    assert len(set(points)) == len(points)
    assert points == sorted(points)


def test_single_values_stay_where_they_stand() -> None:
    assert combinations(["a.yaml", "seed=0,1", "x=2"]) == [("a.yaml", "seed=0", "x=2"), ("a.yaml", "seed=1", "x=2")]


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        argument_choices(["seed=0,", "a=1,2", "a=3,4", "engine.num_hosts=1,2", "b=,1", "c=1,,2"])
    subjects = [fault.split()[0] for fault in caught.value.faults]
    assert subjects == ["seed", "a", "engine.num_hosts", "b", "c"]
    assert [fault.given for fault in caught.value.faults] == ["'0,'", "it 2 times", None, "',1'", "'1,,2'"]


def test_an_axis_can_not_be_given_as_a_single_value_too() -> None:
    with refused(ConfigurationError, key="seed"):
        argument_choices(["seed=0,1", "seed=3"])
