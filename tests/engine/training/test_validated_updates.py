"""What clients measure of what they send: the scores that evaluation gives, in any block, and failures of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from fedscout.engine.contracts.algorithm import ClientAlgorithm, LocalFacts, Validation
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.contents import flat_record, read_array
from tests.engine.choices import FLOWER_CHOICES, INDIVIDUAL, spec_of
from tests.engine.grid.test_local_grid import messages
from tests.strategies.by_hand import SEED, SIZES, host_of

HOST = host_of()
EVERYBODY = range(len(SIZES))


@dataclass(frozen=True)
class Validating(ClientAlgorithm):
    """FedAvg's client, which tells what it measures, and fails where it trains on so many rows."""

    validates: ClassVar[bool] = True

    failing: int = -1

    def validated(self, facts: LocalFacts, validation: Validation) -> Mapping[str, float]:
        if facts.num_examples == self.failing:
            raise ValueError("nothing to report")
        return {
            "validated-rows": float(validation.num_examples),
            "validated-correct": float(validation.num_correct),
            "validated-loss": validation.loss_sum,
        }


@dataclass(frozen=True)
class Drawing(Validating):
    """Trains by a step size that it draws, and reports it."""

    def settings(self, facts: LocalFacts) -> LocalTraining:
        return facts.training.model_copy(update={"learning_rate": 0.1 + 0.1 * facts.generator.random()})

    def validated(self, facts: LocalFacts, validation: Validation) -> Mapping[str, float]:
        return {"rate": self.settings(facts).learning_rate, "again": 0.1 + 0.1 * facts.generator.random()}


def replies_of(algorithm: ClientAlgorithm, backend: str = "auto", clients: Any = EVERYBODY) -> dict[int, Any]:
    """Return what each client answers in one round from the initial model."""
    choice = replace(FLOWER_CHOICES["fedavg"], wants=INDIVIDUAL, algorithm=algorithm)
    session = replace(spec_of(choice).session, seed=SEED, validation_fraction=0.3, backend=backend)
    grid = LocalGrid(HOST, session=session)
    start = flat_record(grid.initial_vector(SEED))
    replies = grid.send_and_receive(messages(grid, clients=clients, arrays=start))
    return {reply.metadata.src_node_id: reply for reply in replies}


@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_a_client_reports_the_scores_of_what_it_sends(backend: Any) -> None:
    """Each trained model, evaluated by the engine on the client's validation rows, has the same sums."""
    session = replace(
        spec_of(FLOWER_CHOICES["fedavg"]).session, seed=SEED, validation_fraction=0.3, evaluate_on="validation"
    )
    for client, reply in zip(EVERYBODY, replies_of(Validating(), backend).values(), strict=True):
        grid = LocalGrid(HOST, session=session)
        evaluation = grid.evaluate_all(flat_record(read_array(reply.content["arrays"]["flat"])))
        place = evaluation.clients.index(client)
        metrics, rows = reply.content["metrics"], evaluation.num_examples[place]
        assert metrics["validated-rows"] == rows
        assert metrics["validated-correct"] == round(evaluation.accuracies[place] * rows)
        assert metrics["validated-loss"] == pytest.approx(evaluation.losses[place] * rows, rel=1e-5)


def test_a_client_alone_has_the_bits_of_one_in_a_block() -> None:
    together = [reply.content["metrics"] for reply in replies_of(Validating()).values()]
    alone = [reply.content["metrics"] for c in EVERYBODY for reply in replies_of(Validating(), clients=[c]).values()]
    assert together == alone


def test_a_client_that_can_t_report_fails_alone() -> None:
    whole = [reply.content["metrics"]["num-examples"] for reply in replies_of(Validating()).values()]
    failing = replies_of(Validating(failing=whole[3]))
    assert [reply.has_error() for reply in failing.values()] == [client == 3 for client in EVERYBODY]
    (fault,) = (reply.error.reason for reply in failing.values() if reply.has_error())
    assert fault.startswith("ValueError")
    assert fault.endswith("nothing to report")


def test_facts_draw_the_same_whenever_they_are_told() -> None:
    rates = [reply.content["metrics"]["rate"] for reply in replies_of(Drawing()).values()]
    assert len(set(rates)) == len(rates)
    reported = [reply.content["metrics"]["again"] for reply in replies_of(Drawing()).values()]
    assert not np.isclose(rates, reported).any()
    assert rates == [reply.content["metrics"]["rate"] for reply in replies_of(Drawing(), "loop").values()]
