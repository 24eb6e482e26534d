"""The names under which the engine's messages hold what they hold; hosts read them, who need no Flower."""

from __future__ import annotations

from typing import Literal

ARRAYS_KEY = "arrays"
METRICS_KEY = "metrics"
CONFIG_KEY = "config"
FLAT_KEY = "flat"
GROUP_KEY = "group"
"""Which of several models is a client's; see `fedscout.engine.messages.several_models`."""
NUM_EXAMPLES_KEY = "num-examples"
NUM_CLIENTS_KEY = "num-clients"
NUM_STEPS_KEY = "num-steps"
SIMULATED_SECONDS_KEY = "simulated-seconds"
"""What a client's round takes, in train replies where a strategy needs it; of what a strategy gives, what its took."""
COMPANIONS_KEY = "companions"
"""The record of what travels beside the model; see `fedscout.engine.messages.companion_record`."""
TRAIN_LOSS_KEY = "train_loss"
ROUND_KEY = "server-round"
SEED_KEY = "seed"
REPLY_KEY = "reply"
INITIAL_LOSS_KEY = "initial-loss"
FUNCTION_KEY = "function"

RATE_KEY = "learning-rate"
RATE_ALIAS = "lr"
"""What Flower's own examples call it; see `fedscout.engine.messages.client_half`."""

ReplyMode = Literal["merged", "individual"]
