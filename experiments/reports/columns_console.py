"""What became of a table's columns, as a table for `describe` and one line for `run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from fedscout.engine.fault_text import listed
from fedscout.experiments.reports.console import plain_table

MOST_COLUMNS = 60
MOST_NAMED = 5


def show_columns(console: Console, facts: Mapping[str, Any], is_brief: bool = False) -> None:
    """Print what became of the columns of one's own table; nothing of other data.

    Args:
        console: Where to.
        facts: Of the federation.
        is_brief: One line, and only if something was left out unasked or is suspected.
    """
    columns: Sequence[Mapping[str, str]] = facts.get("columns", ())
    if is_brief:
        for line in _brief(columns):
            console.print(line)
        return
    if not columns:
        return
    console.print()
    table = plain_table("column", "kind", "what became of it", "overruled by federation.…")
    for column in columns[:MOST_COLUMNS]:
        became = column["became"] + (f"; {column['suspicion']}: a copy of it?" if column["suspicion"] else "")
        table.add_row(column["name"], column["kind"], became, column["key"].replace("federation.", ""))
    console.print(table)
    if len(columns) > MOST_COLUMNS:
        console.print(f"and {len(columns) - MOST_COLUMNS} more columns (--json lists all)")


def _brief(columns: Sequence[Mapping[str, str]]) -> Iterator[str]:
    left_out = [column["name"] for column in columns if column["became"].startswith("left out:")]
    suspected = [column for column in columns if column["suspicion"]]
    parts = [f"left out {listed(left_out, MOST_NAMED)}"] if left_out else []
    parts += [
        f"{column['name']} is a text, which {column['key']} has models read"
        for column in columns
        if column["kind"] == "text" and column["became"].startswith("left out:")
    ][:1]
    parts += [f"suspected: {column['name']} {column['suspicion']}" for column in suspected[:MOST_NAMED]]
    if parts:
        yield f"columns: {'; '.join(parts)} (fedscout describe lists them)"
