"""Flower's strategies with the same results in less time; parameters and names are Flower's.

Two things differ. Messages that differ only in their addressee are copies of the first (`rules.py`).
Strategies that compare replies read them in place, a block of parameters of all clients at a time; Flower's
classes unpack every reply and run a garbage collection after each. Aggregates have the same bits, except for
the sign of zeros.

Measured on two cores on 2026-11-22, ten clients of the digits, processor time of the fastest round,
interleaved with Flower's own classes: FedMedian 9.3 ms instead of 11.4, QFedAvg 11.6 instead of 13.4, FedAvg
the same. With a hundred dense clients of 250 rows: FedMedian 59 ms instead of 85, Bulyan 92 instead of 151,
FedTrimmedAvg 85 instead of 104, QFedAvg 83 instead of 102.
"""
