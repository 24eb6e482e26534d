"""The client's side of a message: the host, what goes up and what stays, scores of one's own, what detectors see."""
