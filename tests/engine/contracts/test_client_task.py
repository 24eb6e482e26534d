"""What a message asks of a client, and a task in place of rows, where everything else is as ever."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientResults, ClientWork, Correct, LocalRun, TaskResult, TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import HostCall, Session
from fedscout.engine.messages.contents import (
    READ_BY_EVERY_CLIENT,
    asks_for_clipping,
    claim_task_identity,
    clipped,
    flat_record,
    one_learning_rate,
)
from fedscout.engine.messages.keys import FUNCTION_KEY
from fedscout.engine.models.flat import FlatModel
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FEDAVG, FLOWER_CHOICES, Choice, Participations, spec_of
from tests.engine.federations import QUERIES, uneven_federation

NUM_CLIENTS = 7


@dataclass(frozen=True)
class Guess:
    """A client moves the first weight towards a number of its own; its score is how near the model is to that number.

    It remembers in how many rounds it took part.
    """

    score_name: str = "nearness"
    largest_score: float = 1.0

    def train(self, model: FlatModel, asked: TrainRequest, work: ClientWork, correct: Correct | None) -> TaskResult:
        if work.client == 3 and asked.server_round == 2:
            raise RuntimeError("out of order")
        rounds = work.state.get("task/rounds", np.zeros(1, np.float32)) + 1
        with torch.no_grad():
            model.weights[0] += 0.5 * (work.client / 10 - model.weights[0])
        return TaskResult(1, 0.25, {"task/rounds": rounds})

    def score(self, model: FlatModel, client: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
        near = max(0.0, 1 - abs(client / 10 - float(model.weights[0])))
        return np.array([near, near / 2, 0.0 if client else generator.random()])


def federation() -> Federation:
    return replace(uneven_federation(sizes=(10,) * NUM_CLIENTS), task=Guess(), transforms={})


def result_of(spec: TrialSettings) -> tuple[Trial, LocalGrid]:
    grid = LocalGrid(ClientHost(federation(), QUERIES), session=spec.session)
    return run_trial(spec, grid), grid


@pytest.mark.parametrize("choice", [FEDAVG, FLOWER_CHOICES["fedavg-individual"]])
def test_rounds_train_score_and_keep_states(choice: Choice) -> None:
    result, grid = result_of(replace(spec_of(choice), num_rounds=3, keep_model=True))
    assert result.status == "completed"
    # The clients' numbers are 0, 0.1 … 0.6; with and without 0.3 their mean is 0.3: x ← x/2 + 0.15.
    initial = float(grid.initial_vector(spec_of(choice).session.seed)[0])
    expected = ((initial / 2 + 0.15) / 2 + 0.15) / 2 + 0.15
    assert result.vector[0] == pytest.approx(expected, abs=1e-6)
    assert list(result.dropped_clients) == ["2:3"]
    rounds = {client: int(state["task/rounds"][0]) for client, state in grid.client_states.items()}
    assert rounds == {client: 2 if client == 3 else 3 for client in range(NUM_CLIENTS)}


@dataclass(frozen=True)
class Twice(Participations):
    """Trains a second time from where the first ended."""

    def train(self, run: LocalRun) -> ClientResults:
        counted = super().train(run)
        again = run.descend(counted.vectors)
        return replace(counted, descent=again, vectors=again.vectors)


def test_a_client_algorithm_runs_on_a_task_as_on_rows() -> None:
    """Each playing halves the way, and the task carries on from one to the next: x ← x/4 + 3/4 · 0.3."""
    result, grid = result_of(replace(spec_of(replace(FEDAVG, algorithm=Twice())), num_rounds=1, keep_model=True))
    initial = float(grid.initial_vector(spec_of(FEDAVG).session.seed)[0])
    assert result.vector[0] == pytest.approx(initial / 4 + 0.75 * 0.3, abs=1e-6)
    for state in grid.client_states.values():
        assert {name: float(array[0]) for name, array in state.items()} == {"count": 1, "task/rounds": 2}


def test_accuracy_is_the_median_over_repeats_of_the_mean_over_clients() -> None:
    result, grid = result_of(replace(spec_of(FEDAVG), num_rounds=1, keep_model=True))
    near = np.array([1 - abs(client / 10 - float(result.vector[0])) for client in range(NUM_CLIENTS)])
    last = grid.evaluate_all(flat_record(result.vector))
    third = last.repeats[:, 2].mean()
    assert result.round_accuracy[0] == pytest.approx(float(np.median([near.mean(), near.mean() / 2, third])))
    assert result.round_clean_accuracy[0] == result.round_accuracy[0]
    assert last.num_examples.tolist() == [1] * NUM_CLIENTS


def test_all_models_of_a_seed_meet_the_same_draws() -> None:
    """The random part of client 0's score is the same in every round."""
    one, three = (
        grid.evaluate_all(flat_record(result.vector))
        for result, grid in (result_of(spec_of(FEDAVG, num_rounds=rounds)) for rounds in (1, 3))
    )
    assert one.repeats[0, 2] == three.repeats[0, 2]


def test_a_client_without_rows_answers_no_query() -> None:
    host = ClientHost(federation(), QUERIES)
    results = host.query(HostCall((0, 1), Session(), {FUNCTION_KEY: "label-counts"}))
    assert [*results.failures] == [0, 1]
    assert not host.facts().holds_rows


# -- What a message asks of a client: local training as a configuration, and the keys that a client reads --------------


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
