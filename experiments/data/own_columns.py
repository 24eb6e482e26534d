"""Kinds, identifiers and suspected label leaks among the columns of the user's table.

Kinds are inferred from the whole table, as a federation agrees on them before any computation. The rules, in this
order:

- a column is dropped as empty if less than 1 % of its cells, or fewer than `federation.min_release`, are filled,
  and as constant if every row has the same value;
- dates and times of day are split into parts (`columns.py`), of which those that vary are used;
- a column that names rows, or what rows belong to, is an identifier, and so is a copy of one or of the clients'
  names; a running number is used if no other column can be;
- numbers with a prefix, suffix, digit groups or decimal comma are parsed in the one format of all cells (`columns.py`);
- other numbers are numeric, other words categorical.

Categories that hardly repeat are an identifier or, from three words per cell, a text; how often they repeat is known
once clients have reported their counts (`tables.py`). Any other column, such as one with a word among numbers, is
rejected with the cell. The report on each column includes the key that overrides the decision.

Identifiers lead to memorization: the value itself may carry little information, but the entity that it names does. A
column is an identifier

- by its name (`patient_id`, `key`) if nearly all values differ, or, for `…_id` and the like, if there are 20 rows
  or fewer per value; a column called `id`, `uuid`, `subject` or `patient` regardless of the number of rows;
- if it holds distinct whole numbers without a gap, over all rows or within each client (a running hour), except
  columns named as years, months, days, hours or ages within clients;
- if nearly all of its values differ and are whole numbers of eight digits or more, all of the same length;
- if it is a copy of another identifier, of the groups, or of the clients' names, up to the names of the values.

Label leaks are columns that predict the label almost exactly on their own, such as a copy of the label or a value
recorded after the outcome. Each row is predicted from the other rows with the same value in the column, by their most
frequent class, or, if most values differ, from its neighbours when rows are sorted by the column, in blocks of five.
With R of n rows predicted correctly and m rows of the most frequent class, the measure is

    λ = (R - m) / (n - m),

the share of the errors of a constant prediction that the column removes (L. Goodman and W. Kruskal, "Measures of
association for cross classifications", Journal of the American Statistical Association 49(268), 1954, section 5).
Deviation: a row does not vote for itself, so a column of unique names predicts nothing. A column is suspected if λ >=
0.95 and at least 20 of the sampled rows are not of the most frequent class.

False positives: for a column independent of the label, R is at most approximately binomial with n draws and probability
m/n, and λ >= 0.95 has a probability below 1e-7 per column. A dependent column may be a legitimate, very good feature: a
suspicion is reported, but the column is not dropped for it.

For categories, and for the missing-value indicator of numbers, each class is also tested against the others: the reason
for a complaint, given only with complaints, predicts that class alone. The rows in which a column holds a value that is
neither missing nor a code for missing (`columns.py`) are also tested on their own, and a column is suspected if it
holds a value only where the label is of one class: at least 20 such rows, with a probability below 1e-7 if it were
independent of the label. Numeric columns whose weighted sum equals the label, to a thousandth of its standard
deviation, are suspected together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedscout.engine.arrays import IntArray
from fedscout.engine.seeds import stream
from fedscout.engine.text import shown
from fedscout.experiments.data.columns import (
    FEWEST_QUANTITIES,
    LARGEST_WHOLE,
    Column,
    ColumnRoles,
    NumberFormat,
    are_numbers,
    as_numbers,
    date_order,
    distinct_cells,
    missing_codes,
    number_format,
    parts_of_time,
    present_cells,
    read_columns,
    typed_column,
)
from fedscout.experiments.data.dataset import ColumnKind, DatasetRequest, column_key, text_argument
from fedscout.experiments.data.tables import Predicted


@dataclass(frozen=True)
class ColumnUse:
    """How a column of the user's table is used.

    Attributes:
        name: Column name in the file.
        kind: number, category, date, text, identifier, constant, empty, label, client, group, or dropped.
        became: Description of its use.
        key: Command-line argument that overrides this use; empty if there is none.
        columns: Columns read from it for the model; empty if it is left out.
        unused: If it is left out, the columns read from it that are still tested for label leaks.
        readings: By column read, the settings that a client needs to read its own cells identically.
        suspicion: Description of a suspected label leak; empty if there is none.
        missing_codes: Values that may encode a missing value.
        num_missing: Number of missing cells.
        num_features: Number of model features derived from it.
    """

    name: str
    kind: str
    became: str
    key: str = ""
    columns: tuple[Column, ...] = ()
    unused: tuple[Column, ...] = ()
    readings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    suspicion: str = ""
    missing_codes: tuple[str, ...] = ()
    num_missing: int = 0
    num_features: int = 0

    def left_out(self, kind: str, reason: str, key: str) -> ColumnUse:
        """Return this column excluded from the model."""
        return ColumnUse(self.name, kind, f"left out: {reason}", key, unused=self.columns)

    def document(self) -> dict[str, Any]:
        """Return how it is used as JSON-serializable values."""
        return {name: value for name, value in vars(self).items() if name not in {"columns", "unused", "readings"}}


def all_uses(
    table: pa.Table, roles: ColumnRoles, uses: Sequence[ColumnUse], class_names: Sequence[str] = ()
) -> list[ColumnUse]:
    """Return the use of every column, in table order.

    Args:
        table: Plain cells.
        roles: Roles of its columns.
        uses: Uses of the columns that have no other role.
        class_names: Class names of the label, if known.
    """
    label_use, key = "the classes to predict", "federation.label"
    if roles.quantity:
        label_use, key = "the regression target", "federation.task=classification"
    elif len(class_names) > FEWEST_QUANTITIES and are_numbers(class_names):
        label_use = f"{len(class_names)} classes to predict, all numbers: regression?"
        key = "federation.task=regression"
    with_roles = [ColumnUse(column, "dropped", "left out as requested") for column in roles.dropped]
    with_roles.append(ColumnUse(roles.label, "label", label_use, key))
    if roles.client is not None:
        with_roles.append(ColumnUse(roles.client, "client", "names the clients", "federation.client_column"))
    if roles.group is not None:
        with_roles.append(ColumnUse(roles.group, "group", "names the groups", "federation.group_column"))
    use_by_column = {use.name: use for use in (*uses, *with_roles)}
    return [replace(use_by_column[column], num_missing=table[column].null_count) for column in table.column_names]


SUSPECTED = 0.95
FEWEST_OTHERS = 20
NUM_EXAMINED = 10_000
NEIGHBOURS = 5
MOST_CLASSES_ALONE = 20
CHANCE = 1e-7
EXACT = 1e-3


def suspicion(column: Column, labels: IntArray, class_names: tuple[str, ...], rows: IntArray) -> str:
    """Return a description of the label leak suspected in a column; empty if there is none.

    Args:
        column: Column of a table.
        labels: In `[0, len(class_names))`, shape `(num_rows,)`.
        class_names: Class names in label order.
        rows: Rows to inspect.
    """
    sampled_labels = labels[rows]
    for codes, one_vs_rest in _codes(column, rows):
        if goodman_kruskal_lambda(codes, sampled_labels) >= SUSPECTED:
            return "predicts the label nearly exactly"
        for label in (
            np.argsort(-np.bincount(sampled_labels), kind="stable")[:MOST_CLASSES_ALONE] if one_vs_rest else ()
        ):
            if goodman_kruskal_lambda(codes, (sampled_labels == label).astype(np.int64)) >= SUSPECTED:
                return f"separates class {class_names[label]} from the others nearly exactly"
    is_filled = ~_is_missing_or_code(column)[rows]
    if is_filled.all() or np.count_nonzero(is_filled) < FEWEST_OTHERS:
        return ""
    codes, _ = next(_codes(column, rows[is_filled]))
    if goodman_kruskal_lambda(codes, sampled_labels[is_filled]) >= SUSPECTED:
        return "predicts the label nearly exactly where it has a value"
    if len(np.unique(sampled_labels[is_filled])) == 1:
        label = sampled_labels[is_filled][0]
        if np.mean(sampled_labels == label) ** np.count_nonzero(is_filled) < CHANCE:
            return f"has a value only where the label is {class_names[label]}"
    return ""


def parts_of_sum(columns: Sequence[Column], values: npt.NDArray[np.float64], rows: IntArray) -> list[str]:
    """Return the names of two or more columns whose weighted sum is the label; empty if there are none.

    Args:
        columns: Numeric columns.
        values: Label as a number, shape `(num_rows,)`.
        rows: Rows to inspect.
    """
    complete = [column for column in columns if not column.missing[rows].any() and np.ptp(column.cells[rows]) > 0]
    if len(complete) < 2 or len(rows) < FEWEST_OTHERS + 2 * len(complete):
        return []
    numbers = np.column_stack([column.cells[rows] for column in complete])
    scores = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    label = (values[rows] - values[rows].mean()) / values[rows].std()
    weights = np.linalg.lstsq(scores, label, rcond=None)[0]
    if np.sqrt(np.mean((label - scores @ weights) ** 2)) > EXACT:
        return []
    parts = [column.name for column, weight in zip(complete, weights, strict=True) if abs(weight) > 10 * EXACT]
    return parts if len(parts) > 1 else []


def _is_missing_or_code(column: Column) -> npt.NDArray[np.bool_]:
    """Return the mask of cells that are missing or hold a suspected code for missing, shape `(num_rows,)`."""
    codes = missing_codes(column)
    cells = [float(code) if column.categories is None else column.categories.index(code) for code in codes]
    return column.missing | np.isin(column.cells, cells)


def goodman_kruskal_lambda(codes: IntArray, labels: IntArray) -> float:
    """Return λ, at most 1; minus infinity if too few rows are not of the most frequent class.

    Args:
        codes: Value code of each row in the column, >= 0, shape `(num_rows,)`.
        labels: >= 0, same shape.
    """
    counts = np.bincount(labels)
    majority = int(counts.argmax())
    num_others = len(labels) - int(counts[majority])
    if num_others < FEWEST_OTHERS:
        return -np.inf
    pairs, sizes = np.unique(codes.astype(np.int64) * len(counts) + labels, return_counts=True)
    cells = pairs // len(counts)
    order = np.lexsort((sizes, cells))
    cells, sizes, classes = cells[order], sizes[order], (pairs % len(counts))[order]
    is_last = np.append(cells[1:] != cells[:-1], True)
    is_first = np.append(True, cells[1:] != cells[:-1])
    runner_up = np.where(is_first, 0, np.append(0, sizes[:-1]))
    is_predicted = is_last & (sizes - 1 > runner_up)
    is_single = is_last & is_first & (sizes == 1) & (classes == majority)
    num_predicted = int(sizes[is_predicted].sum()) + int(np.count_nonzero(is_single))
    return (num_predicted - int(counts[majority])) / num_others


def _codes(column: Column, rows: IntArray) -> Iterator[tuple[IntArray, bool]]:
    """Yield value codes of the rows, and whether each class is to be tested against the others as well."""
    cells = column.cells[rows]
    if column.categories is not None:
        yield cells + 1, True
        return
    yield _neighbourhoods(cells), False
    if np.isnan(cells).any():
        yield np.isnan(cells).astype(np.int64), True


def _neighbourhoods(numbers: npt.NDArray[np.float64]) -> IntArray:
    """Return one code per distinct number; if most numbers differ, per block of five rows in sorted order as well."""
    _, codes, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    if len(counts) * NEIGHBOURS <= len(numbers):
        return codes.astype(np.int64)
    ranks = np.cumsum(counts) - counts
    return (ranks // NEIGHBOURS)[codes].astype(np.int64)


RUNNING: Final = "a running number"
FEWEST_DIFFERENT: Final = 20
ALMOST_ALL: Final = 0.95
MOST_ROWS_EACH: Final = 20
SMALLEST_LONG: Final = 10_000_000
ROWS_TRIED: Final = 1_000
NAMES_ROWS: Final = {"id", "ids", "uuid", "guid", "key", "index", "idx", "row", "nr", "no"}
IDENTIFIER_WORDS: Final = {"id", "ids", "uuid", "guid", "identifier"}
PERSON_WORDS: Final = {"subject", "patient", "participant", "person"}
TIMES: Final = {"year", "month", "week", "day", "hour", "minute", "time", "age"}
WORDS_OF_NAME: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def identifier_reason(name: str, column: Column, num_different: int, is_whole: bool, clients: IntArray | None) -> str:
    """Return why a column is an identifier; empty if it is not.

    Args:
        name: Column name in the file.
        column: Its cells.
        num_different: Number of different texts among them, as numbers beyond 2^53 may be rounded.
        is_whole: Whether its numbers are written as integers.
        clients: Client of each row, >= 0, or None.
    """
    is_number, is_present, values = column.categories is None, ~column.missing, column.present.astype(np.float64)
    num_rows = len(values)
    words = {word.lower() for word in WORDS_OF_NAME.findall(name)}
    reason = f"{num_different:,} different {'numbers' if is_number else 'names'} in {num_rows:,} rows"
    if words and words <= IDENTIFIER_WORDS:
        return reason
    if num_different < FEWEST_DIFFERENT or (is_number and not (values == np.rint(values)).all()):
        return ""
    is_unique = num_different >= ALMOST_ALL * num_rows
    is_counted = is_number and is_whole
    is_distinct = len(np.unique(values)) == num_rows
    if is_counted and is_present.all() and is_distinct and np.ptp(values) == num_rows - 1:  # and without gaps
        return RUNNING
    is_named = bool(words & NAMES_ROWS) and is_unique
    is_named |= bool(words & IDENTIFIER_WORDS) and num_different * MOST_ROWS_EACH >= num_rows
    is_named |= bool(words) and words <= PERSON_WORDS | IDENTIFIER_WORDS
    is_long = is_counted and is_unique and values.min() >= SMALLEST_LONG
    is_long = is_long and len(str(int(values.min()))) == len(str(int(values.max())))
    is_rounded = is_counted and is_unique and np.abs(values).max() > LARGEST_WHOLE
    if is_named or is_long or is_rounded:
        return reason
    if is_counted and clients is not None and not words & TIMES:
        return f"{RUNNING} of each client" if _are_running_by_client(values, clients[is_present]) else ""
    return ""


def are_copies(first: pa.ChunkedArray, second: pa.ChunkedArray) -> bool:
    """Return whether two columns are equal up to a one-to-one renaming of their values.

    If most values occur once, any two columns match one-to-one; their values must then be equal.

    Args:
        first: Cells, null where missing.
        second: Cells of the other column.
    """
    if not _match_one_to_one(distinct_cells(first[:ROWS_TRIED])[0], distinct_cells(second[:ROWS_TRIED])[0]):
        return False
    (codes, texts), (others, other_texts) = distinct_cells(first), distinct_cells(second)
    if 2 * len(texts) <= len(codes):
        return _match_one_to_one(codes, others)
    numbers, other_numbers = as_numbers(first), as_numbers(second)
    if not np.isnan(numbers).all():
        return np.array_equal(numbers, other_numbers, equal_nan=True)
    return bool((np.array([*texts, ""])[codes] == np.array([*other_texts, ""])[others]).all())


def _match_one_to_one(first: IntArray, second: IntArray) -> bool:
    base = int(second.max()) + 2
    num_pairs = len(np.unique((first.astype(np.int64) + 1) * base + second + 1))
    return len(np.unique(first)) == num_pairs == len(np.unique(second))


def _are_running_by_client(numbers: npt.NDArray[np.float64], clients: IntArray) -> bool:
    """Return whether most rows belong to large clients, in which the numbers are distinct and have few gaps."""
    is_large = np.bincount(clients)[clients] >= FEWEST_DIFFERENT
    if 2 * np.count_nonzero(is_large) < len(clients):
        return False
    numbers, clients = numbers[is_large], clients[is_large]
    order = np.lexsort((numbers, clients))
    steps = np.diff(numbers[order])[np.diff(clients[order]) == 0]
    return bool(steps.min() >= 1 and np.mean(steps == 1) >= ALMOST_ALL)


ALMOST_EMPTY = 0.01
FIRST_CELLS = 20
WORDS_OF_TEXT = 3


def own_columns(
    name: str,
    table: pa.Table,
    columns: Sequence[str],
    roles: ColumnRoles,
    request: DatasetRequest,
    clients: IntArray | None = None,
) -> list[ColumnUse]:
    """Return how each column of a table is used.

    Args:
        name: Name of the data set, for messages.
        table: Plain cells.
        columns: Columns without another role.
        roles: Roles of the columns.
        request: Kinds set by the user.
        clients: Natural client of each row, >= 0, or None.

    Raises:
        DataError: Lists all columns of no kind, or not of the requested kind.
    """

    def use(column: str) -> ColumnUse:
        kind = request.columns.get(column)
        if kind == "drop":
            return ColumnUse(column, "dropped", "left out as requested")
        is_category = bool(table.schema.field(column).metadata)
        return _use(column, table[column], kind, request.min_release, clients, is_category)

    def kinds(column: str) -> Sequence[str]:
        return ("drop",) if column in request.columns else ("number", "category", "drop")

    uses = read_columns(name, columns, use, request.drop_columns, kinds)
    uses = _without_copies(uses, table, roles, request)
    if any(use.columns for use in uses):
        return uses
    return [  # a running number is better than no feature
        ColumnUse(use.name, "number", RUNNING, column_key(use.name, "category"), use.unused)
        if use.became.endswith(RUNNING)
        else use
        for use in uses
    ]


def _without_copies(
    uses: list[ColumnUse], table: pa.Table, roles: ColumnRoles, request: DatasetRequest
) -> list[ColumnUse]:
    """Leave out copies of identifiers, of the groups, and of the clients' names."""
    names = [use.name for use in uses if use.kind == "identifier"] + ([roles.group] if roles.group is not None else [])
    originals = {name: present_cells(table[name]) for name in names}
    client = None if roles.client is None else table[roles.client]
    return [
        _left_out_if_copy(use, present_cells(table[use.name]), originals, client)
        if use.kind in {"number", "category"} and use.name not in request.columns
        else use
        for use in uses
    ]


