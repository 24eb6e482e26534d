"""Several global models in one record: which clients use which, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedscout.engine.client.host import ClientHost
from fedscout.engine.messages.contents import clients_text, flat_record, models_of, several_models
from tests.engine.federations import SIZES

NUM_CLIENTS = len(SIZES)


def test_each_model_comes_with_its_clients(host: ClientHost) -> None:
    layout = host.facts().layout
    vectors = np.arange(3 * layout.size, dtype=np.float32).reshape(3, -1)
    found = models_of(several_models(vectors, np.array([2, 0, 2, 2, 0, 2, 2])), layout, NUM_CLIENTS)
    assert [list(clients) for _, clients in found] == [[1, 4], [], [0, 2, 3, 5, 6]]
    np.testing.assert_array_equal([vector for vector, _ in found], vectors)


def test_clients_in_no_group_use_the_model_of_most(host: ClientHost) -> None:
    layout = host.facts().layout
    record = several_models(np.zeros((3, layout.size), np.float32), np.array([2, -1, 1, 1, 0]))
    assert [list(clients) for _, clients in models_of(record, layout, NUM_CLIENTS)] == [[4], [1, 2, 3, 5, 6], [0]]


def test_one_model_is_of_all_clients(host: ClientHost) -> None:
    vector = host.initial_vector(0)
    ((found, clients),) = models_of(flat_record(vector), host.facts().layout, NUM_CLIENTS)
    np.testing.assert_array_equal(found, vector)
    assert list(clients) == list(range(NUM_CLIENTS))


@pytest.mark.parametrize(
    ("models", "group", "told"),
    [
        ((53,), [0] * 7, r"^flat .*\b53\).*\(53,\)$"),
        ((2, 52), [0] * 7, r"^flat .*\b53\).*\(2, 52\)$"),
        ((2, 53), [0] * 8, r"^group .*\b7\b.*int64 \(8,\)$"),
        ((2, 53), [0.0] * 7, r"^group .*\b7\b.*float64 \(7,\)$"),
        ((2, 53), [0, 1, 2], r"^group .*\b2 models.*\[0, 1, 2\]$"),
        ((2, 53), [0, -2, 0], r"^group .*\b2 models.*\[0, -2, 0\]$"),
        ((2, 53), [-1, -1], r"^group .*\b2 models.*\[-1, -1\]$"),
    ],
)
def test_other_records_are_refused(host: ClientHost, models: tuple[int, ...], group: list[Any], told: str) -> None:
    record = ArrayRecord({"flat": Array(np.zeros(models, np.float32)), "group": Array(np.array(group))})
    with pytest.raises(ValueError, match=told):
        models_of(record, host.facts().layout, NUM_CLIENTS)


@pytest.mark.parametrize(
    ("clients", "text"), [([], ""), ([4], "4"), ([0, 1, 2, 3, 7], "0-3, 7"), ([1, 3, 4, 9, 10, 11], "1, 3-4, 9-11")]
)
def test_clients_are_told_as_runs(clients: list[int], text: str) -> None:
    assert clients_text(clients) == text
