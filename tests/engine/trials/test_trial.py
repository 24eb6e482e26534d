"""The rounds of a trial."""

from __future__ import annotations

import inspect
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Bulyan, FedAvg, Result

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientResults, LocalRun
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import misses
from fedscout.engine.errors import StrategyError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.messages.contents import flat_record
from fedscout.engine.metrics import OF_CLASSES
from fedscout.engine.training.loop import NO_ROWS
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.state import cheap_collections
from fedscout.engine.trials.trial import run_trial
from tests.engine import choices
from tests.engine.federations import EMPTY, QUERIES, SIZES, normalised, uneven_federation
from tests.engine.grid.test_local_grid import WatchedGrid, named_record
from tests.engine.results import completed, local_result

DIVERGING = LocalTraining(learning_rate=100.0, weight_decay=10.0, batch_size=1, local_epochs=2)
"""Every step multiplies the weights by 1 − 100·10 = −999; eighty steps take them beyond float32's 3·10^38."""


# -- fitness ---------------------------------------------------------------------------------------------------------


class Whole(FedAvg):
    """Brings its own start, which trains as Flower's."""

    def start(self, *args: Any, **kwargs: Any) -> Result:
        return super().start(*args, **kwargs)


def overriding(method: str, change: Callable[..., Any]) -> type[FedAvg]:
    """Return FedAvg with a method of which `change` is told Flower's own, and the arguments."""

    def changed(self: FedAvg, *args: Any, **kwargs: Any) -> Any:
        return change(partial(getattr(FedAvg, method), self), *args, **kwargs)

    return type("Own", (FedAvg,), {method: changed})


