"""What Ray says when memory runs out, in a line that says what to change.

Ray's memory monitor kills workers when a machine's memory is nearly full. Their work is repeated; if that happens to
the same process again and again, Ray gives up with a sentence of two thousand characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import EngineError

_KILLED = re.compile(
    r"killed due to the node running low on memory.*? was (?P<used>[\d.]+ ?GB) / (?P<total>[\d.]+ ?GB)"
    r".*?threshold of (?P<threshold>[\d.]+)"
    r"(?:.*?task name=(?P<name>[^,]+),.*?actual memory used=(?P<own>[\d.]+ ?GB))?",
    re.DOTALL,
)
_FULL = ("OutOfDiskError", "ObjectStoreFullError", "out of disk space", "object store is full")


def memory_fault(text: str) -> str | None:
    """Return what Ray means, or None if it speaks of something else."""
    killed = _KILLED.search(text)
    if killed is not None:
        found = killed.groupdict()
        who = f"{found['name']}, which used {found['own']}" if found["name"] else "a process"
        return (
            f"Ray ended {who}, as {found['used']} of the machine's {found['total']} of memory were in use, more than "
            f"the share of {float(found['threshold']):g} that it allows; lower engine.num_hosts, let fewer trials run "
            "at once (search.generation_size), or end other programs"
        )
    if any(sign in text for sign in _FULL):
        return (
            "Ray has no room left for its objects, in memory nor on the disk of its temporary folder; raise "
            "engine.object_store_bytes, or free that disk (RAY_TMPDIR names another)"
        )
    return None


@contextmanager
def memory_faults_told() -> Iterator[None]:
    """Put errors of the block that are about memory in our own words, and let no error of Ray's through.

    Raises:
        EngineError: In place of Ray's.
    """
    from ray.exceptions import RayError

    try:
        yield
    except (EngineError, RayError) as error:
        told = memory_fault(f"{type(error).__name__}: {error}")
        if told is None and isinstance(error, EngineError):
            raise
        raise EngineError(told or f"Ray failed: {str(error).strip().splitlines()[0]}") from error
