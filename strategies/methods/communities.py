"""Communities: similar clients share a model, trained by an inner strategy per community.

`grouped_by=labels` finds communities before training from the clients' label counts, as FedPilot does.
`grouped_by=updates` finds them during training from the directions of the clients' updates, as clustered
federated learning does. `strategies/aggregation/groups.py` documents one strategy per community and how a
round's clients are split over communities. Each client is scored with the model of its community, also in
rounds in which it does not train.

A single community is the inner strategy. `num_communities` is the number of communities by labels and the
maximum by updates; without it the data determine the number. An inner strategy for which a community is too
small, such as Krum for three clients, fails the trial once the communities are known; by labels that is
before any training.

**By labels.** With n_i the label counts of client i, s_ij = n_i · n_j / (‖n_i‖ ‖n_j‖). Communities are the
clusters of Affinity Propagation (Frey and Dueck 2007) on s, as in FedPilot, by scikit-learn. Clients are
queried once, before the first training, and their answers pass the same release check as those to detectors.
For a fixed number of communities they are the clusters of average linkage on 1 − s. Deviations from
scikit-learn's defaults:

- The preference, a client's self-similarity as the centre of a community, is 0.5 instead of the median of s.
  Cosines of counts have an absolute meaning: a client opens a community rather than join one that it is less
  similar to. With the median, clients with the same labels split at random, a hundred of them into a dozen
  communities.
- The damping is 0.9, convergence needs 200 unchanged iterations, and noise of 1e-6 is added to s: with equal
  clients no centre is better than another, and the algorithm otherwise ends without a decision.

**By updates.** All clients train as one community until no common model exists; it is then split in two,
recursively. With Δ_i the update of client i, p_i its share of the community's examples and α_ij the cosine of
Δ_i and Δ_j, a community is split after a round in which

    ‖Σ p_i Δ_i‖ < ε_1 and max ‖Δ_i‖ > ε_2     the mean is stationary, single clients are not
    sqrt((1 − α_cross) / 2) > γ_max           α_cross is the largest α between the halves

The halves minimise α_cross. They are the two clusters of single linkage on 1 − α, which joins the most
similar clients until two clusters are left.

Deviations: ε_1 and ε_2 are shares of the largest ‖Σ p_i Δ_i‖ of the community and its ancestors, so that they
hold for any model and step size. A community is split only after rounds in which all its clients replied. The
halves start from the model of that round. The authors' code uses complete linkage, which need not minimise
α_cross, and does not require this.

References:
    Frey, Dueck: Clustering by passing messages between data points. Science 315, 2007.
    Sattler, Müller, Samek: Clustered federated learning: model-agnostic distributed multitask optimization
        under privacy constraints. IEEE Transactions on Neural Networks and Learning Systems 32(8), 2021.
        arXiv:1910.01991
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid, strategy as flower
from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.data.client import LABEL_COUNTS
from fedscout.engine.errors import Fault, StrategyError, TrialError
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.messages.contents import client_of, metrics_of, read_array, send_query
from fedscout.engine.messages.keys import FLAT_KEY, NUM_EXAMPLES_KEY, SEED_KEY
from fedscout.engine.seeds import stream
from fedscout.engine.text import shown
from fedscout.strategies.aggregation.groups import Group, GroupedRule
from fedscout.strategies.aggregation.rules import MeanRule, array_record
from fedscout.strategies.methods.averaging import FedAvgSpec
from fedscout.strategies.methods.robust import SLAB
from fedscout.strategies.specification import StrategySpec, clients_text, parameter

Matrix = npt.NDArray[np.float64]

DAMPING, QUIET_STEPS, MOST_STEPS = 0.9, 200, 3000
PERTURBATION_SCALE = 1e-6


class Communities(GroupedRule):
    """A model for each community.

    Args:
        spec: How the communities are found, and the strategy of each.
        cohort: All clients.
    """

    def __init__(self, spec: CommunitiesSpec, cohort: Cohort) -> None:
        super().__init__(spec.inside.build, cohort)
        self.spec = spec


class LabelCommunities(Communities):
    """Groups the clients by their label counts."""

    def first_groups(self, grid: Grid, config: ConfigRecord) -> Sequence[Sequence[int]]:
        """Return the communities.

        Raises:
            TrialError: If a client does not release its label counts.
        """
        answers = send_query(grid, LABEL_COUNTS)
        counts = {client: arrays["counts"] for client, arrays in answers.arrays.items()}
        reasons = dict(answers.refused)
        reasons |= {
            client: "holds too few rows of every class to release counts"
            for client in counts
            if not counts[client].any()
        }
        if reasons:
            client = min(reasons)
            raise TrialError(
                f"communities by labels need the label counts of every client, client {client} {reasons[client]}; "
                "set federation.min_release=1, or grouped_by=updates, which needs no counts"
            )
        similarities = cosine_similarities(np.stack([counts[client] for client in sorted(counts)]))
        if self.spec.num_communities is None:
            seed = config[SEED_KEY]
            assert isinstance(seed, int)
            labels = affinity_propagation(similarities, self.spec.preference, stream(seed, "communities"))
        else:
            labels = average_linkage(similarities, self.spec.num_communities)
        clients = np.array(sorted(counts))
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
    """Return the community label of each client.

    Args:
        similarities: s, shape `(clients, clients)`.
        preference: A larger one gives more communities.
        generator: Breaks ties.

    Raises:
        TrialError: If no communities are found.
    """
    from sklearn.cluster import AffinityPropagation  # not where no trial finds communities

    clustering = AffinityPropagation(
        affinity="precomputed",
        preference=preference,
        damping=DAMPING,
        convergence_iter=QUIET_STEPS,
        max_iter=MOST_STEPS,
        random_state=np.random.RandomState(generator.bit_generator),  # what scikit-learn takes
    )
    noisy = similarities + PERTURBATION_SCALE * generator.standard_normal(similarities.shape)
    with warnings.catch_warnings():  # a single client is a community; a failure to converge is handled below
        warnings.simplefilter("ignore")
        labels = np.asarray(clustering.fit(noisy).labels_, np.int64)
    if labels.min() < 0:
        raise TrialError("Affinity Propagation must find communities, but found none; set num_communities")
    return labels


def average_linkage(similarities: Matrix, num_communities: int) -> npt.NDArray[np.int64]:
    """Return the community label of each client, below `num_communities`."""
    from sklearn.cluster import AgglomerativeClustering

    if num_communities == 1:
        return np.zeros(len(similarities), np.int64)
    clustering = AgglomerativeClustering(num_communities, metric="precomputed", linkage="average")
    return np.asarray(clustering.fit(1 - similarities).labels_, np.int64)


LONGEST = "longest-mean-update"


class UpdateCommunities(Communities):
    """Splits communities whose clients' updates disagree; every client trains in every round."""

    def first_groups(self, grid: Grid, config: ConfigRecord) -> Sequence[Sequence[int]]:
        """Return one community of all clients."""
        return [sorted(client_of(node_id) for node_id in grid.get_node_ids())]

    def parts(
        self, group: Group, sent: FloatArray, replies: Sequence[Message], num_groups: int
    ) -> Sequence[Sequence[int]]:
        """Return the two halves of a community, or the community itself."""
        answers = {client_of(reply.metadata.src_node_id): reply for reply in replies if reply.has_content()}
        if not answers:
            return [group.clients]
        vectors = [read_array(array_record(answers[client].content)[FLAT_KEY]) for client in sorted(answers)]
        products = inner_products(vectors, sent)
        weights = np.array([metrics_of(answers[client])[NUM_EXAMPLES_KEY] for client in sorted(answers)], np.float64)
        if not np.isfinite(products).all():  # the trial fails by the model
            return [group.clients]
        norms, shares = np.sqrt(np.diag(products)), weights / weights.sum()
        mean_norm = math.sqrt(max(0.0, float(shares @ products @ shares)))
        longest = group.memory[LONGEST] = max(mean_norm, group.memory.get(LONGEST, 0.0))
        is_stationary = (
            mean_norm < self.spec.max_mean_update_norm * longest and norms.max() > self.spec.min_update_norm * longest
        )
        is_full = self.spec.num_communities is not None and num_groups >= self.spec.num_communities
        if not is_stationary or is_full or len(answers) < len(group.clients) or len(answers) < 2 or not norms.all():
            return [group.clients]
        similarities = products / np.outer(norms, norms)
        half, cross = halves(similarities)
        if math.sqrt((1 - cross) / 2) <= self.spec.separation:
            return [group.clients]
        clients = np.array(group.clients)
        return [clients[half == half[0]].tolist(), clients[half != half[0]].tolist()]


