"""How rows came to the clients, as far as that is known before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dealing:
    """A data set and how it was dealt.

    Attributes:
        dataset: Its name.
        partition: Kind of the partition, such as `iid`, `natural` or `dirichlet`.
        alpha: Of a Dirichlet partition; else None.
        class_share: Share of the classes that a client has, where that is what was dealt by; else None.
    """

    dataset: str
    partition: str
    alpha: float | None = None
    class_share: float | None = None