def _left_out_if_copy(
    use: ColumnUse, cells: pa.ChunkedArray, originals: Mapping[str, pa.ChunkedArray], client: pa.ChunkedArray | None
) -> ColumnUse:
    key = column_key(use.name, use.kind)
    for name, original in originals.items():
        if are_copies(cells, original):
            return use.left_out("identifier", f"a copy of {name}", key)
    if client is None or not are_copies(cells, client):
        return use
    # what a site has measured once, as its height, goes with its name, too, but is a feature
    is_name = use.kind == "category" or np.array_equal(as_numbers(cells), as_numbers(client))
    return use.left_out("identifier", "it repeats the client's name", key) if is_name else use


def suspected(uses: Sequence[ColumnUse], predicted: Predicted) -> list[ColumnUse]:
    """Return columns with their suspected label leaks and missing-value codes on record."""
    rows = np.sort(stream(0, "label-leaks").permutation(len(predicted.labels))[:NUM_EXAMINED])
    numbers = [column for use in uses for column in use.columns if column.categories is None]
    values = predicted.targets
    if values is None and are_numbers(predicted.class_names):
        values = np.array([float(name) for name in predicted.class_names])[predicted.labels]
    summands = [] if values is None else parts_of_sum(numbers, values, rows)

    def checked(use: ColumnUse) -> ColumnUse:
        columns = (*use.columns, *use.unused)
        suspicions = [suspicion(column, predicted.labels, predicted.class_names, rows) for column in columns]
        if use.name in summands:
            suspicions.append(f"is a summand of the label: {' + '.join(summands)}")
        codes = missing_codes(columns[0]) if len(columns) == 1 else {}
        counts = ", ".join(f"{code} in {count} rows" for code, count in codes.items())
        became = f"{use.became}; {counts}: missing?" if codes else use.became
        return replace(use, became=became, suspicion=next(filter(None, suspicions), ""), missing_codes=tuple(codes))

    return [checked(use) for use in uses]


