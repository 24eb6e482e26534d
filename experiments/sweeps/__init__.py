"""Sweeps: the studies of a grid of configurations on Ray, their folder, and the table over all of them."""
