"""Client selection by training loss and speed: Oort and PyramidFL.

**Oort** selects clients with a high loss and a short duration, and some that have never trained. Client i
last trained in round t_i and has n_i rows; L_i is the mean of its squared losses over its rows.

- utility R_i = n_i √L_i (eq. 1)
- score   S_i = (min(R_i, R̂) − .999 R_min) / (R_max − .999 R_min) + √(0.1 ln r / t_i), R̂ the clip quantile of R
- slow    S_i ← S_i (T / d_i)^α where the duration d_i exceeds T, a percentile of the durations (eq. 1)
- pacer   every 20 rounds: T rises if the utility of exploited clients did not change, and falls if it changed abruptly
- choice  (1 − ε) M trained clients with at least .7 of the score at the cut-off, drawn ∝ score; the rest are
          unexplored clients, drawn ∝ rows with a penalty for slow ones; ε = 0.9 · 0.95^r, at least 0.2

Oort's public code decides where the paper is not specific. Deviations:

- L_i is that of the received model on all training rows; the code uses the rows of local training. Local
  training runs whole epochs, so min(n_i, steps · batch) is n_i and the batch size is not needed.
- Durations are the expected ones, over the clients of the table; the code stores the last measured one.
- R is normalised over clients that trained; the code mixes in the number of rows of those that did not.
- The pacer compares rounds r − 39 … r − 20 with r − 19 … r after round r; the code does so a round earlier.
- Unexplored clients that failed come after those never selected; ties are in random order.
- The optional fairness term and the removal of frequently trained clients are left out.

**PyramidFL** uses Oort's selection and assigns each selected client a share of tensors to send and an amount
of work. Of M selected clients, rank k = 0 … M − 1 has the k-th largest update norm. It withholds a share .1 +
.5 k / M of the model's tensors, so that the most important updates are sent whole, and trains 1 + min(10,
⌊slack⌋) times as many epochs, where slack is the time by which it is faster than the slowest, in units of its
own duration. Its public code decides where the paper is not specific. Deviations:

- Clients are ranked by the update norm; the code multiplies it by the number of rows.
- A client without a known update norm ranks first, as in the code, where the number of rows of clients that
  never trained is compared with norms. Equal norms share a rank.
- The code measures slack in units of local computation and counts withheld tensors as saved time. Here the
  unit is a whole round, since nothing else is known of a client: no client takes longer than the slowest at
  one unit of work.

References:
    Lai, Zhu, Madhyastha, Chowdhury: Oort: Efficient federated learning via guided participant selection. OSDI
        2021, §4 and Algorithm 1. arXiv:2010.06081
    Li, Zeng, Zhang, Cao: PyramidFL: A fine-grained client selection framework for efficient federated
        learning. MobiCom 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.random import Generator
from pydantic import Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import Fault
from fedscout.engine.messages import calls
from fedscout.engine.messages.calls import ClientTable, Cohort, DoubleArray, RoundReport, SelectionPolicy
from fedscout.strategies.selection.policies import SelectionSpec, draw_by_weight, reported_norms

_SMALLEST_RANGE = 1e-4
"""Of utilities that are divided by their range."""
_FLAT, _JUMP = 0.1, 5.0
"""Relative change of the exploited utility at most, and at least, at which the pacer acts."""


class OortParameters(SelectionSpec):
    """Parameters of Oort's selection, shared with policies that extend it."""

    exploration: float = Field(0.9, ge=0, le=1, description="Fraction of unexplored clients in the first round")
    exploration_decay: float = Field(0.95, gt=0, le=1, description="Decay factor per round")
    exploration_floor: float = Field(0.2, ge=0, le=1, description="Smallest value while a client is unexplored")
    unexplored_window: int = Field(
        5,
        ge=1,
        description="Unexplored clients are drawn from this many times the needed number, ranked by rows and speed",
    )
    clip_quantile: float = Field(0.98, gt=0, le=1, description="Quantile at which utilities are clipped")
    uncertainty: float = Field(0.1, ge=0, description="Factor of ln(round) / (round of last training) under the root")
    cut_off: float = Field(0.7, ge=0, le=1, description="Fraction of the cut-off score that a client must reach")
    slow_penalty: float = Field(2.0, ge=0, description="Exponent α of the slow clients' factor (T / duration)^α")
    preferred_percentile: float = Field(
        10.0, gt=0, le=100, description="Initial percentile of durations that defines T"
    )
    pacer_rounds: int = Field(20, ge=1, description="Number of rounds between updates of the percentile")
    pacer_percent: float = Field(
        5.0, gt=0, le=100, description="Percentage points of an update, and the smallest percentile"
    )