def as_text_or_identifier(use: ColumnUse) -> ColumnUse:
    """Return a column whose categories hardly repeat as a text or an identifier, left out."""
    (column,) = use.columns
    categories = column.categories or ()
    num_different = len(categories)
    num_words = float(np.mean([len(category.split()) for category in categories]))
    if num_words < WORDS_OF_TEXT:
        reason = f"{num_different:,} different values rarely repeat"
        return use.left_out("identifier", reason, text_argument("group_column", use.name))
    reason = f"{num_different:,} different texts, of {num_words:.0f} words each"
    return use.left_out("text", reason, text_argument("text_column", use.name))


def _use(
    name: str,
    given: pa.ChunkedArray,
    wanted: ColumnKind | None,
    min_release: int,
    clients: IntArray | None,
    is_category: bool,
) -> ColumnUse:
    """Return how one column is used; a ValueError describes why it is unusable."""
    cells = present_cells(given)
    num_present = len(cells) - cells.null_count
    if wanted is None and num_present < max(min_release, ALMOST_EMPTY * len(cells)):
        reason = f"left out: only {num_present} of {len(cells)} cells have a value"
        return ColumnUse(name, "empty", reason, column_key(name, "category") if num_present else "")
    if wanted == "date" or (wanted is None and num_present):
        date = _date(name, cells, is_wanted=wanted == "date")
        if date is not None:
            return date
    return _number_or_category(name, cells, wanted, clients, is_category)


