"""FedEx and FedPop, which tune what clients train with: their laws, and rounds written out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Release
from fedscout.engine.seeds import stream
from fedscout.strategies import FedAvgSpec
from fedscout.strategies.methods.tuned_clients import Configuration, FedEx, FedExSpec, FedPop, FedPopSpec, Schedule
from tests.engine.federations import QUERIES, uneven_federation
from tests.strategies.by_hand import SEED, SIZES, TRAINING, Hand, ended, host_of, result_of, spec_of, weights_of

EVERYBODY = len(SIZES)
SHARE = 0.25
THREE = (Configuration(), Configuration(2.0, 1.0, 0.5), Configuration(0.5, 2.0, 1.0))


class ChosenSpec(FedExSpec):
    """FedEx with given configurations."""

    kind: Literal["chosen"] = "chosen"  # type: ignore[assignment]
    chosen: tuple[tuple[float, float, float], ...] = ()

    def configurations(self) -> tuple[Configuration, ...]:
        return tuple(Configuration(*each) for each in self.chosen)


def choice_of(*configurations: Configuration, **values: Any) -> ChosenSpec:
    return ChosenSpec(chosen=tuple((one.rate, one.epochs, one.batch) for one in configurations), **values)


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> list[FedEx]:
    """The server's halves of all trials that have ended."""
    return ended(FedEx, monkeypatch)


def validated(hand: Hand, vector: Any, client: int) -> tuple[int, int]:
    """Return a client's validation rows: those that a model gets wrong, and all."""
    features, labels = hand._rows(client, "validation")
    outputs = hand.loaded(vector).eval()(features)
    return int((outputs.argmax(dim=1) != labels).sum()), len(labels)


def round_by_hand(
    vector: Any, server_round: int, configurations: Sequence[Configuration], draw: Callable[[np.random.Generator], int]
) -> tuple[Any, Any, Any]:
    """Return each configuration's validation rows, the wrong ones and all, and the mean of the clients' models."""
    federation = uneven_federation(sizes=SIZES)
    wrong, rows, models = np.zeros(3), np.zeros(3), []
    for client in range(EVERYBODY):
        drawn = int(draw(stream(SEED, "settings", server_round, client)))
        hand = Hand(federation, configurations[drawn].of(TRAINING), validation_share=SHARE)
        models.append(hand.descend(vector, client, server_round)[0])
        found = validated(hand, models[-1], client)
        wrong[drawn] += found[0]
        rows[drawn] += found[1]
    return wrong, rows, weights_of(Hand(federation, validation_share=SHARE), range(EVERYBODY)) @ np.array(models)


@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_rounds_are_the_paper_s_update(backend: Any, rules: list[FedEx]) -> None:
    """Three rounds in float64: draws, local training, the mean, and θ by the adaptive step with the last baseline."""
    spec = choice_of(*THREE, schedule="adaptive", baseline_discount=0.0, validation_share=SHARE)
    host = host_of()
    result = result_of(host, spec, num_sampled=EVERYBODY, num_rounds=3, backend=backend)
    vector: Any = host.initial_vector(SEED).astype(np.float64)
    theta, squares, baseline, different = np.full(3, 1 / 3), 0.0, None, set()
    for server_round in (1, 2, 3):
        draw = partial(np.random.Generator.choice, a=3, p=theta)
        wrong, rows, vector = round_by_hand(vector, server_round, THREE, draw)
        different |= {*np.flatnonzero(rows)}
        loss = wrong.sum() / rows.sum()
        gradient = (wrong - (loss if baseline is None else baseline) * rows) / (theta * rows.sum())
        squares, baseline = squares + np.abs(gradient).max() ** 2, loss
        theta = theta * np.exp(-np.sqrt(2 * np.log(3) / squares) * gradient)
        theta /= theta.sum()
    assert different == {0, 1, 2}
    np.testing.assert_allclose(result.vector, vector, rtol=0, atol=2e-6)
    np.testing.assert_allclose(rules[0].weights, theta, rtol=0, atol=1e-6)
    assert np.ptp(theta) > 0.1


