"""Memory that a process keeps once it has it: a layer's outputs, freed and asked for again in every step.

The C library gives a freed block at the end of its heap back to the system as soon as that is some megabytes long, and
the system hands it out again page by page, zeroed, which can take longer than what is computed in it. Elsewhere than
with glibc, nothing is changed.
"""

from __future__ import annotations

import ctypes

KEPT_BYTES = 2**29
"""Free bytes at the heap's end that stay with the process."""

LARGEST_BLOCK_BYTES = 2**25
"""Larger blocks, such as whole models, come from the system and go back to it; the most that glibc itself chooses."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> bool:
    """Have this process keep what it frees; return whether the C library has agreed."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return bool(set_option(_MMAP_THRESHOLD, LARGEST_BLOCK_BYTES) and set_option(_TRIM_THRESHOLD, KEPT_BYTES))
