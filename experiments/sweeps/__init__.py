"""Sweeps: grids of studies on Ray, their folder, and their table of results."""
