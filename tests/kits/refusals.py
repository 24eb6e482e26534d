"""What a refusal is about, asserted without its sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedscout.engine.errors import UserError


@contextmanager
def refused(
    kind: type[UserError], *, key: str, given: object = None, names: str = ""
) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Hold that an error of this kind is raised, and that one of its faults is of `key`.

    Args:
        kind: Of the error.
        key: What the fault is about.
        given: What was given, if that is to be held, too.
        names: Another key that the fault names, such as one that would help.
    """
    with pytest.raises(kind) as caught:
        yield caught
    faults = [fault for fault in caught.value.faults if fault.key == key]
    assert faults, f"no fault of {key} among {caught.value.keys}: {caught.value}"
    assert given is None or str(given) in [fault.given for fault in faults]
    assert names in str(caught.value), f"{names} is not named: {caught.value}"
