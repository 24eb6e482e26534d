"""Why a user's strategy does not find a record in a message: clients send none of their own making."""

from __future__ import annotations

import traceback

from flwr.app import RecordDict

from fedscout.engine.fault_text import listed, shown


def missing_record(error: BaseException) -> str | None:
    """Return what a message was asked for and what it holds, if that is the error; else None.

    Args:
        error: As it was caught, with its frames.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    content = frames[-1].f_locals.get("self") if isinstance(error, KeyError) and frames else None
    if type(content).__module__ != RecordDict.__module__:  # Flower's views of records by their kind are there as well
        return None
    return (
        f"a message has no record {shown(error.args[0])}, it holds {listed(content or ()) or 'none of that kind'}: "
        "clients send arrays and metrics alone, and nothing of a node's configuration (docs/custom_strategy.md)"
    )
