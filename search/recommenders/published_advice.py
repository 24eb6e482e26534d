"""What a published table of advice would compare a recommendation with: FedPilot's.

It goes by how the rows came to the clients, and only where that is not known by how strong the measured label skew is.

| known | FedPilot's name | advice |
| --- | --- | --- |
| dealt at random | `iid` | FedAvg |
| Dirichlet, α from 1 | `20`, mild, and `dir` | FedAvg and FedProx |
| Dirichlet, α from 0.5 | `50`, moderate, and `dir` | FedAvg and FedProx |
| Dirichlet, smaller α | `90`, severe, and `dir` | FedProx |
| a share of the classes each: from 0.9, below, up to 0.2 | mild, moderate, severe | FedAvg; both; FedProx |
| the writers of FEMNIST, the roles of Shakespeare | the data set | FedProx |
| anything else, or nothing | | by label skew: none, FedAvg; low, both; high, FedProx |

FedProx's μ begins at 0.01. Communities, by labels, stand beside FedAvg: inside of one there is less skew to average
over.

The severities mean Dirichlet with α of 1, 0.5 and 0.1 in FedPilot's documentation, for which its advice is made; its
code gives each client 20, 50 or 90 % of the classes, of which 20 is the most severe. So shares of classes are read by
how severe they are, not by their number. A Dirichlet partition with a large α is mild by one row of the table and for
FedProx by another: both are named. A measured severity has three degrees; what is found but not strong is moderate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fedscout.search.dealing import Dealing
from fedscout.search.recommenders.diagnosis import Severity
from fedscout.search.recommenders.recommendation import Alternative, Situation
from fedscout.strategies import FedAvgSpec, FedProxSpec, StrategySpec
from fedscout.strategies.methods.groups.communities import CommunitiesSpec

SOURCE = "FedPilot's table of advice; FedProx: Li et al. 2020, arXiv:1812.06127"

NATURAL = "natural"
NATURALLY_SKEWED = ("leaf_femnist", "leaf_shakespeare", "shakespeare")
"""Data sets whose natural clients the table names."""

AVERAGE: tuple[StrategySpec, ...] = (FedAvgSpec(), CommunitiesSpec())
PROXIMAL: tuple[StrategySpec, ...] = (FedProxSpec(proximal_mu=0.01),)

BY_SEVERITY: Mapping[Severity, tuple[StrategySpec, ...]] = {
    "none": AVERAGE,
    "low": (*AVERAGE, *PROXIMAL),
    "high": PROXIMAL,
}

_WORDS: Mapping[Severity, str] = {"none": "no or mild", "low": "moderate", "high": "severe"}

MILD_ALPHA, MODERATE_ALPHA = 1.0, 0.5
MILD_SHARE, SEVERE_SHARE = 0.9, 0.2


@dataclass(frozen=True)
class Advice:
    """A line of the table.

    Attributes:
        applies_to: In words.
        specs: What it advises.
    """

    applies_to: str
    specs: tuple[StrategySpec, ...]


def alternatives(situation: Situation, recommended: StrategySpec) -> Iterator[Alternative]:
    """Yield the table's advice on classification, as far as it can be chosen and is not what is recommended already."""
    if situation.measure.task != "classification":
        return
    severity = None if situation.diagnosis is None else situation.diagnosis.label_skew.severity
    advice = advice_for(situation.dealing, severity)
    for advised in () if advice is None else advice.specs:
        spec = situation.space.nearest(advised)
        if (
            advice is not None
            and spec is not None
            and situation.space.digest(spec) != situation.space.digest(recommended)
        ):
            yield Alternative(spec, f"The table's advice for {advice.applies_to}.", SOURCE)


def advice_for(dealing: Dealing | None, severity: Severity | None) -> Advice | None:
    """Return what the table says of a federation; None where nothing is known of it.

    Args:
        dealing: How rows came to the clients, if that is known.
        severity: Of the label skew, if that was measured.
    """
    known = None if dealing is None else _of_dealing(dealing)
    if known is not None or severity is None:
        return known
    return Advice(f"{_WORDS[severity]} label skew, as it was measured", BY_SEVERITY[severity])


def _of_dealing(dealing: Dealing) -> Advice | None:
    """Return what the table says of a way to deal rows; None if it names none like it."""
    if dealing.partition == NATURAL and dealing.dataset in NATURALLY_SKEWED:
        return Advice(f"the natural clients of {dealing.dataset}", PROXIMAL)
    if dealing.partition == "iid":
        return Advice("rows dealt at random", AVERAGE)
    if dealing.alpha is not None:
        both = dealing.alpha >= MODERATE_ALPHA
        degree = "mild" if dealing.alpha >= MILD_ALPHA else "moderate" if both else "severe"
        what = f"rows dealt by Dirichlet, α {dealing.alpha:g}, {degree}"
        return Advice(what, BY_SEVERITY["low" if both else "high"])
    if dealing.class_share is not None:
        share = dealing.class_share
        severity: Severity = "none" if share >= MILD_SHARE else "high" if share <= SEVERE_SHARE else "low"
        return Advice(f"clients that have {share:.0%} of the classes each, {_WORDS[severity]}", BY_SEVERITY[severity])
    return None
