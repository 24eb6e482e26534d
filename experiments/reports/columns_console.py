"""What became of a table's columns, as a table for `describe` and one line for `run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from fedscout.engine.fault_text import listed
from fedscout.experiments.reports.console import plain_table

MOST_NAMED = 5


def show_columns(console: Console, facts: Mapping[str, Any], is_brief: bool = False) -> None:
    """Print what became of the columns of one's own table; nothing of other data.

    Args:
        console: Where to.
        facts: Of the federation.
        is_brief: One line, and only if something was left out unasked, or codes for missing values are suspected.
    """
    columns: Sequence[Mapping[str, Any]] = facts.get("columns", ())
    if is_brief:
        for line in _brief(columns):
            console.print(line)
        return
    if not columns:
        return
    console.print()
    table = plain_table("column", "kind", "missing", "features", "what became of it", "overruled by federation.…")
    for column in columns:
        became = "; ".join(filter(None, (column["became"], column["suspicion"])))
        counts = [f"{column[name]:,}" if column[name] else "" for name in ("num_missing", "num_features")]
        table.add_row(column["name"], column["kind"], *counts, became, column["key"].replace("federation.", ""))
    console.print(table)


def _brief(columns: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    left_out = [column["name"] for column in columns if column["became"].startswith("left out:")]
    coded = [
        f"{column['name']} ({', '.join(column['missing_codes'])})" for column in columns if column["missing_codes"]
    ]
    codes = {code: None for column in columns for code in column["missing_codes"]}
    parts = [f"left out {listed(left_out, MOST_NAMED)}"] if left_out else []
    parts += [
        f"{column['name']} is a text, which {column['key']} has models read"
        for column in columns
        if column["kind"] == "text" and column["became"].startswith("left out:")
    ][:1]
    parts += [
        f"{column['name']} gives {column['became']} {column['key']} predicts one"
        for column in columns
        if column["kind"] == "label" and column["key"] == "federation.task=regression"
    ]
    if coded:
        listed_codes = ", ".join(codes)
        parts.append(
            f"codes for missing values? {listed(coded, MOST_NAMED)}: 'federation.missing_values=[{listed_codes}]'"
        )
    if parts:
        yield f"columns: {'; '.join(parts)} (fedscout describe lists them)"
