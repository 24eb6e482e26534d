"""Every count, list and address of the configuration: what there can't be so many of is refused by its key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, get_args

import pytest
from pydantic import BaseModel

from fedscout.experiments.config import StudyConfig
from fedscout.experiments.partitions.table import PARTITIONS
from fedscout.experiments.studies import workflow
from tests.experiments.cli.conftest import SMALL, Cli

HUGE = 10**9
LEGAL: Final = {
    "seed": "any number is one",
    "federation.seed": "any number is one",
    "federation.max_rows": "at most so many: all rows",
    "federation.max_file_bytes": "a bound",
    "federation.max_file_rows": "a bound",
    "federation.text.stride": "one window a text",
    "detection.max_features": "a bound",
    "detection.max_pairwise_clients": "a bound",
    "detection.projection_size": "models with fewer parameters are compared as they are",
    "engine.checkpoint_every_rounds": "no checkpoint but the end",
    "engine.object_store_bytes": "a gigabyte",
}
"""Keys of counts that may be larger than anything there is, with the reason."""

EMPTY: Final = {
    "federation.drop_columns": "none",
    "federation.missing_values": "none",
    "federation.physics": "clients do not differ",
    "federation.partition.quantities": "all rows are used",
    "search.customs": "none",
    "search.warm_start": "nothing",
}
"""Keys of lists that may be empty, with what that means."""

NO_ADDRESS: Final = ("nonsense", "http://[", "http://", "ray://[", "127.0.0.1")


class ReachedError(Exception):
    """The study would begin."""


def typed_keys(kind: type, model: type[BaseModel] = StudyConfig, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all keys whose values are, or may be, of a type."""
    for name, field in model.model_fields.items():
        annotation: Any = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from typed_keys(kind, annotation, f"{prefix}{name}.")
        elif kind in _parts(annotation):
            yield prefix + name


def _parts(annotation: Any) -> Iterator[Any]:
    yield getattr(annotation, "__origin__", annotation)
    for part in get_args(annotation):
        yield from _parts(part)


@pytest.fixture
def refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that says whether a study with these settings is refused, by one line with its key."""

    def begins(*_: object, **__: object) -> None:
        raise ReachedError

    monkeypatch.setattr(workflow, "open_runner", begins)

    def refuses(key: str, *more: str) -> bool:
        try:
            done = cli("run", *SMALL, "federation.num_clients=3", *more, "--out", key)  # a client a class
        except ReachedError:
            return False
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), done
        group, _, leaf = key.rpartition(".")
        assert group in done.err, done
        assert leaf in done.err, done
        return True

    return refuses


def readers(key: str) -> Iterator[str]:
    """Yield what makes something read a key that is not always read."""
    group, _, leaf = key.rpartition(".")
    if group == "federation.partition":
        yield from (f"{group}.kind={kind}" for kind, partition in PARTITIONS.items() if leaf in partition.reads)
    elif group == "search.racing":
        yield "search.kind=racing"


@pytest.mark.parametrize("key", [*typed_keys(int)])
def test_a_count_larger_than_anything_there_is(refused: Any, key: str) -> None:
    for more in [*readers(key)] or [f"seed={HUGE}"]:
        assert refused(key, more, f"{key}={HUGE}") is (key not in LEGAL), more


@pytest.mark.parametrize("key", [*typed_keys(tuple)])
def test_a_list_of_nothing(refused: Any, key: str) -> None:
    assert refused(key, f"{key}=[]") is (key not in EMPTY)


@pytest.mark.parametrize("value", NO_ADDRESS)
@pytest.mark.parametrize("key", ["engine.address", "recommender.base_url"])
def test_an_address_that_is_none(refused: Any, key: str, value: str) -> None:
    assert refused(key, f"{key}={value}")
    if key == "engine.address":
        assert refused(key, "engine.grid=auto", f"{key}={value}")


def test_exceptions_are_keys() -> None:
    assert {*LEGAL} <= {*typed_keys(int)}
    assert {*EMPTY} <= {*typed_keys(tuple)}


@pytest.mark.parametrize("more", [1, 5])
@pytest.mark.parametrize("kept", ["detect", "train", "run"])
def test_no_answer_could_have_so_many_rows_behind_it(cli: Cli, kept: str, more: int) -> None:
    cli(kept, *SMALL[:4], f"federation.min_release={178 + more}").refuses("", "federation.min_release")