def inner_products(models: Sequence[FloatArray], origin: FloatArray) -> Matrix:
    """Return ⟨y_i − x, y_j − x⟩, shape `(models, models)`, with one slab of coordinates in memory at a time.

    Args:
        models: y_i, each of shape `(params,)`.
        origin: x, likewise.
    """
    products = np.zeros((len(models), len(models)))
    for start in range(0, len(origin), SLAB):
        slab = slice(start, start + SLAB)
        updates = np.stack([model[slab] for model in models]).astype(np.float64) - origin[slab]
        products += updates @ updates.T
    return products


def halves(similarities: Matrix) -> tuple[npt.NDArray[np.bool_], float]:
    """Return the bipartition that minimises the largest similarity between its halves, and that similarity.

    Args:
        similarities: α, shape `(clients, clients)`, of at least two clients.
    """
    from sklearn.cluster import AgglomerativeClustering

    distances = np.maximum(1 - (similarities + similarities.T) / 2, 0)
    np.fill_diagonal(distances, 0)
    clustering = AgglomerativeClustering(2, metric="precomputed", linkage="single")
    half = np.asarray(clustering.fit(distances).labels_ == 1)
    return half, float(similarities[np.ix_(half, ~half)].max())


_EXCLUDED_KINDS = ("communities", "custom", "dp_fedavg", "fedbuff", "local", "rhfl")
_UPDATE_PARAMETERS = ("max_mean_update_norm", "min_update_norm", "separation")


