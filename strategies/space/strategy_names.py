"""What a name means: a kind of the table, a pair of two of them, or all that are possible."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.fault_text import did_you_mean, shown
from fedscout.strategies.methods.groups.communities import CommunitiesSpec
from fedscout.strategies.methods.servers.private_averaging import DPFedAvgSpec
from fedscout.strategies.space.pairs import JOINT, has_clients, is_server_rule, kind_of, pair_class, pair_fault
from fedscout.strategies.space.strategy_table import (
    BUILT_IN,
    BUILT_IN_KINDS,
    CHOSEN_BY_NAME,
    CHOSEN_BY_NAME_KINDS,
    STRATEGIES,
)
from fedscout.strategies.specification import StrategySpec

ALL = "all"
"""Stands in a list of kinds for all that are possible; pairs and what `ALL_KINDS` leaves out are named beside it."""

ALL_KINDS: tuple[str, ...] = tuple(kind_of(each) for each in (*BUILT_IN, *CHOSEN_BY_NAME) if each is not DPFedAvgSpec)
"""What it stands for, impossible ones included. DP-FedAvg gives accuracy away for privacy, so it must be asked for."""

SERVER_RULE_KINDS: tuple[str, ...] = tuple(kind for kind, each in STRATEGIES.items() if is_server_rule(each))
"""What may stand first in a pair."""

CLIENT_KINDS: tuple[str, ...] = tuple(kind for kind, each in STRATEGIES.items() if has_clients(each))
"""What may stand second in a pair."""


NAMES = f"{', '.join([*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS])}, pairs as fedadam{JOINT}fedprox, and {ALL}"
"""What a search may be given to choose from, for people."""


def strategy_class(kind: object) -> type[StrategySpec]:
    """Return the specification of a kind: one of the table, or a pair of two.

    Raises:
        StrategyError: If there is none; says what is allowed, and of a pair why it has no sense.
    """
    if isinstance(kind, str) and kind in STRATEGIES:
        return STRATEGIES[kind]
    if isinstance(kind, str) and JOINT in kind:
        return _pair(kind)
    allowed = f"{', '.join(STRATEGIES)}, and pairs as fedadam{JOINT}fedprox"
    meant = did_you_mean(kind, STRATEGIES)
    raise StrategyError(Fault("kind", "be a known strategy", shown(kind), f"allowed are {allowed}{meant}"))


def _pair(kind: str) -> type[StrategySpec]:
    halves = kind.split(JOINT)
    if own := [half for half in halves if ":" in half]:
        raise StrategyError(
            f"a pair must be of strategies of the table, got {shown(kind)}: {shown(own[0])} is a user's own, which "
            "stands alone; its _construct may return any server rule (docs/client_algorithms.md)"
        )
    if len(halves) != 2 or not {*halves} <= STRATEGIES.keys():
        raise StrategyError(
            Fault(
                "a pair",
                "be one server rule and one strategy's clients",
                shown(kind),
                (
                    f"allowed are server rules {', '.join(SERVER_RULE_KINDS)} and clients "
                    f"{', '.join(CLIENT_KINDS)}{_pair_meant(halves)}"
                ),
            )
        )
    server_class, client_class = (STRATEGIES[half] for half in halves)
    if fault := pair_fault(server_class, client_class):
        raise StrategyError(fault)
    assert has_clients(client_class)
    return pair_class(server_class, client_class)


def _pair_meant(halves: Sequence[str]) -> str:
    """Return the pair that is nearest, if there is one with a half in the place of each."""
    if len(halves) != 2:
        return ""
    tables = (SERVER_RULE_KINDS, CLIENT_KINDS)
    near = [difflib.get_close_matches(half, table, n=1) for half, table in zip(halves, tables, strict=True)]
    return f"; did you mean {near[0][0]}{JOINT}{near[1][0]}?" if all(near) else ""


CommunitiesSpec.named = staticmethod(strategy_class)


def named_classes(kinds: Iterable[str]) -> list[type[StrategySpec]]:
    """Return the specifications that names mean, in the table's order and then pairs, without those that mean none.

    Args:
        kinds: Of whatever sort; a user's own strategies are named otherwise.
    """
    named = {*kinds}
    if ALL in named:
        named |= {*ALL_KINDS}
    tabled = [spec_class for spec_class in (*BUILT_IN, *CHOSEN_BY_NAME) if kind_of(spec_class) in named]
    pairs = sorted(kind for kind in named if JOINT in kind and not _pair_faults(kind))
    return [*tabled, *map(strategy_class, pairs)]


def name_faults(kinds: Iterable[str]) -> list[str]:
    """Return what is wrong with the names that a search is given to choose from."""
    faults: list[str] = []
    for kind in kinds:
        if JOINT in kind:
            faults += _pair_faults(kind)
        elif kind not in (*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS, ALL):
            faults.append(
                Fault(
                    "kinds", "be known strategies", repr(kind), f"allowed are {NAMES}{did_you_mean(kind, STRATEGIES)}"
                )
            )
    return faults


def _pair_faults(kind: str) -> tuple[str, ...]:
    try:
        strategy_class(kind)
    except StrategyError as error:
        return error.faults
    return ()
