"""Priors: what configurations gained over FedAvg in the project's own federations, and what follows for another one.

**The table.** `priors.parquet` in this folder holds the means of the published tables of trials (docs/choice.md): of
every federation a study in the joint space with clients' settings, and one at each client setting at which all its
strategies were trained. They cover accuracy in classification only.

**Which federations count.** Those of the data set at hand are left out. Each other data set counts equally, whatever
number of federations it has; a federation's weight is multiplied by

    exp(−½ ln²(λ / λ')) · exp(−½ (D − D')² / 0.2²) · r

with the input curvatures λ of both (`detectors.queries`) and the largest Jensen-Shannon divergences D of a client's
labels; r is 1 if robust aggregation is recommended in both or in neither, else ¼. The largest stable client rate of a
linear model is proportional to 1 / λ, so a client rate that did well on standardised columns (λ about 10) diverges on
raw pixels (over 100). Skewed labels call for other strategies than equal ones. Where λ is unknown, its factor is that
of a ratio of e, where D is, that of a difference of 0.2.

**Portfolio.** An informed search begins with a portfolio, built greedily as in Auto-sklearn 2.0: the configuration with
the largest mean gain, then the one that most raises the mean of the best gain so far, and so on. It covers all degrees
of label skew: D does not count, as it gained nothing there (docs/choice.md).

**One answer.** Without a trial, the configuration with the largest mean gain; FedAvg, whose gain is 0, if none is
positive.

A configuration that was not trained in a federation is taken to gain there what it gained elsewhere; one that is known
for less than `COVERAGE` of the weight is not used.

References:
    Feurer, Eggensperger, Falkner, Lindauer, Hutter: Auto-sklearn 2.0: Hands-free AutoML via meta-learning. Journal of
        Machine Learning Research 23(261), 2022. (portfolios)
    Nesterov: Lectures on convex optimization. Springer, 2018. (the step of gradient descent is stable below 2 / L, and
        L of the logistic loss is at most λ / 4, of the softmax loss λ / 2)
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fedscout.search.recommenders.diagnosis import Alternative, Diagnosis, RecommendationContext
from fedscout.strategies import SearchSpace, StrategySpec, parse_strategy
from fedscout.strategies.specification import SELECTION

FILE = Path(__file__).with_name("priors.parquet")
SOURCE = "docs/choice.md, the table of trials"
SCHEMA = pa.schema(
    [
        *((name, pa.dictionary(pa.int16(), pa.string())) for name in ("study", "dataset", "clients", "specification")),
        ("curvature", pa.float32()),
        ("divergence", pa.float32()),
        ("robust", pa.bool_()),
        ("gain", pa.float32()),
    ],
    {b"format": b"fedscout priors 2"},
)

OTHER_KIND = 0.25
"""Weight of federations where robust aggregation is recommended for one that needs none, and conversely."""
UNKNOWN_RATIO = math.e
SIMILAR_DIVERGENCE = 0.2
"""Difference of label divergences at which a weight falls to exp(−½)."""
COVERAGE = 0.4
INTERVAL = (0.1, 0.9)
"""Quantiles of the gains that are stated with a mean."""

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Traits:
    """What makes federations similar.

    Attributes:
        curvature: Input curvature; None if unknown.
        divergence: Largest Jensen-Shannon divergence of a client's labels, in bits; None if unknown.
        robust: Whether robust aggregation is recommended.
    """

    curvature: float | None
    divergence: float | None
    robust: bool

    @classmethod
    def of(cls, diagnosis: Diagnosis | None, robust: bool) -> Traits:
        """Return the traits of a diagnosed federation."""
        known = (None, None) if diagnosis is None else (diagnosis.input_curvature, diagnosis.label_skew.value)
        return cls(*known, robust)

    def similarity(self, other: Traits) -> float:
        """Return how similar two federations are, in (0, 1]."""
        ratio = self.curvature / other.curvature if self.curvature and other.curvature else UNKNOWN_RATIO
        difference = SIMILAR_DIVERGENCE
        if self.divergence is not None and other.divergence is not None:
            difference = self.divergence - other.divergence
        of_both = math.exp(-0.5 * (math.log(ratio) ** 2 + (difference / SIMILAR_DIVERGENCE) ** 2))
        return of_both * (1 if self.robust == other.robust else OTHER_KIND)


@dataclass(frozen=True)
class PriorStudy:
    """The gains in one federation at one setting of its clients.

    Attributes:
        name: Of the federation, and the clients' settings.
        dataset: Value of `federation.dataset`.
        clients: `client_learning_rate`, `client_local_epochs` and `client_batch_size`; None in the joint space.
        traits: Of the federation.
        gains: Mean gain over FedAvg with the study's settings, by configuration.
    """

    name: str
    dataset: str
    clients: Mapping[str, float] | None
    traits: Traits
    gains: tuple[tuple[StrategySpec, float], ...]

    @cached_property
    def setting(self) -> tuple[tuple[str, float], ...]:
        """The clients' settings as a value to compare; empty in the joint space."""
        return tuple(sorted((self.clients or {}).items()))


