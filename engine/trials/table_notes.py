"""Notes of a trial whose clients train by a table: what they tell after all, and how many lie far off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedscout.engine.contracts.settings_lookup import FAR_KEY, SettingsLookup
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.trials.trial_settings import TrialSettings


def table_notes(settings: TrialSettings, grid: HostGrid[Any]) -> Iterator[str]:
    """Yield them.

    Args:
        settings: Of the trial.
        grid: On which it ran.
    """
    table = settings.session.client_table
    if table is None:
        return
    if told := list(_told(settings, grid)):
        yield f"something of clients' data goes back, beside models and losses: {'; '.join(told)}"
    if table.table.threshold is not None and grid.far_clients:
        yield _far_note(table, sum(grid.far_clients.values()), len(grid.far_clients))


def _told(settings: TrialSettings, grid: HostGrid[Any]) -> Iterator[str]:
    """Yield what a server learns beyond that of how clients' data lie, or how they train."""
    label, needs, algorithm = settings.strategy.label, settings.session.needs, settings.session.algorithm
    companions = {} if algorithm is None or algorithm.companions_follow else algorithm.companions
    if told := [*sorted(grid.told_sums.keys() - {FAR_KEY}), *sorted(companions)]:
        is_summed = needs.replies == "merged" and settings.num_sampled > 1
        yield f"{label} has them report {', '.join(told)}" + (", of which it reads the round's sum" * is_summed)
    if needs.queries:
        yield f"{label} asks for their {', '.join(needs.queries)}"
    if needs.durations:
        yield f"{label} needs to know how long each takes"
    if settings.selection is not None:
        yield f"the selection policy {settings.selection.label} is told their numbers of rows"


def _far_note(table: SettingsLookup, num_saying: float, num_asked: int) -> str:
    """Return how many clients say that they lie far off, and what could be done."""
    said = f"{num_saying:.0f} of {num_asked} clients say that they are farther than {table.table.threshold:g}"
    noisy = ""
    if table.epsilon is not None:
        meant = min(max(0.0, table.num_far(num_saying, num_asked)), num_asked)
        noisy = f", which means about {meant:.1f} at epsilon {table.epsilon:g}"
    advice = "; fedscout tune-table --refine makes the table finer and wider" if num_saying else ""
    return f"{said} from every cell of their table{noisy}{advice}"
