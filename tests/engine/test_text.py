"""The tree of errors, how faults read, and what notebooks show."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Annotated, Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from fedscout.engine import text
from fedscout.engine.errors import DataError, Fault


@pytest.mark.parametrize("faults", ["one fault", ["first", Fault("a.key", "be 1", 2, "it is 1")]])
def test_a_user_error_carries_its_faults_through_a_pickle(faults: str | list[str]) -> None:
    error = pickle.loads(pickle.dumps(DataError(faults)))

    assert type(error) is DataError
    assert error.faults == ((faults,) if isinstance(faults, str) else tuple(faults))
    assert str(error) == "; ".join(error.faults)
    assert error.keys == ((None,) if isinstance(faults, str) else (None, "a.key"))


# -- How pydantic's faults read ----------------------------------------------------------------------------------------


class Inner(BaseModel):
    rate: float = Field(default=0.5, gt=0)


class Model(BaseModel):
    number: int = Field(default=1, ge=1, le=9)
    share: float | None = None
    switch: bool = False
    either: int | bool = 1
    anything: Any = None
    free: dict[str, Any] = {}
    rates: Mapping[str, float] = {}
    items: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1,), min_length=1, max_length=3)
    inner: Inner = Inner()
    inners: tuple[Inner, ...] | None = None
    word: str = Field(default="one", min_length=2, max_length=5, pattern="^[a-z]+$")

    @field_validator("word")
    @classmethod
    def _no_two(cls, word: str) -> str:
        if word == "two":
            raise ValueError("must not be two")
        if word == "three":
            raise ValueError("three is too many")
        return word


def faults(document: Any) -> list[Fault]:
    try:
        Model.model_validate(text.booleans_as_words(document, Model))
    except ValidationError as error:
        return [text.fault_of(".".join(str(part) for part in detail["loc"]), detail) for detail in text.details(error)]
    return []


@pytest.mark.parametrize(
    ("document", "key", "limit", "given"),
    [
        ({"number": 0}, "number", "1", "0"),
        ({"number": "x"}, "number", "integer", "'x'"),
        ({"number": "9" * 5000}, "number", "integer", f"'{'9' * 199}… (5002 characters)"),
        ({"items": [0]}, "items.0", "1", "0"),
        ({"items": []}, "items", "1 item", "[]"),
        ({"items": [1, 2, 3, 4]}, "items", "3 items", "[1, 2, 3, 4]"),
        ({"items": 3}, "items", "list", "3"),
        ({"inner": 3}, "inner", "keys", "3"),
        ({"word": "o"}, "word", "2 characters", "'o'"),
        ({"word": "two"}, "word", "two", None),
        ({"number": {"a": 1}}, "number", "integer", "a group of keys"),
    ],
)
def test_a_fault_is_condition_and_value(document: Any, key: str, limit: str, given: str | None) -> None:
    (fault,) = faults(document)
    assert (fault.key, fault.given) == (key, given)
    assert limit in str(fault.must)


def test_a_sentence_of_ones_own_begins_with_its_key() -> None:
    assert faults({"word": "three"}) == ["word: three is too many"]


@pytest.mark.parametrize(
    ("document", "refused"),
    [
        ({"number": True}, "number"),
        ({"share": False}, "share"),
        ({"items": [1, True]}, "items.1"),
        ({"rates": {"a": True}}, "rates.a"),
        ({"inner": {"rate": True}}, "inner.rate"),
        ({"inners": [{"rate": 0.1}, {"rate": True}]}, "inners.1.rate"),
    ],
)
def test_a_truth_value_is_no_number(document: Any, refused: str) -> None:
    (fault,) = faults(document)
    assert fault.key == refused
    assert fault.given in ("'true'", "'false'")


def test_a_truth_value_stays_where_one_is_wanted() -> None:
    document = {"switch": True, "either": False, "anything": True, "free": {"a": [True], "b": {"c": False}}}
    assert faults(document) == []
    assert text.booleans_as_words(document, Model) == document
    assert Model.model_validate(text.booleans_as_words(document, Model)).either is False


def test_values_are_shown_in_brief() -> None:
    assert text.shown("a") == "'a'"
    assert text.shown("x" * 100_000) == f"'{'x' * 199}… (100002 characters)"
    assert len(text.shown(list(range(10**5)))) < 250
    assert text.shown(10**5000) == "a int that can't be displayed"


def test_of_many_names_the_first_are_listed_and_long_ones_cut() -> None:
    assert text.listed(["a", "b"]) == "a, b"
    assert text.listed(["a", "b", "c"], most=2) == "a, b and 1 more"
    longest = "x" * text.LONGEST_NAME
    assert text.listed([longest, f"{longest}y"]) == f"{longest}, {longest}…"


def test_what_may_have_been_meant() -> None:
    names = ["cifar10", "cifar100", "fedprox", "fedavg", "genetic", "auto", "cpu", "cuda"]
    for given, meant in {"CIFAR": "cifar10 or cifar100", "fedprox+": "fedprox", "genetc": "genetic"}.items():
        assert text.did_you_mean(given, names) == f"; did you mean {meant}?"
    for given in ("magic", "gpu", "f", "", 3):
        assert text.did_you_mean(given, names) == ""


# -- Tables for notebooks ----------------------------------------------------------------------------------------------


HOSTILE = "<script>alert('x')</script>\"&" + "x" * 100


def test_nothing_of_others_becomes_markup() -> None:
    """A text, a column and a cell; nothing is cut."""
    tree = ElementTree.fromstring(f"<page>{text.html_of(HOSTILE, pd.DataFrame({HOSTILE: [HOSTILE]}))}</page>")
    assert "script" not in {element.tag for element in tree.iter()}
    assert [found for found in tree.itertext() if found.strip()] == [HOSTILE] * 3


def test_of_many_rows_some_are_shown_and_all_counted() -> None:
    shown = ElementTree.fromstring(f"<page>{text.html_of(pd.DataFrame({'rows': range(1000)}))}</page>")
    assert len([*shown.iter("tr")]) <= 2 + text.MOST_ROWS
    assert "1000 rows" in "".join(shown.itertext())
