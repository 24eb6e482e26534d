"""A look-alike on the terminal: numbers and verdicts beside those of the diagnosed federation, and what is missing."""

from __future__ import annotations

from rich.console import Console

from fedscout.experiments.reports.console import plain_table, show_path
from fedscout.experiments.studies.look_alike_comparison import Comparison
from fedscout.experiments.studies.simulating import Simulated


def show_look_alike(console: Console, simulated: Simulated) -> None:
    """Print how near it came, and what to do with it."""
    console.print(simulated.federation.name, style="bold")
    show_comparison(console, simulated.comparison)
    console.print()
    show_path(console, "Comparison", simulated.folder / "comparison.json")
    show_path(console, "Look-alike", simulated.configuration, " (fedscout run takes it, as every command does)")


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print two columns of numbers, the verdicts, and the notes."""
    table = plain_table("", "diagnosed", "look-alike", numbers=("diagnosed", "look-alike"))
    for row in comparison.measures:
        if row.diagnosed is not None or row.look_alike is not None:
            table.add_row(row.measure, _number(row.diagnosed), _number(row.look_alike))
    console.print(table)
    console.print()
    for verdict in comparison.verdicts:
        same = verdict.diagnosed if verdict.same else f"{verdict.diagnosed}; of the look-alike {verdict.look_alike}"
        console.print(f"{verdict.decision}: {same}")
    for note in comparison.notes:
        console.print(f"  {note}")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value == round(value) else f"{value:.3f}"
