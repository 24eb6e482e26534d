"""Console output and files of a federation's description.

Files:
OUT/description.json   everything
OUT/clients.png        heat map of clients × classes; also clients.svg; not for reinforcement-learning clients
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from fedscout.engine.data.federation import Names
from fedscout.engine.errors import LogError
from fedscout.engine.runtime.files import UNUSABLE, json_text, not_written, write_atomically
from fedscout.experiments.charts import NUM_SHADES, Strip, StripRow, drawn, federation_map, shades, strip_of
from fedscout.experiments.description import ClientChange, Description, Spread
from fedscout.experiments.reports.console import plain_table, show_columns

BLOCKS = "·░▒▓█"

COLOURS = ("bright_black", "#56B4E9", "#0072B2", "#E69F00", "#D55E00")
"""Colours of the shades, distinguishable with colour blindness; after Okabe and Ito, Color Universal Design (2008)."""

CHANGES_SHOWN = 12
CLASSES_NAMED = 30
LABEL_LENGTH = 28
STEP_LENGTH = 60
LONG_NUMBER = re.compile(r"\d+\.\d{4,}(e[+-]?\d+)?")
OTHER_COLUMNS = 20
"""Characters that rows and divergence take beside a row of the strip."""


def show_description(console: Console, description: Description) -> None:
    """Print a description."""
    console.print(description.name, style="bold")
    if description.source:
        console.print(f"data: {description.source}")
    console.print()
    table = plain_table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(description):
        table.add_row(name, text)
    console.print(table)
    for note in (*description.realised.notes, *description.dependence):
        console.print(f"  {note}")
    show_columns(console, description.facts)
    _show_changes(console, description)
    if description.score_name is None:
        _show_strip(console, description)
    else:
        _show_physics(console, description)


def _lines(description: Description) -> Iterable[tuple[str, str]]:
    result = description.realised
    yield (
        "clients",
        f"{result.num_clients}" + (f", {result.num_empty_clients} empty" if result.num_empty_clients else ""),
    )
    if description.unseen_clients:
        yield (
            "unseen",
            f"{description.names.some_clients(description.unseen_clients)}: not trained, scored as new clients",
        )
    if description.score_name is not None:
        yield "score", description.score_name
        return
    yield (
        "rows",
        f"{result.num_rows_assigned} of {result.num_rows} assigned, {result.num_rows_unassigned} unassigned, "
        f"{result.num_rows_repeated} additional copies"
        + (f"; {equal} duplicate an earlier row" if (equal := description.facts.get("num_duplicate_rows")) else "")
        + f"; each row is {_row_text(description)}",
    )
    if num_server_rows := description.facts.get("num_server_rows", 0):
        labelled = "labelled" if description.facts["server_labels"] else "without labels"
        origin = f" of {description.facts['server_dataset']}" if "server_dataset" in description.facts else ""
        yield "server", f"{num_server_rows} additional rows{origin}, {labelled}, held by no client"
    if description.target_name:
        yield "target", f"{description.target_name} (regression); labels below are its deciles"
    else:
        yield "classes", _classes_text(description)
    rows = result.client_rows
    yield ("rows per client", f"{rows.smallest:g} to {rows.largest:g}, median {rows.median:g}, mean {rows.mean:.1f}")
    if result.quantity_ratio is not None:
        yield (
            "quantity skew",
            f"largest/smallest {result.quantity_ratio:.2f}, coefficient of variation {result.quantity_variation:.3f}, "
            f"Gini {result.quantity_gini:.3f}",
        )
    if result.label_skew is not None and result.label_skew_client is not None:
        yield (
            "label skew",
            f"{result.label_skew:.4f} bits, {description.names.one_client(result.label_skew_client)}: "
            "largest Jensen-Shannon divergence between the labels of a client and of all clients",
        )
    if result.label_divergence is not None:
        yield "  by client", _spread(result.label_divergence)
    if result.label_hellinger is not None:
        wasserstein_text = (
            "" if result.label_wasserstein is None else f"1-Wasserstein {result.label_wasserstein:.4f} classes, "
        )
        yield "label distance", f"Hellinger {result.label_hellinger:.4f}, {wasserstein_text}mean over pairs"
    if result.heterogeneity_index is not None:
        yield "heterogeneity index", f"{_spread(result.heterogeneity_index)} (0: all classes, 1: one class)"
    if result.feature_hellinger is not None:
        yield (
            "feature distance",
            f"Hellinger {result.feature_hellinger:.4f}, 1-Wasserstein {result.feature_wasserstein:.4f} standard "
            f"deviations, mean over pairs and {result.num_features_compared} features",
        )


def _classes_text(description: Description) -> str:
    """Return the number of classes and the rows of each, most frequent first with its share."""
    counts = description.class_counts
    total = sum(count for _, count in counts)
    if not total:
        return f"{description.realised.num_classes}"
    (first, most), *others = counts[:CLASSES_NAMED]
    listed = ", ".join(
        [f"{first} {most:,} rows ({most / total:.1%})", *(f"{name} {count:,}" for name, count in others)]
    )
    more = len(counts) - CLASSES_NAMED
    return f"{len(counts)}: {listed}" + (f" and {more} more (--json lists all)" if more > 0 else "")


def _row_text(description: Description) -> str:
    shape = " × ".join(str(size) for size in description.feature_shape)
    match description.data_kind:
        case "image":
            return f"an image of {shape} pixels"
        case "tokens":
            return f"a text of {shape} tokens, padding included"
        case _:
            return f"{shape} numbers"


def _spread(spread: Spread) -> str:
    return (
        f"{spread.smallest:.3f} to {spread.largest:.3f}, quartiles {spread.lower_quartile:.3f} {spread.median:.3f} "
        f"{spread.upper_quartile:.3f}, mean {spread.mean:.3f}"
    )


def _show_changes(console: Console, description: Description) -> None:
    """Print the effects of the scenario on each client."""
    plays = description.score_name is not None
    if not description.changes and (plays or not description.affected_clients):
        return
    console.print("\nWhat the scenario changed", style="bold")
    if description.affected_clients and not plays:
        console.print(f"It affects {description.names.some_clients(description.affected_clients)}.")
    if not description.changes:
        console.print("It changed the assignment of rows to clients, but not the rows.")
        return
    cells_by_client = [_change_cells(change, description.names) for change in description.changes[:CHANGES_SHOWN]]
    table = plain_table()
    headings = [heading for heading in cells_by_client[0] if any(cells[heading] for cells in cells_by_client)]
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("attacks", "transforms") else "right", overflow="fold")
    for cells in cells_by_client:
        table.add_row(*(cells[heading] or "-" for heading in headings))
    console.print(table)
    more = len(description.changes) - CHANGES_SHOWN
    if more > 0:
        console.print(f"and {more} more clients; --json lists all")


def _change_cells(change: ClientChange, names: Names) -> Mapping[str, str]:
    """Return the text for each heading; empty where nothing changed."""
    has_changed_numbers = change.share_numbers_changed > 0
    latency = f"{change.latency_shift:.3g} + {change.latency_mean:.3g} s" if change.has_latency else ""
    down, up = change.bytes_per_second_down, change.bytes_per_second_up
    return {
        "client": names.client(change.client),
        "labels changed": f"{change.num_labels_changed} of {change.num_rows}" if change.num_labels_changed else "",
        "numbers changed": f"{100 * change.share_numbers_changed:.0f} %" if has_changed_numbers else "",
        "added, in deviations": f"{change.feature_shift:+.2f} ± {change.feature_deviation:.2f}"
        if has_changed_numbers
        else "",
        "misses rounds": f"{100 * change.dropout:.0f} %" if change.dropout else "",
        "latency": latency,
        "per step": f"{change.seconds_per_step:.3g} s" if change.seconds_per_step else "",
        "download": "" if down is None else f"{decimal(round(down))}/s",
        "upload": "" if up is None else f"{decimal(round(up))}/s",
        "attacks": _brief_steps(change.attacks),
        "transforms": _brief_steps(change.steps),
    }


def _brief_steps(steps: Iterable[str]) -> str:
    """Return steps with rounded numbers, truncated if long."""
    brief = [LONG_NUMBER.sub(lambda number: f"{float(number[0]):.3g}", step) for step in steps]
    return ", ".join(step if len(step) <= STEP_LENGTH else f"{step[: STEP_LENGTH - 1]}…" for step in brief)


def _show_physics(console: Console, description: Description) -> None:
    """Print the physics of reinforcement-learning clients, with the clients that share them."""
    sharing: dict[str, list[int]] = {}
    for client in description.clients:
        if client.physics is not None:
            sharing.setdefault(client.physics, []).append(client.client)
    if not sharing:
        return
    console.print("\nPhysics", style="bold")
    for physics, clients in list(sharing.items())[:CHANGES_SHOWN]:
        console.print(f"{physics}: {description.names.some_clients(clients)}")
    more = len(sharing) - CHANGES_SHOWN
    if more > 0:
        console.print(f"and {more} more; --json lists all")


def _show_strip(console: Console, description: Description) -> None:
    """Print the heat map of clients × classes."""
    names = [client.name or "" for client in description.clients]
    room = console.width - OTHER_COLUMNS - min(LABEL_LENGTH, 12 + max(len(name) for name in names))
    strip = strip_of(description, max(room, 8))
    if all(row.num_rows == 0 for row in strip.rows):
        return
    console.print("\nClients × classes", style="bold")
    if strip.remark:
        console.print(strip.remark)
    largest = max(float(row.shares.max()) for row in strip.rows)
    wide = 2 if 2 * len(strip.rows[0].counts) <= room else 1
    table = plain_table("client", "rows", "classes", "bits", numbers=("rows", "bits"))
    for column in table.columns:
        column.no_wrap = True
    table.columns[0].max_width = LABEL_LENGTH
    for row in strip.rows:
        table.add_row(*_strip_cells(row, largest, wide))
    console.print(table)
    _show_legend(console, description, strip, largest)


def _strip_cells(row: StripRow, largest: float, wide: int) -> tuple[Text | str, ...]:
    line = Text()
    for shade in shades(row.shares, largest):
        line.append(BLOCKS[shade] * wide, style=COLOURS[shade])
    mark = " *" if row.affected else ""
    divergence = "-" if row.divergence is None else f"{row.divergence:.3f}"
    return row.label + mark, str(row.num_rows), line, divergence


def _show_legend(console: Console, description: Description, strip: Strip, largest: float) -> None:
    steps = [largest * step / NUM_SHADES for step in range(1, NUM_SHADES + 1)]
    legend = ", ".join(f"{BLOCKS[number]} up to {step:.3g}" for number, step in enumerate(steps, 1))
    console.print(f"share of the client's rows: {BLOCKS[0]} none, {legend}")
    console.print(
        "bits: Jensen-Shannon divergence between a client's labels and all clients' labels"
        + ("; * affected by the scenario" if any(row.affected for row in strip.rows) else "")
    )
    names = description.class_labels
    more = len(names) - CLASSES_NAMED
    listed = ", ".join(names[:CLASSES_NAMED]) + (f" and {more} more" if more > 0 else "")
    columns_text = "" if strip.classes_per_column == 1 else f", {strip.classes_per_column} adjacent classes per column"
    console.print(f"classes from left to right{columns_text}: {listed}")


def write_description(description: Description, folder: Path) -> tuple[Path, ...]:
    """Write the files, each at once, replacing those of an earlier description.

    Raises:
        LogError: If a file can't be written, for example because the disk is full.
    """
    contents = {"description.json": json_text(description.model_dump(mode="json")).encode()}
    if description.score_name is None:
        chart = federation_map(description)
        contents |= {"clients.png": drawn(chart, "png"), "clients.svg": drawn(chart, "svg")}
    files = {folder / name: content for name, content in contents.items()}
    for path, content in files.items():
        try:
            write_atomically(path, partial(Path.write_bytes, data=content))
        except OSError as error:
            raise LogError(UNUSABLE.format(path=folder, reason=not_written(path, error))) from error
    return tuple(files)
