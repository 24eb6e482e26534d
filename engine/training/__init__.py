"""How a client trains and is scored: the plain loop, many at once, on a device, by an algorithm, at a task."""