def _number_or_category(
    name: str, cells: pa.ChunkedArray, wanted: ColumnKind | None, clients: IntArray | None, is_category: bool
) -> ColumnUse:
    """Return how a column is used that holds no dates; missing cells are null."""
    is_category = wanted == "category" or (is_category and wanted is None)
    form = NumberFormat() if is_category else number_format(cells, are_numbers=wanted == "number")
    is_plain = form == NumberFormat()
    column = typed_column(name, cells, is_category) if is_plain else form.column(name, cells)
    if column.categories is None:
        num_words = int(np.count_nonzero(column.missing)) - cells.null_count
        became = form.described + (f"; words count as missing in {num_words} of {len(cells)} rows" if num_words else "")
        key = column_key(name, "drop" if wanted else "category")
        use = ColumnUse(name, "number", became, key, (column,), readings={} if is_plain else {name: asdict(form)})
    else:
        use = ColumnUse(name, "category", f"{len(column.categories)} categories", column_key(name, "drop"), (column,))
    if wanted is not None:
        is_constant = _constant(column) is not None
        return replace(use, became="constant", key=column_key(name, "drop")) if is_constant else use
    codes, texts = distinct_cells(cells)
    is_whole = column.categories is None and is_plain and _is_written_whole(cells)
    if reason := identifier_reason(name, column, len(texts), is_whole, clients):
        repeats = not reason.startswith(RUNNING) and len(texts) < np.count_nonzero(codes >= 0)
        key = text_argument("group_column", name) if repeats else column_key(name, use.kind)
        return use.left_out("identifier", reason, key)
    value = _constant(column)
    return use if value is None else use.left_out("constant", f"always {value}", column_key(name, use.kind))


