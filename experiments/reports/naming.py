"""What people call clients and classes: by name where they have one. What is kept and computed has numbers alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedscout.engine.data.federation import Federation

_NUMBERED = re.compile(r"\b([Cc]lients?|class(?:es)?) (\d+\b(?:(?:, | and )\d+\b)*)(?! more)")


@dataclass(frozen=True)
class Naming:
    """The names of a federation.

    Attributes:
        clients: By number; empty where they have none.
        classes: Likewise.
    """

    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, federation: Federation) -> Naming:
        """Return the names that its builder knows."""
        return cls(tuple(map(str, federation.facts.get("client_names", ()))), federation.class_names)

    def client(self, number: int) -> str:
        """Return what a client is called."""
        return _name(self.clients, number)

    def told(self, sentence: str) -> str:
        """Return a sentence with names in place of the numbers of clients and classes."""

        def named(found: re.Match[str]) -> str:
            names = self.clients if found[1].lower().startswith("client") else self.classes
            return f"{found[1]} " + re.sub(r"\d+", lambda number: _name(names, int(number[0])), found[2])

        return _NUMBERED.sub(named, sentence)

    def few_clients(self, clients: Sequence[int], width: int) -> str:
        """Return clients in a line of this width: `clients 3, 5, 8 and 12 others`, the first one in any case."""
        names = [self.client(client) for client in clients]
        plural = "s" if len(names) > 1 else ""
        for shown in range(len(names), 0, -1):
            others = len(names) - shown
            rest = f" and {others} other{'s' if others > 1 else ''}" if others else ""
            told = f"client{plural} {', '.join(names[:shown])}{rest}"
            if len(told) <= width:
                return told
        return told if names else ""


def _name(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else str(number)
