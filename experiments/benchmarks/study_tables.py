"""Whole studies, for people."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from fedscout.experiments.benchmarks.peer_runs import MissingPeer
from fedscout.experiments.benchmarks.study_bench import WAYS, StudyReport
from fedscout.experiments.benchmarks.study_runs import StudyRun

PLACES = {"local": "in one process", "ray": "on Ray"}
HEADINGS = ("wall, s", "least", "most", "CPU, s", "ms/round", "winner %", "FedAvg %", "x wall", "x CPU")
WIDTH = 10


def table_lines(report: StudyReport) -> list[str]:
    """Return the table: medians of the turns, least and most of wall seconds, and how many times ours they are."""
    compared = next(iter(report.ours.values()))
    names = [_our_name(grid, runs) for grid, runs in report.ours.items()] + [WAYS[way] for way in report.peers]
    width = max(map(len, names)) + 2
    rows = [_row(_our_name(grid, runs), width, runs, compared) for grid, runs in report.ours.items()]
    for way, found in report.peers.items():
        told = found.missing if isinstance(found, MissingPeer) else None
        rows.append(f"{WAYS[way]:{width}}{told}" if told else _row(WAYS[way], width, _runs(found), compared))
    return [
        f"{report.title}; {report.rounds} rounds a training",
        f"{report.searched} trainings in search, {report.tuning} to tune FedAvg, {report.confirming} to confirm; "
        f"{report.processors} processors; turns: {len(compared)}",
        "",
        " " * width + "".join(f"{heading:>{WIDTH}}" for heading in HEADINGS),
        *rows,
        *_remarks(report),
    ]


def _runs(found: tuple[StudyRun, ...] | MissingPeer) -> tuple[StudyRun, ...]:
    return () if isinstance(found, MissingPeer) else found


def _our_name(grid: str, runs: Sequence[StudyRun]) -> str:
    place = PLACES.get(runs[0].place, runs[0].place)
    return f"fedscout, {place}" + (" (auto)" if grid == "auto" else "")


def _row(name: str, width: int, runs: Sequence[StudyRun], compared: Sequence[StudyRun]) -> str:
    wall, own_wall = (_median(each, "wall_seconds") for each in (runs, compared))
    processor, own_processor = (_median(each, "processor_seconds") for each in (runs, compared))
    walls = [run.wall_seconds for run in runs]
    rounds = median(1000 * run.wall_seconds / whole_rounds(run) for run in runs)
    figures = [f"{wall:.1f}", f"{min(walls):.1f}", f"{max(walls):.1f}", f"{processor:.1f}", f"{rounds:.0f}"]
    figures += [_percent(runs[-1], "winner"), _percent(runs[-1], "fedavg")]
    if runs is not compared:
        figures += [f"{wall / own_wall:.1f}", f"{processor / own_processor:.1f}"]
    return f"{name:{width}}" + "".join(f"{figure:>{WIDTH}}" for figure in figures)


def whole_rounds(run: StudyRun) -> float:
    """Return the rounds of all trainings, those that were not made included."""
    return run.rounds * run.trainings / run.measured


def _median(runs: Sequence[StudyRun], figure: str) -> float:
    return float(median(getattr(run, figure) for run in runs))


def _percent(run: StudyRun, role: str) -> str:
    return f"{100 * run.confirmed[role]:.1f}" if role in run.confirmed else ""


def _remarks(report: StudyReport) -> list[str]:
    """Return what the figures do not say: what was estimated, which trainings ended early, what was chosen."""
    remarks = []
    for way, found in report.peers.items():
        for run in _runs(found)[:1]:
            if run.measured < run.trainings:
                remarks.append(f"{WAYS[way]}: {run.measured} of {run.trainings} trainings measured, the rest estimated")
            elif run.winner:
                remarks.append(f"{WAYS[way]}: the winner is {run.winner}")
    for runs in list(report.ours.values())[:1]:
        run, asked = runs[0], runs[0].trainings * report.rounds
        early = f"; {run.rounds} of {asked} rounds, as some trainings failed early" if run.rounds < asked else ""
        remarks.append(f"fedscout: the winner is {run.winner or 'not confirmed'}{early}; detection included")
    return ["", *remarks]