def configured(values: Mapping[str, Any], since: int = 1) -> choices.Choice:
    """A strategy that writes these values into the configuration of a round, which the next ones inherit."""

    def configure(flower: Any, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        if server_round == since:
            config.update(values)
        return flower(server_round, arrays, config, grid)

    return choices.Choice(overriding("configure_train", configure))


@pytest.mark.parametrize(
    ("accuracies", "fitness"), [([0.0, 1.0], 0.5), ([1, 1, 0.1, 0.2, 0.3, 0.4, 0.5], 0.3), ([], 0.0)]
)
def test_fitness_is_the_mean_of_the_last_five_rounds(accuracies: list[float], fitness: float) -> None:
    clean = tuple(accuracy / 2 for accuracy in accuracies)
    result = Trial.of(choices.spec_of(choices.FEDAVG), rounds={"accuracy": tuple(accuracies), "clean_accuracy": clean})

    assert result.fitness == result.own_fitness == pytest.approx(fitness)
    assert result.clean_fitness == pytest.approx(fitness / 2)


# -- Flower's strategies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", choices.FLOWER_CHOICES)
def test_flower_s_strategies_run_unmodified_here_and_by_their_own_start(host: ClientHost, name: str) -> None:
    """Flower's own loop over the same grid ends with the same model.

    Bit for bit, but for the strategies that return float64, which the trial rounds to float32 between rounds.
    """
    choice = choices.FLOWER_CHOICES[name]
    spec = choices.spec_of(choice)
    result = local_result(spec, host)

    grid = LocalGrid(host, session=spec.session)
    vector = grid.initial_vector(spec.session.seed)
    start = named_record(grid, vector) if choice.wants.arrays == "named" else flat_record(vector)
    with cheap_collections():
        by_flower = choice.build(Cohort(7, 7, 0.1)).start(grid, start, num_rounds=spec.num_rounds)

    assert (result.error, result.status, result.num_rounds) == (None, "completed", 3)
    if name in ("fedadam", "fedyogi", "fedadagrad", "qfedavg"):
        np.testing.assert_allclose(result.vector, grid.flat_vector(by_flower.arrays), rtol=1e-4, atol=1e-6)
    else:
        assert np.array_equal(result.vector, grid.flat_vector(by_flower.arrays))
    assert not np.array_equal(result.vector, vector)
    assert [*result.dropped_clients] == [f"{server_round}:{EMPTY}" for server_round in (1, 2, 3)]
    assert all(NO_ROWS in reason for reason in result.dropped_clients.values())


@pytest.mark.parametrize(("timeout_seconds", "handed"), [(None, 3600.0), (500.0, 500.0)])
def test_a_start_is_handed_what_flower_s_is(host: ClientHost, timeout_seconds: float | None, handed: float) -> None:
    """An hour is Flower's own default."""
    given: dict[str, Any] = {}

    class Handed(FedAvg):
        def start(self, **kwargs: Any) -> Result:
            given.update(kwargs)
            return super().start(**kwargs)

    spec = choices.spec_of(choices.Choice(Handed), num_rounds=4, timeout_seconds=timeout_seconds)
    told: list[int] = []
    result = local_result(spec, host, on_round=told.append)
    assert (result.error, result.num_rounds, told) == (None, 4, [1, 2, 3, 4])
    assert (given["num_rounds"], given["timeout"]) == (4, handed)
    assert inspect.signature(FedAvg.start).parameters["timeout"].default == 3600
    assert given["train_config"]["learning-rate"] == spec.session.training.learning_rate
    assert given["evaluate_config"]["seed"] == spec.session.seed


class Telling(FedAvg):
    """Trains `trainings` times in its own start: `told` says after which of them it calls `evaluate_fn`."""

    told: tuple[int, ...] = (1, 2, 3)
    trainings: int = 3
    scores: list[MetricRecord]

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        self.scores.append(kwargs["evaluate_fn"](0, initial_arrays))
        arrays = initial_arrays
        for training in range(1, self.trainings + 1):
            messages = self.configure_train(training, arrays, kwargs["train_config"], grid)
            arrays, _ = self.aggregate_train(training, grid.send_and_receive(messages))
            if training in self.told:
                self.scores.append(kwargs["evaluate_fn"](training, arrays))
        return Result(arrays=arrays)


def telling(**attributes: Any) -> type[Telling]:
    return type("Told", (Telling,), {"scores": [], **attributes})


def test_evaluate_fn_gives_the_trial_s_own_scores(host: ClientHost) -> None:
    kind = telling()
    result = completed(choices.spec_of(choices.Choice(kind)), host)
    for name in ("accuracy", "loss"):
        assert [score[name] for score in kind.scores[1:]] == list(result.rounds[name])


class Compares(FedAvg):
    """Scores the model of the round before again after each round."""

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        models = [initial_arrays]
        for number in range(1, kwargs["num_rounds"] + 1):
            messages = self.configure_train(number, models[-1], kwargs["train_config"], grid)
            models.append(self.aggregate_train(number, grid.send_and_receive(messages))[0])
            for earlier in (number, number - 1) if number > 1 else (number,):
                kwargs["evaluate_fn"](earlier, models[earlier])
        return Result(arrays=models[-1])


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        *((Whole, [0, 1, 2]), (telling(), [0, 1, 2]), (telling(told=(1, 2)), [0, 1, 2]), (Compares, [0, 1, 2])),
        (telling(told=(1, 2), trainings=2), [0, 1, 1]),  # it ends early, and keeps its model
    ],
)
def test_an_own_start_is_run_whole_however_it_tells(host: ClientHost, kind: type[FedAvg], rounds: list[int]) -> None:
    driven, own = (local_result(choices.spec_of(choices.Choice(each)), host) for each in (FedAvg, kind))
    assert np.array_equal(own.vector, driven.vector) == (rounds == [0, 1, 2])
    for name in ("accuracy", "loss"):
        assert list(own.rounds[name]) == [driven.rounds[name][i] for i in rounds]
    assert own.dropped_clients.items() <= driven.dropped_clients.items()
    assert len(own.dropped_clients) == len({*rounds}), "one client has no rows"


