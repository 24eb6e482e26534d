"""Reading a JSON file that anybody may have written: it holds one object, or the reason why not is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json_object(path: Path) -> dict[str, Any]:
    """Return what a file holds.

    Raises:
        FileNotFoundError: If it is not there.
        OSError: If it can't be read.
        ValueError: If it is no file, or holds anything but one JSON object.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ValueError("it is no file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content
