"""Group-wise training: each group of clients has its own strategy, model, client sample and stored state.

The strategies behave as if the groups were separate federations: each receives only the nodes, the model and
the replies of its group, so its auxiliary vectors, state and clipping are limited to the group. A single
group is the same as training without groups.

**Sampling.** A round's clients are allocated to the groups in proportion to their sizes, by largest
remainders, at least one per group; with more groups than sampled clients, more clients train than requested.
With a selection policy, each group trains the selected clients among its own, and a group without any skips
the round.

**Splits.** If a group is split, its parts continue from its new model with newly constructed strategies.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid, strategy as flower

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.errors import StrategyError, TrialError
from fedscout.engine.grid.selection import ChosenNodes, train_all_shown
from fedscout.engine.messages import contents
from fedscout.engine.messages.calls import Cohort, ReportsNotes
from fedscout.engine.messages.contents import client_of, clients_text, read_array, view_record
from fedscout.engine.messages.keys import FLAT_KEY
from fedscout.engine.trials.checkpoint import PlainState
from fedscout.strategies.aggregation.rules import Aggregate, Messages, Unevaluated


@dataclass
class Group:
    """Clients that share a model.

    Attributes:
        clients: Ascending.
        num_sampled: Number of them that train in a round.
        strategy: Strategy of the group.
        memory: Further values stored for the group between rounds.
    """

    clients: tuple[int, ...]
    num_sampled: int
    strategy: flower.Strategy
    memory: dict[str, float] = field(default_factory=dict)


class _Kept(NamedTuple):
    """A group, and the record of its initial state that separates the state to checkpoint from the constructed one."""

    group: Group
    plain: PlainState


class GroupedRule(Unevaluated):
    """A strategy for each group of clients.

    Args:
        build: Constructs the strategy of a group from its cohort.
        cohort: All clients.
    """

    def __init__(self, build: Callable[[Cohort], flower.Strategy], cohort: Cohort) -> None:
        self.build = build
        self.cohort = cohort
        self._kept: list[_Kept] = []
        self._sent: list[FloatArray] = []

    @property
    def groups(self) -> list[Group]:
        """Groups in the order of their models; empty before the first round."""
        return [kept.group for kept in self._kept]

    @abstractmethod
    def first_groups(self, grid: Grid, config: ConfigRecord) -> Sequence[Sequence[int]]:
        """Return the clients of each group, ascending, before the first training.

        Args:
            grid: Grid through which clients can be queried.
            config: Config of the first train messages.
        """

    def parts(
        self, group: Group, sent: FloatArray, replies: Sequence[Message], num_groups: int
    ) -> Sequence[Sequence[int]]:
        """Return the groups into which a group is split after a round; by default the group itself.

        Args:
            group: The group as it trained.
            sent: Its model before the round, shape `(params,)`.
            replies: Replies of its clients.
            num_groups: Current number of groups, including splits in this round.
        """
        return [group.clients]

    def summary(self) -> None:
        """Log the settings of each group's strategy."""
        for group in self.groups:
            group.strategy.summary()

    def trial_notes(self) -> list[str]:
        """Return the remarks of each group's strategy, with the clients of the group."""
        return [
            f"{note} (clients {clients_text(group.clients)})"
            for group in self.groups
            if isinstance(group.strategy, ReportsNotes)
            for note in group.strategy.trial_notes()
        ]

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return the messages of all groups."""
        if not self._kept:
            full_grid = grid.full_grid if isinstance(grid, ChosenNodes) else grid
            self._kept = self._made(self.first_groups(full_grid, config), self.cohort.num_sampled)
        flat = read_array(arrays[FLAT_KEY])
        self._sent = [*flat] if contents.holds_several([*arrays]) else [flat] * len(self._kept)
        messages: list[Message] = []
        for group, vector in zip(self.groups, self._sent, strict=True):
            model, group_config = view_record({FLAT_KEY: vector}), ConfigRecord(dict(config))
            group_grid = ChosenNodes(grid, group.clients)
            if isinstance(grid, ChosenNodes):
                if not group_grid.get_node_ids():
                    continue
                train_all_shown(group.strategy)
            messages += group.strategy.configure_train(server_round, model, group_config, cast(Grid, group_grid))
        return messages

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        """Return the models of all groups; a group without replies keeps its model."""
        answers = self._dealt(replies)
        sent, self._sent = self._sent, []
        entries: list[_Kept] = []
        vectors: list[FloatArray] = []
        answered = False
        for index, (entry, vector, group_replies) in enumerate(zip(self._kept, sent, answers, strict=True)):
            parts = self.parts(entry.group, vector, group_replies, len(entries) + len(self._kept) - index)
            arrays, _ = entry.group.strategy.aggregate_train(server_round, group_replies)
            answered |= arrays is not None
            model = vector if arrays is None else np.asarray(read_array(arrays[FLAT_KEY]), np.float32)
            entries += [entry] if len(parts) == 1 else self._made(parts, entry.group.num_sampled, entry.group.memory)
            vectors += [model] * len(parts)
        if not answered:
            return None, None
        self._kept = entries
        return self.record(vectors), None

    def _dealt(self, replies: Messages) -> list[list[Message]]:
        """Return the replies by group; a merged reply has the address of a client of its group."""
        group_of = self._group_of()
        answers: list[list[Message]] = [[] for _ in self._kept]
        for reply in replies:
            answers[group_of[client_of(reply.metadata.src_node_id)]].append(reply)
        return answers

    def _group_of(self) -> IntArray:
        """Return the index of each client's group; -1 for clients in no group."""
        group_of = np.full(1 + max(group.clients[-1] for group in self.groups), -1, np.int64)
        for index, group in enumerate(self.groups):
            group_of[[*group.clients]] = index
        return group_of

    def record(self, vectors: Sequence[FloatArray] | FloatArray) -> ArrayRecord:
        """Return the groups' models, in order, as the result of a round; a matrix is not copied."""
        if len(vectors) == 1:
            return view_record({FLAT_KEY: vectors[0]})
        return contents.several_models(np.asarray(vectors), self._group_of())

    def _made(
        self, parts: Sequence[Sequence[int]], num_sampled: int, memory: Mapping[str, float] | None = None
    ) -> list[_Kept]:
        """Return new groups of clients, which together train `num_sampled` clients per round."""
        shares = sampled_of([len(clients) for clients in parts], num_sampled)
        return [self._group(clients, share, memory or {}) for clients, share in zip(parts, shares, strict=True)]

    def _group(self, clients: Sequence[int], num_sampled: int, memory: Mapping[str, float]) -> _Kept:
        """Return a new, untrained group.

        Raises:
            TrialError: If its strategy needs more clients.
        """
        try:
            strategy = self.build(replace(self.cohort, num_clients=len(clients), num_sampled=num_sampled))
        except StrategyError as error:
            raise TrialError(f"the community of the clients {clients_text(clients)} is too small: {error}") from error
        group = Group((*clients,), num_sampled, strategy, dict(memory))
        return _Kept(group, PlainState(group))

    def __getstate__(self) -> dict[str, Any]:
        """Return the checkpoint state: the clients and the state of each group."""
        groups = [(group.clients, group.num_sampled, *plain.encode(group)) for group, plain in self._kept]
        return {"groups": groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the groups of a checkpoint."""
        self._kept = []
        for clients, num_sampled, document, arrays in state["groups"]:
            entry = self._group(clients, num_sampled, {})
            entry.plain.restore(document, arrays)
            self._kept.append(entry)


def sampled_of(sizes: Sequence[int], num_sampled: int) -> list[int]:
    """Return the number of clients of each group that train in a round.

    Args:
        sizes: Sizes of the groups, each at least 1.
        num_sampled: Number of clients to sample, at most all.

    Returns:
        At least 1 and at most its size for each group; the sum is `num_sampled`, unless there are more groups.
    """
    total = sum(sizes)
    counts = [max(1, num_sampled * size // total) for size in sizes]
    remainders = [num_sampled * size - count * total for size, count in zip(sizes, counts, strict=True)]
    for index in sorted(range(len(sizes)), key=lambda index: -remainders[index])[: max(0, num_sampled - sum(counts))]:
        counts[index] += 1
    return counts
