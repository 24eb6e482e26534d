"""Scenario effects on clients: labels, features, devices, attacks; `table` registers all effects."""
