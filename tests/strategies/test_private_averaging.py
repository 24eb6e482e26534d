"""DP-FedAvg: what it is without noise, how much noise there is, what is refused, and (ε, δ) by closed forms."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from flwr.serverapp import strategy as flower
from scipy.optimize import brentq
from scipy.stats import norm

from fedscout.engine.errors import StrategyError, TrialError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import parse_strategy
from fedscout.strategies.methods import dp_fedavg
from tests.kits.refusals import refused
from tests.strategies.by_hand import host_of, result_of
from tests.strategies.rounds import asked, models, reply_of

COHORT = Cohort(num_clients=6, num_sampled=4, client_learning_rate=0.1, num_rounds=5)
AROUND = [spec_class.model_fields["kind"].default for spec_class in get_args(dp_fedavg.Averaged)]
Vector = npt.NDArray[np.float32]


def spec(**parameters: Any) -> Any:
    return parse_strategy({"kind": "dp_fedavg", **parameters})


def aggregated(built: flower.Strategy, changes: list[Vector], received: Vector) -> Vector | None:
    """The model after a round in which clients changed it by so much."""
    random.seed(0)
    messages = enumerate(zip(asked(built, received, COHORT.num_clients), changes, strict=True))
    replies = [reply_of(message, received + change, 10 + 90 * client) for client, (message, change) in messages]
    np.random.seed(0)  # noqa: NPY002 - what Flower draws noise from
    arrays, _ = built.aggregate_train(1, replies)
    return None if arrays is None else arrays["flat"].numpy()


def changes_of_lengths(*lengths: float, size: int = 50) -> list[Vector]:
    generator = np.random.default_rng(5)
    drawn = [generator.normal(size=size) for _ in lengths]
    pairs = zip(drawn, lengths, strict=True)
    return [(vector * (length / np.linalg.norm(vector))).astype(np.float32) for vector, length in pairs]


# -- what it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", ["fixed", "adaptive"])
@pytest.mark.parametrize("kind", AROUND)
def test_without_noise_and_clipping_it_is_what_it_wraps(kind: str, clipping: str) -> None:
    """To 1e-5: an update that is not clipped is still taken from the model and added again, in float32."""
    private = spec(around=kind, noise_multiplier=0, clipping_norm=1e9, clipping=clipping)
    plain = parse_strategy({"kind": kind, "sample_scaling": "uniform"})
    ours, theirs = (models(each.build(COHORT), COHORT.num_clients) for each in (private, plain))
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert private.client_algorithm() == plain.client_algorithm()


@pytest.mark.parametrize("kind", ["fedavg", "fedprox"])
def test_around_a_plain_mean_it_is_flowers_wrapper_to_the_bit(kind: str) -> None:
    """Of equal weights, which Flower's own accounting asks for as well."""
    changes, received = changes_of_lengths(0.5, 2, 3, 0.1), np.linspace(-1, 1, 50, dtype=np.float32)
    plain: Any = parse_strategy({"kind": kind, "sample_scaling": "uniform"}).build(COHORT)
    flowers = flower.DifferentialPrivacyServerSideFixedClipping(plain, 0.8, 1.0, COHORT.num_sampled)
    ours = spec(around=kind, noise_multiplier=0.8, clipping_norm=1.0).build(COHORT)
    np.testing.assert_array_equal(
        aggregated(ours, changes, received), aggregated(flowers, changes, received), strict=True
    )


@pytest.mark.parametrize("kind", AROUND)
def test_the_server_rule_sees_the_noisy_mean_alone(kind: str) -> None:
    """It gives what it gives on one reply that is the noisy mean, so momentum carries nothing else on."""
    changes, received = changes_of_lengths(0.5, 2, 3, 0.1), np.linspace(-1, 1, 50, dtype=np.float32)
    noisy = aggregated(spec(noise_multiplier=0.8).build(COHORT), changes, received)
    found = aggregated(spec(around=kind, noise_multiplier=0.8).build(COHORT), changes, received)
    rule: Any = parse_strategy({"kind": kind, "sample_scaling": "uniform"}).build(replace(COHORT, num_sampled=1))
    np.testing.assert_allclose(found, aggregated(rule, [noisy - received], received), atol=1e-6)


def test_the_noise_has_the_deviation_that_the_accountant_is_told() -> None:
    """z·C/m in every coordinate; of 200,000 draws the deviation is known to 1/√400,000, here five times as wide."""
    received = np.zeros(200_000, np.float32)
    changes = changes_of_lengths(2, 2, 2, 2, size=len(received))
    noisy, silent = (
        aggregated(spec(noise_multiplier=noise, clipping_norm=0.7).build(COHORT), changes, received)
        for noise in (1.5, 0)
    )
    noise = np.subtract(noisy, silent, dtype=np.float64)
    assert noise.std() == pytest.approx(1.5 * 0.7 / 4, rel=5 / np.sqrt(2 * len(received)))
    assert abs(noise.mean()) < 5 * 1.5 * 0.7 / 4 / np.sqrt(len(received))


