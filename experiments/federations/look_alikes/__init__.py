"""A federation that looks like a diagnosed one: what a report says of each client, and rows dealt and moved by it."""
