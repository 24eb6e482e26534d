"""Client side of the engine: hosts, clients' updates, personalised scores and embeddings for detectors."""
