"""Data sets, models, partitions, scenarios, the configuration, and the command line."""
