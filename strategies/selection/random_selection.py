"""Uniform choice without replacement: what every strategy of the field does by itself, as a policy to compare with.

Reference:
    McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-efficient learning of deep networks from
        decentralized data. AISTATS 2017, Algorithm 1. arXiv:1602.05629
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_selection import ClientTable, SelectionPolicy
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.strategies.selection.selection_specification import SelectionSpec


class RandomSelection(SelectionPolicy):
    """Every client is as likely as any other."""

    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> IntArray:
        """Return clients drawn uniformly."""
        del server_round
        return generator.choice(table.clients, num_chosen, replace=False)


class RandomSpec(SelectionSpec):
    """Uniform choice: every client is as likely as any other."""

    paper: ClassVar[str] = "McMahan et al. 2017, arXiv:1602.05629"

    kind: Literal["random"] = "random"

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        del cohort
        return RandomSelection()
