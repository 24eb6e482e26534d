"""Batch sweeps: every combination of several values is a study; all of them share one Ray and end in one table."""
