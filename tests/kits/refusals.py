"""What a refusal is about, asserted without its sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedscout.engine.errors import UserError


@contextmanager
def refused(kind: type[UserError], *, key: str, given: object = None) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Hold that an error of this kind is raised, and that one of its faults is of `key` and, if told, of `given`."""
    with pytest.raises(kind) as caught:
        yield caught
    faults = [fault for fault in caught.value.faults if fault.key == key]
    assert faults, f"no fault of {key} among {caught.value.keys}: {caught.value}"
    assert given is None or str(given) in [fault.given for fault in faults]
