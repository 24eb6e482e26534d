"""What a client keeps between rounds stays on its machine; the driver has a mark, the round after which it was kept.

A mark travels, is checkpointed and comes back as a client's state does in a simulation (`client_states`). What it
stands for lies in Flower's `context.state`, which ends with the run; and in a folder of the owner's, if there is one,
from which a run that is begun again goes on.

Of a trial a client keeps two states: the one whose mark the driver has sent with this round, and the one after it. A
driver that was killed, or that has not waited for an answer, sends the former's mark again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from fedscout.engine.contracts.client_algorithm import ClientState
from fedscout.engine.runtime.atomic_file import write_atomically

ROUND = "kept-after-round"

TRIALS_KEPT = 8
"""Of those that a client took part in last."""


class LostStateError(Exception):
    """What a mark stands for is not here."""


def is_mark(state: object, server_round: int) -> bool:
    """Return whether something stands for a state that was kept after a round."""
    if not isinstance(state, dict) or [*state] != [ROUND]:
        return False
    told = state[ROUND]
    return isinstance(told, np.ndarray) and told.shape == (1,) and bool(told[0] == server_round)


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
            LostStateError: If it is not here, or can't be read.
        """
        server_round = _round_of(marked)
        record = self._memory.get(_key(trial, server_round))
        if isinstance(record, ArrayRecord):
            return {name: array.numpy() for name, array in record.items()}
        path = self._path(trial, server_round)
        if path is None or not path.is_file():
            raise LostStateError
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except Exception as error:  # whatever a damaged file has NumPy raise
            raise LostStateError from error

    def keep(self, trial: str, server_round: int, state: ClientState, marked: ClientState | None = None) -> ClientState:
        """Keep a state, and return its mark.

        Args:
            trial: Whose.
            server_round: After which.
            state: What is kept.
            marked: The mark that came with the round, if one did. What it stands for is kept as well; all else of the
                trial is forgotten.
        """
        rounds = {server_round, *([] if not marked else [_round_of(marked)])}
        self._memory[_key(trial, server_round)] = ArrayRecord(
            {name: Array(np.ascontiguousarray(values)) for name, values in state.items()}
        )
        _forget(self._memory, trial, rounds)
        path = self._path(trial, server_round)
        if path is not None:
            write_atomically(path, lambda temporary: _write(temporary, state))
            _remove(path.parent, rounds)
        return mark(server_round)

    def _path(self, trial: str, server_round: int) -> Path | None:
        if self._folder is None or not re.fullmatch(r"[0-9a-f]{64}", trial):
            return None
        return self._folder / "kept" / trial[:32] / f"{server_round}.npz"


def drawn_once(memory: RecordDict, name: str, draw: Callable[[], float]) -> float:
    """Return what was drawn under a name, and the first time draw it."""
    known = memory.get(f"drawn.{name}")
    if isinstance(known, MetricRecord):
        return float(known["drawn"])  # type: ignore[arg-type]
    drawn = draw()
    memory[f"drawn.{name}"] = MetricRecord({"drawn": drawn})
    return drawn


def _round_of(marked: ClientState) -> int:
    told = marked.get(ROUND)
    if told is None or not np.isfinite(told).all() or not is_mark({ROUND: told}, int(told.flat[0]) if told.size else 0):
        raise LostStateError
    return int(told[0])


def _key(trial: str, server_round: int) -> str:
    return f"kept.{trial}.{server_round}"


def _forget(memory: RecordDict, trial: str, kept: Collection[int]) -> None:
    """Forget other rounds of a trial, and trials that were long ago."""
    rounds: dict[str, list[int]] = {}
    for key in memory:
        if key.startswith("kept."):
            name, _, after = key.removeprefix("kept.").rpartition(".")
            rounds.setdefault(name, []).append(int(after))
    others = [name for name in rounds if name != trial]
    old = [(name, each) for name in others[: max(0, len(rounds) - TRIALS_KEPT)] for each in rounds[name]]
    for name, each in [*old, *((trial, each) for each in rounds[trial] if each not in kept)]:
        del memory[_key(name, each)]


def _remove(folder: Path, kept: Collection[int]) -> None:
    """Remove the files of other rounds, and those of trials that were long ago."""
    for path in folder.glob("*.npz"):
        if path.stem not in map(str, kept):
            path.unlink()
    trials = sorted((each for each in folder.parent.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
    for old in trials[:-TRIALS_KEPT]:
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)


def _write(path: Path, state: ClientState) -> None:
    with path.open("wb") as file:
        np.savez(file, **dict(state))  # type: ignore[arg-type]
