"""Oort: clients of much loss that are quick, and some that were never asked.

Reference:
    Lai, Zhu, Madhyastha, Chowdhury: Oort: Efficient federated learning via guided participant selection. OSDI 2021,
        §4 and Algorithm 1. arXiv:2010.06081. Its public code decides where the text is silent.

Client i was last trained in round t_i and has n_i rows; L_i is the mean of its squared losses, one a row.

- utility R_i = n_i √L_i (eq. 1)
- score   S_i = (min(R_i, R̂) − .999 R_min) / (R_max − .999 R_min) + √(0.1 ln r / t_i), R̂ the clip quantile of R
- slow    S_i ← S_i (T / d_i)^α where the duration d_i exceeds T, a percentile of the durations (eq. 1)
- pacer   every 20 rounds: T rises if what was exploited gained no more than before, and falls if that jumped
- choice  (1 − ε) M of those that trained before whose score is .7 of the score at the cut or more, drawn ∝ score; the
          rest are unexplored: drawn ∝ rows, and less where they are slow; ε = 0.9 · 0.95^r, at least 0.2

Deviations:
- L_i is that of the received model on all training rows, where the code takes the rows of local training as they come
  by. Local training goes over whole epochs, so min(n_i, steps · batch) is n_i, and the batch size is not needed.
- Durations are those that the table expects, over the clients of the table; the code remembers the last measured one.
- R is normalised over clients that trained; the code mixes in the rows of those that did not.
- The pacer compares rounds r − 39 … r − 20 with r − 19 … r after round r; the code does so a round earlier.
- Unexplored clients that failed come after those that were not asked yet; equal ones are in random order.
- The optional fairness term and the removal of clients that trained often are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_selection import (
    ClientTable,
    DoubleArray,
    Observed,
    RoundReport,
    SelectionPolicy,
)
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.strategies.selection.selection_specification import SelectionSpec
from fedscout.strategies.selection.weighted_draw import draw_by_weight

_SMALLEST_RANGE = 1e-4
"""Of utilities that are divided by their range."""
_FLAT, _JUMP = 0.1, 5.0
"""Relative change of the exploited utility at most, and at least, at which the pacer acts."""


class OortParameters(SelectionSpec):
    """What steers Oort's choice; also that of policies which build on it."""

    exploration: float = Field(0.9, ge=0, le=1, description="Share of unexplored clients before the first round")
    exploration_decay: float = Field(0.95, gt=0, le=1, description="Its factor in every round")
    exploration_floor: float = Field(0.2, ge=0, le=1, description="Its least value while a client is unexplored")
    unexplored_window: int = Field(
        5, ge=1, description="Unexplored clients are drawn among so many times those needed, most rows and speed first"
    )
    clip_quantile: float = Field(0.98, gt=0, le=1, description="Quantile above which utilities are cut")
    uncertainty: float = Field(0.1, ge=0, description="Factor of ln(round) / (round of last training) under the root")
    cut_off: float = Field(0.7, ge=0, le=1, description="Share of the score at the cut that a client must reach")
    slow_penalty: float = Field(2.0, ge=0, description="Exponent α of the slow clients' factor (T / duration)^α")
    preferred_percentile: float = Field(10.0, gt=0, le=100, description="Percentile of durations that is T at first")
    pacer_rounds: int = Field(20, ge=1, description="Rounds between two decisions on the percentile")
    pacer_percent: float = Field(5.0, gt=0, le=100, description="Points by which it changes, and its least value")


