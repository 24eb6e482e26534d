"""Server rules that Flower lacks: what they have in common, and FedExP, RFA and centered clipping by closed forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from scipy.optimize import minimize

from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.federation import Device
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.keys import SIMULATED_SECONDS_KEY
from fedscout.strategies import CHOSEN_BY_NAME_KINDS, STRATEGIES, StrategySpec
from fedscout.strategies.aggregation.rules import HostedRule, ServerRule
from fedscout.strategies.methods.averaging import FedBuffSpec, extrapolated_change
from fedscout.strategies.methods.robust import clipped_mean, geometric_median
from tests.engine.federations import QUERIES, uneven_federation
from tests.engine.trials.test_resume import assert_going_on
from tests.strategies.by_hand import result_of, spec_of
from tests.strategies.rounds import asked, grid_of, made, models, played, reply_of

RULES: dict[str, StrategySpec] = {
    "rfa": made("rfa"),
    "centered_clipping": made("centered_clipping", clipping_radius=0.05),  # clips, or what is kept would not matter
    "fedexp": made("fedexp"),
}
COHORT = Cohort(5, 5, 0.1)
MODELS = list(np.random.default_rng(2).normal(size=(5, 4)))


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
    received, clients = np.arange(9, dtype=np.float32), Cohort(2, 2, 0.1)
    built = RULES[kind].build(clients)
    replies = [
        reply_of(message, received + 1, num_examples, loss=loss)
        for message, num_examples, loss in zip(asked(built, received, 2), (1, 2), (2.0, 4.0), strict=True)
    ]
    arrays, mean = built.aggregate_train(1, replies)
    assert all((reply.content["arrays"]["flat"].numpy() == received + 1).all() for reply in replies)
    moved = {"rfa": 1.0, "centered_clipping": 0.05 / 3, "fedexp": 0.5}[kind]
    np.testing.assert_allclose(arrays["flat"].numpy(), received + moved, rtol=1e-5)
    assert mean["loss"] == pytest.approx(10 / 3 if kind != "fedexp" else 3)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("values", [[np.nan, 0, 0, 0], [np.inf, -np.inf, 0, 0]], ids=["NaN", "infinite"])
def test_a_reply_that_is_not_finite_does_as_with_the_median(kind: str, values: list[float]) -> None:
    """NaN makes the model NaN, so the trial fails; infinity spares those that withstand wrong clients."""
    for spec in (RULES[kind], made("fedmedian")):
        ((_, model),) = played(spec.build(COHORT), np.ones(4), lambda _: [*MODELS[:4], np.array(values)], 1)
        assert np.isnan(model[0]) or np.isinf(values[0])
        assert np.isfinite(model).all() == (np.isinf(values[0]) and spec.kind != "fedexp")


# -- FedExP steps further than FedAvg where clients disagree, by the closed form on quadratic clients ------------------


NUM_CLIENTS = 8


def solved(sent: npt.NDArray[np.floating]) -> list[npt.NDArray[np.floating]]:
    """Client i minimises F_i(w) = (w_i − 1)²/2 and so sets its own coordinate to 1."""
    return [np.where(np.arange(NUM_CLIENTS) == client, 1.0, sent) for client in range(NUM_CLIENTS)]


@pytest.mark.parametrize("epsilon", [1e-12, 0.05, 10.0])
def test_whole_rounds_on_quadratic_clients(epsilon: float) -> None:
    """All coordinates of x are r below 1.

    Then ‖Δ_i‖² = r² and Δ̄ = r/M in every coordinate, ‖Δ̄‖² = r²/M, so η_g = max(1, r²/(2(r²/M + ε))), and a round
    moves x by η_g r/M. The result is the mean of the last two x. For ε → 0, each round halves r.
    """
    built = made("fedexp", epsilon=epsilon).build(Cohort(NUM_CLIENTS, NUM_CLIENTS, 0.1))
    gap = 1.0
    for number, (sent, model) in enumerate(played(built, np.zeros(NUM_CLIENTS), solved, num_rounds=6)):
        rate = max(1.0, gap**2 / (2 * (gap**2 / NUM_CLIENTS + epsilon)))
        left = gap * (1 - rate / NUM_CLIENTS)
        np.testing.assert_allclose(sent, 1 - gap, rtol=1e-6)
        np.testing.assert_allclose(model, 1 - (gap + left) / 2, rtol=1e-6)
        gap = left
        assert epsilon > 1e-6 or gap == pytest.approx(0.5 ** (number + 1))


def test_clients_weigh_equally_or_by_their_rows() -> None:
    """From x = 0 three clients with Δ = (2, 0, 0), (0, 2, 0) and (0, 0, 2), of 30, 10 and 40 rows.

    By rows p = (3, 1, 4)/8: Σ p_i‖Δ_i‖²/2 = 2, ‖Δ̄‖² = 4 · 26/64, η_g = 2/1.625 = 16/13; equal, η_g = 2/(4/3).
    """
    clients = list(2 * np.eye(3))
    rate, change = extrapolated_change(np.zeros(3), clients, np.array([3, 1, 4]) / 8, 1e-15)
    assert rate == pytest.approx(16 / 13)
    np.testing.assert_allclose(change, [0.75, 0.25, 1.0])
    for scaling, moved in (("num-examples", 16 / 13 * change), ("uniform", np.full(3, 1.5 * 2 / 3))):
        built = made("fedexp", sample_scaling=scaling, epsilon=1e-12).build(Cohort(3, 3, 0.1))
        ((_, model),) = played(built, np.zeros(3), lambda _: clients, 1, counts=[30, 10, 40])
        np.testing.assert_allclose(model, moved / 2, rtol=1e-6)


Vector = npt.NDArray[np.float64]
NU = 1e-6


def total_distance(point: Vector, models: Vector, weights: Vector) -> float:
    return float(weights @ np.linalg.norm(models - point, axis=1))


@pytest.mark.parametrize("seed", range(5))
def test_it_converges_to_the_minimiser_of_the_weighted_distances(seed: int) -> None:
    """As SciPy finds it; at no client's model, the sum of distances is smooth and BFGS applies."""
    generator = np.random.default_rng(seed)
    models = generator.normal(size=(7, 4))
    weights = generator.dirichlet(np.full(7, 5.0))
    found = minimize(total_distance, weights @ models, (models, weights), method="BFGS", options={"gtol": 1e-10})
    assert np.linalg.norm(models - found.x, axis=1).min() > 0.1
    median = geometric_median(list(models), weights, np.zeros(4), num_iterations=400, smoothing=NU)
    np.testing.assert_allclose(median, found.x, atol=1e-6)