def _inner_strategy(given: Any) -> StrategySpec:
    """Return the inner strategy of a document or a kind."""
    document = {"kind": given} if isinstance(given, str) else given
    kind = document.get("kind") if isinstance(document, Mapping) else getattr(document, "kind", None)
    if not isinstance(kind, str) or kind in _EXCLUDED_KINDS:
        raise ValueError(
            f"must be a strategy that trains a model of all its clients, got {shown(kind or given)}; not allowed are "
            f"{', '.join(_EXCLUDED_KINDS)}"
        )
    try:
        spec = given if isinstance(given, StrategySpec) else CommunitiesSpec.parsed(document)
    except StrategyError as error:
        raise ValueError(f"must be a valid strategy: {'; '.join(error.faults)}") from error
    if settings := spec.client_values():
        raise ValueError(f"must leave {', '.join(settings)} to communities itself, got {shown(dict(settings))}")
    return spec


Inside = Annotated[
    StrategySpec,
    BeforeValidator(_inner_strategy),
    PlainSerializer(lambda inside: {"kind": inside.kind, **inside.parameters()}),
    WithJsonSchema({"type": "object", "required": ["kind"]}),
    Field(description="the strategy of each community, by kind or with parameters; pairs included"),
]


class CommunitiesSpec(StrategySpec):
    """Communities: similar clients share a model, trained by an inner strategy per community."""

    paper: ClassVar[str] = "FedPilot (by labels); Sattler et al. 2020, arXiv:1910.01991 (by updates)"
    grouped: ClassVar[bool] = True

    unpaired: ClassVar[str] = "it wraps a strategy, which strategy.inside names"
    parsed: ClassVar[Callable[[Mapping[str, Any]], StrategySpec]]
    """From a document to a strategy; given by `strategies/table.py`, which knows them all."""

    kind: Literal["communities"] = "communities"
    inside: Inside = FedAvgSpec()
    grouped_by: Literal["labels", "updates"] = parameter(
        "labels", "similarity that groups clients: label counts or updates"
    )
    num_communities: int | None = parameter(
        None, "number of communities, by updates the largest number; chosen from the data by default", ge=1
    )
    preference: float = parameter(
        0.5, "by labels, cosine similarity below which a client starts a new community", ge=-1, lt=1
    )
    max_mean_update_norm: float = parameter(
        0.5, "ε_1: by updates, a mean update shorter than this fraction of the longest one has converged", gt=0
    )
    min_update_norm: float = parameter(
        1.0, "ε_2: by updates, a client's update longer than this fraction of the longest one has not converged", ge=0
    )
    separation: float = parameter(
        0.75, "γ_max: by updates, required separation of the halves, sqrt((1 − cosine) / 2)", ge=0, le=1
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        fields = type(self).model_fields
        unread = [name for name in _UPDATE_PARAMETERS if getattr(self, name) != fields[name].default]
        if unread and self.grouped_by == "labels":
            raise ValueError(f"{', '.join(unread)} must be left out unless grouped_by=updates, got grouped_by=labels")
        automatic = self.grouped_by == "labels" and self.num_communities is None
        if self.preference != fields["preference"].default and not automatic:
            raise ValueError("preference must be left out unless grouped_by=labels finds the number of communities")
        return self

    def needs(self) -> EngineNeeds:
        """Return the engine features needed: those of the inner strategy; by updates, one reply per client."""
        needs = self.inside.needs()
        if self.grouped_by == "updates":
            return replace(needs, replies="individual")
        return replace(needs, queries=(LABEL_COUNTS,))

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return the client algorithm of the inner strategy."""
        return self.inside.client_algorithm()

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults: more communities than clients, or label counts or updates that are not observed."""
        inside_faults, limit = self.inside.faults(cohort), cohort.num_sampled
        faults = [*super().faults(cohort), *inside_faults]
        if self.num_communities is not None and self.num_communities > limit:
            must = f"be at most {limit} with {clients_text(limit)}, as each community trains at least one"
            faults.append(Fault("num_communities of communities", must, self.num_communities))
        if self.grouped_by == "labels" and cohort.noisy:
            must = "be updates with detection.epsilon, as clients tell their label counts only with noise"
            faults.append(Fault("grouped_by of communities", must, "labels"))
        if self.grouped_by == "updates" and limit < cohort.num_clients:
            must = "be labels unless every client trains in every round"
            given = f"updates with {clients_text(limit)} of {cohort.num_clients}"
            faults.append(Fault("grouped_by of communities", must, given))
        if self.grouped_by == "updates" and not inside_faults and isinstance(self.inside.build(cohort), MeanRule):
            must = "read each client's update where grouped_by=updates"
            faults.append(Fault("inside of communities", must, f"{self.inside.kind}, which reads means alone"))
        return faults

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: one community is the inner strategy."""
        return self.inside if self.num_communities == 1 else self

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return (LabelCommunities if self.grouped_by == "labels" else UpdateCommunities)(self, cohort)
