"""Names in place of numbers, in sentences and in lists of clients."""

from __future__ import annotations

import pytest

from fedscout.detectors.report import name_clients
from fedscout.experiments.reports.naming import Naming

NAMES = tuple(f"ward {letter}" for letter in "ABCDEFGHIJKLMNOP")
NAMING = Naming(NAMES, ("benign", "malignant"))


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("The rows of client 1 differ.", "The rows of client ward B differ."),
        ("Flagged: clients 0, 2.", "Flagged: clients ward A, ward C."),
        ("most of all classes 1 and 0 (p = 0.5)", "most of all classes malignant and benign (p = 0.5)"),
        ("most of all in class 1", "most of all in class malignant"),
        ("few for 10 classes and 3 clients", "few for 10 classes and 3 clients"),
        ("76.5% of the rows of client 20 would", "76.5% of the rows of client 20 would"),
    ],
)
def test_numbers_of_clients_and_classes_become_names(sentence: str, told: str) -> None:
    assert NAMING.told(sentence) == told
    assert Naming().told(sentence) == sentence


def test_how_many_others_there_are_is_no_client() -> None:
    """`and 4 more` counts; nor may the first digit of a longer count pass for a client."""
    for count in (13, 14, 16):
        told = NAMING.told(name_clients(range(count)))
        assert told == f"clients {', '.join(NAMES[:12])} and {count - 12} more"
    assert NAMING.told("clients 0, 1 and 12 more") == "clients ward A, ward B and 12 more"


@pytest.mark.parametrize("width", range(8, 90))
def test_a_list_of_clients_fits_and_counts_them_all(width: int) -> None:
    told = Naming().few_clients((3, 5, 8, *range(10, 22)), width)
    named, _, rest = told.removeprefix("clients ").partition(" and ")
    others = int(rest.split()[0]) if rest else 0
    assert len(named.split(", ")) + others == 15
    assert len(told) <= width or named == "3"


def test_one_client_and_none() -> None:
    assert NAMING.few_clients((2,), 40) == "client ward C"
    assert NAMING.few_clients((2, 3, 4), 27) == "clients ward C and 2 others"
    assert NAMING.few_clients((2, 3), 27) == "clients ward C, ward D"
    assert NAMING.few_clients((), 40) == ""