Resting = overriding("configure_train", lambda flower, number, *args: [] if number == 2 else flower(number, *args))
"""Sends nobody anything in its second round."""


def test_a_round_that_leaves_the_model_as_it_was_is_listed_whoever_drives(host: ClientHost) -> None:
    whole = type("RestingWhole", (Resting, Whole), {})
    driven, own = (local_result(choices.spec_of(choices.Choice(kind), num_rounds=4), host) for kind in (Resting, whole))
    assert list(own.rounds["loss"]) == list(driven.rounds["loss"])
    assert own.rounds["loss"][0] == own.rounds["loss"][1] != own.rounds["loss"][2]
    assert [*own.skipped_rounds] == [*driven.skipped_rounds] == ["2"]


@pytest.mark.parametrize("kind", [FedAvg, Whole])
def test_a_trial_that_lost_most_of_its_rounds_fails_whoever_drives(kind: type[FedAvg]) -> None:
    federation = replace(uneven_federation(sizes=(12,) * 7), dropout=dict.fromkeys(range(7), 0.9))
    pattern = [False, True, True, True]
    seed = next(
        s
        for s in range(1000)
        if [all(misses(federation.dropout, s, r, client) for client in range(7)) for r in range(1, 5)] == pattern
    )
    spec = choices.spec_of(choices.Choice(kind), seed=seed, num_rounds=4)
    result = local_result(spec, ClientHost(federation, QUERIES))
    assert (result.status, result.fitness) == ("failed", 0.0)
    assert re.match("3 of 4 .*round 2: .*AbsentError", str(result.error))
    assert [*result.skipped_rounds] == ["2", "3", "4"]


@pytest.mark.parametrize("asks", [True, False])
def test_a_strategy_sees_evaluation_if_it_asks_to(host: ClientHost, asks: bool) -> None:
    """It is told the weighted accuracy that the trial records."""
    seen: list[tuple[int, MetricRecord]] = []

    def keep(flower: Any, server_round: int, replies: Iterable[Message]) -> MetricRecord:
        seen.append((server_round, flower(server_round, replies)))
        return seen[-1][1]

    needs = EngineNeeds(replies="merged", sees_evaluation=asks)
    spec = choices.spec_of(choices.Choice(overriding("aggregate_evaluate", keep), wants=needs))
    grid = WatchedGrid(host, session=spec.session)

    result = run_trial(spec, grid)

    assert [server_round for server_round, _ in seen] == ([1, 2, 3] if asks else [])
    for (_, metrics), accuracy in zip(seen, result.rounds["accuracy"], strict=False):
        assert metrics["accuracy"] == pytest.approx(accuracy, rel=1e-12)
    assert [method for method, _ in grid.calls_made].count("evaluate") == (3 if asks else 1)


@pytest.mark.parametrize("num_sampled", [2, len(SIZES)])
@pytest.mark.parametrize("fails", [False, True])
def test_scores_that_come_with_training_are_those_of_own_trips(host: ClientHost, num_sampled: int, fails: bool) -> None:
    """A strategy that sees the evaluation has every model scored at once; nobody's rounds may tell the difference."""
    results = []
    for asks in (False, True):
        choice = configured({"lr": -1.0}, since=3) if fails else choices.FEDAVG  # which fails it before it is sent
        choice = replace(choice, wants=EngineNeeds(replies="merged", sees_evaluation=asks))
        results.append(local_result(choices.spec_of(choice, num_sampled=num_sampled, num_rounds=5), host))

    first, second = ((each.status, each.error, choices.rounds_of(each)) for each in results)
    assert first == second
    assert len(first[-1]) == (2 if fails else 5)


# -- failures --------------------------------------------------------------------------------------------------------


class Unwilling(choices.Participations):
    """Fails every client."""

    def train(self, run: LocalRun) -> ClientResults:
        raise RuntimeError("not today")


