"""Client selection: the mathematics of each policy, and what all of them promise."""
