"""What a message asks of a client: local training as a configuration, and the keys that a client reads."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages.contents import (
    READ_BY_EVERY_CLIENT,
    asks_for_clipping,
    claim_task_identity,
    clipped,
    one_learning_rate,
)


@given(
    st.builds(
        LocalTraining,
        local_epochs=st.integers(1, 1000),
        batch_size=st.integers(1, 10**6),
        learning_rate=st.floats(1e-9, 100),
        optimizer=st.sampled_from(["sgd", "adam"]),
        momentum=st.floats(0, 0.999),
        weight_decay=st.floats(0, 10),
        pseudo_label_weight=st.floats(0, 1000),
        reverse_weight=st.floats(0, 1000),
        precision=st.sampled_from(["float32", "bfloat16"]),
    )
)
def test_a_configuration_gives_back_what_was_written(training: LocalTraining) -> None:
    config = training.to_config()

    assert LocalTraining.from_config({**config, "server-round": 3, "proximal-mu": 0.1}) == training
    assert all("_" not in key for key in config)
    assert set(config) <= READ_BY_EVERY_CLIENT


# -- What a message asks of a client: keys that are read, one step size under two names, clipped updates ---------------


MODEL = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.fixture(autouse=True)
def _identity() -> None:
    claim_task_identity()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, 0.1),
        ({"lr": 0.1, "learning-rate": 0.1}, 0.1),
        ({"lr": 0.3}, 0.3),
        ({"lr": 0.3, "learning-rate": 0.1}, 0.3),
        ({"lr": 0.1, "learning-rate": 0.3}, 0.3),
        ({"lr": 0.3, "learning-rate": 0.3}, 0.3),
    ],
)
def test_the_step_size_is_the_one_that_was_changed(config: dict[str, float], expected: float) -> None:
    assert one_learning_rate(config, 0.1) == expected


def reply_of(update: np.ndarray, norm: float) -> Message:
    """Return the clipped reply of a client whose model moves by an update."""
    config = {"clipping_norm": norm}
    assert asks_for_clipping(config)
    sent = RecordDict({"arrays": ArrayRecord({"flat": Array(MODEL)}), "config": ConfigRecord(config)})
    message = Message(sent, 2, "train")
    trained = ArrayRecord({"flat": Array((MODEL + update).astype(np.float32))})
    reply = RecordDict({"arrays": trained, "metrics": MetricRecord({"num-examples": 9})})
    return clipped(message, Message(reply, reply_to=message))


@pytest.mark.parametrize(("norm", "factor"), [(2.5, 0.5), (5.0, 1.0), (50.0, 1.0)])
def test_an_update_of_length_five_is_cut_to_the_norm(norm: float, factor: float) -> None:
    update = np.array([3.0, 0.0, -4.0])
    reply = reply_of(update, norm)
    np.testing.assert_allclose(reply.content["arrays"]["flat"].numpy(), MODEL + factor * update)
    assert reply.content["metrics"] == MetricRecord({"num-examples": 9, "norm_bit": int(norm < 5)})
    assert not asks_for_clipping({"learning-rate": 0.1})


def test_an_update_of_length_zero_can_not_be_clipped() -> None:
    reply = reply_of(np.zeros(3), 1.0)
    assert reply.error.reason.startswith("ZeroDivisionError")
