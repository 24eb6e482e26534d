"""Communities: clients that are alike train a model of their own, by a strategy inside each community.

`grouped_by=labels` finds communities before the first training, from the clients' label counts, as FedPilot does:
`communities.py`. `grouped_by=updates` finds them while they train, from the directions of the clients' updates,
as clustered federated learning does: `communities.py`. What a strategy per community means, and how a round's
clients are dealt to communities, is in `strategies/aggregation/groups.py`. Each client is scored under the model
of its community, also in rounds that it does not train in.

With a single community it is the strategy inside. `num_communities` is how many there are by labels, and how many there
may be by updates; without it the data decide. A strategy that a community is too small for, such as Krum for three
clients, fails the trial when the communities are known, before anything is trained by labels.

Communities of clients that hold the same labels: label counts, their cosine similarities, Affinity Propagation.

With n_i the label counts of client i, s_ij = n_i · n_j / (‖n_i‖ ‖n_j‖); communities are the clusters of Affinity
Propagation (Frey and Dueck 2007) on s, as in FedPilot, by scikit-learn. Clients are asked once, before the first
training, and what they let out passes the same gate as the answers to detectors.

Deviations from scikit-learn's defaults:

- The preference, the similarity to itself of a client as the centre of a community, is 0.5 and not the median of all s.
  Cosines of counts mean something by themselves: a client opens a community rather than join one that it is less
  similar to. With the median, clients that hold the same divide by what is chance: a hundred of them into a dozen.
- Steps are damped by 0.9, nothing must change for 200 of them, and s is shaken by 1e-6: where clients are equal, nobody
  is the better centre, and the algorithm otherwise stops undecided.

For a fixed number of communities they are the clusters of average linkage on 1 − s.

References:
    Frey, Dueck: Clustering by passing messages between data points. Science 315, 2007.

Communities of clients whose updates point the same way: clustered federated learning.

All clients train as one community until a common model can't be had, then it is halved, and each half likewise
(Sattler, Müller, Samek: Clustered federated learning: model-agnostic distributed multitask optimization under privacy
constraints, IEEE Transactions on Neural Networks and Learning Systems 32(8), 2021, arXiv:1910.01991). With Δ_i the
update of client i, p_i its share of the community's examples and α_ij the cosine of Δ_i and Δ_j, a community is halved
after a round in which

    ‖Σ p_i Δ_i‖ < ε_1 and max ‖Δ_i‖ > ε_2     it stands still, but its clients do not
    sqrt((1 − α_cross) / 2) > γ_max           α_cross being the largest α between the halves

and the halves are those with the smallest α_cross. These are the two clusters of single linkage on 1 − α: it joins the
most similar clients until two clusters are left.

Deviations: ε_1 and ε_2 are shares of the longest Σ p_i Δ_i that the community and those that it is a part of ever made,
so that they hold for any model and step size. A community is halved only after rounds that all its clients answered.
The halves begin at the model of that round. The authors' program finds halves by complete linkage, which need not be
those with the smallest α_cross, and asks for none of it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema, field_serializer, model_validator

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.data.client import LABEL_COUNTS
from fedscout.engine.errors import Fault, StrategyError, TrialError
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.messages.contents import client_of, metrics_of, read_array
from fedscout.engine.messages.exchange import send_query
from fedscout.engine.messages.keys import FLAT_KEY, NUM_EXAMPLES_KEY, SEED_KEY
from fedscout.engine.seeds import stream
from fedscout.engine.text import details, fault_of, shown
from fedscout.strategies.aggregation.groups import Group, GroupedRule, clusterings
from fedscout.strategies.aggregation.robust import SLAB
from fedscout.strategies.aggregation.rules import MeanRule, array_record
from fedscout.strategies.methods.averaging import FedAvgSpec
from fedscout.strategies.specification import StrategySpec, clients_text

Matrix = npt.NDArray[np.float64]

DAMPING, QUIET_STEPS, MOST_STEPS = 0.9, 200, 3000
SHAKEN_BY = 1e-6


class LabelCommunities(GroupedRule):
    """Asks for label counts and groups the clients by them.

    Args:
        build: Makes the strategy of a community.
        cohort: All clients.
        num_communities: How many; None leaves it to Affinity Propagation.
        preference: Of that.
    """

    def __init__(
        self,
        build: Callable[[Cohort], flower.Strategy],
        cohort: Cohort,
        num_communities: int | None = None,
        preference: float = 0.5,
    ) -> None:
        super().__init__(build, cohort)
        self.num_communities = num_communities
        self.preference = preference

    def first_groups(self, grid: Grid, config: ConfigRecord) -> Sequence[Sequence[int]]:
        """Return the communities.

        Raises:
            TrialError: If a client does not tell its label counts.
        """
        answers = send_query(grid, LABEL_COUNTS)
        told = {client: arrays["counts"] for client, arrays in answers.arrays.items()}
        silent = dict(answers.refused)
        silent |= {client: "holds too few rows of every class to tell" for client in told if not told[client].any()}
        if silent:
            client = min(silent)
            raise TrialError(
                f"communities by labels need the label counts of every client, client {client} {silent[client]}; "
                "federation.min_release=1 has all told, grouped_by=updates asks for none"
            )
        similarities = cosine_similarities(np.stack([told[client] for client in sorted(told)]))
        if self.num_communities is None:
            seed = config[SEED_KEY]
            assert isinstance(seed, int)
            labels = affinity_propagation(similarities, self.preference, stream(seed, "communities"))
        else:
            labels = average_linkage(similarities, self.num_communities)
        clients = np.array(sorted(told))
        return [clients[labels == label].tolist() for label in dict.fromkeys(labels.tolist())]


def cosine_similarities(counts: npt.NDArray[Any]) -> Matrix:
    """Return s, shape `(clients, clients)`, exactly symmetric.

    Args:
        counts: n, shape `(clients, classes)`, no row of zeros.
    """
    directions = counts / np.linalg.norm(counts.astype(np.float64), axis=1, keepdims=True)
    products = directions @ directions.T
    return np.asarray((products + products.T) / 2)


def affinity_propagation(
    similarities: Matrix, preference: float, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return the community of each client, a number.

    Args:
        similarities: s, shape `(clients, clients)`.
        preference: A larger one gives more communities.
        generator: Decides between what is equal.

    Raises:
        TrialError: If it finds none.
    """
    clustering = clusterings().AffinityPropagation(
        affinity="precomputed",
        preference=preference,
        damping=DAMPING,
        convergence_iter=QUIET_STEPS,
        max_iter=MOST_STEPS,
        random_state=np.random.RandomState(generator.bit_generator),  # what scikit-learn takes
    )
    shaken = similarities + SHAKEN_BY * generator.standard_normal(similarities.shape)
    with warnings.catch_warnings():  # of a client alone, which is a community, and of no end, which is told below
        warnings.simplefilter("ignore")
        labels = np.asarray(clustering.fit(shaken).labels_, np.int64)
    if labels.min() < 0:
        raise TrialError("Affinity Propagation must find communities, it found none; num_communities takes a number")
    return labels


