"""Communities of clients whose updates point the same way: clustered federated learning.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.messages.message_contents import client_of, metrics_of
from fedscout.engine.messages.message_keys import FLAT_KEY, NUM_EXAMPLES_KEY
from fedscout.engine.messages.view_array import read_array
from fedscout.strategies.aggregation.clusterings import clusterings
from fedscout.strategies.aggregation.grouped_rule import Group, GroupedRule
from fedscout.strategies.aggregation.order_statistics import SLAB
from fedscout.strategies.aggregation.reply_matrices import array_record

Matrix = npt.NDArray[np.float64]

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