def test_one_of_three_clients_at_infinity_leaves_a_bounded_result() -> None:
    """Two honest clients lie within D = 1 of x; the bound holds wherever the third is.

    A step goes from v by Σ β_k (y_k − v)/Σ β_k. As ‖β_k (y_k − v)‖ = p_k, that is at most 1/(β_1 + β_2), which is
    1.5 r where the honest clients are within r of v; then they are within 2.5 r. So after three steps v is within
    2.5³ D = 15.625 of them. As the third goes away, its direction alone stays: the results converge. At infinity it
    has no direction, and counts as one that is not there.
    """
    honest, results = [np.array([1.0, 0.0]), np.array([0.0, 0.8])], []
    built = made("rfa", sample_scaling="uniform").build(Cohort(3, 3, 0.1))
    for distance in (1e3, 1e6, 1e12, 1e30, np.inf):
        far = np.array([distance, 0.0])
        ((_, model),) = played(built, np.zeros(2), lambda _, far=far: [*honest, far], 1)
        assert max(np.linalg.norm(model - one) for one in honest) <= 2.5**3
        results.append(model)
    np.testing.assert_allclose(results[0], results[3], atol=0.05)
    np.testing.assert_allclose(results[2], results[3], rtol=1e-6)
    alone = geometric_median(honest, np.full(2, 0.5), np.zeros(2), 3, NU)
    np.testing.assert_allclose(results[4], alone, rtol=1e-6)


