"""CartPole by federated deep Q-learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedscout.engine.contracts.algorithm import ClientState, ClientWork, TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.seeds import stream
from fedscout.experiments import reinforcement
from fedscout.experiments.config import load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import build_model
from fedscout.experiments.q_learning import Transitions, targets
from fedscout.experiments.reinforcement import MEMORY_KEY, CartPoleTask, Physics, PhysicsConfig, play
from tests.kits.refusals import refused

TRAINING = LocalTraining(**reinforcement.CARTPOLE_TRAINING)


def model() -> FlatModel:
    return new_model(build_model(ModelRequest((4,), 2, ModelSettings(kind="dqn"))), seed=0)


def policy(weights: list[float]) -> FlatModel:
    """Return a model that pushes right where the weighted observation is positive."""

    def factory() -> nn.Module:
        layer = nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            layer.weight[0] = 0
            layer.weight[1] = torch.tensor(weights)
        return layer

    return new_model(factory, seed=0)


def asked_of(trained: FlatModel) -> TrainRequest:
    return TrainRequest(trained.vector.clone(), TRAINING)


def work(client: int = 0, state: ClientState | None = None) -> ClientWork:
    return ClientWork(client, stream(0, "batches", 1, client), state or {})


def test_pushing_after_the_pole_balances_and_pushing_against_it_falls() -> None:
    """Angle plus angular velocity is a well-known linear controller of the published cart."""
    _, good = play(policy([0, 0, 1, 1]), Physics(), 5, 0.0, np.random.default_rng(0))
    _, bad = play(policy([0, 0, -1, -1]), Physics(), 5, 0.0, np.random.default_rng(0))
    assert good.min() > 150
    assert bad.max() < 15


def test_transitions_follow_the_published_equations_of_motion() -> None:
    """Euler's method over 0.02 s with the accelerations of Barto, Sutton and Anderson (without friction)."""
    physics = Physics(gravity=20.0, pole_length=0.1, force=7.0)
    rows, _ = play(policy([0, 0, 1, 1]), physics, 3, 0.3, np.random.default_rng(1))
    steps = Transitions.of(rows)
    before, after = steps.observations.astype(np.float64), steps.next_observations.astype(np.float64)
    force = np.where(steps.actions == 1, 7.0, -7.0)
    x, v, angle, rotation = before.T
    mass, pole, half = 1.1, 0.1, 0.05
    common = (force + pole * half * rotation**2 * np.sin(angle)) / mass
    turning = (20.0 * np.sin(angle) - np.cos(angle) * common) / (half * (4 / 3 - pole * np.cos(angle) ** 2 / mass))
    pushed = common - pole * half * turning * np.cos(angle) / mass
    expected = np.stack([x + 0.02 * v, v + 0.02 * pushed, angle + 0.02 * rotation, rotation + 0.02 * turning], axis=1)
    np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-4)
    assert set(steps.actions) <= {0.0, 1.0}
    assert (steps.rewards == 1).all()
    assert steps.ended.sum() == 3


def test_an_episode_cut_at_500_steps_has_not_ended() -> None:
    """Under next to no gravity, without a force to speak of, some poles stay up for all 500 steps."""
    rows, lengths = play(policy([0, 0, 1, 1]), Physics(gravity=1e-6, force=1e-3), 5, 0.0, np.random.default_rng(0))
    assert (lengths == 500).any()
    assert len(rows) == lengths.sum()
    assert Transitions.of(rows).ended.sum() == (lengths < 500).sum()


def test_targets_by_hand() -> None:
    """r (1 − γ) + γ max Q of the next observation, and nothing after an end."""
    trained = policy([1, 0, 0, 0])
    rows = np.zeros((2, 11), np.float32)
    rows[:, 5:7] = 1.0, 3.0
    rows[1, -1] = 1.0
    assert targets(trained, Transitions.of(rows), 0.9).tolist() == pytest.approx([0.1 + 0.9 * 3.0, 0.1])


