"""Arguments that messages propose, as they are typed in a shell: quoted where the shell or YAML needs it."""

from __future__ import annotations

import json
import re
import shlex

PLAIN_NAME = re.compile(r"\w[\w-]*")
PLAIN_TEXT = re.compile(r"[^\W\d][\w-]*")
WORDS_OF_YAML = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}


def text_argument(key: str, value: str) -> str:
    """Return `federation.KEY=VALUE` of a key that takes text."""
    return shlex.quote(f"federation.{key}={_quoted(value)}")


def list_argument(key: str, *values: str) -> str:
    """Return `federation.KEY=[VALUE, …]`; without quotes where the values are plain, as shells take brackets."""
    argument = f"federation.{key}=[{','.join(map(_quoted, values))}]"
    return argument if all(map(_is_plain, values)) else shlex.quote(argument)


def column_key(name: str, kind: str) -> str:
    """Return the argument that says of which kind a column is."""
    if PLAIN_NAME.fullmatch(name):
        return f"federation.columns.{name}={kind}"
    return shlex.quote(f"federation.columns={{{json.dumps(name, ensure_ascii=False)}: {kind}}}")


def _quoted(value: str) -> str:
    return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)


def _is_plain(value: str) -> bool:
    return PLAIN_TEXT.fullmatch(value) is not None and value.lower() not in WORDS_OF_YAML
