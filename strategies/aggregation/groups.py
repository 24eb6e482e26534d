"""One strategy for each group of clients, each with a model, a sample and a memory of its own.

The strategies are those that would train the groups as federations of their own: each sees the nodes of its group, its
group's model and its group's replies. So what a strategy sends beside the model, keeps, or clips is its group's, and
with a single group everything is as without groups.

**Who trains.** A round's clients are dealt to the groups in proportion to their sizes, by largest remainders, at least
one to each; with more groups than clients a round, more clients train than were asked for. Where a selection policy
chooses the clients, each group trains those of its own, and one without any rests.

**Where a group falls apart**, the parts go on from its new model, with strategies made afresh.

scikit-learn's clusterings, loaded when the first trial wants one: the command line does without them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.errors import StrategyError, TrialError
from fedscout.engine.grid.selection import ChosenNodes, train_all_shown
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import (
    client_of,
    clients_text,
    holds_several,
    read_array,
    several_models,
    view_record,
)
from fedscout.engine.messages.keys import FLAT_KEY
from fedscout.engine.seeds import unseeded_generators
from fedscout.engine.trials.checkpoint import PlainState
from fedscout.strategies.aggregation.rules import Aggregate


@dataclass
class Group:
    """Clients that share a model.

    Attributes:
        clients: Ascending.
        num_sampled: How many of them train in a round.
        strategy: Theirs.
        memory: What else is kept of the group between rounds.
    """

    clients: tuple[int, ...]
    num_sampled: int
    strategy: flower.Strategy
    memory: dict[str, float] = field(default_factory=dict)


class _Kept(NamedTuple):
    """A group, and what tells apart how it was made from what became of it: a checkpoint holds the latter."""

    group: Group
    plain: PlainState


class GroupedRule(flower.Strategy):
    """A strategy for each group.

    Args:
        build: Makes the strategy of clients, told their cohort.
        cohort: All clients.
    """

    def __init__(self, build: Callable[[Cohort], flower.Strategy], cohort: Cohort) -> None:
        self.build = build
        self.cohort = cohort
        self._kept: list[_Kept] = []
        self._sent: list[FloatArray] = []

    @property
    def groups(self) -> list[Group]:
        """In the order of their models; none before the first round."""
        return [kept.group for kept in self._kept]

    @abstractmethod
    def first_groups(self, grid: Grid, config: ConfigRecord) -> Sequence[Sequence[int]]:
        """Return the clients of each group, ascending, before the first training.

        Args:
            grid: On which clients may be asked.
            config: Of the first train messages.
        """

    def parts(
        self, group: Group, sent: FloatArray, replies: Sequence[Message], num_groups: int
    ) -> Sequence[Sequence[int]]:
        """Return the groups into which a group falls after a round: itself, unless a subclass knows better.

        Args:
            group: As it trained.
            sent: Its model before the round, shape `(params,)`.
            replies: Of its clients.
            num_groups: There are, those included that others have fallen into in this round.
        """
        del sent, replies, num_groups
        return [group.clients]

    def summary(self) -> None:
        """Log the settings of each group's strategy."""
        for group in self.groups:
            group.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of all groups."""
        if not self._kept:
            whole = grid.everybody if isinstance(grid, ChosenNodes) else grid
            self._kept = self._made(self.first_groups(whole, config), self.cohort.num_sampled)
        flat = read_array(arrays[FLAT_KEY])
        self._sent = [*flat] if holds_several([*arrays]) else [flat] * len(self._kept)
        messages: list[Message] = []
        for group, vector in zip(self.groups, self._sent, strict=True):
            model, own_config = view_record({FLAT_KEY: vector}), ConfigRecord(dict(config))
            own_grid = ChosenNodes(grid, group.clients)
            if isinstance(grid, ChosenNodes):
                if not own_grid.get_node_ids():
                    continue
                train_all_shown(group.strategy)
            messages += group.strategy.configure_train(server_round, model, own_config, cast(Grid, own_grid))
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Return the models of all groups; one that no client answered for keeps its own."""
        answers = self._dealt(replies)
        sent, self._sent = self._sent, []
        kept: list[_Kept] = []
        vectors: list[FloatArray] = []
        answered = False
        for place, (one, vector, own) in enumerate(zip(self._kept, sent, answers, strict=True)):
            parts = self.parts(one.group, vector, own, len(kept) + len(self._kept) - place)
            arrays, _ = one.group.strategy.aggregate_train(server_round, own)
            answered |= arrays is not None
            model = vector if arrays is None else np.asarray(read_array(arrays[FLAT_KEY]), np.float32)
            kept += [one] if len(parts) == 1 else self._made(parts, one.group.num_sampled, one.group.memory)
            vectors += [model] * len(parts)
        if not answered:
            return None, None
        self._kept = kept
        return self.record(vectors), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return nothing: the trial scores clients itself."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing."""
        del server_round, replies
        return None

    def _dealt(self, replies: Iterable[Message]) -> list[list[Message]]:
        """Return the replies of each group; a merged one comes from a client of its group, whose content it answers."""
        group_of = self._group_of()
        answers: list[list[Message]] = [[] for _ in self._kept]
        for reply in replies:
            answers[group_of[client_of(reply.metadata.src_node_id)]].append(reply)
        return answers

    def _group_of(self) -> IntArray:
        """Return the place of each client's group; -1 of those in none, whom no strategy meets."""
        group_of = np.full(1 + max(group.clients[-1] for group in self.groups), -1, np.int64)
        for place, group in enumerate(self.groups):
            group_of[[*group.clients]] = place
        return group_of

    def record(self, vectors: Sequence[FloatArray] | FloatArray) -> ArrayRecord:
        """Return the groups' models, in their order, as what a round gave; a matrix of them is not copied."""
        if len(vectors) == 1:
            return view_record({FLAT_KEY: vectors[0]})
        return several_models(np.asarray(vectors), self._group_of())

    def _made(
        self, parts: Sequence[Sequence[int]], num_sampled: int, memory: Mapping[str, float] | None = None
    ) -> list[_Kept]:
        """Return groups of these clients, of which so many train in a round, all groups together."""
        shares = sampled_of([len(clients) for clients in parts], num_sampled)
        return [self._group(clients, share, memory or {}) for clients, share in zip(parts, shares, strict=True)]

    def _group(self, clients: Sequence[int], num_sampled: int, memory: Mapping[str, float]) -> _Kept:
        """Return a group that has not trained yet.

        Raises:
            TrialError: If its strategy can't train so few clients.
        """
        try:
            strategy = self.build(replace(self.cohort, num_clients=len(clients), num_sampled=num_sampled))
        except StrategyError as error:
            raise TrialError(f"the community of the clients {clients_text(clients)} is too small: {error}") from error
        group = Group((*clients,), num_sampled, strategy, dict(memory))
        return _Kept(group, PlainState(group))

    def __getstate__(self) -> dict[str, Any]:
        """Return what a checkpoint holds: of each group who is in it, and its state."""
        groups = [(group.clients, group.num_sampled, *plain.encode(group)) for group, plain in self._kept]
        return {"groups": groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the groups of a checkpoint again."""
        self._kept = []
        for clients, num_sampled, document, arrays in state["groups"]:
            kept = self._group(clients, num_sampled, {})
            kept.plain.restore(document, arrays)
            self._kept.append(kept)


def sampled_of(sizes: Sequence[int], num_sampled: int) -> list[int]:
    """Return how many clients of each group train in a round.

    Args:
        sizes: Of the groups, each at least 1.
        num_sampled: Of all clients, at most all.

    Returns:
        At least 1 and at most its size for each group; together `num_sampled`, if there are not more groups.
    """
    total = sum(sizes)
    counts = [max(1, num_sampled * size // total) for size in sizes]
    lacking = [num_sampled * size - count * total for size, count in zip(sizes, counts, strict=True)]
    for index in sorted(range(len(sizes)), key=lambda index: -lacking[index])[: max(0, num_sampled - sum(counts))]:
        counts[index] += 1
    return counts


def clusterings() -> Any:
    """Return `sklearn.cluster`."""
    with unseeded_generators():  # loading it makes generators of which nothing is drawn here
        import sklearn.cluster

    return sklearn.cluster
