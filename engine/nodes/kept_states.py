"""What a client keeps between rounds stays on its machine; the driver has a mark, the round after which it was kept.

A mark travels, is checkpointed and comes back as a client's state does in a simulation (`client_states`). What it
stands for lies in Flower's `context.state`, which ends with the run; and in a folder of the owner's, if there is one,
from which a run that is begun again goes on.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fedscout.engine.contracts.client_algorithm import ClientState
from fedscout.engine.runtime.atomic_file import write_atomically

ROUND = "kept-after-round"
ROUNDS_KEPT = 2
"""Of a trial: the last, and the one before, from which a driver that was killed goes on."""

TRIALS_KEPT = 8


class LostStateError(Exception):
    """What a mark stands for is not here."""


def mark(server_round: int) -> ClientState:
    """Return what stands for a state that was kept after a round."""
    return {ROUND: np.array([server_round], np.float32)}


class KeptStates:
    """The states of one client, by trial and round.

    Args:
        memory: Flower's `context.state`.
        folder: Where they are kept as well; None keeps them nowhere else.
    """

    def __init__(self, memory: RecordDict, folder: Path | None = None) -> None:
        self._memory, self._folder = memory, folder

    def find(self, trial: str, marked: ClientState) -> ClientState:
        """Return what a mark stands for.

        Raises:
            LostStateError: If it is not here.
        """
        server_round = int(marked[ROUND][0])
        record = self._memory.get(_key(trial, server_round))
        if isinstance(record, ArrayRecord):
            return {name: array.numpy() for name, array in record.items()}
        path = self._path(trial, server_round)
        if path is None or not path.is_file():
            raise LostStateError
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}

    def keep(self, trial: str, server_round: int, state: ClientState) -> ClientState:
        """Keep a state, forget those of earlier rounds, and return its mark."""
        self._memory[_key(trial, server_round)] = ArrayRecord(
            {name: Array(np.ascontiguousarray(values)) for name, values in state.items()}
        )
        _forget(self._memory, trial)
        path = self._path(trial, server_round)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda temporary: _write(temporary, state))
            rounds = sorted(path.parent.glob("*.npz"), key=lambda file: int(file.stem))
            for old in rounds[:-ROUNDS_KEPT]:
                old.unlink()
        return mark(server_round)

    def _path(self, trial: str, server_round: int) -> Path | None:
        if self._folder is None or not re.fullmatch(r"[0-9a-f]{64}", trial):
            return None
        return self._folder / "kept" / trial[:32] / f"{server_round}.npz"


def _key(trial: str, server_round: int) -> str:
    return f"kept.{trial}.{server_round}"


def _forget(memory: RecordDict, trial: str) -> None:
    """Forget earlier rounds of a trial, and trials that were long ago."""
    rounds: dict[str, list[int]] = {}
    for key in memory:
        if key.startswith("kept."):
            name, _, after = key.removeprefix("kept.").rpartition(".")
            rounds.setdefault(name, []).append(int(after))
    others = [name for name in rounds if name != trial]
    old = [(name, each) for name in others[: max(0, len(rounds) - TRIALS_KEPT)] for each in rounds[name]]
    for name, each in [*old, *((trial, each) for each in sorted(rounds[trial])[:-ROUNDS_KEPT])]:
        del memory[_key(name, each)]


def _write(path: Path, state: ClientState) -> None:
    with path.open("wb") as file:
        np.savez(file, **dict(state))  # type: ignore[arg-type]