def test_a_round_that_not_every_sampled_client_answers_gives_no_model() -> None:
    built = spec().build(COHORT)
    *answered, lost = asked(built, np.zeros(3), COHORT.num_clients)
    replies = [reply_of(message, np.ones(3)) for message in answered]
    assert built.aggregate_train(1, replies) == (None, None)
    assert built.aggregate_train(1, [*replies, reply_of(lost, None)]) == (None, None)


def test_a_client_that_changes_nothing_is_told_of() -> None:
    changes = [*changes_of_lengths(1, 1, 1), np.zeros(50, np.float32)]
    with pytest.raises(TrialError, match="length 0"):
        aggregated(spec().build(COHORT), changes, np.zeros(50, np.float32))


# -- adaptive clipping -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0.05, 50.0])
@pytest.mark.parametrize(("clipped", "between"), [(0.5, (1.0, 3.0)), (0.25, (3.0, 9.0)), (0.75, (0.3, 1.0))])
def test_the_norm_ends_at_the_quantile(start: float, clipped: float, between: tuple[float, float]) -> None:
    """Four clients change the model by 0.3, 1, 3 and 9: half of them are clipped between 1 and 3, and so on."""
    parameters = {"clipping": "adaptive", "clipping_norm": start, "target_clipped_quantile": clipped}
    built: Any = spec(noise_multiplier=0, **parameters).build(COHORT)
    changes, received = changes_of_lengths(0.3, 1, 3, 9), np.zeros(50, np.float32)
    for _ in range(60):
        aggregated(built, changes, received)
    low, high = between
    assert low * 0.999 <= built.private.clipping_norm <= high * 1.001


def test_the_noise_is_that_of_the_norm_by_which_the_round_was_clipped() -> None:
    """All are clipped, so the norm then grows by e^(0.2·0.5), give or take the noise on the count."""
    received = np.zeros(100_000, np.float32)
    changes = changes_of_lengths(2, 2, 2, 2, size=len(received))
    parameters = {"clipping": "adaptive", "clipping_norm": 0.7}
    built: Any = spec(noise_multiplier=0.3, clipped_count_stddev=0.2, **parameters).build(COHORT)
    silent = aggregated(spec(noise_multiplier=0, clipping_norm=0.7).build(COHORT), changes, received)
    noise = np.subtract(aggregated(built, changes, received), silent, dtype=np.float64)
    of_the_model = (0.3**-2 - (2 * 0.2) ** -2) ** -0.5  # Andrew et al. 2021, Theorem 1
    assert noise.std() == pytest.approx(of_the_model * 0.7 / 4, rel=5 / np.sqrt(2 * len(received)))
    assert built.private.clipping_norm == pytest.approx(0.7 * np.exp(0.1), rel=0.05)


# -- what is accepted ------------------------------------------------------------------------------------------------


AROUND_KEY, EPSILON_KEY = "around of dp_fedavg", "epsilon of dp_fedavg"


@pytest.mark.parametrize(
    ("parameters", "key", "names"),
    [
        ({"around": "krum"}, AROUND_KEY, "(fedavg, fedprox, fedavgm, fedadagrad, fedadam, fedyogi), got 'krum'"),
        ({"around": {"eta": 1}}, AROUND_KEY, "{'eta': 1}"),
        ({"around": "dp_fedavg"}, AROUND_KEY, "'dp_fedavg'"),
        ({"around": {"kind": "fedavg", "sample_scaling": "num-examples"}}, AROUND_KEY, "sample_scaling=uniform"),
        ({"around": {"kind": "fedavg", "client_batch_size": 3}}, AROUND_KEY, "client_batch_size"),
        ({"around": {"kind": "fedadam", "eta": -1}}, "around.fedadam.eta", "-1"),
        ({"noise_multiplier": 1, "epsilon": 2}, "dp_fedavg.noise_multiplier", "1.0 and 2.0"),
        ({"clip_norm_lr": 0.1}, "dp_fedavg.clip_norm_lr", "clipping=adaptive"),
        ({"epsilon": 1e-6, "delta": 1e-9}, EPSILON_KEY, "1e-06"),
        ({"epsilon": 1e9}, EPSILON_KEY, "1e+09"),
        ({"clipping": "adaptive"}, "clipped_count_stddev", "0.5"),
    ],
)
def test_what_is_refused(parameters: dict[str, Any], key: str, names: str) -> None:
    with refused(StrategyError, key=key, names=names):
        parse_strategy({"kind": "dp_fedavg", **parameters}, COHORT)


