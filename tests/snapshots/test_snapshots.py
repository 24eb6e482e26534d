"""What users read is what the snapshot folder holds."""

from __future__ import annotations

from tests.snapshots.refusals import FILE, refusals


def test_refusals_read_as_written() -> None:
    assert refusals() == FILE.read_text()
