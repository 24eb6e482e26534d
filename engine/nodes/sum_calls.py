"""What a driver and its clients say to each other for a masked sum (`masked_sums`): one kind of message each way.

| part of a `SumStep` | what the client does | part of its `SumAnswer` |
| --- | --- | --- |
| `keys_of` | draws secrets for a sum | `public` |
| `seals` | seals shares of them for a cohort | `sealed` |
| `adds` | does its part of the work, and adds it under masks | `masked`, `sections`, `failures`, `states` |
| `opens` | opens one share of each client, and forgets its secrets | `opened` |

The first sum takes four exchanges. A step that adds asks for the keys of the next sum, one that opens has them sealed:
every further sum takes two. Bytes travel as hexadecimal text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedscout.engine.contracts.client_algorithm import ClientState
from fedscout.engine.nodes.masked_sums import SECRET_BYTES, PublicHalf
from fedscout.engine.nodes.node_call import Greeting, NodeCall

FEWEST = 3
"""Clients of a sum: of two, each would know what the other adds."""


VIEWS = ("own", "clean", "received")
"""Of the rows that are scored; see `EvaluateResults`."""


@dataclass(frozen=True)
class Sealing:
    """Asks for sealed shares.

    Attributes:
        sum_id: Of the sum.
        cohort: Public halves by client.
        threshold: How many shares tell a secret.
    """

    sum_id: str
    cohort: Mapping[int, str]
    threshold: int


@dataclass(frozen=True)
class Adding:
    """Asks for a masked vector.

    Attributes:
        sum_id: Of the sum.
        sealed: The shares that are for this client, by sender: who is left of the cohort.
        groups: Who is to add something to which part of the sum; others add zeros there.
        asked: The work: of a greeting it is the client's number of rows.
        max_weight: Rows of all clients.
        num_classes: Of the federation.
    """

    sum_id: str
    sealed: Mapping[int, str]
    groups: Mapping[str, tuple[int, ...]]
    asked: NodeCall | Greeting
    max_weight: int
    num_classes: int


@dataclass(frozen=True)
class Opening:
    """Asks for the shares that take the masks off a sum.

    Attributes:
        sum_id: Of the sum.
        present: Whose masked vectors have arrived.
        added: Who of them has added something to which part.
    """

    sum_id: str
    present: tuple[int, ...]
    added: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class SumStep:
    """A message to one client.

    Attributes:
        client: Its number.
        keys_of: For which sum it is to draw secrets; empty for none.
        seals: What it is to seal.
        adds: What it is to add.
        opens: What it is to open.
    """

    client: int
    keys_of: str = ""
    seals: Sealing | None = None
    adds: Adding | None = None
    opens: Opening | None = None


@dataclass(frozen=True)
class Section:
    """A part of a summed vector.

    Attributes:
        name: Of what it holds.
        shape: Of that.
        fraction_bits: Its unit is 2^-fraction_bits.
    """

    name: str
    shape: tuple[int, ...]
    fraction_bits: int


@dataclass(frozen=True)
class SumAnswer:
    """A client's answer.

    Attributes:
        public: Its public half.
        sealed: Shares, by whom they are for.
        opened: Shares, by whose secret they are of.
        masked: All that it adds, shape `(values,)`.
        sections: What lies where in that.
        failures: Why it adds nothing to some parts, by group.
        states: Marks of what it keeps.
    """

    public: str = ""
    sealed: Mapping[int, str] = field(default_factory=dict)
    opened: Mapping[int, str] = field(default_factory=dict)
    masked: npt.NDArray[np.uint64] | None = None
    sections: tuple[Section, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[int, ClientState] = field(default_factory=dict)


SUM_VALUES: tuple[type, ...] = (SumStep, Sealing, Adding, Opening, Section, SumAnswer)
"""What may travel where sums are masked."""


def public_text(half: PublicHalf) -> str:
    """Return a public half as it travels."""
    return (half.mask_key + half.seal_key + half.own_mask_digest).hex()


def public_half(text: str) -> PublicHalf:
    """Return the public half that a text stands for.

    Raises:
        ValueError: If it stands for none.
    """
    told = bytes.fromhex(text)
    if len(told) != 3 * SECRET_BYTES:
        raise ValueError(f"public keys must be {3 * SECRET_BYTES} bytes, got {len(told)}")
    return PublicHalf(*(told[start : start + SECRET_BYTES] for start in range(0, len(told), SECRET_BYTES)))
