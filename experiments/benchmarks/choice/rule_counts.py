"""How often each rule decides on the federations of a table of trials, and how often its answer is right there.

On each seed the rules answer to what was detected on it; the answer is judged by the other seeds, as any pick of a
replay (`replay_measurement`). A rule *decides* on a federation if its answer was given on one seed or more. It is
*better* or *worse* there if the 95 % interval of its answers' difference to tuned FedAvg, over the seeds that judge,
lies above or below zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel

from fedscout.experiments.benchmarks.choice.choice_choosers import Choosing
from fedscout.experiments.benchmarks.choice.choice_laboratory import Pick
from fedscout.experiments.benchmarks.choice.joint_battery import Half
from fedscout.experiments.benchmarks.choice.replay import ReplayLaboratory
from fedscout.experiments.benchmarks.choice.replay_measurement import Judged, gain_of, judged_pick, versus_tuned
from fedscout.experiments.benchmarks.choice.trial_table import FederationTrials
from fedscout.search.recommenders.rules import RULES, recommend_by_rules


class RuleCount(BaseModel, frozen=True):
    """One rule over one half of the battery.

    Attributes:
        decided: Federations on which it decided.
        better: Of these, where its answer beats tuned FedAvg beyond noise.
        worse: Where it is beaten.
        versus_tuned: Mean over them of the difference to tuned FedAvg; None if there are none.
    """

    rule: str
    half: Half
    decided: tuple[str, ...]
    better: tuple[str, ...]
    worse: tuple[str, ...]
    versus_tuned: float | None


def count_rules(table: Sequence[FederationTrials], settings: Sequence[str]) -> tuple[RuleCount, ...]:
    """Return the counts of every rule in each half, in the order in which they decide.

    Args:
        table: Of trials.
        settings: Of the studies that ask for an answer.
    """
    by_rule: dict[tuple[str, Half], dict[str, list[Judged]]] = {}
    for federation in table:
        laboratory = ReplayLaboratory(federation, settings)
        gain = gain_of(laboratory)
        for seed in federation.seeds:
            answer = recommend_by_rules(Choosing(laboratory, seed).situation())
            group = by_rule.setdefault((answer.grounds[0].rule, gain.half), {}).setdefault(gain.name, [])
            group.append(judged_pick(laboratory, gain, "rules", seed, Pick(answer.spec)))
    halves: tuple[Half, ...] = ("development", "held out")
    return tuple(_count(rule.name, half, by_rule.get((rule.name, half), {})) for rule in RULES for half in halves)


def _count(rule: str, half: Half, groups: dict[str, list[Judged]]) -> RuleCount:
    versus = {name: versus_tuned(group) for name, group in groups.items()}
    return RuleCount(
        rule=rule,
        half=half,
        decided=tuple(versus),
        better=tuple(name for name, found in versus.items() if found.verdict > 0),
        worse=tuple(name for name, found in versus.items() if found.verdict < 0),
        versus_tuned=float(np.mean([found.mean for found in versus.values()])) if versus else None,
    )
