"""Confirmation on fresh seeds: intervals, sequential design, and the confirmation runs."""
