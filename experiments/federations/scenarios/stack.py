"""Effects one after the other, on top of a partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedscout.engine.contracts.update_attack import UpdateAttack
from fedscout.engine.data.client_data import ClientTransform, Partition
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.federations.scenarios.effect import EffectRequest, ScenarioEffect, ScenarioPlan


def stack_effects(effects: Sequence[ScenarioEffect], request: EffectRequest) -> ScenarioPlan:
    """Return what all effects do together; what each came to stands under `effects` of the facts.

    A client's data go through the effects that name it in their order, and so does its update. Of effects that set a
    client's dropout, or the same value of its device, the last one counts. Effects by which rows change hands come
    ahead of all others. A client is affected if any effect changes its data or update.

    Args:
        effects: In order.
        request: The federation before any of them.

    Raises:
        ConfigurationError: With every fault of every effect.
    """
    faults = [
        f"federation.scenario.{place}.{fault}"
        for place, effect in enumerate(effects)
        for fault in effect.faults(request)
    ]
    if faults:
        raise ConfigurationError(faults)
    transforms: dict[int, tuple[ClientTransform, ...]] = {}
    attacks: dict[int, tuple[UpdateAttack, ...]] = {}
    affected: set[int] = set()
    dropout: dict[int, float] = {}
    timings: dict[int, Mapping[str, float]] = {}
    records: dict[int, dict[str, Any]] = {}
    before: Counter[str] = Counter()
    partition: Partition | None = None
    for place, effect in sorted(enumerate(effects), key=lambda placed: not placed[1].moves_rows):
        own_request = replace(request, occurrence=before[effect.kind])
        before[effect.kind] += 1
        clients = effect.chosen(own_request)
        plan = effect.plan(clients, own_request)
        if plan.partition is not None:
            partition = plan.partition
            request = replace(request, partition=partition)
        for client, added in plan.transforms.items():
            transforms[client] = transforms.get(client, ()) + added
        for client, steps in plan.attacks.items():
            attacks[client] = attacks.get(client, ()) + steps
        affected.update(plan.affected_clients)
        dropout |= plan.dropout
        for client, fields in plan.timings.items():
            timings[client] = {**timings.get(client, {}), **fields}
        records[place] = {"kind": effect.kind, "clients": list(clients), **plan.facts}
    facts = {"effects": [records[place] for place in sorted(records)]}
    return ScenarioPlan(transforms, tuple(sorted(affected)), dropout, timings, attacks, facts, partition)