def test_the_largest_epsilon_is_that_of_the_least_noise_and_has_to_know_the_rounds() -> None:
    most = dp_fedavg.epsilon_of(dp_fedavg.LEAST_NOISE, dp_fedavg.Sampling(6, 4, 5), 1e-3)
    assert spec(epsilon=most, delta=1e-3).noise(COHORT) == dp_fedavg.LEAST_NOISE
    for epsilon, cohort in ((1.01 * most, COHORT), (3, replace(COHORT, num_rounds=None))):
        with refused(StrategyError, key=EPSILON_KEY):
            spec(epsilon=epsilon, delta=1e-3).build(cohort)
    one = dp_fedavg.Sampling(10, 10, 1)
    assert dp_fedavg.noise_for(1e-9, one, 1e-9) == dp_fedavg.epsilon_of(0.0, one, DELTA) == math.inf
    assert dp_fedavg.noise_for(1e9, one, DELTA) == dp_fedavg.LEAST_NOISE


def test_without_the_library_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with refused(StrategyError, key="dp_fedavg", names="dp-accounting"):
        spec().build(COHORT)


@pytest.mark.parametrize("around", ["fedavg", {"kind": "fedadam", "eta": 0.3}])
def test_its_document_makes_it_again(around: Any) -> None:
    found = spec(around=around, epsilon=3, client_batch_size=7)
    assert parse_strategy(json.dumps({"kind": found.kind, **found.parameters()})) == found
    assert found.search_names() == ("clipping_norm",)  # noise is not searched
    assert found.with_values({"clipping_norm": 0.2}).clipping_norm == 0.2


# -- what it costs ---------------------------------------------------------------------------------------------------


def test_the_cost_is_that_of_the_accountant() -> None:
    private, wanted = spec(noise_multiplier=2, delta=1e-3), spec(epsilon=4.0, delta=1e-3)
    assert private.notes_after(COHORT, 0) == [], "lost rounds cost nothing"
    for num_rounds, notes in ((5, private.notes(COHORT)), (3, private.notes_after(COHORT, 3))):
        (note,) = notes
        assert f"(ε = {dp_fedavg.epsilon_of(2.0, dp_fedavg.Sampling(6, 4, num_rounds), 1e-3):.4g}, δ = 0.001)" in note
    everybody, built = replace(COHORT, num_sampled=6), wanted.build(replace(COHORT, num_sampled=6)).private
    found = dp_fedavg.epsilon_of(built.noise_multiplier, dp_fedavg.Sampling(6, 6, 5), 1e-3)
    assert found == pytest.approx(4.0, rel=1e-3)
    assert "ε = 4, " in wanted.notes(everybody)[0]


# -- in a trial ------------------------------------------------------------------------------------------------------


def test_a_shorter_trial_has_the_noise_of_the_whole_one() -> None:
    """A race's rungs are the beginnings of one training, whose ε is meant."""
    host = host_of()
    short = result_of(host, spec(epsilon=4.0), num_rounds=2, is_full=False, full_rounds=4)
    assert short.rounds["loss"] == result_of(host, spec(epsilon=4.0), num_rounds=4).rounds["loss"][:2]


# -- (ε, δ) against closed forms and against other accountants ---------------------------------------------------------


DELTA = 1e-3


def analytic_epsilon(deviation: float, sensitivity: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8: δ(ε) = Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ), solved for ε."""
    ratio = deviation / sensitivity

    def excess(epsilon: float) -> float:
        near, far = 1 / (2 * ratio) - epsilon * ratio, -1 / (2 * ratio) - epsilon * ratio
        return float(norm.cdf(near) - math.exp(epsilon) * norm.cdf(far)) - delta

    return 0.0 if excess(0) <= 0 else float(brentq(excess, 0, 500))


def sampled_epsilon_at_least(noise_multiplier: float, sampled_share: float, delta: float) -> float:
    """A lower bound for one round: all clients but one send nothing, that one sends C or, exchanged, −C.

    P = (1−q)N(0, z²) + q N(1, z²) against Q = (1−q)N(0, z²) + q N(−1, z²), ∫ max(0, P − e^ε Q) = δ.
    """
    at = np.linspace(-30, 30, 400_001)
    apart = [
        (1 - sampled_share) * norm.pdf(at, 0, noise_multiplier) + sampled_share * norm.pdf(at, mean, noise_multiplier)
        for mean in (1, -1)
    ]
    step = at[1] - at[0]

    def excess(epsilon: float) -> float:
        return float(np.maximum(0, apart[0] - math.exp(epsilon) * apart[1]).sum() * step) - delta

    return 0.0 if excess(0) <= 0 else float(brentq(excess, 0, 50))


def by_the_library(noise_multiplier: float, sampling: dp_fedavg.Sampling, delta: float) -> float:
    """Rényi divergences of all orders that dp-accounting has; for an exchanged client noise counts half."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant: Any = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
    event = dp_accounting.SampledWithoutReplacementDpEvent(sampling.num_clients, sampling.num_sampled, gaussian)
    accountant.compose(event, sampling.num_rounds)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 2.5, 20.0])
