"""Models that clients train; `table` lists them, `own` loads user-defined modules."""
