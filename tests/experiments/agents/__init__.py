"""Tools for agents, tried by the protocol's own client."""
