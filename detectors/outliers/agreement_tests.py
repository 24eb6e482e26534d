"""Two tests for `label_agreement`: whose labels agree less, or say less, than the other clients'.

**Counts.** Of a client's n_c groups of judged rows of class c, e_c do not agree; of all clients' N_c groups E_c do not.
If the client is like the others, e_c follows the hypergeometric distribution, as whether a row agrees does not depend
on who holds it, and the test asks for the probability of as many disagreements as Σ_c e_c or more (N. Mantel and
W. Haenszel. Statistical aspects of the analysis of data from retrospective studies of disease. Journal of the National
Cancer Institute 22(4), 1959). Counting class by class makes label skew harmless: a client whose classes are hard is
compared on these classes. The probability is exact where few disagreements are expected, else normal with a continuity
correction. The effect is the agreement that is missing, relative to the others' on the same classes, but no more than
that of the scores where these are known: noise on the features costs agreement, too, but leaves the classes' means
where they are. Clients whose rows are not among the means are compared with the others, and not the others with them.

**Scores.** T / √(φ J) with J = Σ_c n_c (1 − n_c / N_c) |g_c|² follows Student's t distribution if the client's labels
say as much as the others', as T is then the sum of a sample without replacement; it has as many degrees of freedom as
φ. The test asks for as low a value or a lower one. φ is the variance of z · g_c within classes in units of |g_c|²: the
client's own, as its spread may be another than the others', and at least everyone's, as its own is uncertain. Of a
client whose rows are not among the means, n_c (1 + n_c / N_c) stands in place of n_c (1 − n_c / N_c). The effect is ρ,
the part of the labels' information that is missing: the client's own rows, a share f of all, draw the means after them,
so that −T / J = ρ / (1 − f ρ).

**Rows that belong together** scatter T with δ φ J, and leave φ the freedom of n / δ rows less its classes. δ_k is
1 + ρ (Σ n_g² / n − 1) of client k, and ρ is estimated over the groups of all clients by moments,

    Σ u_g² / Σ u_i² · M / (M − C) = 1 + ρ (Σ n_g² / n − 1),

weighted by rows, M being the groups and C the classes, whose means the clients subtract. It is kept in [0, 1]. Of rows
judged together, m to a group, counts scatter by less than the hypergeometric distribution has it, which takes them for
m times as many as rows, until δ exceeds m: from there on counts are divided by δ / m. That whether rows agree
is correlated no more than how far they are along g_c is an approximation, exact for a normal distribution.

Of randomly mislabelled rows either effect is about their part, of classes that have changed places about 1 or more.
Holm's method corrects over clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from fedscout.detectors.outliers.label_agreement import Agreement, Discriminant
from fedscout.detectors.statistics.calibration import ClientTest, by_client, holm, largest
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.engine.arrays import IntArray

MIN_CLIENTS: Final = 3
MIN_FREEDOM: Final = 20
"""With fewer rows means of skewed features are not normal, and the score is not tested."""

EXACT_VARIANCE: Final = 100.0
EXACT_COUNT: Final = 1000
"""Beyond either, the number of disagreements is taken to be normal."""

CLASSES_NAMED: Final = 3


def label_tests(answers: Mapping[int, Agreement], comparison: Discriminant) -> tuple[ClientTest, ...]:
    """Return the tests that at least three clients allow."""
    scores = score_test(answers, comparison)
    counts = count_test(answers, comparison.left_out)
    if counts is not None and scores is not None:
        both = {c: min(effect, scores.effects.get(c, effect)) for c, effect in counts.effects.items()}
        counts = replace(counts, effects=both)
    return tuple(test for test in (counts, scores) if test is not None)


def count_test(answers: Mapping[int, Agreement], left_out: Collection[int] = ()) -> ClientTest | None:
    """Compare how many labels of each client agree with how many of the others' do; None with fewer than three.

    Args:
        answers: Of each client.
        left_out: Clients with which no other client is compared.
    """
    clients = sorted(client for client in answers if answers[client].groups.sum() > 0)
    if len(clients) < MIN_CLIENTS:
        return None
    compared = [answers[client] for client in clients if client not in left_out]
    everyone = np.sum([each.groups for each in compared], axis=0)
    everyone_right = np.sum([each.agreeing for each in compared], axis=0)
    design = design_effects(answers)
    p_values, effects, classes = [], {}, {}
    for client in clients:
        own, own_right = answers[client].groups, answers[client].agreeing
        added = client in left_out
        total, right = everyone + added * own, everyone_right + added * own_right
        fewer = max(1.0, design[client] * own.sum() / answers[client].rows.sum())
        p_values.append(disagreement_tail(own, own - own_right, total, total - right, fewer))
        expected = np.where(total > own, own * ((right - own_right) / np.maximum(total - own, 1)), 0.0)
        missing = expected - np.where(total > own, own_right, 0)
        effects[client] = float(missing.sum() / expected.sum()) if expected.sum() > 0 else 0.0
        classes[client] = _leading(missing)
    return _corrected(clients, p_values, effects, classes, "agreement of labels")


def score_test(answers: Mapping[int, Agreement], comparison: Discriminant) -> ClientTest | None:
    """Ask whose labels say less than the others'; None with fewer than three."""
    from scipy.stats import t as student

    design = design_effects(answers)
    freedom = {client: own.freedom_of(design[client]) for client, own in answers.items()}
    information = {client: own.rows * comparison.information for client, own in answers.items()}
    shares = {client: own.rows / np.maximum(comparison.counts, 1) for client, own in answers.items()}
    compared = {
        client: float(
            information[client] @ (1 + shares[client] if client in comparison.left_out else 1 - shares[client])
        )
        for client in answers
    }
    clients = [client for client in sorted(answers) if freedom[client] >= MIN_FREEDOM and compared[client] > 0]
    if len(clients) < MIN_CLIENTS:
        return None
    spreads = {c: answers[c].spread * (answers[c].freedom_of(1) / (design[c] * freedom[c])) for c in clients}
    usual = float(np.average([spreads[c] for c in clients], weights=[freedom[c] for c in clients]))
    if usual <= 0:
        return None
    p_values, effects, classes = [], {}, {}
    for client in clients:
        own = answers[client]
        total = float(own.scores.sum())
        variance = design[client] * max(spreads[client], usual) * compared[client]
        p_values.append(float(student.cdf(total / np.sqrt(variance), freedom[client])))
        if client in comparison.left_out:
            effects[client] = -total / float(information[client].sum())
        else:
            missing, share = -total / compared[client], 1 - compared[client] / float(information[client].sum())
            effects[client] = missing / (1 + share * max(missing, 0.0))
        classes[client] = _leading(-own.scores)
    return _corrected(clients, p_values, effects, classes, "information of labels")


