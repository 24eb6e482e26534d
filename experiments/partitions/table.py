"""The table of partitions: a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.partitions.contract import Partitioner
from experiments.partitions.dirichlet import dirichlet
from experiments.partitions.iid import iid
from experiments.partitions.natural import natural

PARTITIONS: Mapping[str, Partitioner] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "natural": natural,
}
