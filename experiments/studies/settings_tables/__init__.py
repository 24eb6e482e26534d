"""A table of client settings, cell by cell on proxy data."""