def write_priors(path: Path, studies: Iterable[PriorStudy]) -> None:
    """Write studies to a Parquet file."""
    rows = [
        {
            "study": study.name,
            "dataset": study.dataset,
            "clients": None if study.clients is None else json.dumps(dict(study.clients)),
            "specification": json.dumps({"kind": spec.kind, **spec.parameters()}),
            **asdict(study.traits),
            "gain": gain,
        }
        for study in studies
        for spec, gain in study.gains
    ]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, compression="zstd", compression_level=19)


def read_priors(path: Path) -> tuple[PriorStudy, ...]:
    """Read studies from a file of `write_priors`."""
    table = pq.read_table(path)
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    specs = [parse_strategy(json.loads(document)) for document in columns["specification"].dictionary.to_pylist()]
    gains, places = columns["gain"].to_numpy(), columns["specification"].indices.to_numpy()
    starts = np.flatnonzero(np.diff(columns["study"].indices.to_numpy(), prepend=-1))
    studies = []
    for first, end in pairwise([*starts.tolist(), table.num_rows]):
        row = {name: column[first].as_py() for name, column in columns.items()}
        studies.append(
            PriorStudy(
                name=row["study"],
                dataset=row["dataset"],
                clients=None if row["clients"] is None else json.loads(row["clients"]),
                traits=Traits(row["curvature"], row["divergence"], row["robust"]),
                gains=tuple((specs[places[index]], float(gains[index])) for index in range(first, end)),
            )
        )
    return tuple(studies)


@cache
def project_studies() -> tuple[PriorStudy, ...]:
    """Return the project's own studies."""
    return read_priors(FILE)


@dataclass(frozen=True)
class Evidence:
    """What is known of the configurations of a space in other federations.

    Attributes:
        studies: The federations.
        similarity: How similar each is, in `(0, 1]`, shape `(studies,)`.
        specs: The configurations.
        gains: Gains over FedAvg, shape `(studies, configurations)`; NaN where one was not trained.
    """

    studies: tuple[PriorStudy, ...]
    similarity: Matrix
    specs: tuple[StrategySpec, ...]
    gains: Matrix

    @classmethod
    def of(
        cls,
        context: RecommendationContext,
        robust: bool,
        references: Sequence[StrategySpec] = (),
        studies: Sequence[PriorStudy] | None = None,
        by_labels: bool = True,
    ) -> Evidence | None:
        """Return the evidence for a federation; None if the priors do not cover its task.

        Args:
            context: The federation; studies of its data set are left out. If client settings are searched, studies
                of the joint space are used, else those with the most similar client settings.
            robust: Whether robust aggregation is recommended for it.
            references: Configurations that are never proposed.
            studies: Used in place of the project's own.
            by_labels: Whether federations with as skewed labels count more.
        """
        if not context.measure.is_accuracy or context.measure.task != "classification":
            return None
        space, diagnosis = context.space, context.diagnosis
        dataset = None if context.data_origin is None else context.data_origin.dataset
        is_joint = bool(space.client_ranges.keys() - {SELECTION})
        others = [
            study
            for study in (project_studies() if studies is None else studies)
            if (study.clients is None) == is_joint and study.dataset != dataset
        ]
        settings = {study.setting: study.clients or {} for study in others}
        differences = {setting: _difference(clients, space.given) for setting, clients in settings.items()}
        nearest = min(differences.values(), default=0.0)
        others = [study for study in others if differences[study.setting] == nearest]
        specs, gains = _gains_in(space, others, references)
        if not specs:
            return None
        traits = Traits.of(diagnosis, robust)
        traits = traits if by_labels else replace(traits, divergence=None)  # then its factor is the same for all
        similarities = [traits.similarity(study.traits) for study in others]
        evidence = cls(tuple(others), np.array(similarities), tuple(specs), gains)
        covered = np.flatnonzero(evidence.weights @ ~np.isnan(gains) >= COVERAGE)
        return replace(evidence, specs=tuple(specs[place] for place in covered), gains=gains[:, covered])

    @cached_property
    def weights(self) -> Matrix:
        """Weight of each federation, shape `(studies,)`: by similarity, each data set counting equally; sum 1."""
        counts = Counter(study.dataset for study in self.studies)
        weights = self.similarity / [counts[study.dataset] for study in self.studies]
        return np.asarray(weights / weights.sum())

    @property
    def means(self) -> Matrix:
        """Weighted mean gain of each configuration over the federations where it was trained."""
        known = ~np.isnan(self.gains)
        total: Matrix = self.weights @ np.nan_to_num(self.gains) / (self.weights @ known)
        return total

    @property
    def completed(self) -> Matrix:
        """The gains, with the mean of the others where a configuration was not trained."""
        return np.where(np.isnan(self.gains), self.means, self.gains)

    def portfolio(self, count: int) -> tuple[Alternative, ...]:
        """Return configurations of which at least one did well in most federations, at most `count`, best first."""
        places = greedy_portfolio(self.completed, self.weights, count)
        return tuple(Alternative(self.specs[place], self.explanation(place), SOURCE) for place in places)

    def best(self, is_allowed: Callable[[StrategySpec], bool]) -> Alternative | None:
        """Return the one answer among the allowed configurations; None if none gained on average."""
        means = self.means
        allowed = [place for place, spec in enumerate(self.specs) if is_allowed(spec) and means[place] > 0]
        if not allowed:
            return None
        place = max(allowed, key=lambda candidate: means[candidate])
        return Alternative(self.specs[place], self.explanation(place), SOURCE)

    def about(self, spec: StrategySpec) -> Alternative | None:
        """Return a configuration with what it gained elsewhere; None if it was not trained there."""
        return Alternative(spec, self.explanation(self.specs.index(spec)), SOURCE) if spec in self.specs else None

    def explanation(self, place: int) -> str:
        """Return what a configuration gained elsewhere: mean, interval, and the most similar federations."""
        known = np.flatnonzero(~np.isnan(self.gains[:, place]))
        gains, weights = self.gains[known, place], self.weights[known]
        order = np.argsort(gains, kind="stable")
        shares = np.cumsum(weights[order]) / weights.sum()
        low, high = (100 * gains[order][min(np.searchsorted(shares, part), len(order) - 1)] for part in INTERVAL)
        nearest = known[np.argsort(-self.similarity[known], kind="stable")[:2]]
        return (
            f"In {len(known)} other federations, the similar ones weighted most, it gained "
            f"{100 * self.means[place]:+.1f} points over FedAvg on average, in 80 % of them between {low:+.1f} and "
            f"{high:+.1f}; the most similar are {' and '.join(self.studies[index].name for index in nearest)}."
        )


