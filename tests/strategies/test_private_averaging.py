"""DP-FedAvg's laws: what it is without noise, how much noise there is, and who it is refused around."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.serverapp import strategy as flower

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import StrategyError, TrialError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import BUILT_IN_KINDS, DPFedAvgSpec, FedAvgSpec, parse_strategy, space_of
from fedscout.strategies.methods.dp_fedavg import AVERAGING, LEAST_NOISE, Sampling, epsilon_of
from tests.engine.federations import QUERIES, uneven_federation
from tests.engine.trials.test_resume import interrupt_in
from tests.kits.refusals import refused
from tests.strategies.rounds import asked, models, reply_of

COHORT = Cohort(num_clients=6, num_sampled=4, client_learning_rate=0.1, num_rounds=5)
AROUND = [spec_class.model_fields["kind"].default for spec_class in AVERAGING]
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


def test_one_client_moves_the_mean_by_no_more_than_the_norm_over_the_clients() -> None:
    received = np.zeros(50, np.float32)
    few, far = changes_of_lengths(1, 1, 1, 1), changes_of_lengths(1, 1, 1, 1e6)
    far[-1] *= -1
    built = spec(noise_multiplier=0, clipping_norm=0.6)
    apart = np.subtract(aggregated(built.build(COHORT), far, received), aggregated(built.build(COHORT), few, received))
    assert np.linalg.norm(apart) == pytest.approx(2 * 0.6 / 4, rel=1e-5)  # exchanged for its opposite


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
        ({"noise_multiplier": -0.5}, "noise_multiplier", "-0.5"),
        ({"clipping_norm": 0}, "clipping_norm", "got 0"),
        ({"epsilon": 1e-6, "delta": 1e-9}, EPSILON_KEY, "1e-06"),
        ({"epsilon": 1e9}, EPSILON_KEY, "noise_multiplier of 0.01"),
        ({"clipping": "adaptive"}, "clipped_count_stddev", "0.5"),
    ],
)
def test_what_is_refused(parameters: dict[str, Any], key: str, names: str) -> None:
    with refused(StrategyError, key=key, names=names) as caught:
        parse_strategy({"kind": "dp_fedavg", **parameters}, COHORT)
    assert "\n" not in str(caught.value)


def test_the_largest_epsilon_is_that_of_the_least_noise() -> None:
    most = epsilon_of(LEAST_NOISE, Sampling(6, 4, 5), 1e-3)
    assert spec(epsilon=most, delta=1e-3).noise(COHORT) == LEAST_NOISE
    with refused(StrategyError, key=EPSILON_KEY):
        spec(epsilon=1.01 * most, delta=1e-3).build(COHORT)


def test_an_epsilon_needs_to_know_the_rounds() -> None:
    with refused(StrategyError, key=EPSILON_KEY):
        spec(epsilon=3).build(replace(COHORT, num_rounds=None))


def test_without_the_library_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(StrategyError, match=r"dp-accounting.*fedscout\[privacy\]"):
        spec().build(COHORT)


@pytest.mark.parametrize("around", ["fedavg", {"kind": "fedadam", "eta": 0.3}])
def test_its_document_makes_it_again(around: Any) -> None:
    found = spec(around=around, epsilon=3, client_batch_size=7)
    document = json.loads(json.dumps({"kind": found.kind, **found.parameters()}))
    assert parse_strategy(document) == found
    assert found.with_values({"clipping_norm": 0.2}).clipping_norm == 0.2


def test_it_shows_what_it_wraps() -> None:
    assert str(spec()) == "dp_fedavg(clipping_norm=1.0)"
    found = spec(around={"kind": "fedprox", "proximal_mu": 0.3}, noise_multiplier=2)
    inner = "fedprox(sample_scaling=uniform, proximal_mu=0.3)"
    assert str(found) == f"dp_fedavg(around={inner}, clipping_norm=1.0, noise_multiplier=2.0)"


def test_it_is_searched_only_where_it_is_asked_for() -> None:
    assert space_of(COHORT).kinds == BUILT_IN_KINDS
    found = space_of(COHORT, kinds=("dp_fedavg", "fedavg"))
    assert found.kinds == ("fedavg", "dp_fedavg")
    assert list(found.parameters_of("dp_fedavg")) == ["clipping_norm"]


# -- what it costs ---------------------------------------------------------------------------------------------------


def test_the_cost_is_that_of_the_accountant() -> None:
    private = spec(noise_multiplier=2, delta=1e-3)
    for num_rounds, notes in ((5, private.notes(COHORT)), (3, private.notes_after(COHORT, 3))):
        (note,) = notes
        assert f" {num_rounds} rounds with 4 of 6 clients " in note
        assert f"(ε = {epsilon_of(2.0, Sampling(6, 4, num_rounds), 1e-3):.4g}, δ = 0.001)" in note


def test_a_wanted_epsilon_is_kept_over_all_rounds() -> None:
    wanted, everybody = spec(epsilon=4.0, delta=1e-3), replace(COHORT, num_sampled=6)
    built: Any = wanted.build(everybody)
    assert epsilon_of(built.private.noise_multiplier, Sampling(6, 6, 5), 1e-3) == pytest.approx(4.0, rel=1e-3)
    assert "ε = 4, " in wanted.notes(everybody)[0]


def test_a_delta_that_protects_nobody_is_noted() -> None:
    assert "1/6" in spec(delta=0.5).notes(COHORT)[1]
    (note,) = spec(noise_multiplier=0).notes(COHORT)
    assert note.startswith("noise_multiplier 0 ")


# -- in a trial ------------------------------------------------------------------------------------------------------

SESSION = Session(seed=3, training=LocalTraining(batch_size=16, learning_rate=0.2))


@pytest.fixture(scope="module")
def host() -> ClientHost:
    return ClientHost(uneven_federation(sizes=(40, 17, 12, 33, 8)), QUERIES)


def settings(strategy: DPFedAvgSpec, num_rounds: int = 4, num_sampled: int = 3, **changes: Any) -> TrialSettings:
    return TrialSettings(strategy, num_rounds, num_sampled, SESSION, keep_model=True, **changes)


def trial(asked: TrialSettings, host: ClientHost, store: CheckpointStore | None = None, stop_in: int = 0) -> Trial:
    return run_trial(asked, LocalGrid(host, session=asked.session), store, interrupt_in(stop_in))


def test_a_shorter_trial_has_the_noise_of_the_whole_one(host: ClientHost) -> None:
    """A race's rungs are the beginnings of one training, whose ε is meant."""
    asked = settings(spec(epsilon=4.0), 4, 5)
    short = trial(settings(spec(epsilon=4.0), 2, 5, whole=False, full_rounds=4), host)
    assert short.round_loss == trial(asked, host).round_loss[:2]


def test_a_trial_says_what_it_cost(host: ClientHost) -> None:
    done = trial(settings(spec(noise_multiplier=2.0)), host)
    (note,) = done.notes
    assert " 4 rounds with 3 of 5 clients " in note
    assert done.summary()["notes"] == [note]
    assert "notes" not in trial(TrialSettings(FedAvgSpec(), 1, 3, SESSION), host).summary()


def test_lost_rounds_cost_nothing() -> None:
    assert spec().notes_after(COHORT, 0) == []
