"""Laws of FedPop's local half."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.seeds import stream
from fedscout.strategies.methods.tuned_clients import Configuration, FedPop, FedPopSpec
from tests.engine.federations import uneven_federation
from tests.strategies.by_hand import SEED, SIZES, TRAINING, ended, host_of, result_of, weights_of
from tests.strategies.test_fedex import SHARE, ValidatingHand

EVERYBODY = len(SIZES)


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> list[FedPop]:
    """The server's halves of all trials that have ended."""
    return ended(FedPop, monkeypatch)


def rule_of(**values: Any) -> FedPop:
    return FedPop(FedPopSpec(**values), fraction_train=1.0)


@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_rounds_are_those_written_out(backend: Any, rules: list[FedPop]) -> None:
    """Five rounds in float64 that evolve after the second and the fourth: draws, training, scores, copies."""
    spec = FedPopSpec(
        num_configurations=3, evolve_every=2, quantile=0.34, perturbation=0.5, resample=0.4, validation_share=SHARE
    )
    host, federation = host_of(), uneven_federation(sizes=SIZES)
    result = result_of(host, spec, num_sampled=EVERYBODY, num_rounds=5, backend=backend)
    population = np.array([[each.rate, each.epochs, each.batch] for each in spec.configurations()], np.float32)
    spans = np.log([4.0, 3.0, 2.0])
    vector: Any = host.initial_vector(SEED).astype(np.float64)
    wrong, rows, replaced = np.zeros(3), np.zeros(3), []
    for server_round in range(1, 6):
        wrong, rows, models = 0.9 * wrong, 0.9 * rows, []
        for client in range(EVERYBODY):
            drawn = int(stream(SEED, "settings", server_round, client).integers(3))
            hand = ValidatingHand(federation, Configuration(*population[drawn].tolist()).of(TRAINING))
            models.append(hand.descend(vector, client, server_round)[0])
            found = hand.validated(models[-1], client)
            wrong[drawn] += found[0]
            rows[drawn] += found[1]
        vector = weights_of(ValidatingHand(federation), range(EVERYBODY)) @ np.array(models)
        if server_round in (2, 4):
            generator, order = stream(SEED, "population", server_round), np.argsort(wrong / rows, kind="stable")
            best, worst = order[:2], order[2]  # ⌈.34 · 3⌉ = 2, and who is copied is not replaced
            from_study = generator.random() < 0.4
            copied = np.zeros(3) if from_study else np.log(population[generator.choice(best)].astype(np.float64))
            moved = copied + 0.5 * spans * generator.uniform(-1, 1, 3)
            population[worst] = np.exp(np.clip(moved, -spans, spans))
            replaced.append(int(worst))
            wrong, rows = np.zeros(3), np.zeros(3)
    (rule,) = rules
    np.testing.assert_allclose(result.vector, vector, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(rule.population, population)
    assert (rule.num_evolutions, len(replaced)) == (2, 2)


def test_the_worst_are_copies_of_the_best() -> None:
    """Of ten with a score ⌈.3 · 10⌉ = 3 are replaced, by neighbours of 3; two that nobody drew stay as they are."""
    rule = rule_of(num_configurations=12, perturbation=1e-6, resample=0)
    before = rule.population.copy()
    shares = np.array([0.9, 0.1, 0.8, 0.2, 0.5, 0.5, 0.7, 0.5, 0.15, 0.5, 0.0, 0.0])
    rule.wrong, rule.rows = 10 * shares, np.array([10.0] * 10 + [0.0] * 2)
    rule.evolve(np.random.default_rng(0))
    kept = [1, 3, 4, 5, 7, 8, 9, 10, 11]
    np.testing.assert_array_equal(rule.population[kept], before[kept])
    for place in (0, 2, 6):
        nearest = np.abs(before[[1, 3, 8]] / rule.population[place] - 1).max(axis=1).min()
        assert nearest < 1e-5
    assert rule.best()[1] == Configuration(*before[1].tolist())
    assert (rule.wrong.sum(), rule.rows.sum(), rule.num_rounds) == (0, 0, 0)


def test_copies_of_the_study_s_setting_fill_the_range_evenly() -> None:
    """With `resample=1` log c / log factor is uniform in [−1, 1]: mean 0, variance 1/3."""
    rule = rule_of(num_configurations=2, resample=1, quantile=0.5)
    generator, seen = np.random.default_rng(1), []
    for _ in range(2000):
        rule.wrong, rule.rows = np.array([0.0, 1.0]), np.ones(2)
        rule.evolve(generator)
        seen.append(np.log(rule.population[1]) / np.log([4.0, 3.0, 2.0]))
    places = np.array(seen)
    assert np.abs(places).max() <= 1 + 1e-6
    np.testing.assert_allclose(places.mean(axis=0), 0, atol=4 * np.sqrt(1 / 3 / 2000))
    np.testing.assert_allclose(places.var(axis=0), 1 / 3, atol=0.03)


def test_copies_stay_inside_the_factors() -> None:
    rule = rule_of(num_configurations=2, resample=0, quantile=0.5, batch_factor=1.0)
    generator = np.random.default_rng(2)
    for place in range(400):
        rule.wrong, rule.rows = np.array([place % 2, 1 - place % 2], np.float64), np.ones(2)
        rule.evolve(generator)
    bounds = np.array([4.0, 3.0, 1.0], np.float32)
    assert (rule.population <= bounds * (1 + 1e-6)).all()
    assert (rule.population >= (1 - 1e-6) / bounds).all()
    assert rule.num_evolutions == 400


@pytest.mark.parametrize(("discount", "first"), [(0.0, 1), (1.0, 0)])
def test_scores_discount_earlier_rounds(discount: float, first: int) -> None:
    """The first did better in the first round by more than the second in the second."""
    rule = rule_of(num_configurations=2, score_discount=discount)
    rule.move(np.array([0.0, 9.0]), np.array([10.0, 10.0]))
    rule.move(np.array([5.0, 1.0]), np.array([10.0, 10.0]))
    assert rule.best()[1] == Configuration(*rule.population[first].tolist())


def test_evolution_comes_every_so_many_rounds() -> None:
    rule = rule_of(num_configurations=2, evolve_every=3)
    seen = []
    for _ in range(7):
        rule.move(np.array([1.0, 2.0]), np.array([10.0, 10.0]))
        seen.append(rule.num_evolutions)
    assert seen == [0, 0, 1, 1, 1, 2, 2]


def test_a_rate_that_is_far_too_low_rises(rules: list[FedPop]) -> None:
    """With a fortieth of the usual step size what validates well is at the upper end."""
    training = TRAINING.model_copy(update={"learning_rate": TRAINING.learning_rate / 40, "local_epochs": 1})
    spec = FedPopSpec(num_configurations=8, evolve_every=1, validation_share=SHARE, rate_factor=30)
    result = result_of(host_of(), spec, num_sampled=EVERYBODY, num_rounds=25, training=training)
    (rule,) = rules
    assert np.median(rule.population[:, 0]) > np.median([each.rate for each in spec.configurations()])
    (note,) = result.notes
    assert " 8 configurations" in note
    assert " 25 evolutions" in note


def test_the_first_population_is_around_the_study_s_setting() -> None:
    rule = rule_of(num_configurations=50)
    training = LocalTraining(local_epochs=4, batch_size=32, learning_rate=0.2)
    found = [Configuration(*each).of(training) for each in rule.population.tolist()]
    assert found[0] == training
    assert len(set(found)) == 50
