"""What may be a secret is taken out of a text before it is sent, kept or shown."""

from __future__ import annotations

import re
from collections.abc import Iterable

REDACTED = "[redacted]"

_KEY_LIKE = re.compile(r"\b(?:sk|gsk|hf|xai|pk|rk)[-_][A-Za-z0-9_-]{8,}")
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}")

SHORTEST_SECRET = 8
"""A shorter key is a placeholder, as local servers take any: its letters would be found in every text."""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without secrets.

    Args:
        text: Any.
        secrets: Keys that are known; what has the form of a key is taken out as well.
    """
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, REDACTED)
    return _BEARER.sub(rf"\1{REDACTED}", _KEY_LIKE.sub(REDACTED, text))