def test_a_client_weighs_by_its_rows_or_as_the_others() -> None:
    """Of two clients, the one with more than half of the weight is the weighted median."""
    models, found = [np.array([1.0, 2.0]), np.array([3.0, 1.0])], {}
    for scaling, counts in (("num-examples", (30, 10)), ("uniform", (30, 10)), ("uniform", (10, 10))):
        built = made("rfa", sample_scaling=scaling, num_iterations=1000).build(Cohort(2, 2, 0.1))
        ((_, found[scaling, counts]),) = played(built, np.array([5.0, 5.0]), lambda _: models, 1, counts=counts)
    np.testing.assert_allclose(found["num-examples", (30, 10)], models[0], atol=1e-5)
    np.testing.assert_array_equal(found["uniform", (30, 10)], found["uniform", (10, 10)])


# -- Centered clipping is FedAvg without a bound, and with one no client goes beyond it --------------------------------


def test_without_a_bound_it_is_fedavg_with_equal_weights() -> None:
    """Whatever was kept from the rounds before: v + mean(Δ_i − v) = mean Δ_i."""
    cohort = Cohort(6, 6, 0.1)
    ours = models(made("centered_clipping", clipping_radius=1e9).build(cohort), 6, num_rounds=4)
    theirs = models(made("fedavg", sample_scaling="uniform").build(cohort), 6, num_rounds=4)
    for model, fedavg in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(model, fedavg, rtol=1e-5, atol=1e-6)


def test_the_last_change_is_kept() -> None:
    """One client goes three further each round, τ = 1: v = 1, 2, 3, 3 and x = 1, 3, 6, 9, by hand."""
    built = made("centered_clipping", clipping_radius=1.0).build(Cohort(1, 1, 0.1))
    rounds = played(built, np.zeros(1), lambda sent: [sent + 3], num_rounds=4)
    np.testing.assert_allclose([model for _, model in rounds], [[1], [3], [6], [9]], rtol=1e-6)


