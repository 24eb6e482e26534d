"""What tuning costs: its steps by the number of clients, how fast searches are, and who lies far from a table.

The source's Fig. 8a counts steps of tuning by the number of clients: flat for the table, which asks no client, linear
where every client tunes. Here a step is one client trying one setting for a whole training; those of proxy clients are
the server's. As each client tunes alone, a federation of n clients takes what n of these take. Every trial for a
setting for all, or by hand, takes all n.

How fast a search is: the best score of a cell after so many settings, in searches that end with their budget alone, on
the ends and the middle of the grid. The source has about half the steps of random search.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from fedscout.engine.trials.trial_log import TrialLog
from fedscout.experiments.benchmarks.choice.choice_battery import ready_case
from fedscout.experiments.benchmarks.choice.choice_laboratory import measurement_folder, open_laboratory, other_seeds
from fedscout.experiments.benchmarks.client_settings.settings_battery import case_of
from fedscout.experiments.benchmarks.client_settings.settings_measurement import OWN_FILES
from fedscout.experiments.benchmarks.client_settings.settings_rivals import coarser_grid, finer_table, table
from fedscout.experiments.benchmarks.client_settings.workshop import CLIENTS, TABLES, Note, Settings, Workshop
from fedscout.experiments.reports.markdown_table import markdown_table
from fedscout.experiments.studies.settings_tables.table_tuning import plan_cells
from fedscout.experiments.studies.sweeps.sweep_folder import SweepFolder
from fedscout.strategies import parameter_columns

THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.5)
GRIDS: Mapping[str, Callable[[Workshop], Settings]] = {
    "1 cell": lambda shop: table(shop, "fedavg", grid=(1, 1)),
    "4 cells": lambda shop: table(shop, "fedavg", grid=(2, 2)),
    "4 cells refined": lambda shop: finer_table(shop, "fedavg", grid=(2, 2)),
    "table": lambda shop: table(shop, "fedavg"),
}


@contextmanager
def workshops(
    data: str, num_seeds: int, settings: Sequence[str], out: Path, note: Note = lambda _: None
) -> Iterator[list[Workshop]]:
    """Return the workshops of a data set, one a seed, as the other parts have them.

    Raises:
        UserError: If the federation can't be built, or the folder can't be used.
    """
    ready = ready_case(case_of(data), settings, quick=False)
    with (
        measurement_folder(out, [*OWN_FILES, TABLES, CLIENTS]) as folder,
        open_laboratory(ready, folder.path) as laboratory,
    ):
        seeds = other_seeds("client settings", num_seeds)
        yield [Workshop(ready, laboratory, seed, folder.path, note) for seed in seeds]


def cost_lines(shops: Sequence[Workshop]) -> list[str]:
    """Return the steps of tuning by the number of clients, mean over seeds."""
    most = shops[0].num_clients
    on_proxies = fmean(table(shop, "fedavg").proxy_steps for shop in shops)
    for_all = fmean(shop.tuned_for_all()[1] for shop in shops)
    alone = np.mean([[shop.tuned_alone(client)[1] for client in range(most)] for shop in shops], axis=0)
    rows = []
    for count in sorted({most // 4, most // 2, most}):
        taken = np.linspace(0, most, count, endpoint=False).astype(np.int64)  # of all groups
        counts = (on_proxies, 0, alone[taken].sum(), for_all * count, (1 + 4 * count) * count)
        rows.append([count, *(f"{steps:,.0f}" for steps in counts)])
    headings = ["clients", "table, on proxies", "table, on clients", "every client", "one for all", "by hand"]
    return ["Steps of tuning: one client trying one setting for a whole training.", "", *markdown_table(headings, rows)]


def speed_lines(shops: Sequence[Workshop]) -> list[str]:
    """Return the best score so far by the settings that were tried, mean over cells and seeds, by search."""
    curves = {kind: np.mean([_curve(shop, kind) for shop in shops], axis=0) for kind in ("gp", "random")}
    length = min(map(len, curves.values()))
    told = [count for count in (2, 4, 6, 8, 10, 12, 16, 20, 30) if count <= length]
    rows = [[kind, *(f"{100 * curve[count - 1]:.1f}" for count in told)] for kind, curve in curves.items()]
    target = curves["random"][length - 1]
    needed = int(np.argmax(curves["gp"] >= target)) + 1 if (curves["gp"] >= target).any() else None
    reached = f"after {needed} settings" if needed is not None else "not within the budget"
    return [
        "Score of the best setting so far on balanced proxy rows, in percent, by the settings tried in a cell:",
        "",
        *markdown_table(["search", *told], rows),
        "",
        f"What random search has after {length} settings, the Gaussian process reaches {reached}.",
    ]


def _curve(shop: Workshop, kind: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the best score after each setting, mean over cells; a search never ends early here."""
    tuning = shop.tuning(kind=kind)
    tuning = replace(tuning, patience=tuning.config.search.budget)
    cells = coarser_grid(shop, 2, 3)
    shop.tuned(tuning, cells)
    best = []
    for cell in plan_cells(tuning, cells, shop.out / TABLES):
        trials = sorted(TrialLog(cell.folder, parameter_columns()).read(), key=lambda trial: trial.trial)
        best.append(np.maximum.accumulate([trial.fitness for trial in trials]))
    shortest = min(map(len, best))
    return np.asarray(np.mean([each[:shortest] for each in best], axis=0))


def threshold_lines(shops: Sequence[Workshop]) -> list[str]:
    """Return how many clients lie farther than τ from every cell, mean over seeds, by table."""
    rows = []
    for name, made in GRIDS.items():
        far = np.zeros(len(THRESHOLDS))
        for shop in shops:
            lookup = made(shop).lookup
            assert lookup is not None
            places = [shop.place(client) for client in range(shop.num_clients)]
            nearest = np.array([lookup.table.distances(*place).min() for place in places])
            far += [float((nearest > threshold).sum()) / len(shops) for threshold in THRESHOLDS]
        rows.append([name, *(f"{count:.1f}" for count in far)])
    headings = [f"of {shops[0].num_clients} clients", *(f"τ = {threshold:g}" for threshold in THRESHOLDS)]
    return [
        "Clients that lie farther than τ from every cell; with one cell an axis has no span, and rows count as such:",
        "",
        *markdown_table(headings, rows),
    ]


MEASUREMENTS: Mapping[str, Callable[[Sequence[Workshop]], list[str]]] = {
    "cost": cost_lines,
    "steps": speed_lines,
    "threshold": threshold_lines,
}
"""By the name of `--part`."""


def run_tuning_steps(
    part: str, data: str, num_seeds: int, settings: Sequence[str], out: Path, note: Note = lambda _: None
) -> list[str]:
    """Measure one of `MEASUREMENTS` on one data set, and write the result into the folder.

    Args:
        part: Its name.
        data: Of the battery.
        num_seeds: Fresh ones.
        settings: Arguments that hold everywhere.
        out: The folder; continued if it holds an earlier measurement.
        note: Told what is done next.

    Raises:
        UserError: If the federation can't be built, or the folder can't be used.
    """
    with workshops(data, num_seeds, settings, out, note) as shops:
        lines = MEASUREMENTS[part](shops)
        folder = SweepFolder(shops[0].out)
        folder.write_text(f"{data}-{part}.json", json.dumps(lines, indent=2) + "\n")
        folder.write_text(f"{data}-{part}.md", "\n".join(lines) + "\n")
    return lines
