"""Local training travels as a message's configuration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import TrialError
from fedscout.engine.messages.contents import READ_BY_EVERY_CLIENT


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


def test_missing_keys_take_their_default() -> None:
    assert LocalTraining.from_config({"local-epochs": 4}) == LocalTraining(local_epochs=4)


@pytest.mark.parametrize(
    ("key", "value"), [("local-epochs", 0), ("batch-size", 0), ("learning-rate", -0.1), ("momentum", 1.0)]
)
def test_values_that_can_t_train_are_refused(key: str, value: float) -> None:
    with pytest.raises(TrialError, match=key):
        LocalTraining.from_config({key: value})
