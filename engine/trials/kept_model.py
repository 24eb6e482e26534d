"""What is kept of a training whose clients use models of their own, or none in common: told before it and beside it."""

from __future__ import annotations

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm
from fedscout.engine.model.parameter_layout import ParameterLayout


def kept_model(algorithm: ClientAlgorithm | None, layout: ParameterLayout) -> str | None:
    """Return what model is kept, a sentence; None where it is the one that clients use.

    Args:
        algorithm: What the clients do.
        layout: Of the model.
    """
    if algorithm is None or not (algorithm.personal or algorithm.tunes):
        return None
    if shares_nothing(algorithm, layout):
        return "the model that is kept is the initial one, as all that is trained stays with its client"
    theirs = "what clients have of their own stays with them" if algorithm.personal else "clients tune it for use"
    return f"the model that is kept is the global one, which a new client is given; {theirs}"


def shares_nothing(algorithm: ClientAlgorithm | None, layout: ParameterLayout) -> bool:
    """Return whether all of the model stays with its client, so that none is trained in common."""
    at_home = None if algorithm is None else algorithm.at_home(layout)
    return at_home is not None and bool(at_home.all())
