"""Client algorithms and strategies that kill the process they run in, at a chosen moment, a chosen number of times."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, LocalRun

if TYPE_CHECKING:
    from torch import Tensor

Moment = Literal["prepare", "correct", "finish"]


@dataclass(frozen=True)
class Counted(ClientAlgorithm):
    """An algorithm with state: it counts a client's participations and pushes the gradient by the count.

    A state that is lost, or applied twice, thus shows in the model.

    Attributes:
        strength: Of the push.
    """

    strength: float = 0.02

    def train(self, run: LocalRun) -> ClientResults:
        """Push, and count."""
        counts = run.kept("count", run.received.new_zeros(1))
        self._all_reached("prepare", counts)

        def push(weights: Tensor, gradient: Tensor, pushes: Tensor) -> None:
            self._all_reached("correct", counts)
            gradient.add_(pushes)

        pushes = (self.strength * counts).expand(-1, run.layout.size)
        trained = run.descend(run.received, push, [pushes])
        self._all_reached("finish", counts)
        return ClientResults(trained, trained.vectors, {"count": counts + 1})

    def _all_reached(self, moment: Moment, counts: Tensor) -> None:
        for count in counts.view(-1).tolist():
            self.reached(moment, count)

    def reached(self, moment: Moment, count: float) -> None:
        """Called at each moment of a client's training."""


@dataclass(frozen=True)
class MortalCount(Counted):
    """Kills its host where a client trains for the second time.

    Attributes:
        folder: Where deaths are noted, one file each.
        moment: Before the first step, in the middle of one, or after the last.
        deaths: How many there will be.
        raylet: Its process id, if only a host of that node shall die, and its node with it.
    """

    folder: str = ""
    moment: Moment = "correct"
    deaths: int = 1
    raylet: int | None = None

    def reached(self, moment: Moment, count: float) -> None:
        """Die, if it is time."""
        if moment != self.moment or count < 1 or self.raylet not in (None, os.getppid()):
            return
        for number in range(self.deaths):
            try:
                Path(self.folder, f"death-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            if self.raylet is not None:
                os.kill(self.raylet, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def deaths(folder: Path) -> int:
    """Return how many deaths were noted in a folder."""
    return len(list(folder.glob("death-*")))
