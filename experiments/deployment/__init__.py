"""From a study to a real federation: what was agreed on, a client's own rows, the driver, and a Flower app of both."""
