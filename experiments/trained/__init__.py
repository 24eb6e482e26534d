"""Trained models: what is kept of them on disk, and what they say of new rows."""
