"""What the bandits have in common with which FLASH is compared: its contexts and rewards, with plain cross-entropy."""

from __future__ import annotations

from abc import abstractmethod

from fedscout.engine.contracts.client_selection import SelectionPolicy
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.strategies.selection.client_context import VALIDATION_SHARE, ClientContexts
from fedscout.strategies.selection.contextual_selection import ContextualBandit, ContextualSelection
from fedscout.strategies.selection.selection_specification import SelectionSpec


class ContextualSpec(SelectionSpec):
    """A bandit over the contexts of FLASH that does not start from everyone."""

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which validation losses are measured."""
        return VALIDATION_SHARE

    @abstractmethod
    def _bandit(self, num_contexts: int) -> ContextualBandit:
        """Construct the bandit, of so many contexts."""

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        contexts = ClientContexts(cohort.num_clients)
        return ContextualSelection(contexts, self._bandit(contexts.num_contexts))
