"""Data of clients: rows, federations, splits, availability, queries and release rules for their answers."""