def _constant(column: Column) -> str | None:
    """Return the value of all cells of a column as text; None if they differ, or one is missing."""
    if column.missing.any():
        return None
    if np.ptp(column.cells) > 0:
        return None
    return f"{column.cells[0]:g}" if column.categories is None else shown(column.categories[0][:40])


def _date(name: str, cells: pa.ChunkedArray, is_wanted: bool) -> ColumnUse | None:
    """Return a column of dates; None if it is none."""
    order = date_order(cells)
    if order is None:
        if is_wanted:
            examples = "2024-01-31, 1/31/24 or 31.01.2024 10:30"
            raise ValueError(f"must hold dates such as {examples}, all in the same format, got others")
        return None
    parts = {
        part: numbers
        for part, numbers in parts_of_time(cells, order).items()
        if len(np.unique(numbers[~np.isnan(numbers)])) > 1
    }
    if not parts:
        return ColumnUse(name, "constant", "left out: always the same time")
    became = f"{', '.join(parts)} (read as {order})"
    columns = tuple(Column(f"{name} {part}", numbers) for part, numbers in parts.items())
    readings = {f"{name} {part}": {"of": name, "part": part, "order": order} for part in parts}
    return ColumnUse(name, "date", became, column_key(name, "drop"), columns, readings=readings)


def _is_written_whole(cells: pa.ChunkedArray) -> bool:
    """Return whether the first number of a column is written without a point, as identifiers are."""
    first = next((cell for cell in cells.slice(0, FIRST_CELLS).to_pylist() if cell is not None), "")
    return isinstance(first, int) or (isinstance(first, str) and "." not in first)