@pytest.mark.parametrize("radius", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("strength", [1e-3, 1.0, 1e3, 1e30, np.inf])
def test_an_attacker_moves_the_model_by_at_most_its_share_of_the_bound(radius: float, strength: float) -> None:
    """Against the same round with a client in its place that asks for the last change, which adds nothing."""
    generator = np.random.default_rng(3)
    honest = list(generator.normal(size=(6, 5)))
    center = generator.normal(size=5)
    attack = strength * np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    with np.errstate(invalid="ignore"):
        attacked = clipped_mean([*honest, attack], center, radius)
    moved = float(np.linalg.norm(attacked - clipped_mean([*honest, center], center, radius)))
    assert moved <= radius / 7 * (1 + 1e-9)
    if 1e3 <= strength < np.inf:
        assert moved == pytest.approx(radius / 7)


def test_steps_by_hand() -> None:
    """From 0 models at distances 3 and 4 have β = ½/3 and ½/4: v = (½, ½)/(7/24); a second step starts from there."""
    models, weights = [np.array([3.0, 0.0]), np.array([0.0, 4.0])], np.array([0.5, 0.5])
    first = geometric_median(models, weights, np.zeros(2), num_iterations=1, smoothing=NU)
    np.testing.assert_allclose(first, [12 / 7, 12 / 7], rtol=1e-12)
    second = geometric_median(models, weights, first, num_iterations=1, smoothing=NU)
    np.testing.assert_array_equal(second, geometric_median(models, weights, np.zeros(2), 2, NU))


# -- FedBuff's order of events by hand, its limits, and the same bits for any hosts and after a stop -------------------


FAST, MIDDLE, SLOW = 2, 3, 4
"""Node ids of three clients."""


def events(
    spec: FedBuffSpec, seconds: Mapping[int, float], changes: Mapping[int, float], num_rounds: int
) -> list[tuple[list[int], float, float]]:
    """Play rounds of three clients of one parameter; return who was asked, how long each took, and its model."""
    strategy, model = spec.build(Cohort(3, 3, 0.1)), np.zeros(1, np.float32)
    played = []
    for server_round in range(1, num_rounds + 1):
        record = ArrayRecord({"flat": Array(model)})
        messages = list(strategy.configure_train(server_round, record, ConfigRecord(), grid_of(3)))
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            reply = reply_of(message, model + changes[node])
            reply.content.metric_records["metrics"][SIMULATED_SECONDS_KEY] = seconds[node]
            replies.append(reply)
        arrays, metrics = strategy.aggregate_train(server_round, replies)
        model = arrays["flat"].numpy()
        asked = sorted(message.metadata.dst_node_id for message in messages)
        played.append((asked, float(metrics[SIMULATED_SECONDS_KEY]), float(model[0])))  # type: ignore[arg-type]
    return played


def test_the_order_of_events_by_hand() -> None:
    """Clients take 1, 2.5 and 10 s and add 1, 10 and 100; each arrival makes a model (K = 1).

    Arrivals: fast at 1 and 2, middle at 2.5 with two models made meanwhile, fast at 3 (sent out at 2, one model since),
    fast at 4, middle at 5 (sent out at 2.5; two since) and fast at 5, of which that goes first that was sent out first.
    """
    found = events(FedBuffSpec(buffer_size=1), {FAST: 1, MIDDLE: 2.5, SLOW: 10}, {FAST: 1, MIDDLE: 10, SLOW: 100}, 7)
    assert [asked for asked, _, _ in found] == [[2, 3, 4], [2], [2], [3], [2], [2], [3]]
    assert np.cumsum([lasted for _, lasted, _ in found]).tolist() == [1, 2, 2.5, 3, 4, 5, 5]
    steps = [1, 1, 10 / sqrt(3), 1 / sqrt(2), 1, 10 / sqrt(3), 1 / sqrt(2)]
    np.testing.assert_allclose([model for _, _, model in found], np.cumsum(steps), rtol=1e-6)


def test_a_buffer_of_two_by_hand() -> None:
    """Fast at 1 and middle at 2.5 make the first model, both again at 3.5 and 5 the second, and at 6 and 7.5 the third.

    Then they would be back at 8.5 and 10; slow arrives at 10, too, and was sent out first, with three models since.
    """
    spec = FedBuffSpec(buffer_size=2, server_learning_rate=0.5)
    found = events(spec, {FAST: 1, MIDDLE: 2.5, SLOW: 10}, {FAST: 1, MIDDLE: 10, SLOW: 100}, 4)
    assert [asked for asked, _, _ in found] == [[2, 3, 4], [2, 3], [2, 3], [2, 3]]
    assert [lasted for _, lasted, _ in found] == [2.5] * 4
    steps = [0.5 * 11 / 2] * 3 + [0.5 * (1 + 100 / sqrt(4)) / 2]
    np.testing.assert_allclose([model for _, _, model in found], np.cumsum(steps), rtol=1e-6)


def timed(devices: Mapping[int, Device]) -> ClientHost:
    return ClientHost(replace(uneven_federation(), devices=devices), QUERIES)


SLOW_AND_FAST = {client: Device(seconds_per_step=0.1 * client, mean_seconds=1.0) for client in range(7)}


@pytest.mark.parametrize("seconds", [[1.0] * 7, [1.0, 5.0, 2.0, 9.0, 3.0, 1.0, 4.0]])
def test_waiting_for_everybody_is_fedavg(seconds: Sequence[float]) -> None:
    """With K = all and η_g = 1, whatever the durations; and it lasts as long, where a smaller buffer is full before."""
    host = timed({client: Device(shift_seconds=each) for client, each in enumerate(seconds)})
    ours = result_of(host, FedBuffSpec(buffer_size=5), num_rounds=4)
    theirs = result_of(host, made("fedavg", sample_scaling="uniform"), num_rounds=4)
    np.testing.assert_allclose(ours.vector, theirs.vector, atol=1e-6)
    cohort = Cohort(7, 5, 0.1)
    assert FedBuffSpec(buffer_size=5).equivalent(cohort) == made("fedavg", sample_scaling="uniform")
    assert [len(FedBuffSpec(buffer_size=size).faults(cohort)) for size in (5, 6)] == [0, 1]
    assert ours.seconds["simulated"] == pytest.approx(sum(ours.rounds["seconds"])) == theirs.seconds["simulated"]
    fewer = result_of(host, FedBuffSpec(buffer_size=2), num_rounds=4)
    assert fewer.rounds["seconds"][0] <= theirs.rounds["seconds"][0]


def test_updates_on_their_way_survive_a_stop(tmp_path: Path) -> None:
    spec = spec_of(FedBuffSpec(), num_rounds=4)
    again, at_once = assert_going_on(spec, timed(SLOW_AND_FAST), tmp_path, stopped_in=3)
    assert again.rounds.get("seconds") == at_once.rounds.get("seconds")