@pytest.mark.parametrize("delta", [1e-6, DELTA, 0.05])
def test_one_round_of_all_clients_is_the_gaussian_mechanism(noise_multiplier: float, delta: float) -> None:
    """Of deviation z·C, and sensitivity 2C as one client is exchanged for another."""
    expected = analytic_epsilon(noise_multiplier * 0.7, 2 * 0.7, delta)
    assert dp_fedavg.epsilon_of(noise_multiplier, dp_fedavg.Sampling(10, 10, 1), delta) == pytest.approx(
        expected, rel=1e-6, abs=1e-9
    )


def test_rounds_of_all_clients_are_those_of_another_accountant() -> None:
    """The composition of privacy loss distributions, which rounds up on its grid of 1e-4, a round at a time.

    It takes the noise over one client's part, and doubles the sensitivity for one that is exchanged itself.
    """
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant: Any = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(6.0), 20))
    ours = dp_fedavg.epsilon_of(6.0, dp_fedavg.Sampling(10, 10, 20), DELTA)
    assert ours <= accountant.get_epsilon(DELTA) <= ours + 20 * 1e-4


@pytest.mark.parametrize("noise_multiplier", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("num_sampled", [2, 10, 60])
def test_sampling_costs_what_an_attack_shows_and_no_more_than_the_accountant_says(
    noise_multiplier: float, num_sampled: int
) -> None:
    """Of fewer orders, the bound is looser by at most a hundredth; that of all clients may be the smaller one."""
    found = dp_fedavg.epsilon_of(noise_multiplier, dp_fedavg.Sampling(100, num_sampled, 1), DELTA)
    assert sampled_epsilon_at_least(noise_multiplier, num_sampled / 100, DELTA) <= found
    for num_rounds in (1, 10):
        sampling = dp_fedavg.Sampling(100, num_sampled, num_rounds)
        whole = dp_fedavg.epsilon_of(noise_multiplier, replace(sampling, num_sampled=100), DELTA)
        expected = min(whole, by_the_library(noise_multiplier, sampling, DELTA))
        assert expected * (1 - 1e-9) <= dp_fedavg.epsilon_of(noise_multiplier, sampling, DELTA) <= expected * 1.01


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sampling", "epsilon"),
    [
        (dp_fedavg.Sampling(20, 20, 7), 0.5),
        (dp_fedavg.Sampling(20, 20, 7), 200.0),
        pytest.param(dp_fedavg.Sampling(200, 10, 30), 0.5, marks=pytest.mark.slow),
        pytest.param(dp_fedavg.Sampling(200, 10, 30), 8.0, marks=pytest.mark.slow),
        pytest.param(dp_fedavg.Sampling(200, 10, 30), 200.0, marks=pytest.mark.slow),
    ],
)
def test_the_noise_that_is_found_just_suffices(sampling: dp_fedavg.Sampling, epsilon: float) -> None:
    noise = dp_fedavg.noise_for(epsilon, sampling, DELTA)
    assert epsilon * (1 - 1e-3) <= dp_fedavg.epsilon_of(noise, sampling, DELTA) <= epsilon
    assert dp_fedavg.epsilon_of(noise * 0.999, sampling, DELTA) > epsilon


def test_delta_is_below_one_over_the_clients() -> None:
    assert [dp_fedavg.default_delta(clients) * clients < 1 for clients in (2, 10, 10_000)] == [True] * 3
    assert dp_fedavg.default_delta(100) == pytest.approx(10**-2.2)
    assert 0 < dp_fedavg.default_delta(1) < 1


def test_a_delta_that_protects_nobody_is_noted() -> None:
    assert [len(spec(delta=delta).notes(COHORT)) for delta in (1e-3, 0.5)] == [1, 2]
    (note,) = spec(noise_multiplier=0).notes(COHORT)
    assert note.startswith("noise_multiplier 0 ")
