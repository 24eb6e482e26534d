"""Reinforcement-learning clients: the table of environments, and CartPole with deep Q-learning.

CartPole (A. G. Barto, R. S. Sutton and C. W. Anderson, "Neuronlike adaptive elements that can solve difficult learning
control problems", IEEE Transactions on Systems, Man, and Cybernetics 13(5), 1983; gymnasium's CartPole-v1): a cart
balances a pole, with a reward of one per step and at most 500 steps. Gravity and pole length may differ between
clients; `pole_length` is the full length (1.0 m), twice gymnasium's `length`.

In a round, a client plays `5 * local_epochs` episodes in parallel, ε-greedy with the received model, keeps the latest
5,000 transitions in a replay buffer, and takes `200 * local_epochs` steps of Q-learning on batches of them (V. Mnih et
al., "Human-level control through deep reinforcement learning", Nature 518, 2015):

    loss = huber(Q(s, a) − (r + γ max_a' Q⁻(s', a'))),  γ = 0.99, rewards scaled by 1 − γ so that returns stay in [0, 1]

Choices: the target network Q⁻ is a copy of the model that is at most 20 steps old; ε decays exponentially from 1 to
0.05 with the client's own number of steps; the replay buffer and that number are the client's state, so that a client
resumes on any host. A model's score on a client is the mean reward of greedy episodes divided by 500, one episode per
repetition, with the same five initial states for every model of a seed.

A new environment needs a task and an entry in `ENVIRONMENTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field

from fedscout.engine.errors import ConfigurationError, Fault

if TYPE_CHECKING:
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    from fedscout.engine.arrays import FloatArray
    from fedscout.engine.contracts.algorithm import ClientWork, Correct, TaskResult, TrainRequest
    from fedscout.engine.models.flat import FlatModel


class PhysicsConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The physics of some clients; unset values stay as published."""

    clients: tuple[int, ...] | None = Field(default=None, description="clients with these physics; all by default")
    gravity: float | None = Field(default=None, gt=0, le=1000, description="gravity in m/s²; 9.8 as published")
    pole_length: float | None = Field(
        default=None, gt=0, le=100, description="full length of the pole in m; 1.0 as published"
    )
    force: float | None = Field(
        default=None, gt=0, le=1000, description="force that pushes the cart in N; 10 as published"
    )


@dataclass(frozen=True)
class Environment:
    """An entry of the table of environments.

    Attributes:
        build: Function from the number of clients, >= 1, and physics, applied in order, to the clients' task.
        feature_shape: Shape of an observation.
        action_names: One name per action, in the order of the model's outputs.
        training: Default settings of local training, in place of the general ones for classification.
        score_name: Name of the score, such as `reward`.
        largest_score: The maximum score, by which scores are divided.
        facts: Facts for the record, with the source.
    """

    build: Callable[[int, tuple[PhysicsConfig, ...]], CartPoleTask]
    feature_shape: tuple[int, ...]
    action_names: tuple[str, ...]
    training: Mapping[str, Any]
    score_name: str
    largest_score: float
    facts: Mapping[str, Any]


WIDTH = 4
ACTIONS = ("left", "right")
MAX_STEPS = 500
CARTPOLE_SCORE = "reward"
REPEATS = 5
EPISODES = 5
GRADIENT_STEPS = 200
RENEWAL_STEPS = 20
MEMORY_STEPS = 5000
DISCOUNT = 0.99
FIRST_EPSILON, LAST_EPSILON, EPSILON_STEPS = 1.0, 0.05, 500.0

CARTPOLE_TRAINING: Mapping[str, Any] = {"optimizer": "adam", "learning_rate": 0.001, "batch_size": 64}

MEMORY_KEY, STEPS_KEY = "task/memory", "task/steps"


@dataclass(frozen=True)
class Physics:
    """The physics of one client's cart.

    Attributes:
        gravity: In m/s².
        pole_length: Full length in m.
        force: Force of a push, in N.
    """

    gravity: float = 9.8
    pole_length: float = 1.0
    force: float = 10.0

    def environment(self, num_episodes: int) -> CartPoleVectorEnv:
        """Return parallel carts with these physics, not yet reset."""
        from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

        carts = CartPoleVectorEnv(num_episodes, max_episode_steps=MAX_STEPS)
        carts.gravity = self.gravity
        carts.length = self.pole_length / 2
        carts.polemass_length = carts.masspole * carts.length
        carts.force_mag = self.force
        return carts


