"""Ways to obtain clients' settings: FedCust's table and its rivals, all trained by the same road.

Each is a function of a workshop and of the strategy that will train, and tells how many steps of tuning it took. What
is a table, or a setting for each client, goes to the clients as a table, so that in all of them clients count alike.

- `table`: FedCust, or the same with another search, grid, proxy data or metric; `own_table`: tuned with the strategy
  that it is for; `finer_table`: refined, with the cells between and beyond tuned as well.
- `random_table`: as many cells, with settings drawn from the ranges; `shuffled_table`: the tuned settings, each in a
  cell that is drawn. `interpolated_table`: six cells are tuned, the others lie between (log rate, log batch, epochs).
- `one_for_all`: one setting, tuned by the federation itself on its clients' validation rows.
- `every_client`: Bayesian optimisation by each client alone, on its own rows (the source's Fig. 8a).
- `by_hand`: settings for each client by trials of the whole federation: client after client, twice and half its epochs
  and 2.5 times more and less of its rate are tried, and kept where validation rows say so. It begins with the table.
- `reinforced`: FedRL. The source names it as rates that are adapted by reinforcement, and no more. Here the policy is a
  distribution over nine rates between a quarter and four times the global one, reinforced round by round by what
  clients' validation rows say (FedEx's exponentiated gradient, Khodak et al. 2021, with rates alone).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedscout.engine.contracts.settings_lookup import HETEROGENEITY, SettingsLookup, metric_named
from fedscout.engine.contracts.settings_table import SettingsCell, SettingsTable
from fedscout.engine.seeds import stream
from fedscout.experiments.benchmarks.client_settings.workshop import VALIDATION_SHARE, Settings, Workshop, lookup_of
from fedscout.experiments.benchmarks.client_settings.worse_proxies import PROXIES
from fedscout.experiments.studies.settings_tables.cell_tuning import CellResult, CellTuning, Setting
from fedscout.experiments.studies.settings_tables.settings_grid import Place, classes_of, grid_of, metric_grid
from fedscout.experiments.studies.settings_tables.table_refinement import finer_grid
from fedscout.strategies import parse_strategy

Rival = Callable[..., Settings]
"""Of a workshop, the kind of the strategy that will train, and a row's options."""

SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "gp": {},
    "random": {"kind": "random"},
    "grid": {"kind": "grid", "grid_points": 3, "budget": 27},
}
RATE_STEP, EPOCHS_STEP = 2.5, 2


def table(
    workshop: Workshop,
    _: str,
    *,
    search: str = "gp",
    grid: tuple[int, int] | None = None,
    proxies: str = "usual",
    strategy: str | None = None,
    metric: str = HETEROGENEITY,
) -> Settings:
    """Return the table that is tuned on proxy clients."""
    tuning = workshop.tuning(PROXIES[proxies](workshop), strategy, **SEARCHES[search])
    cells = workshop.grid if grid is None else coarser_grid(workshop, *grid)
    if metric != HETEROGENEITY:
        cells = metric_grid(metric, _values(workshop, metric), workshop.battery.quantities, workshop.proxy.num_classes)
    return _of_cells(workshop.tuned(tuning, cells).values(), tuning, metric)


def _values(workshop: Workshop, metric: str) -> list[float]:
    """Return what a metric gives of clients of the battery's groups that hold neighbouring classes."""
    num_classes, most = workshop.proxy.num_classes, max(workshop.battery.quantities)
    found = []
    for level in workshop.battery.levels:
        held = classes_of(level, num_classes)
        counts = np.zeros(num_classes, np.int64)
        counts[:held] = most // held
        found.append(metric_named(metric)(counts, int(counts.sum())))
    return found


def own_table(workshop: Workshop, kind: str) -> Settings:
    """Return the table that is tuned with the strategy that it is for."""
    return table(workshop, kind, strategy=None if kind == "fedavg" else kind)


def finer_table(workshop: Workshop, _: str, *, grid: tuple[int, int] | None = None) -> Settings:
    """Return a table refined as `fedscout tune-table --refine` does: between its cells and beyond its ends."""
    tuning = workshop.tuning()
    coarse = workshop.tuned(tuning, workshop.grid if grid is None else coarser_grid(workshop, *grid))
    finer = finer_grid([*coarse], workshop.proxy)
    found = {**coarse, **workshop.tuned(tuning, [place for place in finer if place not in coarse], coarse)}
    return _of_cells([found[place] for place in finer], tuning)


def random_table(workshop: Workshop, _: str) -> Settings:
    """Return a table of drawn settings."""
    return Settings(_placed(workshop, workshop.grid, list(workshop.random_settings(len(workshop.grid)))))


def shuffled_table(workshop: Workshop, kind: str) -> Settings:
    """Return the tuned table with its settings in cells that are drawn."""
    tuned = table(workshop, kind)
    settings = settings_in(tuned)
    order = stream(workshop.seed, "shuffled-table").permutation(len(settings))
    return replace(tuned, lookup=_placed(workshop, workshop.grid, [settings[place] for place in order]))


