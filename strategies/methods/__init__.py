"""Strategies, one module per family."""
