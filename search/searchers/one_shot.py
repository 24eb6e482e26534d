"""No search: the one configuration that was recommended without a trial is trained, and that is all.

The recommendation is made before the study's trials begin, from the diagnosis or a person's words, by rules or by a
language model. Where it is FedAvg, which every study trains as its reference, nothing further is proposed.
"""

from __future__ import annotations

from typing import ClassVar

from fedscout.search.searcher import Searcher
from fedscout.strategies import StrategySpec


class OneShotSearcher(Searcher):
    """Proposes the first configuration that it is given."""

    has_own_budget: ClassVar[bool] = True

    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return the recommended configuration, until it is told."""
        taken = self.archive.taken
        return [spec for spec in self.task.first[:1] if self.space.digest(spec) not in taken][:num_proposals]
