"""What it costs that clients of a small dense net have rates, batches and epochs of their own, as under a table.

Rates from 1e-4 to 0.8 and batches from 4 to 64 are drawn evenly in their logarithms, epochs from 1 to 30. Beside them
stands one setting for all of as many steps, and of those the one of most nearly as many rows. Both train the same
clients of `peers/work.py` in this process, right after each other, and each turn draws anew. Time is processor time of
local training alone; what counts is the median of the turns' ratios.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import torch
from pydantic import BaseModel

from fedscout.engine.contracts.client_update import ClientUpdate
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.train_request import TrainRequest
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.model.flat_model import new_model
from fedscout.engine.seeds import stream
from fedscout.engine.training.local_training import RowsWork
from fedscout.engine.training.training_backends import BlockTrainer, Trainer, fastest_trainer
from fedscout.experiments.benchmarks.engine_bench import Note
from fedscout.experiments.benchmarks.engine_work import work_federation
from fedscout.experiments.benchmarks.peers.work import Task
from fedscout.experiments.reports.markdown_table import markdown_table

RATES, BATCHES, EPOCHS = (1e-4, 0.8), (4, 64), (1, 30)


class MixedTurn(BaseModel, frozen=True):
    """One draw of settings.

    Attributes:
        steps: Of all clients by the settings of their own.
        uniform_steps: By one setting for all.
        seconds: Processor time of the first.
        uniform_seconds: Of the second.
    """

    steps: int
    uniform_steps: int
    seconds: float
    uniform_seconds: float

    @property
    def ratio(self) -> float:
        """How many times as long settings of clients' own take."""
        return self.seconds / self.uniform_seconds


def drawn_settings(num_clients: int, turn: int) -> list[LocalTraining]:
    """Return settings of each client."""
    generator = stream(turn, "mixed-settings")

    def logarithmic(ends: tuple[float, float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        low, high = np.log(ends).tolist()
        drawn: np.ndarray[tuple[int], np.dtype[np.float64]] = np.exp(generator.uniform(low, high, num_clients))
        return drawn

    rates, batches = logarithmic(RATES), np.rint(logarithmic(BATCHES)).astype(np.int64)
    epochs = generator.integers(EPOCHS[0], EPOCHS[1] + 1, num_clients)
    return [
        LocalTraining(learning_rate=rate, batch_size=batch, local_epochs=passes)
        for rate, batch, passes in zip(rates.tolist(), batches.tolist(), epochs.tolist(), strict=True)
    ]


def uniform_setting(settings: Sequence[LocalTraining], num_rows: int) -> LocalTraining:
    """Return one setting of most nearly as many steps in all, and of those of as many epochs.

    Args:
        settings: Of each client.
        num_rows: That each client has.
    """
    wanted, passes = num_steps(settings, num_rows), sum(one.local_epochs for one in settings)
    rate = float(np.exp(np.mean([np.log(one.learning_rate) for one in settings])))
    candidates = [
        LocalTraining(learning_rate=rate, batch_size=batch, local_epochs=epochs)
        for batch in range(BATCHES[0], BATCHES[1] + 1)
        for epochs in range(EPOCHS[0], EPOCHS[1] + 1)
    ]

    def distance(one: LocalTraining) -> tuple[int, int]:
        count = len(settings)
        return abs(count * num_steps([one], num_rows) - wanted), abs(count * one.local_epochs - passes)

    return min(candidates, key=distance)


def num_steps(settings: Sequence[LocalTraining], num_rows: int) -> int:
    """Return the steps of clients of so many rows each, one a setting."""
    return sum(int(one.num_steps(np.array([num_rows]))[0]) for one in settings)


def mixed_turns(task: Task, turns: int, note: Note = lambda _: None) -> list[MixedTurn]:
    """Measure so many turns; `note` is told what is being done.

    Raises:
        ConfigurationError: If clients of this work are not trained many at once.
    """
    torch.set_num_threads(1)
    federation = work_federation(task.name, task.clients, task.samples)
    model = new_model(federation.model, seed=0)
    trainer, received = fastest_trainer(model), model.vector.clone()
    if not isinstance(trainer, BlockTrainer):
        raise ConfigurationError(Fault("--mixed", "have --work=dense or tiny, small dense nets", task.name))

    def seconds(settings: Sequence[LocalTraining | None], asked: LocalTraining) -> float:
        works = [
            RowsWork(client, stream(0, "batches", 1, client), {}, federation.client_data(client).own, training=own)
            for client, own in enumerate(settings)
        ]
        return _processor_seconds(trainer, TrainRequest(received, asked, num_classes=federation.num_classes), works)

    found = []
    for turn in range(turns + 1):  # the first is not counted
        note(f"turn {turn} of {turns}" if turn else "warming up")
        own = drawn_settings(task.clients, turn)
        one = uniform_setting(own, task.samples)
        found.append(
            MixedTurn(
                steps=num_steps(own, task.samples),
                uniform_steps=task.clients * num_steps([one], task.samples),
                seconds=seconds(own, LocalTraining()),
                uniform_seconds=seconds([None] * task.clients, one),
            )
        )
    return found[1:]


def _processor_seconds(trainer: Trainer, asked: TrainRequest, works: Sequence[RowsWork]) -> float:
    """Return what it takes to train some clients."""
    began = time.process_time()
    for block in trainer.train(asked, works):
        assert all(isinstance(update, ClientUpdate) for _, update in block), "rows and settings are ours"
    return time.process_time() - began


def mixed_lines(task: Task, turns: Sequence[MixedTurn]) -> list[str]:
    """Return the turns for people."""
    ratios = [turn.ratio for turn in turns]
    rows = [
        [f"{turn.ratio:.2f}", f"{turn.seconds:.2f}", f"{turn.uniform_seconds:.2f}", turn.steps, turn.uniform_steps]
        for turn in turns
    ]
    return [
        f"{task.name}, {task.clients} clients of {task.samples} rows, one process; processor time of local training",
        f"Settings of clients' own take {median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f}) times as long as "
        "one setting of as many steps.",
        "",
        *markdown_table(["times", "own, s", "one, s", "steps", "steps of the one"], rows),
    ]
