"""The models that clients train; `table` lists them, `own` reads a user-given module."""
