"""What is done to some clients: labels, features, devices, attacks; `table` lists all effects."""
