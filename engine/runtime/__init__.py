"""Operating system and Ray: atomic file writes, folder locks, signals, orphan processes, memory, storage."""