def design_effects(answers: Mapping[int, Agreement]) -> dict[int, float]:
    """Return δ of each client, at least 1, by the module's equation; 1 where rows are independent."""
    grouped = {c: own for c, own in answers.items() if own.together is not None and own.rows.sum() > 0}
    told = np.array([[own.rows.sum(), (own.rows > 0).sum(), *_told(own)] for own in grouped.values()]).reshape(-1, 5)
    rows, classes, _, squares, num_groups = told.sum(axis=0)
    if squares <= rows:
        return dict.fromkeys(answers, 1.0)
    scatter = float(told[:, 0] @ told[:, 2]) / rows * num_groups / max(num_groups - classes, 1)
    correlation = float(np.clip((scatter - 1) / (squares / rows - 1), 0.0, 1.0))
    own_surplus = {c: _told(own)[1] / own.rows.sum() - 1 for c, own in grouped.items()}
    return {client: 1 + correlation * own_surplus.get(client, 0.0) for client in answers}


def _told(own: Agreement) -> Values:
    assert own.together is not None
    return own.together


def _leading(missing: Values) -> tuple[int, ...]:
    return largest(missing, max(0.0, float(missing.max())) / CLASSES_NAMED, CLASSES_NAMED)


def _corrected(
    clients: list[int],
    p_values: list[float],
    effects: Mapping[int, float],
    classes: Mapping[int, tuple[int, ...]],
    words: str,
) -> ClientTest:
    return ClientTest(by_client(clients, holm(np.array(p_values))), effects, classes, "labels", words)


def disagreement_tail(
    own: IntArray, own_errors: IntArray, rows: IntArray, errors: IntArray, counted_as_one: float = 1.0
) -> float:
    """Return the probability of at least so many disagreements as a client has, if it is like all.

    Args:
        own: The client's groups of each class, shape `(classes,)`.
        own_errors: Those of them that disagree.
        rows: Everyone's groups of each class, the client's included.
        errors: Those of them that disagree.
        counted_as_one: How many groups know as much as one; rounding favours the client.
    """
    from scipy.stats import norm

    useful = (own > 0) & (rows > own)
    own, rows, errors = own[useful], rows[useful], errors[useful]
    observed = int(own_errors[useful].sum() / counted_as_one)
    rows = np.ceil(rows / counted_as_one).astype(np.int64)
    own, errors = (np.minimum(np.ceil(count / counted_as_one).astype(np.int64), rows) for count in (own, errors))
    if observed == 0:
        return 1.0
    expected = own * (errors / rows)
    variance = float((expected * (1 - errors / rows) * (rows - own) / np.maximum(rows - 1, 1)).sum())
    if variance == 0:
        return 1.0
    if variance <= EXACT_VARIANCE and observed <= EXACT_COUNT:
        return _exact_tail(own, rows, errors, observed)
    return float(norm.sf((observed - 0.5 - expected.sum()) / np.sqrt(variance)))


def _exact_tail(own: IntArray, rows: IntArray, errors: IntArray, observed: int) -> float:
    """Return P(sum of independent hypergeometric counts >= observed)."""
    below = np.ones(1)
    for drawn, total, bad in zip(own, rows, errors, strict=True):
        below = np.convolve(below, _hypergeometric(int(drawn), int(total), int(bad), observed))[:observed]
    return float(np.clip(1.0 - below.sum(), 0.0, 1.0))


def _hypergeometric(drawn: int, total: int, bad: int, limit: int) -> Values:
    """Return the probabilities of 0, 1, ... fewer than `limit` bad ones among the drawn, as far as they can occur."""
    from scipy.special import gammaln

    def log_choose(items: IntArray | int, chosen: IntArray | int) -> Values:
        items, chosen = np.asarray(items), np.asarray(chosen)
        return np.asarray(gammaln(items + 1) - gammaln(chosen + 1) - gammaln(items - chosen + 1))

    fewest = max(0, drawn + bad - total)
    probabilities = np.zeros(min(limit, min(drawn, bad) + 1))
    counts = np.arange(fewest, len(probabilities))
    logarithms = log_choose(bad, counts) + log_choose(total - bad, drawn - counts) - log_choose(total, drawn)
    probabilities[fewest:] = np.exp(logarithms)
    return probabilities
