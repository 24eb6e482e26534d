"""A restless linear bandit: rewards are linear in contexts, by coefficients that change while a client is not chosen.

A reconstruction of the baseline of that name in X. Chang et al.: FLASH, arXiv:2402.08769, 2024: the discounted
regression of Russac, Vernade, Cappé: Weighted linear bandits for non-stationary environments, NeurIPS 2019,
arXiv:1909.09146 (`discounted_regression.py`), over the contexts and rewards of FLASH (`client_context.py`) with plain
cross-entropy. It does not start from everyone. No client is promised a turn.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedscout.strategies.selection.contextual_selection import ContextualBandit
from fedscout.strategies.selection.contextual_specification import ContextualSpec
from fedscout.strategies.selection.discounted_regression import DiscountedRegression


class RestlessSpec(ContextualSpec):
    """A linear bandit that forgets, over the contexts of FLASH."""

    paper: ClassVar[str] = "Russac et al. 2019, arXiv:1909.09146"

    kind: Literal["restless"] = "restless"
    discount: Annotated[float, Field(gt=0, le=1, description="η, what a round is worth a round later")] = 0.98
    exploration: Annotated[float, Field(ge=0, description="what the width of the bound is multiplied by")] = 1.0
    delta: Annotated[float, Field(gt=0, lt=1, description="δ; the smaller, the wider the bound")] = 0.05
    regularisation: Annotated[float, Field(gt=0, description="λ, evidence for no reward at all")] = 1.0

    def _bandit(self, num_contexts: int) -> ContextualBandit:
        return DiscountedRegression(num_contexts, self.discount, self.regularisation, self.delta, self.exploration)