@dataclass(frozen=True)
class CartPoleTask:
    """The CartPole task of all clients.

    Attributes:
        physics: Physics of each client.
        score_name: Name of the score.
        largest_score: Maximum length of an episode.
    """

    physics: tuple[Physics, ...]
    score_name: str = CARTPOLE_SCORE
    largest_score: float = float(MAX_STEPS)

    @property
    def affected_clients(self) -> tuple[int, ...]:
        """The clients whose physics differ from the published ones."""
        return tuple(client for client, physics in enumerate(self.physics) if physics != Physics())

    def train(self, model: FlatModel, request: TrainRequest, work: ClientWork, correct: Correct | None) -> TaskResult:
        """Play episodes, extend the replay buffer, and train the model on it."""
        from fedscout.engine.contracts.algorithm import TaskResult
        from fedscout.experiments.q_learning import learn

        steps = float(work.state[STEPS_KEY][0]) if STEPS_KEY in work.state else 0.0
        memory = work.state.get(MEMORY_KEY, np.empty((0, 2 * WIDTH + 3), np.float32))
        model.module.eval()
        epsilon = LAST_EPSILON + (FIRST_EPSILON - LAST_EPSILON) * exp(-steps / EPSILON_STEPS)
        num_episodes = EPISODES * request.training.local_epochs
        played, _ = play(model, self.physics[work.client], num_episodes, epsilon, work.generator)
        memory = np.concatenate([memory, played])[-MEMORY_STEPS:]
        state = {MEMORY_KEY: memory, STEPS_KEY: np.array([steps + len(played) / num_episodes], np.float32)}
        num_steps = GRADIENT_STEPS * request.training.local_epochs
        loss = learn(model, request.training, work.generator, memory, num_steps, RENEWAL_STEPS, DISCOUNT, correct)
        return TaskResult(num_steps, loss, state)

    def score(self, model: FlatModel, client: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
        """Return the length of greedy episodes as a share of the maximum, shape `(REPEATS,)`."""
        _, lengths = play(model, self.physics[client], REPEATS, 0.0, generator)
        return lengths / MAX_STEPS


def play(
    model: FlatModel, physics: Physics, num_episodes: int, epsilon: float, generator: np.random.Generator
) -> tuple[FloatArray, npt.NDArray[np.float64]]:
    """Play episodes in parallel until all have ended.

    Args:
        model: Loaded model; its largest output is the greedy action.
        physics: Physics of the cart.
        num_episodes: Number of episodes.
        epsilon: Probability of a random action in a step.
        generator: Generator for initial states and random actions.

    Returns:
        The transitions in the order of steps, see `Transitions`, and the reward of each episode.
    """
    import torch

    carts = physics.environment(num_episodes)
    observations, _ = carts.reset(seed=int(generator.integers(2**31)))
    lengths = np.zeros(num_episodes)
    running = np.ones(num_episodes, dtype=bool)
    rows: list[FloatArray] = []
    with torch.no_grad():
        while running.any():
            actions = model.module(torch.from_numpy(observations)).argmax(dim=1).numpy()
            if epsilon > 0:
                random = generator.random(num_episodes) < epsilon
                actions = np.where(random, generator.integers(0, len(ACTIONS), num_episodes), actions)
            next_observations, rewards, ended, truncated, _ = carts.step(actions)
            step = np.column_stack([observations, actions, rewards, next_observations, ended]).astype(np.float32)
            rows.append(step[running])
            lengths[running] += 1
            running = running & ~(ended | truncated)
            observations = next_observations
    return np.concatenate(rows), lengths


def cartpole(num_clients: int, given_physics: tuple[PhysicsConfig, ...] = ()) -> CartPoleTask:
    """Return the CartPole task of a federation's clients.

    Raises:
        ConfigurationError: If physics are given for a client that does not exist.
    """
    faults = []
    physics = [Physics()] * num_clients
    for index, physics_config in enumerate(given_physics):
        changes = {name: value for name, value in physics_config if name != "clients" and value is not None}
        for client in range(num_clients) if physics_config.clients is None else physics_config.clients:
            if not 0 <= client < num_clients:
                faults.append(
                    Fault(f"federation.physics.{index}.clients", f"be between 0 and {num_clients - 1}", client)
                )
                continue
            physics[client] = Physics(**{**vars(physics[client]), **changes})
    if faults:
        raise ConfigurationError(faults)
    return CartPoleTask(tuple(physics))


ENVIRONMENTS: Mapping[str, Environment] = {
    "cartpole": Environment(
        build=cartpole,
        feature_shape=(WIDTH,),
        action_names=ACTIONS,
        training=CARTPOLE_TRAINING,
        score_name=CARTPOLE_SCORE,
        largest_score=float(MAX_STEPS),
        facts={
            "source": "Barto, Sutton and Anderson 1983; CartPole-v1 of gymnasium, https://gymnasium.farama.org",
            "episodes_per_epoch": EPISODES,
            "largest_reward": MAX_STEPS,
        },
    )
}
