"""Features by trained networks."""