def test_the_memory_and_the_number_of_steps_carry_on() -> None:
    trained = model()
    task = CartPoleTask((Physics(),))
    first = task.train(trained, asked_of(trained), work(), None)
    assert len(first.state[MEMORY_KEY]) >= 5 * 8  # five episodes of at least eight steps: no pole falls faster
    again = task.train(trained, asked_of(trained), work(state=first.state), None)
    assert len(again.state[MEMORY_KEY]) > len(first.state[MEMORY_KEY])
    np.testing.assert_array_equal(again.state[MEMORY_KEY][: len(first.state[MEMORY_KEY])], first.state[MEMORY_KEY])
    assert again.state[reinforcement.STEPS_KEY][0] > first.state[reinforcement.STEPS_KEY][0]
    full = {**first.state, MEMORY_KEY: np.zeros((reinforcement.MEMORY_STEPS, 11), np.float32)}
    kept = task.train(trained, asked_of(trained), work(state=full), None).state[MEMORY_KEY]
    assert kept.shape == (reinforcement.MEMORY_STEPS, 11)
    assert kept[-1].any()


def test_training_depends_on_what_it_is_given_alone() -> None:
    trained = model()
    task = CartPoleTask((Physics(), Physics(gravity=20.0, pole_length=0.1)))
    asked, received = asked_of(trained), trained.vector.clone()

    def vector_of(client: int) -> torch.Tensor:
        trained.load(received)
        task.train(trained, asked, work(client=client), None)
        return trained.vector.clone()

    first = vector_of(0)
    torch.rand(5)
    assert torch.equal(first, vector_of(0))
    assert (first - vector_of(1)).abs().max() > 1e-4


def test_physics_of_named_clients_stack() -> None:
    task = reinforcement.cartpole(
        3, (PhysicsConfig(gravity=5.0), PhysicsConfig(clients=(2,), gravity=20.0, pole_length=0.1))
    )
    assert task.physics == (Physics(5.0), Physics(5.0), Physics(20.0, 0.1))
    assert task.affected_clients == (0, 1, 2)
    carts = task.physics[2].environment(1)
    assert (carts.gravity, carts.length) == (20.0, 0.05)


def test_the_environment_s_training_holds_where_nothing_is_said() -> None:
    config = load_config(["federation.dataset=cartpole", "training.batch_size=16"])
    assert (config.training.optimizer, config.training.learning_rate, config.training.batch_size) == ("adam", 1e-3, 16)
    assert load_config([]).training.optimizer == "sgd"


@pytest.mark.parametrize(
    ("dataset", "argument", "key"),
    [
        *(
            ("cartpole", argument, "dataset")
            for argument in (
                "scenario=label_poisoning",
                "label=x",
                "small_clients=abstain",
                "partition.kind=iid",
                "max_rows=9",
            )
        ),
        ("cartpole", "scenario={kind: label_flip, rate: 0.2}", "scenario.0.kind"),
        ("cartpole", "physics=[{clients: [10], gravity: 5}]", "physics.0.clients"),
        ("digits", "physics=[{gravity: 2}]", "physics"),
    ],
)
def test_settings_of_other_federations_are_refused(dataset: str, argument: str, key: str) -> None:
    with refused(ConfigurationError, key=f"federation.{key}"):
        config = load_config([f"federation.dataset={dataset}", f"federation.{argument}"])
        build_federation(config.federation, config.model)


@pytest.mark.stress
def test_federated_training_learns_to_balance() -> None:
    """From about 10 to 60 steps of an untrained model to more than 150, for two initial models."""
    for seed in (0, 1):
        trained, task = model(), CartPoleTask((Physics(),) * 2)
        vector, states = trained.vector.clone(), [{}, {}]
        for server_round in range(1, 13):
            asked, vectors = TrainRequest(vector, TRAINING, server_round=server_round), []
            for c in range(2):
                trained.load(vector)
                work_of = ClientWork(c, stream(seed, "b", server_round, c), states[c])
                states[c] = task.train(trained, asked, work_of, None).state
                vectors.append(trained.vector.clone())
            vector = torch.stack(vectors).mean(dim=0)
        trained.load(vector)
        scores = np.stack([task.score(trained, c, stream(seed, "s", c)) for c in range(2)])
        assert float(np.median(scores.mean(axis=0))) * 500 > 150
