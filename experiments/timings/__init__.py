"""Benchmark of a round on this machine, compared with other programs, and the memory that it takes."""
