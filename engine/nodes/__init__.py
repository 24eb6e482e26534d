"""Clients on machines of their own: a grid over any Flower grid, and what answers it there."""
