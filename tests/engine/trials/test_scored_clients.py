"""Where few of many clients score the models: they are the same in every round, and training is as it would be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.selection import scored_clients
from fedscout.engine.messages.calls import Session
from fedscout.engine.messages.contents import flat_record, metrics_of
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FEDAVG, Choice, Variates, spec_of
from tests.engine.federations import QUERIES, uneven_federation
from tests.engine.grid.test_local_grid import WatchedGrid, messages
from tests.engine.results import completed
from tests.engine.trials.test_resume import rounds_of

UNSEEN = frozenset((1, 5))


def run(federation: Federation, num_scored: int | None, choice: Choice = FEDAVG) -> Trial:
    return completed(spec_of(choice, num_sampled=federation.num_seen, num_scored=num_scored), federation)


@pytest.mark.parametrize("choice", [FEDAVG, replace(FEDAVG, algorithm=Variates())], ids=["plain", "with states"])
def test_their_scores_are_those_that_they_have_among_all(choice: Choice) -> None:
    few, all_of_them = run(uneven_federation(), 4, choice), run(uneven_federation(), None, choice)

    assert np.array_equal(few.vector, all_of_them.vector)
    assert len(few.client) == 4
    among_all = dict(zip(all_of_them.client, all_of_them.client_accuracy, strict=True))
    assert few.client_accuracy == tuple(among_all[client] for client in few.client)
    weights = np.array(few.client_num_examples)
    assert few.round_accuracy[-1] == pytest.approx(np.dot(few.client_accuracy, weights) / weights.sum())


@pytest.mark.parametrize("num_scored", [7, 1000])
def test_as_many_as_there_are_is_all(num_scored: int) -> None:
    assert rounds_of(run(uneven_federation(), num_scored)) == rounds_of(run(uneven_federation(), None))


def test_nobody_else_scores_in_any_round() -> None:
    spec = spec_of(FEDAVG, num_scored=2, num_rounds=4)
    grid = WatchedGrid(uneven_federation(), QUERIES, session=spec.session)
    trial = run_trial(spec, grid)

    calls = [(call.clients if method == "evaluate" else call.evaluated) for method, call in grid.calls_made]
    assert [{*clients} for clients in calls if clients] == [{*trial.client}] * 4


def test_clients_that_join_later_are_drawn_apart() -> None:
    trial = run(replace(uneven_federation(), unseen=UNSEEN), 2)

    assert len(trial.client) == 2
    assert not UNSEEN & {*trial.client}
    assert trial.round_new_client_accuracy is not None


@pytest.mark.parametrize(("least", "able"), [(1, {0, 1, 3, 5, 6}), (4, {0, 5, 6})])
def test_nobody_is_drawn_who_has_no_rows_to_be_scored_on(least: int, able: set[int]) -> None:
    """Of so many rows each a fifth is tested on; of one row there is none, and fewer than the least abstain."""
    facts = LocalGrid(uneven_federation(), QUERIES).facts
    facts = replace(facts, client_rows=np.array([40, 17, 1, 5, 0, 20, 33]), least_training_rows=least)
    drawn = [scored_clients(facts, Session(seed=seed, num_scored=2)) for seed in range(30)]
    assert {len(clients) for clients in drawn if clients is not None} == {2}
    assert {client for clients in drawn if clients is not None for client in clients.tolist()} == able


def test_the_seed_draws_them() -> None:
    facts = LocalGrid(uneven_federation(), QUERIES).facts
    drawn = [scored_clients(facts, Session(seed=seed, num_scored=3)).tolist() for seed in (0, 0, 1, 2, 3)]

    assert drawn[0] == drawn[1]
    assert len({tuple(clients) for clients in drawn}) > 1
    assert all(clients == sorted({*clients}) and len(clients) == 3 for clients in drawn)
    assert scored_clients(facts, Session()) is None


def test_a_strategy_that_evaluates_others_is_answered_by_them() -> None:
    """Not from the scores of those few, which the grid knows."""
    grid = LocalGrid(uneven_federation(), QUERIES, session=Session(num_scored=2))
    arrays = flat_record(grid.initial_vector(0))
    known = {*grid.evaluate_all(arrays).clients}
    replies = list(grid.send_and_receive(messages(grid, "evaluate", arrays=arrays)))

    assert len(known) == 2
    assert len(replies) == 7
    alone = LocalGrid(uneven_federation(), QUERIES).evaluate_all(arrays)
    assert [metrics_of(reply)["accuracy"] for reply in replies] == alone.accuracies.tolist()
