"""Flower's strategies with the same results in less time; parameters and names are Flower's.

Two things are done differently. Messages that differ in their addressee alone are copies of the first
(`rules.py`). Strategies that compare replies read them where they are, some parameters of all clients at a
time, where Flower's classes unpack every reply and collect garbage after each. Aggregates have the same bits; only a
zero may have another sign.

Measured on two cores on 2026-11-22, ten clients of the digits, processor time of the fastest round, interleaved with
Flower's own classes: FedMedian 9.3 ms in place of 11.4, QFedAvg 11.6 in place of 13.4, FedAvg as fast. A hundred dense
clients of 250 rows: FedMedian 59 in place of 85 ms, Bulyan 92 of 151, FedTrimmedAvg 85 of 104, QFedAvg 83 of 102.
"""

from fedscout.strategies.aggregation.robust import Bulyan, FedMedian, FedTrimmedAvg, Krum, MultiKrum, QFedAvg
from fedscout.strategies.aggregation.rules import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

__all__ = [
    "Bulyan",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedMedian",
    "FedProx",
    "FedTrimmedAvg",
    "FedYogi",
    "Krum",
    "MultiKrum",
    "QFedAvg",
]
