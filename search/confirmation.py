"""Confirmation: does the winner hold up on seeds that the search never saw?

The challenger (the best configuration that is not FedAvg) and the baselines train again on fresh seeds. A seed fixes
split, initial model and batches and is shared by all of them, so differences are paired; the partition, and what a
scenario did to it, stay. Nothing is announced as better than FedAvg unless the interval of the difference says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from engine.seeds import integer
from engine.trial_log import TrialRecord
from search.intervals import PairedDifference, paired_difference
from search.search_config import View

Verdict = Literal["better", "no difference", "worse", "not confirmed"]


class Contestant(BaseModel):
    """A configuration on the fresh seeds.

    Attributes:
        role: `challenger`, `fedavg` or `tuned-fedavg`.
        name: The configuration for people.
        strategy: Its kind, or the import path of a user's own.
        parameters: Its parameters.
        learning_rate: The clients' step size.
        own: Fitness a seed, on test data as clients have them; 0 where the trial failed.
        clean: The same on uncorrupted test data.
        failures: Reason of each failed trial, by seed.
    """

    model_config = ConfigDict(frozen=True)

    role: Literal["challenger", "fedavg", "tuned-fedavg"]
    name: str
    strategy: str
    parameters: Mapping[str, Any]
    learning_rate: float
    own: tuple[float, ...]
    clean: tuple[float, ...]
    failures: Mapping[int, str]

    def scores(self, view: View) -> tuple[float, ...]:
        """Return the fitness a seed in one view."""
        return self.own if view == "own" else self.clean


class Confirmation(BaseModel):
    """The outcome.

    Attributes:
        seeds: The fresh seeds, the same for all.
        view: The view that decides.
        contestants: Challenger first, then the baselines.
        versus: Challenger minus baseline, by the baseline's role, then by view.
        verdict: On the challenger against FedAvg in the deciding view.
        sentence: The outcome for people.
    """

    model_config = ConfigDict(frozen=True)

    seeds: tuple[int, ...]
    view: View
    contestants: tuple[Contestant, ...]
    versus: Mapping[str, Mapping[str, PairedDifference]]
    verdict: Verdict
    sentence: str


def confirmation_seeds(seed: int, count: int) -> tuple[int, ...]:
    """Return distinct seeds that differ from the search's own."""
    seeds: list[int] = []
    index = 0
    while len(seeds) < count:
        candidate = integer(seed, "confirmation-seed", index) % 2**31
        index += 1
        if candidate != seed and candidate not in seeds:
            seeds.append(candidate)
    return tuple(seeds)


def contestant(
    role: Literal["challenger", "fedavg", "tuned-fedavg"], name: str, records: Sequence[TrialRecord]
) -> Contestant:
    """Gather one configuration's trials, one a seed."""
    first = records[0]
    return Contestant(
        role=role,
        name=name,
        strategy=first.strategy,
        parameters=dict(first.parameters),
        learning_rate=first.learning_rate,
        own=tuple(record.own_fitness for record in records),
        clean=tuple(record.clean_fitness for record in records),
        failures={record.seed: record.error or "" for record in records if record.status == "failed"},
    )


def confirm(seeds: Sequence[int], contestants: Sequence[Contestant], view: View) -> Confirmation:
    """Compare the challenger with the baselines.

    Args:
        seeds: In the order of the contestants' scores.
        contestants: Challenger first, then FedAvg, then any other baseline.
        view: The view that decides.
    """
    challenger, *baselines = contestants
    versus = {
        baseline.role: {
            side: paired_difference(challenger.scores(side), baseline.scores(side)) for side in ("own", "clean")
        }
        for baseline in baselines
    }
    difference = versus["fedavg"][view]
    verdict: Verdict = {1: "better", 0: "no difference", -1: "worse"}[difference.verdict]  # type: ignore[assignment]
    if difference.low is None:
        verdict = "not confirmed"
    return Confirmation(
        seeds=tuple(seeds),
        view=view,
        contestants=tuple(contestants),
        versus=versus,
        verdict=verdict,
        sentence=_sentence(challenger.name, difference, verdict) + _failures(contestants),
    )


def difference_text(difference: PairedDifference) -> str:
    """Return a difference in percentage points, such as `+9.3 points, 95 % interval [+5.1, +13.5], 5 seeds`."""
    seeds = f"{len(difference.differences)} seed{'s' if len(difference.differences) != 1 else ''}"
    if difference.low is None or difference.high is None:
        return f"{100 * difference.mean:+.1f} points, no interval from {seeds}"
    low, high = 100 * difference.low, 100 * difference.high
    return f"{100 * difference.mean:+.1f} points, 95 % interval [{low:+.1f}, {high:+.1f}], {seeds}"


def _sentence(name: str, difference: PairedDifference, verdict: Verdict) -> str:
    measured = difference_text(difference)
    return {
        "better": f"{name} beats FedAvg on fresh seeds: {measured}.",
        "no difference": f"{name} does not beat FedAvg beyond noise on fresh seeds: {measured}. Keep FedAvg.",
        "worse": f"{name} is worse than FedAvg on fresh seeds: {measured}. Keep FedAvg.",
        "not confirmed": f"{name} against FedAvg: {measured}; at least two seeds are needed to tell it from noise.",
    }[verdict]


def _failures(contestants: Sequence[Contestant]) -> str:
    """Return what a reader must know of seeds on which somebody failed."""
    told = [
        f" {one.name if one.role == 'challenger' else one.role} failed on {len(one.failures)} of {len(one.own)} seeds, "
        "which count as accuracy 0."
        for one in contestants
        if one.failures
    ]
    return "".join(told)
