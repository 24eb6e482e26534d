"""Oort and PyramidFL.

Oort: clients of much loss that are quick, and some that were never asked.

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

PyramidFL: Oort's choice, and every chosen client has its own share to send and its own amount of work.

Reference:
    Li, Zeng, Zhang, Cao: PyramidFL: A fine-grained client selection framework for efficient federated learning.
        MobiCom 2022. Its public code decides where the text is silent.

Of M chosen clients, rank k = 0 … M − 1 has the k-th largest update norm. It withholds a share .1 + .5 k / M of the
model's tensors, so that the most important updates come whole, and trains 1 + min(10, ⌊slack⌋) times as many epochs,
slack being the time by which it is quicker than the slowest, in units of its own duration.

Deviations:
- The update norm ranks clients; the code multiplies it by the rows.
- A client without a known update norm ranks first, as in the code, where the rows of those that never trained compete
  with norms. Equal norms share a rank.
- The code counts slack in units of local computing, and what a client withholds counts as saved time. Here the units
  are whole rounds, for nothing else is known of a client: nobody takes longer than the slowest at one share of work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import Fault
from fedscout.engine.messages.calls import (
    Assignment,
    ClientTable,
    Cohort,
    DoubleArray,
    ReportRequest,
    RoundReport,
    SelectionPolicy,
)
from fedscout.strategies.selection.base import SelectionSpec, draw_by_weight

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

    observes = ReportRequest(training_losses=True)

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


class PyramidFLSpec(OortParameters):
    """Oort's choice; large updates are sent whole, quick clients train longer."""

    paper: ClassVar[str] = "Li et al. 2022, doi:10.1145/3495243.3517017"

    kind: Literal["pyramidfl"] = "pyramidfl"
    withheld_first: float = Field(0.1, ge=0, lt=1, description="Share of tensors that the largest update withholds")
    withheld_last: float = Field(0.6, ge=0, lt=1, description="The same of one after the smallest")
    extra_epochs: int = Field(10, ge=0, description="How many times its epochs a quick client trains more, at most")

    def faults(self, cohort: Cohort) -> list[str]:
        """Return why the policy can't choose in a cohort; large updates must withhold less than small ones."""
        faults = super().faults(cohort)
        if self.withheld_first > self.withheld_last:
            faults.append(
                Fault(
                    "withheld_first of selection.kind=pyramidfl",
                    f"be at most withheld_last, {self.withheld_last:g}",
                    f"{self.withheld_first:g}",
                )
            )
        return faults

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        del cohort
        return PyramidFL(self)


class PyramidFL(Oort):
    """Oort with an assignment for each chosen client; may starve clients as Oort may.

    Args:
        parameters: Of the policy.

    Attributes:
        update_norm: The last one that each client told.
    """

    observes = ReportRequest(training_losses=True, update_norms=True)

    def __init__(self, parameters: PyramidFLSpec) -> None:
        super().__init__(parameters)
        self._withheld = (parameters.withheld_first, parameters.withheld_last)
        self._extra_epochs = parameters.extra_epochs
        self.update_norm: dict[int, float] = {}

    def assign(self, table: ClientTable, chosen: Sequence[int]) -> Mapping[int, Assignment]:
        """Return what each chosen client withholds, and how many times the epochs of a round it trains."""
        clients = np.asarray(chosen, np.int64)
        norms = np.array([self.update_norm.get(client, np.inf) for client in clients.tolist()])
        first, last = self._withheld
        withheld = first + (last - first) * ranks(norms) / max(len(clients), 1)
        seconds = table.seconds[np.searchsorted(table.clients, clients)]
        epochs = 1 + whole_slack(seconds, self._extra_epochs)
        told = zip(clients.tolist(), epochs.tolist(), withheld.tolist(), strict=True)
        return {client: Assignment(each, share) for client, each, share in told}

    def observe(self, report: RoundReport) -> None:
        """Take in the update norms, and what Oort takes in."""
        super().observe(report)
        told = report.trained & np.isfinite(report.update_norm)
        norms = zip(report.clients[told].tolist(), report.update_norm[told].tolist(), strict=True)
        self.update_norm.update(norms)


def ranks(norms: DoubleArray) -> IntArray:
    """Return how many are larger, for each of shape (clients,): 0 for the largest."""
    return len(norms) - np.searchsorted(np.sort(norms), norms, side="right")


def whole_slack(seconds: DoubleArray, most: int) -> IntArray:
    """Return how many more rounds each would finish while the slowest does one, in [0, `most`].

    Args:
        seconds: Durations, shape (clients,), at least 0; without a clock all are 0, and there is no slack.
        most: The largest answer.
    """
    slack = seconds.max(initial=0.0) - seconds
    fits = slack >= most * seconds  # no division where a client takes no time
    quotient = np.divide(slack, seconds, out=np.zeros(len(seconds)), where=~fits)
    return np.where(fits & (slack > 0), most, np.floor(quotient)).astype(np.int64)