class Oort(SelectionPolicy):
    """Selects clients of high utility (exploitation) and clients that never trained (exploration).

    A failed client keeps its state. A client without a finite loss has utility 0. Every reachable client is
    selected once; after that Oort may starve clients of low utility, whose score grows only with √ln r.

    Args:
        parameters: Parameters of the policy.

    Attributes:
        utility: R_i of every client that trained.
        last_round: t_i of each.
        num_failures: Number of failed rounds of each client.
        percentile: Percentile of the durations that is T, in (0, 100].
        exploited: Clients last selected for their utility.
        exploited_utilities: Mean utility of those of them that replied, for each of the last rounds.
    """

    observes = calls.ReportRequest(training_losses=True)

    def __init__(self, parameters: OortParameters) -> None:
        self._parameters = parameters
        self.utility: dict[int, float] = {}
        self.last_round: dict[int, int] = {}
        self.num_failures: dict[int, int] = {}
        self.percentile = parameters.preferred_percentile
        self.exploited: list[int] = []
        self.exploited_utilities: list[float] = []

    def choose(self, server_round: int, table: ClientTable, num_chosen: int, generator: Generator) -> IntArray:
        """Return the exploited, then the explored clients, filled up with others if they are too few."""
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
        fillers: IntArray = generator.choice(others, num_chosen - len(picked), replace=False)
        self.exploited = table.clients[exploited].tolist()
        chosen: IntArray = table.clients[np.concatenate([picked, fillers])]
        return chosen

    def explored_share(self, server_round: int) -> float:
        """Return ε, in [0, 1]."""
        parameters = self._parameters
        return max(parameters.exploration * parameters.exploration_decay**server_round, parameters.exploration_floor)

    def scores(self, clients: IntArray, server_round: int) -> DoubleArray:
        """Return utility plus uncertainty of clients that trained, shape (clients,), at least 0."""
        utility = np.array([self.utility[client] for client in clients.tolist()])
        last_round = np.array([self.last_round[client] for client in clients.tolist()])
        uncertainty: DoubleArray = np.sqrt(self._parameters.uncertainty * np.log(server_round) / last_round)
        return normalised(utility, self._parameters.clip_quantile) + uncertainty

    def _exploited(self, scores: DoubleArray, num_chosen: int, generator: Generator) -> IntArray:
        """Return the indices of the clients drawn among those that trained."""
        pool = np.arange(len(scores))
        if num_chosen < len(scores):
            at_cut = np.sort(scores)[::-1][num_chosen]
            pool = np.flatnonzero(scores >= self._parameters.cut_off * at_cut)
        return pool[draw_by_weight(scores[pool], num_chosen, generator)]

    def _explored(self, clients: IntArray, weights: DoubleArray, num_chosen: int, generator: Generator) -> IntArray:
        """Return the indices of the clients drawn among those that never trained."""
        failures = np.array([self.num_failures.get(client, 0) for client in clients.tolist()], np.int64)
        order = generator.permutation(len(clients))
        order = order[np.lexsort((-weights[order], failures[order]))]
        window = order[: self._parameters.unexplored_window * num_chosen]
        return window[draw_by_weight(weights[window], num_chosen, generator)]

    def observe(self, report: RoundReport) -> None:
        """Update the utilities and the pacer."""
        utilities = _utilities(report)
        self.utility.update(utilities)
        self.last_round.update(dict.fromkeys(utilities, report.server_round))
        for client in report.failures:
            self.num_failures[client] = self.num_failures.get(client, 0) + 1
        exploited = [utilities[client] for client in self.exploited if client in utilities]
        self.exploited_utilities.append(sum(exploited) / len(exploited) if exploited else 0.0)
        self._pace(report.server_round)

    def _pace(self, server_round: int) -> None:
        """Update the percentile every `pacer_rounds` rounds."""
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
    """Return clipped utilities scaled to their range, in [0, 1]; 0 for utilities of 0.

    Args:
        utility: Shape (clients,), at least 0.
        clip_quantile: Quantile of the positive utilities above which they are clipped; its rank is rounded down.
    """
    positive = np.sort(utility[utility > 0])
    if not len(positive):
        return np.zeros(len(utility))
    upper = positive[min(int(len(positive) * clip_quantile), len(positive) - 1)]
    lower = 0.999 * positive[0]
    scaled: DoubleArray = (np.clip(utility, lower, upper) - lower) / max(positive[-1] - lower, _SMALLEST_RANGE)
    return scaled


