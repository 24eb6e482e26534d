"""FLASH: a bandit over contexts of noisy, skewed and slow clients chooses those from which most is still learnt.

Reference:
    X. Chang et al.: FLASH: Federated Learning Across Simultaneous Heterogeneities. arXiv:2402.08769, 2024

Contexts and rewards are those of `client_context.py`, with the source's choices as defaults where it makes one: the
robust loss CE + α·pseudo + β·RCE on training rows. The source's own bandit is a linear one that draws its coefficients
(`linear_posterior.py`); `bandit` puts another in its place, and `contexts` leaves some out, as its ablations do.
`start_from_everyone`: in the first round every reachable client trains, S₀ of the source, so that the first choice has
more clients than are asked for. The source prints neither its (α, β) nor its share of validation rows, so these are the
first that it studied, and 0.1. Clients train with the robust loss only if their strategy says so. Every client receives
the model and measures it, every round. No client is promised a turn.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from fedscout.engine.contracts.client_selection import SelectionPolicy
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.strategies.selection.client_context import (
    VALIDATION_SHARE,
    ClientContexts,
    Context,
    Duration,
    LossName,
    MeasuredLoss,
    Rows,
)
from fedscout.strategies.selection.contextual_selection import ContextualBandit, ContextualSelection, Credited
from fedscout.strategies.selection.discounted_regression import DiscountedRegression
from fedscout.strategies.selection.linear_posterior import LinearPosterior
from fedscout.strategies.selection.neural_bandit import NeuralBandit
from fedscout.strategies.selection.selection_specification import SelectionSpec


def _distinct(names: tuple[Context, ...]) -> tuple[Context, ...]:
    if len({*names}) < len(names):
        raise ValueError("must name each context once")
    return names


class FlashSpec(SelectionSpec):
    """FLASH: a contextual bandit; clients whose losses change most in the time that they take."""

    paper: ClassVar[str] = "Chang et al. 2024, arXiv:2402.08769"

    kind: Literal["flash"] = "flash"
    bandit: Annotated[
        Literal["linear", "neural", "restless"], Field(description="what scores contexts; the source's is linear")
    ] = "linear"
    contexts: Annotated[
        tuple[Context, ...], Field(min_length=1, description="what is told of a client"), AfterValidator(_distinct)
    ] = ("training", "validation", "duration", "reward")
    context_loss: Annotated[LossName, Field(description="loss of the context of training rows")] = "robust"
    reward_loss: Annotated[LossName, Field(description="loss whose change is the reward")] = "robust"
    reward_rows: Annotated[Rows, Field(description="rows on which that loss is measured")] = "training"
    alpha: Annotated[float, Field(ge=0, description="α, weight of the pseudo-label loss in the robust one")] = 0.1
    beta: Annotated[float, Field(ge=0, description="β, weight of the reverse cross-entropy in the robust loss")] = 4.0
    context_duration: Annotated[
        Duration, Field(description="duration in the context: the client's expected one, or the last round's")
    ] = "own"
    reward_duration: Annotated[Duration, Field(description="duration that divides the reward, likewise")] = "round"
    credited: Annotated[
        Credited, Field(description="whose contexts get a round's rewards: of those that train in it, or before it")
    ] = "current"
    standardised: Annotated[bool, Field(description="whether contexts have mean 0 and variance 1")] = True
    start_from_everyone: Annotated[
        bool, Field(description="whether all reachable clients train in the first round")
    ] = True
    exploration: Annotated[float, Field(ge=0, description="what the bandit's own width is multiplied by")] = 1.0
    delta: Annotated[float, Field(gt=0, lt=1, description="δ; the smaller, the more a bandit explores")] = 0.05
    regularisation: Annotated[float, Field(gt=0, description="λ, evidence for no reward at all")] = 1.0

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which validation losses are measured; 0 where no context or reward is."""
        return VALIDATION_SHARE if "validation" in (*self.contexts, self.reward_rows) else 0.0

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        contexts = ClientContexts(
            cohort.num_clients,
            self.contexts,
            context_loss=MeasuredLoss(self.context_loss, "training", self.alpha, self.beta),
            reward_loss=MeasuredLoss(self.reward_loss, self.reward_rows, self.alpha, self.beta),
            context_duration=self.context_duration,
            reward_duration=self.reward_duration,
            standardised=self.standardised,
        )
        return ContextualSelection(contexts, self._bandit(cohort), self.start_from_everyone, self.credited)

    def _bandit(self, cohort: Cohort) -> ContextualBandit:
        size, width, ridge = len(self.contexts), self.exploration, self.regularisation
        if self.bandit == "neural":
            return NeuralBandit(size, exploration=0.1 * width, regularisation=ridge)
        if self.bandit == "restless":
            return DiscountedRegression(size, regularisation=ridge, delta=self.delta, exploration=width)
        return LinearPosterior(size, cohort.num_clients, ridge, self.delta, width)
