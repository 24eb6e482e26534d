"""Checkpoints of a running trial: round, arrays, the strategy's state, client states, what was recorded so far.

They only save time. A trial without a readable checkpoint starts at round 1 and ends with the same bits.

A file is the SHA-256 of all that follows, a JSON document (`engine/trials/plain_state.py`) as an array of bytes, and
numpy's own format for every array. Nothing in it is run: a planted file can mislead a trial about its numbers, as an
edited log can, and can't call anything. The digest finds damage; it is no signature.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array, write_array

from fedscout.engine.runtime.atomic_file import remove_file, write_atomically
from fedscout.engine.trials.plain_state import Arrays, Document, NotPlainError, PlainState

logger = logging.getLogger("fedscout")

DIGEST_BYTES = 32


@dataclass(frozen=True)
class CheckpointStore:
    """Where trials leave their checkpoints.

    Attributes:
        folder: One file a running trial; None keeps none.
        every_rounds: Rounds between two checkpoints, >= 1.
    """

    folder: Path | None
    every_rounds: int = 10

    def path(self, key: str) -> Path | None:
        """Return the file of a trial."""
        return None if self.folder is None else self.folder / f"{key}.checkpoint"

    def due(self, server_round: int) -> bool:
        """Whether a checkpoint should follow this round."""
        return self.folder is not None and server_round % self.every_rounds == 0

    def save(self, key: str, state: Any, plain: PlainState) -> None:
        """Save a state; one that can't be stored or written is reported, and the trial goes on without.

        Args:
            key: Of the trial.
            state: Where it stands.
            plain: Knows how to write it.
        """
        path = self.path(key)
        if path is None:
            return
        try:
            write_atomically(path, partial(_write, *plain.encode(state)))
        except NotPlainError as error:
            if not plain.told:
                logger.warning("trial %s goes on without a checkpoint: %s", key[:12], error)
            plain.told = True
        except Exception as error:  # whatever a user's strategy object raises
            logger.warning("trial %s goes on without a checkpoint: %s: %s", key[:12], type(error).__name__, error)

    def restore(self, key: str, plain: PlainState) -> bool:
        """Give the last state to the fresh object of `plain`; False if there is none that can be read."""
        path = self.path(key)
        if path is None or not os.path.lexists(path):
            return False
        try:
            plain.restore(*read_checkpoint(path))
        except Exception as error:
            logger.warning("checkpoint %s can't be read and is ignored: %s: %s", path, type(error).__name__, error)
            return False
        return True

    def discard(self, key: str) -> None:
        """Remove a finished trial's file, and what a killed process of it was writing."""
        path = self.path(key)
        if path is None:
            return
        try:
            unfinished = (file for file in path.parent.glob(".*.tmp") if file.name.startswith(f".{path.name}."))
            for written in (path, *unfinished):
                if os.path.lexists(written):  # where nothing can be written, removing nothing fails as well
                    remove_file(written)
        except OSError as error:  # it is of no use any more, and of no harm
            logger.warning("checkpoint %s can't be removed: %s", path, error.strerror)


def read_checkpoint(path: Path) -> tuple[Document, Arrays]:
    """Return what a file holds.

    Raises:
        Exception: Of whatever kind, if it can't be read or is damaged.
    """
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("it is no file")
    arrays = []
    with path.open("rb") as file:
        written = file.read(DIGEST_BYTES)
        if hashlib.file_digest(file, "sha256").digest() != written:
            raise ValueError("its digest is not that of its content")
        end = file.tell()
        file.seek(DIGEST_BYTES)
        while file.tell() < end:
            arrays.append(read_array(file, allow_pickle=False))
    return json.loads(arrays.pop(0).tobytes()), arrays


def _write(document: Document, arrays: Arrays, path: Path) -> None:
    with path.open("w+b") as file:
        file.write(bytes(DIGEST_BYTES))
        for array in (np.frombuffer(json.dumps(document).encode(), np.uint8), *arrays):
            write_array(file, array, allow_pickle=False)
        file.seek(DIGEST_BYTES)
        digest = hashlib.file_digest(file, "sha256").digest()
        file.seek(0)
        file.write(digest)