class Misfit(choices.Choice):
    """A specification that can't be built for the cohort."""

    def build(self, cohort: Cohort) -> FedAvg:
        raise StrategyError(f"misfit must have 99 clients, got {cohort.num_clients}")


def slowly(flower: Any, *args: Any) -> Any:
    time.sleep(0.3)
    return flower(*args)


def aggregated(change: Callable[[Any, list[Message]], Any], wants: EngineNeeds = choices.MERGED) -> choices.Choice:
    """A strategy that gives what `change` makes of its model and of the replies."""

    def aggregate(flower: Any, server_round: int, replies: Iterable[Message]) -> Any:
        received = list(replies)
        return change(flower(server_round, received)[0], received)

    return choices.Choice(overriding("aggregate_train", aggregate), wants=wants)


FAILURES: dict[str, tuple[choices.Choice, dict[str, Any], int, str]] = {
    **{
        f"diverging {name}": (choices.FLOWER_CHOICES[name], {"training": DIVERGING}, 0, "diverged")
        for name in ("fedavg", "fedavg-individual", "fedmedian")
    },
    "six replies where Bulyan needs 4f + 3": (
        *(choices.Choice(Bulyan, {"num_malicious_nodes": 1}, choices.INDIVIDUAL), {}, 1),
        r"^2 of 3 .*round 1: Bulyan .*\b7 clients, 1 of",
    ),
    "no answer": (replace(choices.FEDAVG, algorithm=Unwilling()), {}, 1, "7 of .*: RuntimeError"),
    "no validation rows": (choices.FEDAVG, {"evaluate_on": "validation"}, 0, r"\(validation\)"),
    "too slow": (
        *(choices.Choice(overriding("aggregate_train", slowly)), {"num_rounds": 50, "timeout_seconds": 0.25}, 1),
        r"\b0\.25 s$",
    ),
    "can't be built": (Misfit(FedAvg), {}, 0, "StrategyError: misfit .*99 .*7$"),
    "another size": (aggregated(lambda *_: (flat_record(np.zeros(1)), None)), {}, 0, r"\(53,\).*\(1,\)"),
    "no model": (choices.Choice(overriding("start", lambda *_, **__: Result())), {}, 0, r"Own\.start"),
    "tells no round": (choices.Choice(telling(told=())), {}, 0, "none$"),
    "tells one of three rounds": (choices.Choice(telling(told=(2,))), {}, 0, "rounds 2$"),
    "tells a round too many": (choices.Choice(telling(told=(1, 2, 3, 4), trainings=4)), {}, 0, "round 4"),
    "two step sizes": (configured({"lr": 0.3, "learning-rate": 0.4}), {}, 0, r"\b0\.4\b.*\b0\.3$"),
    "a missing key": (aggregated(lambda *_: {}["node-config"]), {}, 0, "^round 1: KeyError: 'node-config'"),
    "returns a record": (aggregated(lambda arrays, _: arrays, choices.NAMED), {}, 0, r"Own\.aggregate_train"),
    "returns a dictionary": (aggregated(lambda arrays, _: (arrays, {})), {}, 0, r"Own\.aggregate_train"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_costs_the_trial_alone_and_is_told(host: ClientHost, name: str) -> None:
    choice, changes, num_rounds, reason = FAILURES[name]
    result = local_result(choices.spec_of(choice, **changes), host)
    assert (result.status, result.vector) == ("failed", None)
    assert result.fitness == result.own_fitness == result.clean_fitness == 0.0
    assert re.search(reason, str(result.error))
    assert result.num_rounds == num_rounds or name == "too slow"


# -- random numbers --------------------------------------------------------------------------------------------------


def sampled_clients(spec: TrialSettings, host: ClientHost) -> list[tuple[int, ...]]:
    """Return who trained in each round."""
    grid = WatchedGrid(host, session=spec.session)
    run_trial(spec, grid)
    return [call.clients for method, call in grid.calls_made if method == "train"]


def test_exactly_the_sampled_number_trains_and_others_each_round(host: ClientHost) -> None:
    spec = choices.spec_of(choices.Choice(FedAvg, wants=choices.INDIVIDUAL), num_sampled=3, num_rounds=8)
    random.seed(1)
    clients = sampled_clients(spec, host)
    random.seed(2)
    assert sampled_clients(spec, host) == clients
    assert [len(set(members)) for members in clients] == [3] * 8
    assert len(set(clients)) > 1  # eight draws of 3 of 7 are all the same with probability 35^-7
    assert clients != sampled_clients(spec.on_seed(4), host)


def test_candidates_of_one_seed_train_the_same_clients(host: ClientHost) -> None:
    """Common random numbers: who trains does not depend on the strategy."""
    specs = [choices.spec_of(choices.FLOWER_CHOICES[name], num_sampled=4) for name in ("fedavg", "fedadam", "krum")]
    first, second, third = (sampled_clients(spec, host) for spec in specs)
    assert first == second == third


def draws(flower: Any, *args: Any) -> Any:
    random.random()
    return flower(*args)


@pytest.mark.parametrize("kind", [FedAvg, overriding("configure_train", draws), Whole])
def test_global_generators_are_left_alone(host: ClientHost, kind: type[FedAvg]) -> None:
    python, numpy_, torch_ = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002

    assert local_result(choices.spec_of(choices.Choice(kind), num_sampled=5), host).status == "completed"

    assert random.getstate() == python
    after = np.random.get_state()  # noqa: NPY002
    assert np.array_equal(after[1], numpy_[1])
    assert after[2:] == numpy_[2:]
    assert torch.equal(torch.get_rng_state(), torch_)


# -- bookkeeping -----------------------------------------------------------------------------------------------------


def test_a_strategy_that_waits_for_more_clients_fails(host: ClientHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's sampling asks for nodes once a second until there are enough; without a limit it waits for ever."""

    def expectant(**counts: Any) -> FedAvg:
        return FedAvg(**{**counts, "min_available_nodes": 10**6})

    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", lambda seconds: None)
    monkeypatch.setattr("fedscout.engine.grid.watchdog.PAUSE_SECONDS", -1.0)
    result = local_result(choices.spec_of(choices.Choice(expectant)), host)
    assert result.status == "failed"
    assert re.search(rf"\bwaits\b.*\b{len(SIZES)}\b", str(result.error))


def test_asking_for_nodes_often_is_no_waiting(host: ClientHost) -> None:
    def looks(flower: Any, *args: Any) -> Any:
        for _ in range(100):
            args[-1].get_node_ids()
        return flower(*args)

    kinds = (overriding("configure_train", looks), FedAvg)
    curious, plain = (completed(choices.spec_of(choices.Choice(kind)), host) for kind in kinds)
    np.testing.assert_array_equal(curious.vector, plain.vector)


def test_what_no_client_reads_is_named_once(host: ClientHost) -> None:
    """A proximal term is read where the strategy's specification brings the rule for it."""

    def chats(flower: Any, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        config.update({"temperature": 2.0, "proximal-mu": 0.5})
        messages = list(flower(number, arrays, config, grid))
        for message in messages:
            message.content["hints"] = MetricRecord({"hint": 1.0})
        return messages

    result = local_result(choices.spec_of(choices.Choice(overriding("configure_train", chats))), host)
    (note,) = (note for note in result.notes if "temperature" in note)
    assert "temperature, proximal-mu, hints" in note
    assert local_result(choices.spec_of(choices.Choice(FedAvg)), host).notes == ()


def test_a_strategy_that_samples_by_its_own_is_noted(host: ClientHost) -> None:
    class Blind(FedAvg):
        def __init__(self, **_: Any) -> None:
            super().__init__()

    result = local_result(choices.spec_of(choices.Choice(Blind), num_sampled=3), host)
    assert any(re.search(r"\b7 of 7\b.*\b3$", note) for note in result.notes)


@pytest.mark.parametrize("metric", [None, *OF_CLASSES])
@pytest.mark.parametrize(("bad", "is_failed"), [(1, False), (2, False), (3, True)])
def test_a_round_whose_outputs_are_not_numbers_has_no_score(metric: str | None, bad: int, is_failed: bool) -> None:
    """Variances of batch normalisation below 0, as server momentum may make them; the last round must have a score."""

    class Overshooting(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            record, metrics = super().aggregate_train(server_round, replies)
            self._kept = self._kept if server_round > bad else record
            if server_round == bad + 1:
                record = self._kept
            if server_round == bad:
                layout = host.facts().layout
                is_variance = layout.elements(lambda slot: slot.name.endswith("running_var"))
                vector = np.where(is_variance, np.float32(-1), record["flat"].numpy())
                record = ArrayRecord({"flat": Array(vector)})
            return record, metrics

    host = ClientHost(uneven_federation(normalised, (12, 20, 9, 11, 14, 10, 13)), QUERIES)
    measure = None if metric is None else OF_CLASSES[metric]()
    result = local_result(choices.spec_of(choices.Choice(Overshooting), metric=measure, worst_clients=True), host)
    expected = [server_round == bad for server_round in (1, 2, 3)]
    measured = dict(result.rounds)
    del measured["train_loss"]
    assert len(measured) == (6 if metric is None else 8)
    for name, values in measured.items():
        assert np.isnan(values).tolist() == expected, name
    assert result.status == ("failed" if is_failed else "completed")
    assert result.fitness == (0.0 if is_failed else pytest.approx(np.nanmean(result.scores())))
    assert sum("finite" in note for note in result.notes) == 1


@pytest.mark.parametrize(
    "asked",
    [
        *({"lr": 0.0}, {"learning-rate": 0}, {"lr": 0.0, "learning-rate": 0.0}, {"lr": 0.0, "optimizer": "adam"}),
        *({"lr": 0.0, "momentum": 0.9}, {"lr": 0.0, "weight-decay": 0.1}),
    ],
)
def test_a_schedule_may_end_at_a_rate_of_zero(host: ClientHost, asked: Mapping[str, Any]) -> None:
    result = local_result(choices.spec_of(configured(asked, since=2)), host)
    assert (result.status, result.num_rounds) == ("completed", 3)
    losses = result.rounds["loss"]
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("local-epochs", 0), ("batch-size", -1), ("lr", -0.1), ("lr", math.nan), ("lr", "x"), ("lr", [0.1])),
        *(("momentum", 1.0), ("momentum", -0.1), ("weight-decay", -1.0), ("optimizer", "newton")),
        ("local-epochs", 1.5),
    ],
)
def test_a_value_out_of_its_range_is_refused_in_one_line(host: ClientHost, name: str, value: Any) -> None:
    result = local_result(choices.spec_of(configured({name: value}, since=2)), host)
    assert (result.status, result.num_rounds) == ("failed", 1)
    error = str(result.error)
    assert "\n" not in error
    assert "pydantic" not in error
    assert ("learning-rate" if name == "lr" else name) in error
    assert str(value) in error


def test_several_messages_to_a_client_are_several_trainings(host: ClientHost) -> None:
    """As in Flower, where a client answers each message: the mean of equal answers is the mean of one each."""

    def repeat(flower: Any, *args: Any) -> list[Message]:
        return [Message(one.content, one.metadata.dst_node_id, "train") for one in flower(*args) for _ in range(3)]

    kinds = (FedAvg, overriding("configure_train", repeat))
    once, thrice = (local_result(choices.spec_of(choices.Choice(each)), host) for each in kinds)
    np.testing.assert_allclose(thrice.vector, once.vector, atol=1e-6)
