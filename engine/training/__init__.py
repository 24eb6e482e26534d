"""Training and scoring of clients: per-client loop, vectorised blocks, GPU lanes, client algorithms and tasks."""
