"""Texts that users see, held as files; `python -m tests.snapshots --write` updates them."""
