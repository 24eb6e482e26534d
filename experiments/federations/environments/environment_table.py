"""The table of environments: a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from fedscout.experiments.federations.environments.cartpole import (
    CARTPOLE_SCORE,
    CARTPOLE_TRAINING,
    MAX_STEPS,
    cartpole,
)
from fedscout.experiments.federations.environments.environment import EnvironmentKind

ENVIRONMENTS: Mapping[str, EnvironmentKind] = {
    "cartpole": EnvironmentKind(cartpole, CARTPOLE_TRAINING, CARTPOLE_SCORE, float(MAX_STEPS)),
}
