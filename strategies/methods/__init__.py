"""Strategies, one module per family; FedProx's client algorithm and custom strategies are here as well."""
