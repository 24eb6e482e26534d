"""Flower's strategies with the same results in less time; parameters and names are Flower's.

Two things differ. Messages that differ only in their addressee are copies of the first (`rules.py`). Strategies that
compare replies read them in place, a slab of parameters of all clients at a time (`robust.py`); Flower's classes unpack
every reply and run a garbage collection after each. Aggregates have the same bits, except for the sign of zeros.
"""