def interpolated_table(workshop: Workshop, _: str) -> Settings:
    """Return a table of which the ends and a middle column are tuned."""
    from scipy.interpolate import LinearNDInterpolator

    known = coarser_grid(workshop, 2, 3)
    tuning = workshop.tuning()
    found = workshop.tuned(tuning, known)
    settings = [found[place].setting for place in known]
    values = np.array([[np.log(rate), np.log(batch), epochs] for rate, batch, epochs in settings])
    between = LinearNDInterpolator(_axes(known), values, rescale=True)(_axes(workshop.grid))
    guessed = [
        (float(np.exp(rate)), round(float(np.exp(batch))), round(float(epochs))) for rate, batch, epochs in between
    ]
    return replace(_of_cells(found.values(), tuning), lookup=_placed(workshop, workshop.grid, guessed))


def one_for_all(workshop: Workshop, _: str) -> Settings:
    """Return one setting for all, as a table of one cell."""
    setting, tried = workshop.tuned_for_all()
    lookup = _placed(workshop, workshop.grid[:1], [setting])
    return Settings(lookup, client_steps=tried * workshop.num_clients)


def every_client(workshop: Workshop, _: str) -> Settings:
    """Return the settings that clients find alone."""
    found = []
    for client in range(workshop.num_clients):
        workshop.note(f"  client {client} alone")
        found.append(workshop.tuned_alone(client))
    lookup = workshop.table_for_each([setting for setting, _ in found])
    return Settings(lookup, client_steps=sum(tried for _, tried in found))


def by_hand(workshop: Workshop, kind: str) -> Settings:
    """Return settings for each client, by trials of the whole federation."""
    begun = table(workshop, kind)
    assert begun.lookup is not None
    own = [begun.lookup.table.nearest(*workshop.place(client)) for client in range(workshop.num_clients)]
    best = [(cell.learning_rate, cell.batch_size, cell.local_epochs) for cell in own]
    score, tried = workshop.validated(workshop.table_for_each(best, VALIDATION_SHARE)), 1
    for client in range(workshop.num_clients):
        workshop.note(f"  client {client} by hand")
        for changed in _beside(best[client]):
            settings = [*best[:client], changed, *best[client + 1 :]]
            reached = workshop.validated(workshop.table_for_each(settings, VALIDATION_SHARE))
            tried += 1
            if reached > score:
                best, score = settings, reached
    client_steps = tried * workshop.num_clients
    return Settings(workshop.table_for_each(best), begun.proxy_steps, client_steps)


def reinforced(workshop: Workshop, _: str) -> Settings:
    """Return FedRL around the one setting for all."""
    setting, tried = workshop.tuned_for_all()
    document = {"kind": "fedex", "sample_scaling": "uniform", "epochs_factor": 1.0, "batch_factor": 1.0}
    return Settings(None, client_steps=tried * workshop.num_clients, strategy=parse_strategy(document), setting=setting)


RIVALS: Mapping[str, Rival] = {
    rival.__name__: rival
    for rival in (
        table,
        own_table,
        finer_table,
        random_table,
        shuffled_table,
        interpolated_table,
        one_for_all,
        every_client,
        by_hand,
        reinforced,
    )
}


def settings_in(found: Settings) -> list[Setting]:
    """Return the settings of a table's cells."""
    assert found.lookup is not None
    return [(cell.learning_rate, cell.batch_size, cell.local_epochs) for cell in found.lookup.table.cells]


def _of_cells(results: Iterable[CellResult], tuning: CellTuning, metric: str = HETEROGENEITY) -> Settings:
    found = list(results)
    return Settings(lookup_of(found, metric), proxy_steps=tuning.num_clients * sum(result.trials for result in found))


def _placed(workshop: Workshop, places: Sequence[Place], settings: Sequence[Setting]) -> SettingsLookup:
    """Return the table of some settings in some places."""
    num_classes = workshop.proxy.num_classes
    cells = [
        SettingsCell(place.heterogeneity(num_classes), place.quantity, *setting)
        for place, setting in zip(places, settings, strict=True)
    ]
    return SettingsLookup(SettingsTable(tuple(cells)))


def coarser_grid(workshop: Workshop, num_levels: int, num_quantities: int) -> tuple[Place, ...]:
    """Return a grid of fewer cells: the ends and what lies evenly between, or the middle where one is left."""
    levels = [0.5] if num_levels == 1 else _spread(workshop.battery.levels, num_levels)
    held = [classes_of(level, workshop.proxy.num_classes) for level in levels]
    mean = [round(np.mean(workshop.battery.quantities))]
    return grid_of(held, mean if num_quantities == 1 else _spread(workshop.battery.quantities, num_quantities))


def _spread(values: Sequence[Any], count: int) -> list[Any]:
    return [values[round(place)] for place in np.linspace(0, len(values) - 1, count)]


def _axes(places: Sequence[Place]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([[place.num_classes, place.quantity] for place in places], np.float64)


def _beside(setting: Setting) -> list[Setting]:
    """Return what is tried beside a setting."""
    rate, batch, epochs = setting
    return [
        (rate * RATE_STEP, batch, epochs),
        (rate / RATE_STEP, batch, epochs),
        (rate, batch, epochs * EPOCHS_STEP),
        (rate, batch, max(1, epochs // EPOCHS_STEP)),
    ]
