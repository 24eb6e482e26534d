"""Clients on remote machines: the driver's grid over any Flower grid, and the client side."""
