"""A neural bandit: a small network tells rewards from contexts.

A reconstruction of the baseline of that name in X. Chang et al.: FLASH, arXiv:2402.08769, 2024: NeuralUCB (Zhou, Li,
Gu: Neural contextual bandits with UCB-based exploration, ICML 2020, arXiv:1911.04462; `neural_bandit.py`) over the
contexts and rewards of FLASH (`client_context.py`) with plain cross-entropy. It does not start from everyone. No
client is promised a turn.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedscout.strategies.selection.contextual_selection import ContextualBandit
from fedscout.strategies.selection.contextual_specification import ContextualSpec
from fedscout.strategies.selection.neural_bandit import NeuralBandit


class NeuralSpec(ContextualSpec):
    """NeuralUCB over the contexts of FLASH."""

    paper: ClassVar[str] = "Zhou et al. 2020, arXiv:1911.04462"

    kind: Literal["neural"] = "neural"
    num_hidden: Annotated[int, Field(ge=2, le=64, multiple_of=2, description="hidden units of the network, even")] = 16
    exploration: Annotated[float, Field(ge=0, description="γ, weight of what the network is unsure of")] = 0.1
    regularisation: Annotated[float, Field(gt=0, description="λ, pull towards the network's start")] = 1.0
    num_steps: Annotated[int, Field(ge=1, description="steps of gradient descent a round")] = 5
    step: Annotated[float, Field(gt=0, le=1, description="their length, as a part of the longest that is safe")] = 1.0
    num_remembered: Annotated[int, Field(ge=1, description="contexts and rewards that they go over, the last")] = 1000

    def _bandit(self, num_contexts: int) -> ContextualBandit:
        return NeuralBandit(num_contexts, **self.model_dump(exclude={"kind"}))
