"""Interfaces that methods implement: client algorithms, client tasks, local training, settings tables."""