def average_linkage(similarities: Matrix, num_communities: int) -> npt.NDArray[np.int64]:
    """Return the community of each client, a number below `num_communities`."""
    if num_communities == 1:
        return np.zeros(len(similarities), np.int64)
    clustering = clusterings().AgglomerativeClustering(num_communities, metric="precomputed", linkage="average")
    return np.asarray(clustering.fit(1 - similarities).labels_, np.int64)


LONGEST = "longest-mean-update"


@dataclass(frozen=True)
class Bipartition:
    """When a community is halved.

    Attributes:
        stillness: ε_1, a share of the longest mean update.
        restlessness: ε_2, likewise.
        separation: γ_max, in `[0, 1]`.
        most: Communities, at most; None sets no bound.
    """

    stillness: float
    restlessness: float
    separation: float
    most: int | None = None


class UpdateCommunities(GroupedRule):
    """Halves communities whose clients' updates disagree.

    Args:
        build: Makes the strategy of a community.
        cohort: All clients, each of which trains in every round.
        rule: When a community is halved.
    """

    def __init__(self, build: Callable[[Cohort], flower.Strategy], cohort: Cohort, rule: Bipartition) -> None:
        super().__init__(build, cohort)
        self.rule = rule

    def first_groups(self, grid: Grid, config: ConfigRecord) -> Sequence[Sequence[int]]:
        """Return one community."""
        del config
        return [sorted(client_of(node_id) for node_id in grid.get_node_ids())]

    def parts(
        self, group: Group, sent: FloatArray, replies: Sequence[Message], num_groups: int
    ) -> Sequence[Sequence[int]]:
        """Return the halves, or the whole."""
        answers = {client_of(reply.metadata.src_node_id): reply for reply in replies if reply.has_content()}
        if not answers:
            return [group.clients]
        products = inner_products([_vector(answers[client]) for client in sorted(answers)], sent)
        weights = np.array([metrics_of(answers[client])[NUM_EXAMPLES_KEY] for client in sorted(answers)], np.float64)
        if not np.isfinite(products).all():  # the trial fails by the model
            return [group.clients]
        lengths, mean = np.sqrt(np.diag(products)), _mean_length(products, weights / weights.sum())
        longest = group.memory[LONGEST] = max(mean, group.memory.get(LONGEST, 0.0))
        still = mean < self.rule.stillness * longest and lengths.max() > self.rule.restlessness * longest
        full = self.rule.most is not None and num_groups >= self.rule.most
        if not still or full or len(answers) < len(group.clients) or len(answers) < 2 or not lengths.all():
            return [group.clients]
        similarities = products / np.outer(lengths, lengths)
        half, cross = halves(similarities)
        if math.sqrt((1 - cross) / 2) <= self.rule.separation:
            return [group.clients]
        clients = np.array(group.clients)
        return [clients[half == half[0]].tolist(), clients[half != half[0]].tolist()]


