"""Real federations: the agreement of a study, a client's own rows, the driver, and a Flower app with both."""
