"""What users read is what the snapshot folder holds."""

from __future__ import annotations

import pytest

from tests.snapshots.texts import TEXTS, file_of


@pytest.mark.parametrize("name", TEXTS)
def test_texts_read_as_written(name: str) -> None:
    assert TEXTS[name]() == file_of(name).read_text()
