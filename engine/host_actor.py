"""`ClientHost` as a Ray actor."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import ray

from engine.client_host import ClientHost
from engine.federation import FloatArray
from engine.host_calls import HostCall
from engine.queries import QueryTable


class HostActor(ClientHost):
    """A `ClientHost` whose model may come through the object store instead of with the call.

    Args:
        federation: A list of one reference. Inside a list it is fetched here, when the actor is started or restarted,
            and stays alive as long as the caller keeps it.
        queries: The aggregates that clients are willing to give.
    """

    def __init__(self, federation: list[Any], queries: QueryTable) -> None:
        super().__init__(ray.get(federation[0]), queries)

    def perform(self, method: str, call: HostCall, vector: FloatArray | None) -> Any:
        """Do one call; `vector` stands in for the call's own where that is None."""
        return getattr(self, method)(call if vector is None else replace(call, vector=vector))

    def process_id(self) -> int:
        """Return the operating system's id of this host's process."""
        return os.getpid()
