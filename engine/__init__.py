"""Mechanism: federations, local training, hosts, grids, trials and their log. Knows no algorithm."""
