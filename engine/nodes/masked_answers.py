"""A client's side of a masked sum: what it answers to a step, and what it keeps to itself between steps.

Its secrets lie in Flower's `context.state`, one record a sum, and go one way: drawn, sealed, used for one vector,
opened, forgotten. A step out of this order is refused, as one secret used twice, or opened in both ways, would take the
mask off. So is a sum of fewer than three clients, or one to which no more than half of those asked have added anything.

A client process that is killed after it has sent a vector and before Flower has kept what it remembers might send
another under the same mask, if it were asked; drivers of this program ask for no sum twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedscout.engine.errors import TrialError
from fedscout.engine.nodes.masked_sums import (
    MaskedArray,
    PublicHalf,
    Secrets,
    least_threshold,
    masked,
    opened_shares,
    sealed_shares,
)
from fedscout.engine.nodes.node_call import Greeting, NodeCall
from fedscout.engine.nodes.owner_policy import RefusedError
from fedscout.engine.nodes.sum_calls import (
    FEWEST,
    Adding,
    Opening,
    Sealing,
    SumAnswer,
    SumStep,
    public_half,
    public_text,
)
from fedscout.engine.nodes.summands import Summands, summands_of

SUMS_KEPT = 2
"""That is opened, and the next."""

Work = Callable[[NodeCall | Greeting], Any]
"""Does what a driver asks, and returns what an unmasked answer would hold."""


@dataclass(frozen=True)
class _Kept:
    """What a client keeps of a sum.

    Attributes:
        secrets: Its own.
        cohort: Whose shares it sealed; then, who is left of them.
        threshold: How many shares tell a secret.
        sealed: The shares that others sealed for it.
        groups: Who was asked to add something to which part.
    """

    secrets: Secrets
    cohort: Mapping[int, PublicHalf]
    threshold: int = 0
    sealed: Mapping[int, bytes] | None = None
    groups: Mapping[str, tuple[int, ...]] | None = None


class MaskedAnswers:
    """Answers steps.

    Args:
        memory: Flower's `context.state`.
        work: Does what is added.
    """

    def __init__(self, memory: RecordDict, work: Work) -> None:
        self._memory, self._work = memory, work

    def answer(self, step: SumStep) -> SumAnswer:
        """Take a step.

        Raises:
            RefusedError: If it may not be taken now, or never.
        """
        try:
            opened = {} if step.opens is None else self._open(step.client, step.opens)
            added = None if step.adds is None else self._add(step.client, step.adds)
            sealed = {} if step.seals is None else self._seal(step.client, step.seals)
            public = self._draw(step.keys_of) if step.keys_of else ""
        except (TrialError, ValueError) as error:
            raise RefusedError(f"takes no part in the sum: {error}") from error
        if added is None:
            return SumAnswer(public, sealed, opened)
        vector, summands = added
        sections = tuple(summands.sections)
        return SumAnswer(public, sealed, opened, vector, sections, summands.failures, summands.states)

    def _draw(self, sum_id: str) -> str:
        secrets = Secrets.fresh()
        self._keep(sum_id, _Kept(secrets, {}))
        return public_text(secrets.public())

    def _seal(self, client: int, asked: Sealing) -> dict[int, str]:
        kept = self._find(asked.sum_id, sealed=False)
        cohort = {member: public_half(text) for member, text in asked.cohort.items()}
        if kept.cohort or len(cohort) < FEWEST:
            raise TrialError(f"a sum must be of at least {FEWEST} clients, and its shares are sealed once")
        shares = sealed_shares(client, kept.secrets, cohort, asked.threshold)
        self._keep(asked.sum_id, _Kept(kept.secrets, cohort, asked.threshold))
        return {member: share.decode() for member, share in shares.items()}

    def _add(self, client: int, asked: Adding) -> tuple[MaskedArray, Summands]:
        kept = self._find(asked.sum_id, sealed=False)
        cohort = {member: kept.cohort[member] for member in asked.sealed if member in kept.cohort}
        groups = {name: tuple(sorted({*clients} & cohort.keys())) for name, clients in asked.groups.items()}
        if client not in cohort or not groups or min(map(len, groups.values())) < FEWEST:
            raise TrialError(f"at least {FEWEST} clients must add something to each part of it")
        if len(cohort) < kept.threshold:
            raise TrialError(f"{kept.threshold} clients of the cohort must be left, got {len(cohort)}")
        sealed = {member: share.encode() for member, share in asked.sealed.items()}
        self._keep(asked.sum_id, _Kept(kept.secrets, cohort, kept.threshold, sealed, groups))  # used, whatever follows
        summands = summands_of(client, asked, self._work(asked.asked))
        return masked(summands.vector(), client, kept.secrets, cohort), summands

    def _open(self, client: int, asked: Opening) -> dict[int, str]:
        kept = self._find(asked.sum_id, sealed=True)
        del self._memory[_key(asked.sum_id)]
        assert kept.sealed is not None, "a sum that is opened has been added to"
        assert kept.groups is not None
        present = {*asked.present}
        for name, group in kept.groups.items():
            added, least = {*group} & {*asked.added.get(name, ())} & present, least_threshold(len(group))
            if len(added) < least:
                raise TrialError(f"{least} of {len(group)} clients must have added to its {name}, got {len(added)}")
        opened = opened_shares(client, kept.secrets, kept.sealed, present, kept.cohort, kept.threshold)
        return {member: share.hex() for member, share in opened.items()}

    def _find(self, sum_id: str, sealed: bool) -> _Kept:
        """Return what is kept of a sum.

        Raises:
            TrialError: If that is nothing, or its secrets are used already, or not yet.
        """
        record = self._memory.get(_key(sum_id))
        kept = _read(record) if isinstance(record, ConfigRecord) else None
        if kept is None or (kept.sealed is not None) != sealed:
            raise TrialError("it has no secrets for this step, as it has forgotten them or the step was taken before")
        return kept

    def _keep(self, sum_id: str, kept: _Kept) -> None:
        """Keep what is known of a sum, and forget older ones."""
        self._memory.pop(_key(sum_id), None)
        self._memory[_key(sum_id)] = _record(kept)
        sums = [key for key in self._memory if key.startswith(_key(""))]
        for old in sums[:-SUMS_KEPT]:
            del self._memory[old]


def _key(sum_id: str) -> str:
    return f"sum.{sum_id}"


def _record(kept: _Kept) -> ConfigRecord:
    """Return what Flower keeps."""
    secrets = kept.secrets
    record = ConfigRecord(
        {
            "secrets": [secrets.mask_key, secrets.seal_key, secrets.own_mask],
            "cohort": [*kept.cohort],
            "public": [public_text(half) for half in kept.cohort.values()],
            "threshold": kept.threshold,
        }
    )
    if kept.sealed is not None and kept.groups is not None:
        record["senders"], record["sealed"] = [*kept.sealed], [*kept.sealed.values()]
        for name, group in kept.groups.items():
            record[f"group.{name}"] = [*group]
    return record


def _read(record: Any) -> _Kept:
    """Return what `_record` wrote."""
    cohort = {member: public_half(text) for member, text in zip(record["cohort"], record["public"], strict=True)}
    secrets, threshold = Secrets(*record["secrets"]), record["threshold"]
    if "senders" not in record:
        return _Kept(secrets, cohort, threshold)
    groups = {key.removeprefix("group."): tuple(record[key]) for key in record if key.startswith("group.")}
    return _Kept(secrets, cohort, threshold, dict(zip(record["senders"], record["sealed"], strict=True)), groups)