def inner_products(models: Sequence[FloatArray], origin: FloatArray) -> Matrix:
    """Return ⟨y_i − x, y_j − x⟩, shape `(models, models)`; besides them, memory holds one slab of coordinates.

    Args:
        models: y_i, each of shape `(params,)`.
        origin: x, likewise.
    """
    products = np.zeros((len(models), len(models)))
    for start in range(0, len(origin), SLAB):
        part = slice(start, start + SLAB)
        moved = np.stack([model[part] for model in models]).astype(np.float64) - origin[part]
        products += moved @ moved.T
    return products


def halves(similarities: Matrix) -> tuple[npt.NDArray[np.bool_], float]:
    """Return the bipartition with the smallest largest similarity between the halves, and that similarity.

    Args:
        similarities: α, shape `(clients, clients)`, of two clients or more.
    """
    distances = np.maximum(1 - (similarities + similarities.T) / 2, 0)
    np.fill_diagonal(distances, 0)
    clustering = clusterings().AgglomerativeClustering(2, metric="precomputed", linkage="single")
    half = np.asarray(clustering.fit(distances).labels_ == 1)
    return half, float(similarities[np.ix_(half, ~half)].max())


def _mean_length(products: Matrix, weights: Matrix) -> float:
    """Return ‖Σ p_i Δ_i‖ from the inner products of the Δ."""
    return math.sqrt(max(0.0, float(weights @ products @ weights)))


def _vector(reply: Message) -> FloatArray:
    return read_array(array_record(reply.content)[FLAT_KEY])


_NOT_INSIDE = ("communities", "custom", "dp_fedavg", "fedbuff", "local", "rhfl")
_BY_UPDATES = ("stillness", "restlessness", "separation")


def _inside(given: Any) -> StrategySpec:
    """Return the strategy that a document, or a kind alone, describes."""
    document = {"kind": given} if isinstance(given, str) else given
    kind = document.get("kind") if isinstance(document, Mapping) else getattr(document, "kind", None)
    if not isinstance(kind, str) or kind in _NOT_INSIDE:
        raise ValueError(
            f"must be a strategy that trains a model of all its clients, got {shown(kind or given)}; not allowed are "
            f"{', '.join(_NOT_INSIDE)}"
        )
    try:
        spec = given if isinstance(given, StrategySpec) else CommunitiesSpec.named(kind).model_validate(document)
    except StrategyError as error:
        raise ValueError(f"must be a strategy: {error}") from error
    except ValidationError as error:
        faults = (fault_of(".".join(map(str, detail["loc"])) or kind, detail) for detail in details(error))
        raise ValueError(f"must be a valid {kind}: {'; '.join(faults)}") from error
    if told := spec.client_values():
        raise ValueError(f"must leave {', '.join(told)} to communities itself, got {shown(dict(told))}")
    return spec


Inside = Annotated[
    StrategySpec,
    BeforeValidator(_inside),
    WithJsonSchema({"type": "object", "required": ["kind"]}),
    Field(description="the strategy of each community, by kind or with parameters; pairs included"),
]


