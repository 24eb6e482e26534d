"""What all server rules that Flower lacks have in common: replies, failures, states, bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import AggregationError, InconsistentMessageReplies

from fedscout.engine.client.host import ClientHost
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.engine.trials.checkpoint import CheckpointStore, read_checkpoint
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import (
    CHOSEN_BY_NAME_KINDS,
    STRATEGIES,
    CenteredClippingSpec,
    FedExPSpec,
    FedMedianSpec,
    RfaSpec,
    StrategySpec,
)
from fedscout.strategies.aggregation.rules import HostedRule, ServerRule
from tests.engine.choices import FEDAVG, rounds_of, spec_of
from tests.engine.federations import EMPTY, QUERIES, uneven_federation
from tests.engine.grid.test_local_grid import WatchedGrid
from tests.engine.trials.test_resume import Interruption, run
from tests.strategies.rounds import asked, grid_of, played, reply_of

RULES: dict[str, StrategySpec] = {
    "rfa": RfaSpec(),
    "centered_clipping": CenteredClippingSpec(clipping_radius=0.05),  # clips, or what is kept would not matter
    "fedexp": FedExPSpec(),
}
COHORT = Cohort(5, 5, 0.1)
MODELS = list(np.random.default_rng(2).normal(size=(5, 4)))


@pytest.fixture(autouse=True)
def _identity() -> None:
    claim_task_identity()


@pytest.fixture(scope="module")
def host() -> ClientHost:
    """Seven clients; the one without rows fails in every round."""
    return ClientHost(uneven_federation(), QUERIES)


def trial_of(spec: StrategySpec, **changes: Any) -> TrialSettings:
    return replace(spec_of(FEDAVG, num_rounds=4, num_sampled=5), strategy=spec, **changes)


def test_every_rule_is_tested() -> None:
    """But those that have work done on hosts, which have tests of their own."""
    specs = [STRATEGIES[kind]() for kind in CHOSEN_BY_NAME_KINDS if kind != "fedbn"]  # which wants another model
    built = {spec.kind: spec.build(replace(COHORT, server_rows=None, server_labels=True)) for spec in specs}
    rules = {kind for kind, rule in built.items() if isinstance(rule, ServerRule) and not isinstance(rule, HostedRule)}
    assert set(RULES) == rules


@pytest.mark.parametrize("kind", RULES)
def test_failed_clients_are_left_out(kind: str) -> None:
    """As if they were not there: the model is that of the clients that answered."""
    one, other = RULES[kind].build(COHORT), RULES[kind].build(Cohort(3, 3, 0.1))
    start = np.ones(4)
    some = played(one, start, lambda sent: [None, *(sent + m for m in MODELS[:3]), None], 3, [5, 1, 2, 3, 5])
    alone = played(other, start, lambda sent: [sent + m for m in MODELS[:3]], 3, [1, 2, 3])
    for (sent, model), (sent_alone, model_alone) in zip(some, alone, strict=True):
        np.testing.assert_array_equal(sent, sent_alone)
        np.testing.assert_array_equal(model, model_alone)


@pytest.mark.parametrize("kind", RULES)
def test_a_round_of_failures_gives_no_model_and_the_next_goes_on(kind: str) -> None:
    """What is kept stays: the rounds after it are those of a trial without it."""
    answers = iter([True, False, True])
    rounds = played(
        RULES[kind].build(COHORT),
        np.ones(4),
        lambda sent: [sent + model for model in MODELS] if next(answers) else [None] * 5,
        num_rounds=3,
    )
    expected = played(RULES[kind].build(COHORT), np.ones(4), lambda sent: [sent + model for model in MODELS], 2)
    assert [model is None for _, model in rounds] == [False, True, False]
    np.testing.assert_array_equal(rounds[0][1], expected[0][1])
    np.testing.assert_array_equal(rounds[2][1], expected[1][1])


@pytest.mark.parametrize("kind", RULES)
def test_the_order_of_replies_decides_rounding_alone(kind: str) -> None:
    (forwards,) = played(RULES[kind].build(COHORT), np.ones(4), lambda _: MODELS, 1)
    (backwards,) = played(RULES[kind].build(COHORT), np.ones(4), lambda _: MODELS[::-1], 1)
    np.testing.assert_allclose(forwards[1], backwards[1], rtol=1e-6)
    assert forwards[1].dtype == np.float32


@pytest.mark.parametrize("kind", RULES)
def test_replies_are_left_as_they_were_and_their_metrics_averaged(kind: str) -> None:
    """Arrays may have names and shapes; the model has them, too."""
    named = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32([1]), "shift": np.float32(2)}
    built = RULES[kind].build(Cohort(2, 2, 0.1))
    received = ArrayRecord({name: Array(np.asarray(array)) for name, array in named.items()})
    messages = list(built.configure_train(1, received, ConfigRecord(), grid_of(2)))
    replies = []
    for message, num_examples, loss in zip(messages, (1, 2), (2.0, 4.0), strict=True):
        trained = {name: Array(np.asarray(array + 1)) for name, array in reversed(named.items())}
        metrics = MetricRecord({"num-examples": num_examples, "num-clients": 1, "loss": loss})
        content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
        replies.append(Message(content, reply_to=message))
    before = [reply.content["arrays"]["w"].numpy().tolist() for reply in replies]
    arrays, mean = built.aggregate_train(1, replies)
    assert [reply.content["arrays"]["w"].numpy().tolist() for reply in replies] == before
    moved = {"rfa": 1.0, "centered_clipping": 0.05 / np.sqrt(8), "fedexp": 0.5}[kind]
    assert list(arrays) == list(named)
    for name, array in named.items():
        np.testing.assert_allclose(arrays[name].numpy(), array + moved, rtol=1e-5)
    assert mean["loss"] == pytest.approx(10 / 3 if kind != "fedexp" else 3)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("values", [[np.nan, 0, 0, 0], [np.inf, -np.inf, 0, 0]], ids=["NaN", "infinite"])
def test_a_reply_that_is_not_finite_does_as_with_the_median(kind: str, values: list[float]) -> None:
    """NaN makes the model NaN, so the trial fails; infinity spares those that withstand wrong clients."""
    for spec in (RULES[kind], FedMedianSpec()):
        ((_, model),) = played(spec.build(COHORT), np.ones(4), lambda _: [*MODELS[:4], np.array(values)], 1)
        assert np.isnan(model[0]) or np.isinf(values[0])
        assert np.isfinite(model).all() == (np.isinf(values[0]) and spec.kind != "fedexp")


@pytest.mark.parametrize("kind", RULES)
def test_replies_that_do_not_fit_together_are_refused_by_flower(kind: str) -> None:
    built = RULES[kind].build(Cohort(2, 2, 0.1))
    one, other = asked(built, np.ones(4), 2)
    without = Message(RecordDict({"arrays": other.content["arrays"]}), reply_to=other)
    with pytest.raises(InconsistentMessageReplies):
        built.aggregate_train(1, [reply_of(one, np.ones(4)), without])


def test_without_a_model_sent_out_there_is_nothing_to_move() -> None:
    message = Message(RecordDict(), 2, "train")
    with pytest.raises(AggregationError, match="configure_train"):
        RfaSpec().build(Cohort(1, 1, 0.1)).aggregate_train(1, [reply_of(message, np.ones(4))])


@pytest.mark.parametrize("kind", RULES)
def test_clients_that_miss_rounds_are_those_that_have_no_rows(kind: str) -> None:
    """Absent by design or unable to train: the trial is completed without them."""
    everyone = uneven_federation()
    absent = replace(everyone, dropout=dict.fromkeys((0, 5), 0.5))
    for federation, fewest in ((everyone, 4), (absent, 5)):
        spec = trial_of(RULES[kind], num_sampled=7)
        result = run_trial(spec, LocalGrid(ClientHost(federation, QUERIES), session=spec.session))
        assert (result.status, result.error, result.skipped_rounds) == ("completed", None, {})
        assert len(result.dropped_clients) >= fewest
        assert {f"{server_round}:{EMPTY}" for server_round in range(1, 5)} <= {*result.dropped_clients}


@pytest.mark.parametrize(("kind", "kept"), [("rfa", 0), ("centered_clipping", 1), ("fedexp", 1)])
def test_a_checkpoint_holds_the_model_and_what_the_rule_keeps(
    host: ClientHost, tmp_path: Path, kind: str, kept: int
) -> None:
    """And not what clients were sent, which nobody needs any more."""
    spec = trial_of(RULES[kind])
    store = CheckpointStore(tmp_path, every_rounds=2)
    with pytest.raises(Interruption):
        run(spec, host, store, stop_in=3)
    path = store.path(spec.key)
    document, arrays = read_checkpoint(path)
    assert document["state"]["server_round"] == 2
    size = host.facts().layout.size
    assert sum(array.shape == (size,) for array in arrays) == 1 + kept


def test_the_result_of_fedexp_is_the_mean_of_the_last_two_models_sent_out(host: ClientHost) -> None:
    """The model of every round, so that a trial of two rounds is the beginning of one of three."""
    spec = trial_of(FedExPSpec(), num_rounds=3)
    (two, _), (three, _) = run(replace(spec, num_rounds=2), host), run(spec, host)
    assert rounds_of(two) == rounds_of(three)[:2]
    grid = WatchedGrid(host, session=spec.session)
    run_trial(replace(spec, num_rounds=4), grid)
    sent = [call.vector for method, call in grid.calls_made if method == "train"]
    np.testing.assert_allclose(three.vector, (sent[2] + sent[3]) / 2, rtol=1e-6, atol=1e-7)
