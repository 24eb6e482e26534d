"""Partitions by name: which rows each client gets. Every row goes to one client at most."""

from experiments.partitions.contract import Deal, Partitioner, PartitionRequest
from experiments.partitions.table import PARTITIONS

__all__ = ["PARTITIONS", "Deal", "PartitionRequest", "Partitioner"]