@pytest.mark.parametrize(
    ("schedule", "etas"),
    [
        ("aggressive", (1 / 0.15, 1 / 0.6)),
        ("adaptive", (1 / 0.15, 1 / np.sqrt(0.15**2 + 0.6**2))),
        ("constant", (1.0, 1.0)),
    ],
)
def test_two_steps_by_hand(schedule: Schedule, etas: tuple[float, float]) -> None:
    """θ = (½, ½). Of 10 rows each, 5 and 2 are wrong: λ = .35, ∇ = (5 − 3.5, 2 − 3.5)/(½ · 20) = (.15, −.15).

    Then from (½, ½) again 13 of 20 rows, all of the first: λ = .35 still, ∇ = (13 − 7)/(½ · 20) = .6, and 0.
    """
    rule = FedEx(THREE[:2], schedule, 0.5, fraction_train=1.0)
    first = np.sqrt(2 * np.log(2))
    rule.move(np.array([5.0, 2.0]), np.array([10.0, 10.0]))
    expected = np.exp([-first * etas[0] * 0.15, first * etas[0] * 0.15])
    np.testing.assert_allclose(rule.weights, expected / expected.sum(), rtol=1e-12)
    rule.weights = np.array([0.5, 0.5])
    rule.move(np.array([13.0, 0.0]), np.array([20.0, 0.0]))
    expected = np.array([np.exp(-first * etas[1] * 0.6), 1.0])
    np.testing.assert_allclose(rule.weights, expected / expected.sum(), rtol=1e-12)


def test_clients_that_diverge_do_not_end_the_trial(rules: list[FedEx]) -> None:
    """With such a rate FedAvg fails; here the configuration loses, and the notes tell of it."""
    training = TRAINING.model_copy(update={"momentum": 0.9})
    spec = choice_of(Configuration(), Configuration(rate=1e7), validation_share=SHARE)
    result = result_of(host_of(), spec, num_sampled=EVERYBODY, training=training)
    assert rules[0].num_diverged > 0
    assert rules[0].weights[1] < 0.5
    best, diverged = result.notes
    assert re.findall(r"[\d.]*\d", best) == ["2", "1", f"{rules[0].weights[0]:.2f}", "0.1", "2", "8"]
    assert diverged.startswith(f"{rules[0].num_diverged} ")


def test_without_validation_rows_all_keep_their_weights(rules: list[FedEx]) -> None:
    """Clients that abstain from scores over few rows abstain here, too."""
    federation = replace(uneven_federation(sizes=SIZES), release=Release(min_release=5, small_clients="abstain"))
    result = result_of(ClientHost(federation, QUERIES), FedExSpec(num_configurations=3), num_sampled=EVERYBODY)
    assert rules[0].weights.tolist() == [1 / 3] * 3
    assert any("validation rows" in note for note in result.notes)


def test_configurations_surround_the_study_s_setting() -> None:
    spec, training = FedExSpec(num_configurations=50), LocalTraining(local_epochs=4, batch_size=32, learning_rate=0.2)
    found = [each.of(training) for each in spec.configurations()]
    assert found[0] == training
    assert len(set(found)) == 50
    for name, low, high in (("learning_rate", 0.05, 0.8), ("local_epochs", 1, 12), ("batch_size", 16, 64)):
        values = [getattr(each, name) for each in found]
        assert low <= min(values) < low * 1.3
        assert high / 1.3 < max(values) <= high
    narrow = FedExSpec(rate_factor=1, epochs_factor=1, batch_factor=1)
    assert {each.of(training) for each in narrow.configurations()} == {training}


def test_validation_rows_are_cut_unless_the_study_has_some() -> None:
    assert spec_of(FedExSpec()).session.validation_fraction == 0.1
    assert spec_of(FedExSpec(), validation_fraction=0.3).session.validation_fraction == 0.3
    assert spec_of(FedAvgSpec()).session.validation_fraction == 0


# -- Laws of FedPop's local half ---------------------------------------------------------------------------------------


def rule_of(**values: Any) -> FedPop:
    return FedPop(FedPopSpec(**values), fraction_train=1.0)


@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_rounds_are_those_written_out(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rounds in float64 that evolve after the second and the fourth: draws, training, scores, copies."""
    spec = FedPopSpec(
        num_configurations=3, evolve_every=2, quantile=0.34, perturbation=0.5, resample=0.4, validation_share=SHARE
    )
    host, rules = host_of(), ended(FedPop, monkeypatch)
    result = result_of(host, spec, num_sampled=EVERYBODY, num_rounds=5, backend=backend)
    population = np.array([[each.rate, each.epochs, each.batch] for each in spec.configurations()], np.float32)
    spans = np.log([4.0, 3.0, 2.0])
    vector: Any = host.initial_vector(SEED).astype(np.float64)
    wrong, rows, replaced = np.zeros(3), np.zeros(3), []
    for server_round in range(1, 6):
        configurations = [Configuration(*each) for each in population.tolist()]
        new_wrong, new_rows, vector = round_by_hand(
            vector, server_round, configurations, lambda generator: generator.integers(3)
        )
        wrong, rows = 0.9 * wrong + new_wrong, 0.9 * rows + new_rows
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
