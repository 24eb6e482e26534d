"""What the clients, classes and features of a federation are called in sentences.

Everything computed and sent uses positions. A sentence for people uses names: the client column's values, the classes'
labels, the columns. Where there is no name, the position stands in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedscout.engine.data.federation import Federation

CLIENTS_NAMED = 12
"""A sentence names this many clients and counts the rest."""


@dataclass(frozen=True)
class Names:
    """Names by position; empty where there are none.

    Attributes:
        clients: Of the federation's clients.
        classes: Of the labels.
        features: Of a table's columns, after encoding.
    """

    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, federation: Federation) -> Names:
        """Return the names that a federation's builder knows."""
        clients = tuple(map(str, federation.facts.get("client_names", ())))
        return cls(clients, tuple(map(str, federation.class_names)), tuple(map(str, federation.feature_names)))

    def client(self, position: int) -> str:
        """Return the name of one client, without the word."""
        return _name(self.clients, position)

    def one_client(self, position: int) -> str:
        """Return `client a`."""
        return f"client {self.client(position)}"

    def some_clients(self, positions: Sequence[int]) -> str:
        """Return `client a`, `clients a, b` or, of many, the first ones and the number of the others."""
        named = ", ".join(self.client(position) for position in positions[:CLIENTS_NAMED])
        rest = f" and {len(positions) - CLIENTS_NAMED} more" if len(positions) > CLIENTS_NAMED else ""
        return f"client{'' if len(positions) == 1 else 's'} {named}{rest}"

    def some_classes(self, positions: Sequence[int]) -> str:
        """Return `class a`, or `classes a, b and c`."""
        return _several("class", "classes", [_name(self.classes, position) for position in positions])

    def some_features(self, positions: Sequence[int], remarks: Sequence[str]) -> str:
        """Return `feature a (remark)`, or `features a (remark), b (remark) and c (remark)`."""
        named = (f"{_name(self.features, at)} ({remark})" for at, remark in zip(positions, remarks, strict=True))
        return _several("feature", "features", list(named))


UNNAMED = Names()
"""Positions stand in place of all names."""


def _name(names: Sequence[str], position: int) -> str:
    return names[position] if 0 <= position < len(names) else str(position)


def _several(one: str, several: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{one} {names[0]}"
    return f"{several} {', '.join(names[:-1])} and {names[-1]}"
