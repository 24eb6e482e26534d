"""Partitions of rows over clients; `table` registers all kinds."""