def slow_factors(seconds: DoubleArray, percentile: float, penalty: float) -> DoubleArray:
    """Return (T / duration)^α for clients slower than T, and 1 for the others.

    Args:
        seconds: Durations, shape (clients,), at least 0; without a simulated clock all are 0.
        percentile: Percentile of the durations that is T, with its rank rounded down; with 100 no client is slow.
        penalty: α.
    """
    factors = np.ones(len(seconds))
    if percentile < 100 and len(seconds):
        threshold = np.sort(seconds)[min(int(len(seconds) * percentile / 100), len(seconds) - 1)]
        slow = seconds > threshold
        factors[slow] = (threshold / seconds[slow]) ** penalty
    return factors


def _utilities(report: RoundReport) -> Mapping[int, float]:
    """Return R_i of the clients that trained; 0 if their loss is not finite."""
    if not len(report.clients):
        return {}
    assert report.training is not None, "the policy asks for the losses on training rows"
    squared = np.where(np.isfinite(report.training.squared), report.training.squared, 0.0)
    utility = (report.num_examples * np.sqrt(squared))[report.trained]
    return dict(zip(report.clients[report.trained].tolist(), utility.tolist(), strict=True))


class OortSpec(OortParameters):
    """Clients with a high loss and a short duration, and some that never trained."""

    paper: ClassVar[str] = "Lai et al. 2021, arXiv:2010.06081"

    kind: Literal["oort"] = "oort"

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        return Oort(self)


class PyramidFLSpec(OortParameters):
    """Oort's selection; large updates are sent whole, fast clients train longer."""

    paper: ClassVar[str] = "Li et al. 2022, doi:10.1145/3495243.3517017"

    kind: Literal["pyramidfl"] = "pyramidfl"
    withheld_first: float = Field(0.1, ge=0, lt=1, description="Fraction of tensors withheld of the largest update")
    withheld_last: float = Field(
        0.6, ge=0, lt=1, description="Fraction of tensors withheld of the update after the smallest"
    )
    extra_epochs: int = Field(
        10, ge=0, description="Largest multiple of its epochs that a fast client trains in addition"
    )

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults in a cohort; large updates must not withhold more than small ones."""
        faults = super().faults(cohort)
        if self.withheld_first > self.withheld_last:
            must, given = f"be at most withheld_last, {self.withheld_last:g}", f"{self.withheld_first:g}"
            faults.append(Fault("withheld_first of selection.kind=pyramidfl", must, given))
        return faults

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        return PyramidFL(self)


class PyramidFL(Oort):
    """Oort with an assignment for each selected client; may starve clients as Oort may.

    Args:
        parameters: Parameters of the policy.

    Attributes:
        update_norm: Last reported update norm of each client.
    """

    observes = calls.ReportRequest(training_losses=True, update_norms=True)

    def __init__(self, parameters: PyramidFLSpec) -> None:
        super().__init__(parameters)
        self._withheld = (parameters.withheld_first, parameters.withheld_last)
        self._extra_epochs = parameters.extra_epochs
        self.update_norm: dict[int, float] = {}

    def assign(self, table: ClientTable, chosen: Sequence[int]) -> Mapping[int, calls.Assignment]:
        """Return the withheld share and the epoch factor of each selected client."""
        clients = np.asarray(chosen, np.int64)
        norms = np.array([self.update_norm.get(client, np.inf) for client in clients.tolist()])
        ranks = len(norms) - np.searchsorted(np.sort(norms), norms, side="right")  # numbers of larger norms
        first, last = self._withheld
        withheld = first + (last - first) * ranks / max(len(clients), 1)
        seconds = table.seconds[np.searchsorted(table.clients, clients)]
        epochs = 1 + extra_rounds(seconds, self._extra_epochs)
        assignments = zip(clients.tolist(), epochs.tolist(), withheld.tolist(), strict=True)
        return {client: calls.Assignment(num_epochs, share) for client, num_epochs, share in assignments}

    def observe(self, report: RoundReport) -> None:
        """Update the update norms and Oort's state."""
        super().observe(report)
        self.update_norm |= reported_norms(report)


def extra_rounds(seconds: DoubleArray, most: int) -> IntArray:
    """Return how many more rounds each client could finish while the slowest finishes one, in [0, `most`].

    Args:
        seconds: Durations, shape (clients,), at least 0; without a simulated clock all are 0, and there is no
            slack.
        most: Maximum of the result.
    """
    slack = seconds.max(initial=0.0) - seconds
    fits = slack >= most * seconds  # no division where a client takes no time
    quotient = np.divide(slack, seconds, out=np.zeros(len(seconds)), where=~fits)
    return np.where(fits & (slack > 0), most, np.floor(quotient)).astype(np.int64)
