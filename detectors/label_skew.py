"""Label skew: how far a client's label distribution is from the pooled one, by the published and the calibrated rule.

**Published rule.** Client k sends its label counts. With P_k its normalised counts and G those of all clients, client k
is flagged if JS(P_k‖G) > 0.1 (Jensen-Shannon divergence in bits, in `[0, 1]`; J. Lin, IEEE Transactions on Information
Theory 37(1), 1991). The federation's value is the largest divergence.

**Withheld counts.** A client reports 0 for a class of which it holds fewer than `min_release` rows, and for one more
class fewer rows than it holds if the withheld rows would otherwise be too few (`fedscout.engine.data.client`). The
total number of withheld rows is known, as clients report their number of rows. Withholding must not create evidence, so
withheld rows are completed so that clients are most similar: of all tables x consistent with the released counts, the
one of least mutual information between client and class is taken,

    min_x Σ_k Σ_c x_kc log(x_kc / (n_k q_c)),   q_c = Σ_k x_kc / Σ_k n_k,   low_kc ≤ x_kc ≤ high_kc,   Σ_c x_kc = n_k,

by alternating minimisation over q and x (I. Csiszár and G. Tusnády. Information geometry and alternating minimization
procedures. Statistics & Decisions, Supplement 1, 1984). The problem is convex; x is real-valued. The bounds of a class
follow from the release rule: the released count; 0 to `min_release` − 1 if none is released; more for the class that
may have been withheld with the others. To compare a client with the others, the table of these two alone is completed
in the same way, so that its divergence is a lower bound; metrics over all clients use the table of all. If no client
releases any class, label skew is not measured.

**Calibrated rule.** Does a client's label distribution differ from that of all others beyond chance? If labels do not
depend on the client, rows fill the table of clients × classes at random, given its margins. Client k is compared with
all the others by Pearson's statistic of the 2 × C table, with O its counts, G those of all clients, n its rows and N
those of all:

    X²_k = N / (N − n) · Σ_c (O_c − n G_c / N)² / (n G_c / N)

- If every expected count n G_c / N is large enough, X²_k follows χ² with C − 1 degrees of freedom, and Holm's method
  corrects over clients. With z² the χ² quantile (one degree) of the rate over the number of clients, the leading term
  of the tail's relative error is z⁶ / (72 n G_c / N), after Edgeworth; it is at most `TAIL_ERROR`. (A limit of 5, by W.
  G. Cochran. Some methods for strengthening the common χ² tests. Biometrics 10(4), 1954, is for one test at 5 %.)
- If some are smaller, the largest X² of all clients is compared with those of simulated tables with the same margins,
  whose cells are hypergeometric given those before. That test is exact for any counts, and its maximum statistic
  corrects over clients. `DRAWS_PER_ALARM` tables are drawn for each one that the rate admits; sampling stops early if
  so many have reached the largest observed X² that its p-value cannot become significant (J. Besag and P. Clifford.
  Sequential Monte Carlo p-values. Biometrika 78(2), 1991: if h draws of l reach it, p = h / l is valid).
- If clients withhold rows, X²_k is that of the table in which client k and all others together are most similar;
  margins of simulated tables and effects are those of the table in which all clients are most similar. Both are
  recomputed whenever a client is removed.
- If clients add noise to their counts (`fedscout.detectors.privacy`), simulated tables get the same kind of noise.
  Margins are then those of the noisy table, so the test is nearly exact.
- Tables too large to simulate often are compared class by class: the count of a class at a client is hypergeometric,
  and the smallest two-sided p-value is corrected over classes by Bonferroni's method, over clients by Holm's.
- If rows are grouped, X² is compared with its distribution under the clients' design effects
  (`fedscout.detectors.statistics`): by its first three moments if the expected counts, divided by the design effect,
  are large enough; else X² over its mean per degree of freedom is compared with simulated tables of effective counts,
  the clients' rows over their design effect. If all rows of a group have one label and groups are equally large, this
  permutes whole groups; if every group is one row, both equal the tests above.

**Step-down removal.** One deviating client of few makes the others differ from the rest as well. So the most deviating
of the significant clients is removed, or the top share `TAKEN_OUT` of them if there are many, and the others are
compared again, until none is significant. If half of all clients would have to be removed, most of them differ from
each other, and the first comparison counts.

**Effect.** The total variation distance ½ Σ|P_c − R_c| in `[0, 1]`: the share of the client's rows that would have to
change class. The square of the mean distance under chance is subtracted from its square. R is the median of all
clients' shares of a class, scaled to add up to 1, so that one deviating client does not make the others look deviating;
if the medians add up to less than a half, because clients have few classes in common, R is the share among all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fedscout.detectors import statistics
from fedscout.detectors.privacy import integer_laplace, plausible_counts
from fedscout.detectors.report import CalibratedFinding, ClientEvidence, Finding
from fedscout.detectors.statistics import ClientTest, GroupSums, Values, design_effects, distribution, holm
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Answer, Arrays, CountAggregate, QueryInputs, RowAggregate
from fedscout.engine.data.federation import UNNAMED, Names
from fedscout.engine.seeds import stream

NAME: Final = "label_skew"

NOTHING_RELEASED: Final = (
    "clients hold too few rows of every class to release their number (if all data are your own, set "
    "federation.min_release=1)"
)

MAX_STEPS: Final = 1000
TOLERANCE: Final = 1e-5
"""Of rows."""

FEWEST_ROWS: Final = 1e-6
"""Of a class, so that its share stays positive."""


def label_counts(inputs: QueryInputs) -> Answer:
    """Client half: return `counts`, the rows of each class, shape `(num_classes,)`, and `min_release`, shape `(1,)`."""
    min_release = RowAggregate(np.array([inputs.min_release]), 0)
    return {"counts": CountAggregate(inputs.data.label_counts(inputs.num_classes)), "min_release": min_release}


@dataclass(frozen=True)
class ReleasedCounts:
    """Label counts that clients release.

    Attributes:
        clients: Client indices.
        by_class: Released rows of each class, shape `(clients, classes)`.
        num_rows: Rows of each client, shape `(clients,)`.
        min_release: Fewest rows of a class that each client releases, shape `(clients,)`.
    """

    clients: tuple[int, ...]
    by_class: IntArray
    num_rows: IntArray
    min_release: IntArray

    @classmethod
    def exact(cls, counts: Mapping[int, IntArray]) -> ReleasedCounts:
        """Return the counts of clients that withhold nothing, each of shape `(classes,)`."""
        clients = tuple(sorted(counts))
        by_class = np.stack([counts[client] for client in clients]) if clients else np.zeros((0, 0), np.int64)
        return cls(clients, by_class, by_class.sum(axis=1), np.ones(len(by_class), np.int64))

    def of(self, positions: IntArray) -> ReleasedCounts:
        """Return the counts of the clients at the given positions, shape `(clients,)`."""
        clients = tuple(self.clients[position] for position in positions)
        return ReleasedCounts(clients, self.by_class[positions], self.num_rows[positions], self.min_release[positions])

    def limits(self) -> tuple[IntArray, IntArray]:
        """Return the bounds on the rows of each class that follow from the release, `(clients, classes)` each.

        The class withheld in addition is the first one of at least `min_release` rows. With it exactly `min_release`
        rows are withheld; or, if too few of it would remain to be released, more than that and fewer than twice as
        many.
        """
        min_release = self.min_release[:, None]
        withheld = np.maximum(self.num_rows - self.by_class.sum(axis=1), 0)[:, None]
        unreleased = self.by_class == 0
        first = np.where(unreleased.all(axis=1), unreleased.shape[1], (~unreleased).argmax(axis=1))[:, None]
        positions = np.arange(unreleased.shape[1])
        may_join = unreleased & (positions < first) & (min_release < withheld) & (withheld < 2 * min_release)
        extra = np.where(unreleased, np.where(may_join, withheld - 1, min_release - 1), 0)
        extra = np.where((positions == first) & (withheld == min_release), min_release - 1, extra)
        impossible = extra.sum(axis=1, keepdims=True) < withheld  # of a client that does not keep to the release
        extra = np.where(impossible, np.where(unreleased | ~unreleased.any(axis=1, keepdims=True), withheld, 0), extra)
        return self.by_class, self.by_class + np.minimum(extra, withheld)

    def completed(self, start: Values | None = None) -> Values:
        """Return the rows of each class that make clients most similar, shape `(clients, classes)`; see the module.

        Args:
            start: Expected rows of each class, positive, shape `(classes,)`, used for rows that no client's counts
                determine.
        """
        return _most_similar(*self.limits(), self.num_rows, self.by_class.sum(axis=0) + 1.0 if start is None else start)

    def against_others(self) -> Values:
        """Return each client's rows and those of all others, completed so that these two are most similar.

        The bounds of the others' rows are the sums of theirs. Shape `(clients, 2, classes)`.
        """
        low, high = (np.stack([limit, limit.sum(axis=0) - limit], axis=1) for limit in self.limits())
        num_rows = np.stack([self.num_rows, self.num_rows.sum() - self.num_rows], axis=1)
        return _most_similar(low, high, num_rows, self.by_class.sum(axis=0) + 1.0)

    @property
    def share_released(self) -> float:
        """Share of all rows whose class is released, in `[0, 1]`."""
        return float(self.by_class.sum() / self.num_rows.sum())


def _most_similar(low: IntArray, high: IntArray, num_rows: IntArray, start: Values) -> Values:
    """Return the tables within bounds in which clients are most similar, `(..., clients, classes)`; see the module.

    Args:
        low: Smallest rows of each class, shape of the tables.
        high: Largest rows of each class, shape of the tables.
        num_rows: Rows of each client, the sum over its classes, shape `(..., clients)`.
        start: Expected rows of each class, positive, shape `(classes,)`.
    """
    table, rows = low.astype(np.float64), np.asarray(start)
    if (low == high).all():
        return table
    for _ in range(MAX_STEPS):
        shares = np.broadcast_to((rows / rows.sum(axis=-1, keepdims=True))[..., None, :], low.shape)
        previous, table = table, _project_shares(shares, low, high, num_rows)
        if np.abs(table - previous).max() < TOLERANCE:
            break
        rows = np.maximum(table.sum(axis=-2), FEWEST_ROWS)
    return table


def _project_shares(shares: Values, low: IntArray, high: IntArray, num_rows: IntArray) -> Values:
    """Return the rows within bounds of least divergence from shares: clip(λ_k q_c, low, high), adding up to `num_rows`.

    The sum is piecewise linear and increasing in λ_k, with breakpoints where a class reaches a bound.
    """
    breakpoints = np.concatenate([low / shares, high / shares], axis=-1)
    order = breakpoints.argsort(axis=-1, kind="stable")
    breakpoints = np.take_along_axis(breakpoints, order, axis=-1)
    slopes = np.take_along_axis(np.concatenate([shares, -shares], axis=-1), order, axis=-1).cumsum(axis=-1)[..., :-1]
    sums = low.sum(axis=-1, keepdims=True) + (slopes * np.diff(breakpoints, axis=-1)).cumsum(axis=-1)
    last = np.minimum((sums < num_rows[..., None]).sum(axis=-1), slopes.shape[-1] - 1)[..., None]
    remaining = num_rows[..., None] - np.take_along_axis(sums, last, axis=-1)
    begin, end = (np.take_along_axis(breakpoints, position, axis=-1) for position in (last, last + 1))
    slope = np.take_along_axis(slopes, last, axis=-1)
    factors = np.clip(end + np.divide(remaining, slope, out=np.zeros_like(remaining), where=slope > 0), begin, end)
    return np.asarray(np.clip(factors * shares, low, high))


def decide_label_skew(released: ReleasedCounts, threshold: float, names: Names = UNNAMED) -> Finding:
    """Server half: compare each client with the sum of all.

    Args:
        released: Label counts of the clients that answered.
        threshold: Divergence in bits above which a client is flagged.
        names: Display names of clients.
    """
    clients = released.clients
    if len(clients) < 2:
        return Finding.unmeasured(NAME, threshold, f"it takes two clients, got {len(clients)}")
    pairs = released.against_others()
    divergences = statistics.js_divergence(distribution(pairs[:, 0]), distribution(pairs.sum(axis=1)))
    values = {client: float(value) for client, value in zip(clients, divergences, strict=True)}
    flagged = tuple(client for client in clients if values[client] > threshold)
    farthest = max(clients, key=values.__getitem__)
    description = (
        f"The largest Jensen-Shannon divergence between a client's labels and all clients' is {values[farthest]:.4f} "
        f"({names.one_client(farthest)}; 0 = equal, 1 = disjoint), threshold {threshold:g}"
    )
    return Finding.of(NAME, values[farthest], threshold, values, flagged, description, names)


TAIL_ERROR: Final = 0.2
DRAWS_PER_ALARM: Final = 20
MIN_DRAWS: Final = 999
MAX_DRAWS: Final = 100_000
SEARCHED_ALWAYS: Final = 10
"""With more clients the search is left out where most of them differ, as it would end there after many comparisons."""

TAKEN_OUT: Final = 1 / 4

MAX_DRAWN_CELLS: Final = 20_000_000
"""Cells of all drawn tables together; they take some seconds."""

FIRST_BLOCK: Final = 100
"""Tables drawn before the first check for an early end; the next blocks are as large as all before together."""

BLOCK_CELLS: Final = 2_000_000
ROUNDING: Final = 1e-6
CLASSES_NAMED: Final = 3


def pearson(tables: IntArray | Values) -> Values:
    """Return X² of each client against the others.

    Args:
        tables: Counts, shape `(..., clients >= 2, classes)`; every client has rows, empty classes contribute nothing.
    """
    sizes = tables.sum(axis=-1, keepdims=True)
    total = tables.sum(axis=(-1, -2), keepdims=True)
    expected = sizes * (tables.sum(axis=-2, keepdims=True) / total)
    squares = (tables - expected) ** 2
    statistic = np.divide(squares, expected, out=np.zeros(squares.shape), where=expected > 0).sum(axis=-1)
    return np.asarray(statistic * (total / (total - sizes))[..., 0])


def label_p_values(
    counts: IntArray | Values,
    rate: float,
    generator: np.random.Generator,
    noise_scale: float = 0.0,
    groups: GroupSums | None = None,
    against_others: Values | None = None,
) -> tuple[Values, str]:
    """Return each client's p-value, corrected over clients, and a description of the test.

    Args:
        counts: Shape `(clients, classes)`.
        rate: Significance level that the p-values must be able to reach.
        generator: Generator of simulated tables.
        noise_scale: Scale of the integer Laplace noise on each count.
        groups: Group statistics of the clients; None if rows are independent.
        against_others: Each client's counts and all others', if rows are withheld; shape `(clients, 2, classes)`.
    """
    if against_others is None:
        against_others = np.stack([counts, counts.sum(axis=0) - counts], axis=1)
    present = counts.sum(axis=0) > 0
    table = counts[:, present]
    if table.shape[1] < 2 or len(table) < 2:
        return np.ones(len(table)), "one class only"
    chi_squares = pearson(against_others)[:, 0]
    if groups is not None:
        return _grouped_p_values(table, design_effects(counts, groups)[:, present], chi_squares, rate, generator)
    smallest_expected = float(table.sum(axis=1).min()) * float(table.sum(axis=0).min()) / float(table.sum())
    if noise_scale > 0 or smallest_expected < least_expected(len(table), rate):
        draws = number_of_draws(rate)
        if draws * table.size <= MAX_DRAWN_CELLS:
            rows = np.rint(table.sum(axis=1)).astype(np.int64)  # of a completed table they are real numbers
            columns = plausible_counts(table.sum(axis=0), rows.sum())
            drawn = _drawn_p_values(rows, columns, chi_squares, draws, rate, generator, noise_scale)
            return drawn, f"up to {draws} tables with the same margins{' and noise' if noise_scale > 0 else ''}"
        if noise_scale > 0:
            return np.ones(len(table)), "too many clients and classes to draw tables with noise"
        return holm(_class_p_values(against_others)), "exact test of each class at each client against the others"
    from scipy.special import chdtrc

    return holm(np.asarray(chdtrc(table.shape[1] - 1, chi_squares))), "χ² test of each client against the others"


def least_expected(num_clients: int, rate: float) -> float:
    """Return the smallest expected count for which the χ² tail is accurate at the rate of one of several clients."""
    from scipy.special import chdtri

    return float(chdtri(1, rate / num_clients) ** 3 / (72 * TAIL_ERROR))


def _class_p_values(against_others: Values) -> Values:
    """Return each client's smallest p-value, corrected over classes; counts are rounded towards the expected ones."""
    from scipy.stats import hypergeom

    own, columns = against_others[:, 0], np.rint(against_others.sum(axis=1))
    rows, total = np.rint(own.sum(axis=1, keepdims=True)), np.rint(against_others.sum(axis=(1, 2)))[:, None]
    expected = rows * columns / total
    few = np.where(own < expected, hypergeom.cdf(np.ceil(own - ROUNDING), total, columns, rows), 1.0)
    many = np.where(own > expected, hypergeom.sf(np.floor(own + ROUNDING) - 1, total, columns, rows), 1.0)
    return np.asarray(np.minimum(1.0, 2 * own.shape[1] * np.minimum(few, many).min(axis=1)))