def greedy_portfolio(gains: Matrix, weights: Matrix, count: int) -> Iterator[int]:
    """Yield the columns of a portfolio: each time the one that most raises the weighted mean of the best gain so far.

    Args:
        gains: Gains over FedAvg, which is in every portfolio, shape `(studies, configurations)`.
        weights: Of the studies, shape `(studies,)`.
        count: Largest number of columns; fewer if no other raises the mean.
    """
    best = np.zeros(len(gains))
    for _ in range(count if gains.size else 0):
        raised = weights @ np.maximum(best[:, None], gains)
        place = int(raised.argmax())
        if raised[place] <= weights @ best:
            return
        yield place
        best = np.maximum(best, gains[:, place])


def _difference(theirs: Mapping[str, float], ours: Mapping[str, Any]) -> float:
    """Return the sum of the absolute log ratios of client settings; 0 without any."""
    return sum(abs(math.log(theirs[name] / float(ours[name]))) for name in theirs if name in ours)


def _gains_in(
    space: SearchSpace, studies: Sequence[PriorStudy], references: Sequence[StrategySpec]
) -> tuple[list[StrategySpec], Matrix]:
    """Return the studies' configurations, moved into a space, and their gains, NaN where one was not trained.

    Returns:
        The configurations, and gains of shape `(studies, configurations)`.
    """
    taken = {space.digest(spec) for spec in references}
    columns: dict[str, tuple[StrategySpec, list[float]]] = {}

    def column(spec: StrategySpec) -> list[float] | None:
        moved = space.nearest(spec)
        if moved is None or space.has_equivalent(moved) or (digest := space.digest(moved)) in taken:
            return None
        return columns.setdefault(digest, (moved, [-math.inf] * len(studies)))[1]

    by_identity: dict[int, list[float] | None] = {}  # studies share specifications, whose hashes take longer than these
    for row, study in enumerate(studies):
        for spec, gain in study.gains:
            if id(spec) not in by_identity:
                by_identity[id(spec)] = column(spec)
            if (gains := by_identity[id(spec)]) is not None:
                gains[row] = max(gains[row], gain)
    specs = [spec for spec, _ in columns.values()]
    gains_by_spec = np.array([gains for _, gains in columns.values()]).reshape(len(specs), len(studies))
    return specs, np.where(np.isinf(gains_by_spec), np.nan, gains_by_spec).T