class CommunitiesSpec(StrategySpec):
    """Communities: clients that are alike train a model of their own, by a strategy inside each community."""

    paper: ClassVar[str] = "FedPilot (by labels); Sattler et al. 2020, arXiv:1910.01991 (by updates)"
    grouped: ClassVar[bool] = True

    unpaired: ClassVar[str] = "it wraps a strategy, which strategy.inside names"
    named: ClassVar[Callable[[object], type[StrategySpec]]]
    """From a name to what it means; given by `strategies/table.py`, which knows them all."""

    kind: Literal["communities"] = "communities"
    inside: Inside = FedAvgSpec()
    grouped_by: Annotated[
        Literal["labels", "updates"],
        Field(description="by what clients are alike: their label counts, or their updates"),
    ] = "labels"
    num_communities: Annotated[
        int | None, Field(ge=1, description="how many, by updates at most; nothing leaves it to the data")
    ] = None
    preference: Annotated[
        float, Field(ge=-1, lt=1, description="by labels, the cosine below which a client opens a community of its own")
    ] = 0.5
    stillness: Annotated[
        float,
        Field(gt=0, description="ε_1: by updates, a mean shorter than this share of the longest one stands still"),
    ] = 0.5
    restlessness: Annotated[
        float, Field(ge=0, description="ε_2: by updates, a client's own longer than this share of it does not")
    ] = 1.0
    separation: Annotated[
        float, Field(ge=0, le=1, description="γ_max: by updates, halves are this far apart, sqrt((1 − cosine) / 2)")
    ] = 0.75

    @field_serializer("inside")
    def _document_of(self, inside: StrategySpec) -> Mapping[str, Any]:
        return {"kind": inside.kind, **inside.parameters()}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        fields = type(self).model_fields
        unread = [name for name in _BY_UPDATES if getattr(self, name) != fields[name].default]
        if unread and self.grouped_by == "labels":
            raise ValueError(f"{', '.join(unread)} must be left out unless grouped_by=updates, got grouped_by=labels")
        automatic = self.grouped_by == "labels" and self.num_communities is None
        if self.preference != fields["preference"].default and not automatic:
            raise ValueError("preference must be left out unless grouped_by=labels finds the number of communities")
        return self

    def needs(self) -> EngineNeeds:
        """Return what the engine must provide: what the strategy inside needs; by updates one reply per client."""
        needs = self.inside.needs()
        if self.grouped_by == "updates":
            return replace(needs, replies="individual")
        return replace(needs, queries=(LABEL_COUNTS,))

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return that of the strategy inside."""
        return self.inside.client_algorithm()

    def faults(self, cohort: Cohort) -> list[str]:
        """Return why it can't be built: more communities than clients, or clients whose updates are not seen."""
        inside_faults, most = self.inside.faults(cohort), cohort.num_sampled
        faults = [*super().faults(cohort), *inside_faults]
        if self.num_communities is not None and self.num_communities > most:
            faults.append(
                Fault(
                    "num_communities of communities",
                    (f"be at most {most} with {clients_text(most)}, of which each community trains one at least"),
                    self.num_communities,
                )
            )
        if self.grouped_by == "updates" and most < cohort.num_clients:
            faults.append(
                Fault(
                    "grouped_by of communities",
                    "be labels unless every client trains in every round",
                    f"updates with {clients_text(most)} of {cohort.num_clients}",
                )
            )
        if self.grouped_by == "updates" and not inside_faults and isinstance(self.inside.build(cohort), MeanRule):
            faults.append(
                Fault(
                    "inside of communities",
                    "read each client's update where grouped_by=updates",
                    f"{self.inside.kind}, which reads means alone",
                )
            )
        return faults

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: one community is the strategy inside."""
        del cohort
        return self.inside if self.num_communities == 1 else self

    def _text(self, name: str, value: Any) -> str:
        """Return a parameter and its value; the strategy inside as it shows itself."""
        return super()._text(name, self.inside if name == "inside" else value)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        if self.grouped_by == "labels":
            return LabelCommunities(self.inside.build, cohort, self.num_communities, self.preference)
        rule = Bipartition(self.stillness, self.restlessness, self.separation, self.num_communities)
        return UpdateCommunities(self.inside.build, cohort, rule)
