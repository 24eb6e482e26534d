"""Messages: keys, host calls, sessions, exact sums, and the creation, reading and exchange of Flower messages."""
