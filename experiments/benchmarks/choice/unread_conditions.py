"""What no rule reads: whether amounts, absences, the model or the number of clients change which strategy is best.

The gain of a strategy on a federation is that of its configuration in the joint space that is best on all seeds but
one, on that one, each in turn, less FedAvg's, which is chosen likewise. Only development federations are looked at.

Federations that differ in little but a condition stand beside each other (`CONDITIONS`). Over all of them, gains are
set against the unevenness of amounts and the number of clients by Spearman's rank correlation; *given label skew*, with
the ranks of the measured label skew taken out of both by least squares; and over the federations of so many classes
that rules which read the classes decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from pydantic import BaseModel

from fedscout.detectors import HeterogeneityReport
from fedscout.experiments.benchmarks.choice.replay import Scores, best_elsewhere
from fedscout.experiments.benchmarks.choice.trial_table import FederationTrials
from fedscout.search.recommenders.rules import MANY_CLASSES

STRATEGIES = ("fedavgm", "fedadam", "fedyogi", "fedmedian")
CONDITIONS: tuple[tuple[str, str], ...] = (
    ("none", "digits, iid, 10 clients"),
    ("quantity", "digits, other amounts, 10 clients"),
    ("absences", "digits, drop-outs, 10 clients"),
    ("none", "digits, Dirichlet 0.3, 50 clients"),
    ("absences", "digits, Dirichlet 0.3, 50 clients, a fifth a round"),
    ("model", "digits, features scaled, 10 clients"),
    ("none", "digits, Dirichlet 0.1, 10 clients"),
    ("clients", "digits, Dirichlet 0.1, 20 clients"),
)
"""What a federation has that the one of `none` above it has not."""

Values = np.ndarray[tuple[int], np.dtype[np.float64]]


class StrategyGain(BaseModel, frozen=True):
    """Of a strategy on FedAvg, each at its best: mean over seeds, with its standard error."""

    mean: float
    standard_error: float


class ConditionGains(BaseModel, frozen=True):
    """The gains on a federation that has a condition, by strategy."""

    condition: str
    federation: str
    gains: Mapping[str, StrategyGain]


class Correlation(BaseModel, frozen=True):
    """Spearman's between what federations have and the gain of a strategy.

    Attributes:
        what: They have.
        over: Which federations.
        strategy: Whose gain.
        coefficient: In `[-1, 1]`; None where there is none.
        p_value: Two-sided, of this one look; None where there is no coefficient.
    """

    what: str
    over: str
    strategy: str
    coefficient: float | None
    p_value: float | None


class UnreadConditions(BaseModel, frozen=True):
    """All of it."""

    conditions: tuple[ConditionGains, ...]
    correlations: tuple[Correlation, ...]


def unread_conditions(table: Sequence[FederationTrials]) -> UnreadConditions:
    """Return what the development federations of a table say."""
    development = [federation for federation in table if federation.about.half == "development"]
    gains = {federation.about.name: _gains(federation) for federation in development}
    return UnreadConditions(
        conditions=tuple(
            ConditionGains(condition=condition, federation=name, gains=gains[name])
            for condition, name in CONDITIONS
            if name in gains
        ),
        correlations=tuple(_correlations(development, gains)) if development else (),
    )


def _gains(federation: FederationTrials) -> dict[str, StrategyGain]:
    fedavg = _best_of("fedavg", federation)
    found = {}
    for kind in STRATEGIES:
        won = _best_of(kind, federation) - fedavg
        error = float(won.std(ddof=1) / np.sqrt(len(won)))
        found[kind] = StrategyGain(mean=float(won.mean()), standard_error=error)
    return found


def _best_of(kind: str, federation: FederationTrials) -> Scores:
    """Return the scores of the best configuration of a strategy, chosen on other seeds than the judging one."""
    return best_elsewhere(
        federation.scores[[place for place, spec in enumerate(federation.specs) if spec.kind == kind]]
    )


def _correlations(
    development: Sequence[FederationTrials], gains: Mapping[str, Mapping[str, StrategyGain]]
) -> Iterator[Correlation]:
    from scipy.stats import rankdata

    reports = [HeterogeneityReport.model_validate(each.about.reports[each.seeds[0]]) for each in development]
    skew = rankdata([report.label_skew.value or 0.0 for report in reports])
    many = np.array([report.num_classes >= MANY_CLASSES for report in reports], dtype=bool)
    has = {
        "amounts, coefficient of variation": np.array([report.metrics.quantity_variation or 0.0 for report in reports]),
        "number of clients": np.array([float(report.num_clients) for report in reports]),
    }
    for what, values in has.items():
        for kind in STRATEGIES:
            won = np.array([gains[each.about.name][kind].mean for each in development])
            for over, of in (("all", np.ones_like(many)), (f"{MANY_CLASSES} classes or more", many)):
                own, theirs = rankdata(values[of]), rankdata(won[of])
                yield _correlation(own, theirs, what=what, over=f"{over}, {of.sum()}", strategy=kind)
            own, theirs = (_without(skew, rankdata(each)) for each in (values, won))
            yield _correlation(own, theirs, 1, what=what, over="all, given label skew", strategy=kind)


def _correlation(own: Values, theirs: Values, num_taken_out: int = 0, **told: str) -> Correlation:
    """Correlate ranks, by Student's t distribution; there is no coefficient of too few, nor of what is all alike."""
    from scipy.special import betainc

    freedom = len(own) - 2 - num_taken_out
    if freedom < 1 or np.ptp(own) == 0 or np.ptp(theirs) == 0:
        return Correlation.model_validate({**told, "coefficient": None, "p_value": None})
    coefficient = float(np.clip(np.corrcoef(own, theirs)[0, 1], -1, 1))
    p_value = float(betainc(freedom / 2, 0.5, 1 - coefficient**2))
    return Correlation.model_validate({**told, "coefficient": coefficient, "p_value": p_value})


def _without(other: Values, ranks: Values) -> Values:
    """Return ranks without what the ranks of others say of them."""
    centred = other - other.mean()
    spread = float(centred @ centred)
    found: Values = ranks - ranks.mean() - (centred * float(centred @ ranks) / spread if spread else 0.0)
    return found
