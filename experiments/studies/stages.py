"""The stages of a study, and what they are called while they last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Stage = Literal["data", "hosts", "detection", "search"]

STAGES: Final[Mapping[Stage, str]] = {
    "data": "reading data",
    "hosts": "starting hosts",
    "detection": "measuring heterogeneity",
    "search": "running trials",
}
