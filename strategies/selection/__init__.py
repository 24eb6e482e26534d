"""Client selection: the policies that select the clients of a round, and their registry."""
