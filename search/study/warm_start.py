"""Warm start: what did well in similar earlier studies is tried first.

**Similarity.** A study is a point: what the detectors measured and how clients train (`FEATURES`), logarithms where
ratios matter. Each feature is divided by 1.4826 times its median absolute deviation over all studies, the present one
included, or by its smallest unit if that is larger, so that a feature in which the studies hardly differ decides
nothing, and one odd study does not set the scale. A difference counts at most 3 units; a feature that is known on one
side only counts 1. The distance is the root mean square over the features.

**Proposals.** Of each study, the configurations that beat FedAvg there on the same seeds, best first
(`search/study/earlier_studies.py`). They are taken by turns: the best of the nearest study, then the second of it and
the best of the next, and so on. Each is moved into the present space: a strategy that is impossible here is passed
over, a value is moved to the nearest of its range, and a client parameter that was not searched there is the present
study's.

**Leave-one-out.** A study is never used for itself, nor for another study of the same federation: the same `federation`
settings, or the same rows in the same hands under the same scenario. It would be told its own result.

The idea is that of warm starts by meta-features in configuring learning algorithms; features and distance are our own.

References:
    Feurer, Springenberg, Hutter: Initializing Bayesian hyperparameter optimization via meta-learning. AAAI 2015.
    Leys, Ley, Klein, Bernard, Licata: Detecting outliers: do not use standard deviation around the mean, use absolute
        deviation around the median. Journal of Experimental Social Psychology 49(4), 2013. (1.4826)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from pydantic import BaseModel

from fedscout.engine.errors import StrategyError
from fedscout.search.study.earlier_studies import EarlierStudy
from fedscout.strategies import SearchSpace, StrategySpec, parse_strategy

MAD_TO_DEVIATION = 1.4826
LARGEST_DIFFERENCE = 3.0
UNKNOWN_DIFFERENCE = 1.0

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Feature:
    """One coordinate of a study.

    Attributes:
        read: Its value from the report and the local training, both as JSON; it may raise or return None if unknown.
        unit: The smallest difference that counts as one.
    """

    read: Callable[[Document, Document], float | None]
    unit: float


def _label_values(report: Document) -> list[float]:
    return list(report["label_skew"]["client_values"].values())


FEATURES: Mapping[str, Feature] = {
    "clients, log10": Feature(lambda report, _: math.log10(report["num_clients"]), 0.3),
    "classes, log2": Feature(lambda report, _: math.log2(report["num_classes"]), 1.0),
    "features, log10": Feature(lambda report, _: math.log10(report["num_features"]), 0.5),
    "rows a client, log10": Feature(
        lambda report, _: math.log10(fmean(client["num_rows"] for client in report["clients"])), 0.3
    ),
    "label skew, largest": Feature(lambda report, _: report["label_skew"]["value"], 0.1),
    "label skew, mean": Feature(lambda report, _: fmean(_label_values(report)), 0.1),
    "feature skew": Feature(lambda report, _: report["feature_skew"]["value"], 0.25),
    "outliers, share": Feature(
        lambda report, _: len(report["outliers"]["flagged_clients"]) / report["num_clients"], 0.1
    ),
    "quantity, Gini": Feature(lambda report, _: report["metrics"]["quantity_gini"], 0.15),
    "learning rate, log10": Feature(lambda _, training: math.log10(training["learning_rate"]), 0.3),
    "local epochs, log2": Feature(lambda _, training: math.log2(training["local_epochs"]), 1.0),
    "batch size, log2": Feature(lambda _, training: math.log2(training["batch_size"]), 1.0),
    "rounds, log10": Feature(lambda _, training: math.log10(training["num_rounds"]), 0.3),
    "share of clients a round": Feature(lambda _, training: training["fraction_train"], 0.3),
}


class SimilarStudy(BaseModel, frozen=True):
    """An earlier study and how far it is.

    Attributes:
        study: Its folder.
        distance: See the module; None if it is not used.
        note: Why it is not used.
        same_data: Whether its federation is made from the same data set.
    """

    study: str
    distance: float | None
    note: str | None = None
    same_data: bool = False


class WarmProposal(BaseModel, frozen=True):
    """A configuration that is tried first.

    Attributes:
        strategy: Its kind and parameters in the present space.
        study: Where it did well.
        gain: By how much it beat FedAvg there.
    """

    strategy: Mapping[str, Any]
    study: str
    gain: float


class WarmStart(BaseModel, frozen=True):
    """What earlier studies say; a study keeps it, so that it goes on with the same if they change.

    Attributes:
        studies: Nearest first, then those that are not used.
        proposals: In the order in which they are tried.
        notes: What could not be read or used.
    """

    studies: tuple[SimilarStudy, ...]
    proposals: tuple[WarmProposal, ...]
    notes: tuple[str, ...] = ()

    def specs(self) -> list[StrategySpec]:
        """Return the proposals as specifications."""
        return [parse_strategy(proposal.strategy) for proposal in self.proposals]

    def fits(self, space: SearchSpace) -> bool:
        """Whether all that it proposes can be chosen in a space; nothing that is not of the space is imported."""
        try:
            return all(space.contains(spec) for spec in self.specs())
        except StrategyError:
            return False


def features_of(report: Document, training: Document) -> dict[str, float | None]:
    """Return a study's features; None where one is unknown.

    Args:
        report: The heterogeneity report as JSON.
        training: The study's settings of training as JSON.
    """

    def value(feature: Feature) -> float | None:
        try:
            found = feature.read(report, training)
            return found if found is not None and math.isfinite(found) else None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return None  # a report of another version, or a detector that did not measure

    return {name: value(feature) for name, feature in FEATURES.items()}


def distances(present: Mapping[str, float | None], others: Sequence[Mapping[str, float | None]]) -> list[float]:
    """Return the distance of each earlier study from the present one, >= 0, by their features."""
    units = {name: _unit(name, [present, *others]) for name in FEATURES}

    def difference(name: str, other: Mapping[str, float | None]) -> float | None:
        here, there = present.get(name), other.get(name)
        if here is None or there is None:
            return None if here is there else UNKNOWN_DIFFERENCE
        return min(abs(here - there) / units[name], LARGEST_DIFFERENCE)

    found = []
    for other in others:
        known = [value for name in FEATURES if (value := difference(name, other)) is not None]
        found.append(math.sqrt(fmean(value**2 for value in known)) if known else 0.0)
    return found


def warm_start(
    studies: Sequence[EarlierStudy],
    report: Document,
    training: Document,
    space: SearchSpace,
    num_proposals: int,
    references: Sequence[StrategySpec] = (),
) -> WarmStart:
    """Return what to try first.

    Args:
        studies: Earlier ones, none of them of the present federation.
        report: Of the present federation, as JSON.
        training: The present settings of training, as JSON.
        space: Of the present study.
        num_proposals: At most so many.
        references: Never proposed.
    """
    others = [features_of(study.report, study.config.get("training", {})) for study in studies]
    apart = distances(features_of(report, training), others)
    order = sorted(range(len(studies)), key=lambda place: (apart[place], studies[place].name))
    taken = {space.digest(spec) for spec in references}
    proposals: list[WarmProposal] = []
    for study, spec, gain in _by_turns([studies[place] for place in order]):
        if len(proposals) == num_proposals:
            break
        moved = space.nearest(spec)
        if moved is None or space.is_twin(moved) or space.digest(moved) in taken:
            continue
        taken.add(space.digest(moved))
        document = {"kind": moved.kind, **moved.parameters()}
        proposals.append(WarmProposal(strategy=document, study=study.name, gain=gain))
    similar = tuple(SimilarStudy(study=studies[place].name, distance=apart[place]) for place in order)
    return WarmStart(studies=similar, proposals=tuple(proposals))


def _by_turns(studies: Sequence[EarlierStudy]) -> Iterator[tuple[EarlierStudy, StrategySpec, float]]:
    """Yield what beat FedAvg: the best of the first study; its second and the best of the second study; and so on."""
    winners = [[(spec, gain) for spec, gain in study.gains if gain > 0] for study in studies]
    last = max((place + len(found) for place, found in enumerate(winners)), default=0)
    for turn in range(last):
        for place in range(min(turn + 1, len(studies))):
            if turn - place < len(winners[place]):
                yield (studies[place], *winners[place][turn - place])


def _unit(name: str, studies: Sequence[Mapping[str, float | None]]) -> float:
    values = [value for study in studies if (value := study.get(name)) is not None]
    if not values:
        return FEATURES[name].unit
    middle = median(values)
    return max(FEATURES[name].unit, MAD_TO_DEVIATION * median(abs(value - middle) for value in values))