class Oort(SelectionPolicy):
    """Exploits clients of high utility, explores the unexplored.

    A client that fails stays as it was. One that tells no finite loss has utility 0. Every client that can be reached
    is asked once; after that Oort may starve those of low utility: their score grows with √ln r alone.

    Args:
        parameters: Of the policy.

    Attributes:
        utility: R_i of every client that trained.
        last_round: t_i of each.
        num_failures: How often others were asked in vain.
        percentile: Of the durations, that is T, in (0, 100].
        exploited: Who was chosen last for their utility.
        exploited_utilities: Mean utility of those of them that answered, for each of the last rounds.
    """

    observes = Observed(training_losses=True)

    def __init__(self, parameters: OortParameters) -> None:
        self._parameters = parameters
        self.utility: dict[int, float] = {}
        self.last_round: dict[int, int] = {}
        self.num_failures: dict[int, int] = {}
        self.percentile = parameters.preferred_percentile
        self.exploited: list[int] = []
        self.exploited_utilities: list[float] = []

    def choose(
        self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator
    ) -> IntArray:
        """Return the exploited, then the explored; if they are too few, then any others."""
        trained = np.array([client in self.utility for client in table.clients.tolist()], np.bool_)
        known, unknown = np.flatnonzero(trained), np.flatnonzero(~trained)
        factors = slow_factors(table.seconds, self.percentile, self._parameters.slow_penalty)
        share = self.explored_share(server_round) if len(unknown) else 0.0
        num_exploited = min(int(num_chosen * (1 - share) + 1e-9), len(known))  # 0.9999… of a client is one
        scores = self.scores(table.clients[known], server_round) * factors[known]
        exploited = known[self._exploited(scores, num_exploited, generator)]
        num_explored = min(num_chosen - num_exploited, len(unknown))
        weights = table.num_examples[unknown] * factors[unknown]
        explored = unknown[self._explored(table.clients[unknown], weights, num_explored, generator)]
        picked: IntArray = np.concatenate([exploited, explored])
        others = np.setdiff1d(np.arange(len(table.clients)), picked)
        rest: IntArray = generator.choice(others, num_chosen - len(picked), replace=False)
        self.exploited = table.clients[exploited].tolist()
        chosen: IntArray = table.clients[np.concatenate([picked, rest])]
        return chosen

    def explored_share(self, server_round: int) -> float:
        """Return ε, in [0, 1]."""
        given = self._parameters
        return max(given.exploration * given.exploration_decay**server_round, given.exploration_floor)

    def scores(self, clients: IntArray, server_round: int) -> DoubleArray:
        """Return the utility and the uncertainty of clients that trained, shape (clients,), at least 0."""
        utility = np.array([self.utility[client] for client in clients.tolist()])
        last_round = np.array([self.last_round[client] for client in clients.tolist()])
        uncertainty: DoubleArray = np.sqrt(self._parameters.uncertainty * np.log(server_round) / last_round)
        return normalised(utility, self._parameters.clip_quantile) + uncertainty

    def _exploited(self, scores: DoubleArray, num_chosen: int, generator: np.random.Generator) -> IntArray:
        """Return the places of those drawn among clients that trained."""
        pool = np.arange(len(scores))
        if num_chosen < len(scores):
            at_cut = np.sort(scores)[::-1][num_chosen]
            pool = np.flatnonzero(scores >= self._parameters.cut_off * at_cut)
        return pool[draw_by_weight(scores[pool], num_chosen, generator)]

    def _explored(
        self, clients: IntArray, weights: DoubleArray, num_chosen: int, generator: np.random.Generator
    ) -> IntArray:
        """Return the places of those drawn among clients that never trained."""
        failures = np.array([self.num_failures.get(client, 0) for client in clients.tolist()], np.int64)
        order = generator.permutation(len(clients))
        order = order[np.lexsort((-weights[order], failures[order]))]
        window = order[: self._parameters.unexplored_window * num_chosen]
        return window[draw_by_weight(weights[window], num_chosen, generator)]

    def observe(self, report: RoundReport) -> None:
        """Take in the utilities, and the pacer's step."""
        told = _utilities(report)
        self.utility.update(told)
        self.last_round.update(dict.fromkeys(told, report.server_round))
        for client in report.failures:
            self.num_failures[client] = self.num_failures.get(client, 0) + 1
        gains = [told[client] for client in self.exploited if client in told]
        self.exploited_utilities.append(sum(gains) / len(gains) if gains else 0.0)
        self._pace(report.server_round)

    def _pace(self, server_round: int) -> None:
        """Move the percentile, every so many rounds."""
        rounds, points = self._parameters.pacer_rounds, self._parameters.pacer_percent
        self.exploited_utilities = self.exploited_utilities[-2 * rounds :]
        if server_round < 2 * rounds or server_round % rounds:
            return
        before, now = sum(self.exploited_utilities[:-rounds]), sum(self.exploited_utilities[-rounds:])
        if abs(now - before) <= _FLAT * before:
            self.percentile = min(100.0, self.percentile + points)
        elif abs(now - before) >= _JUMP * before:
            self.percentile = max(points, self.percentile - points)


def normalised(utility: DoubleArray, clip_quantile: float) -> DoubleArray:
    """Return utilities, clipped, as parts of their range, in [0, 1]; 0 for those of 0.

    Args:
        utility: Shape (clients,), at least 0.
        clip_quantile: Of those above 0; the client at its rank, rounded down, is the most that counts.
    """
    positive = np.sort(utility[utility > 0])
    if not len(positive):
        return np.zeros(len(utility))
    most = positive[min(int(len(positive) * clip_quantile), len(positive) - 1)]
    least = 0.999 * positive[0]
    parts: DoubleArray = (np.clip(utility, least, most) - least) / max(positive[-1] - least, _SMALLEST_RANGE)
    return parts


def slow_factors(seconds: DoubleArray, percentile: float, penalty: float) -> DoubleArray:
    """Return (T / duration)^α of those slower than T, 1 of the others.

    Args:
        seconds: Durations, shape (clients,), at least 0; without a clock all are 0.
        percentile: The client at this rank of the durations, rounded down, has T; 100 means that nobody is slow.
        penalty: α.
    """
    factors = np.ones(len(seconds))
    if percentile < 100 and len(seconds):
        preferred = np.sort(seconds)[min(int(len(seconds) * percentile / 100), len(seconds) - 1)]
        slow = seconds > preferred
        factors[slow] = (preferred / seconds[slow]) ** penalty
    return factors


def _utilities(report: RoundReport) -> Mapping[int, float]:
    """Return R_i of those that trained; 0 if their loss is no finite number."""
    if not len(report.clients):
        return {}
    assert report.training is not None, "the policy asks for the losses on training rows"
    squared = np.where(np.isfinite(report.training.squared), report.training.squared, 0.0)
    utility = (report.num_examples * np.sqrt(squared))[report.trained]
    return dict(zip(report.clients[report.trained].tolist(), utility.tolist(), strict=True))


class OortSpec(OortParameters):
    """Clients of high loss that are quick, and some that never trained."""

    paper: ClassVar[str] = "Lai et al. 2021, arXiv:2010.06081"

    kind: Literal["oort"] = "oort"

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        del cohort
        return Oort(self)