def _grouped_p_values(
    table: IntArray | Values, effects: Values, chi_squares: Values, rate: float, generator: np.random.Generator
) -> tuple[Values, str]:
    shares = table.sum(axis=0) / table.sum()
    mean, variance, third = statistics.pearson_moments(shares, effects)
    per_freedom = mean / (table.shape[1] - 1)
    words = f"design effect {per_freedom.min():.2g} to {per_freedom.max():.2g}, as rows belong together"
    if ((table.sum(axis=1) / per_freedom).min() * shares).min() >= least_expected(len(table), rate):
        tails = statistics.moment_matched_tail(chi_squares, mean, variance, third)
        return holm(tails), f"χ² test of each client against the others, {words}"
    rows = np.maximum(1, np.rint(table.sum(axis=1) / per_freedom)).astype(np.int64)
    columns = plausible_counts(np.maximum(shares * rows.sum(), 1.0), rows.sum())
    draws = min(number_of_draws(rate), MAX_DRAWN_CELLS // table.size)
    if draws < MIN_DRAWS:
        return np.ones(len(table)), "too many clients and classes to draw tables of groups"
    drawn = _drawn_p_values(rows, columns, chi_squares / per_freedom, draws, rate, generator)
    return drawn, f"up to {draws} tables of effective counts, {words}"


def number_of_draws(rate: float) -> int:
    """Return the number of simulated tables needed for p-values to reach a rate."""
    return min(MAX_DRAWS, max(MIN_DRAWS, int(np.ceil(DRAWS_PER_ALARM / rate)) - 1))


def _drawn_p_values(
    rows: IntArray,
    columns: IntArray,
    observed: Values,
    draws: int,
    rate: float,
    generator: np.random.Generator,
    noise_scale: float = 0.0,
) -> Values:
    """Return p-values by the maximum X² of simulated tables with given margins, shape `(clients,)`.

    Uses at most `draws` tables; if sampling stops earlier, no p-value is below the rate.
    """
    rows, columns = np.sort(rows), np.sort(columns)  # the same draws for any order
    enough = max(DRAWS_PER_ALARM, int(np.ceil(rate * (draws + 1))))
    reached = np.zeros(len(rows), np.int64)
    num_drawn, block = 0, max(1, BLOCK_CELLS // (len(rows) * len(columns)))
    while num_drawn < draws:
        block_size = min(block, max(FIRST_BLOCK, num_drawn), draws - num_drawn)
        drawn = random_tables(rows, columns, block_size, generator)
        if noise_scale > 0:
            noise = integer_laplace(noise_scale, drawn.shape, generator)
            drawn = plausible_counts(drawn + noise, drawn.sum(axis=-1))
        maxima = pearson(drawn).max(axis=1)
        counts = reached + (maxima[:, None] >= observed[None, :] * (1 - ROUNDING)).cumsum(axis=0)
        last = int(np.searchsorted(counts.min(axis=1), enough))
        if last < len(drawn):
            return np.asarray(counts[last] / (num_drawn + last + 1))
        reached = counts[-1]
        num_drawn += len(drawn)
    return np.asarray((1 + reached) / (1 + draws))


def random_tables(rows: IntArray, columns: IntArray, size: int, generator: np.random.Generator) -> IntArray:
    """Draw tables of independent labels with given margins, shape `(size, clients, classes)`.

    Cell by cell from hypergeometric distributions. `scipy.stats.random_table` has the same law and is not used, as
    importing `scipy.stats` takes longer than the rest of a small detection.

    Args:
        rows: Rows of each client, shape `(clients,)`.
        columns: Rows of each class, shape `(classes,)`; the same sum.
        size: Number of tables.
        generator: The only source of randomness.
    """
    tables = np.zeros((size, len(rows), len(columns)), np.int64)
    left = np.tile(columns, (size, 1))
    for client, num_rows in enumerate(rows[:-1]):
        needed, others = np.full(size, num_rows), left.sum(axis=1)
        for label in range(len(columns) - 1):
            others -= left[:, label]
            tables[:, client, label] = generator.hypergeometric(left[:, label], others, needed)
            needed -= tables[:, client, label]
        tables[:, client, -1] = needed
        left -= tables[:, client]
    tables[:, -1] = left
    return tables


def reference_shares(shares: Values, pooled: Values) -> Values:
    """Return the reference label distribution R; see the module.

    Args:
        shares: Shares of each client, shape `(clients, classes)`.
        pooled: Shares of all rows, shape `(classes,)`.
    """
    medians = np.median(shares, axis=0)
    return np.asarray(medians / medians.sum()) if medians.sum() >= 0.5 else pooled


def decide_label_skew_calibrated(
    released: ReleasedCounts,
    rate: float,
    min_effect: float,
    seed: int,
    noise_scale: float = 0.0,
    groups: Mapping[int, Arrays] | None = None,
    names: Names = UNNAMED,
) -> CalibratedFinding:
    """Test each client's labels against the others'.

    Args:
        released: Label counts that clients release.
        rate: Probability of any flag in a federation whose labels do not depend on the client.
        min_effect: Smallest total variation distance that flags.
        seed: Seed of simulated tables.
        noise_scale: Scale of the integer Laplace noise that clients added to each count.
        groups: Group statistics of each client; None if rows are independent.
        names: Display names of clients and classes.
    """
    released = released.of(np.flatnonzero(released.num_rows).astype(np.int64))
    clients = released.clients
    if len(clients) < 2:
        return CalibratedFinding.unmeasured(NAME, rate, f"at least two clients are needed, got {len(clients)}")
    matrix = released.completed()
    shares = distribution(matrix)
    reference = reference_shares(shares, distribution(matrix.sum(axis=0)))
    differences = np.abs(shares - reference)
    sums = _group_sums(released, matrix, groups)
    design = 1.0 if sums is None else design_effects(matrix, sums)
    effects = beyond_chance(differences, reference, released.num_rows, noise_scale, design)

    def test(positions: IntArray) -> tuple[Values, Values, str]:
        part = released.of(positions)
        table = part.completed()
        pairs = part.against_others()
        p_values, method = label_p_values(table, rate, generator, noise_scale, _group_sums(part, table, groups), pairs)
        return p_values, pearson(pairs)[:, 0], method

    generator = stream(seed, "label-tables")
    p_values, method = _step_down(len(clients), effects >= min_effect, rate, test)
    classes = {
        client: statistics.largest(client_differences, float(client_differences.max()) / CLASSES_NAMED, CLASSES_NAMED)
        for client, client_differences in zip(clients, differences, strict=True)
    }
    client_test = ClientTest(
        statistics.by_client(clients, p_values), statistics.by_client(clients, effects), classes, "labels", method
    )
    return statistics.decide(NAME, [(client_test, min_effect)], rate, _describe, names=names)


def _group_sums(released: ReleasedCounts, table: Values, groups: Mapping[int, Arrays] | None) -> GroupSums | None:
    return None if groups is None else GroupSums.read([groups[client] for client in released.clients], table)


def _step_down(
    num_clients: int,
    relevant: npt.NDArray[np.bool_],
    rate: float,
    test: Callable[[IntArray], tuple[Values, Values, str]],
) -> tuple[Values, str]:
    """Return p-values and a description of the test, with significant clients removed step by step.

    Args:
        num_clients: Number of clients, at least two.
        relevant: Whether each client's effect suffices; only such clients are removed. `(clients,)`.
        rate: Largest p-value that is significant.
        test: Returns p-values, X² and a description of the test for the clients at the given positions.
    """
    remaining = np.arange(num_clients)
    first, chi_squares, method = test(remaining)
    flagged = relevant & (first <= rate)
    max_removed = (num_clients - 1) // 2
    if num_clients > SEARCHED_ALWAYS and flagged.sum() > max_removed:
        return first, method
    p_values, suspects = first.copy(), flagged
    while suspects.any() and num_clients - len(remaining) < max_removed:
        farthest = np.where(suspects, chi_squares, -np.inf).argsort(kind="stable")[::-1]
        num_removed = min(max(1, int(TAKEN_OUT * suspects.sum())), max_removed - (num_clients - len(remaining)))
        remaining = np.delete(remaining, farthest[:num_removed])
        p_values[remaining], chi_squares, _ = test(remaining)
        suspects = relevant[remaining] & (p_values[remaining] <= rate)
    if suspects.any():
        return first, method
    return p_values, method


def beyond_chance(
    differences: Values, reference: Values, sizes: IntArray, noise_scale: float = 0.0, design: Values | float = 1.0
) -> Values:
    """Return the total variation distance of each client, corrected for sampling error.

    Args:
        differences: |P − R|, shape `(clients, classes)`.
        reference: R, shape `(classes,)`.
        sizes: Number of rows, shape `(clients,)`.
        noise_scale: Scale of Laplace noise on each count, whose variance is twice its square.
        design: Design effects, shape `(clients, classes)`, or 1 if rows are independent.
    """
    rows = sizes[:, None]
    deviations = np.sqrt(design * reference * (1 - reference) / rows + 2 * (noise_scale / rows) ** 2)
    by_chance = 0.5 * np.sqrt(2 / np.pi) * deviations.sum(axis=1)
    return np.asarray(np.sqrt(np.maximum((0.5 * differences.sum(axis=1)) ** 2 - by_chance**2, 0.0)))


def _describe(client: int, evidence: ClientEvidence, names: Names) -> str:
    text = (
        f"{evidence.effect:.1%} of the rows of {names.one_client(client)} would have to change class for its class "
        "shares to equal the other clients'"
    )
    return f"{text}, mainly {names.some_classes(evidence.classes)}" if evidence.classes else text
