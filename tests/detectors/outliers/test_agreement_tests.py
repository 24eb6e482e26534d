"""The two tests of labels: exact tails, false-alarm rates, power, and the order of clients."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import hypergeom
from scipy.stats import t as student

from fedscout.detectors.label_agreement import (
    Agreement,
    Discriminant,
    count_test,
    disagreement_tail,
    label_agreement,
    label_tests,
    score_test,
)
from fedscout.detectors.statistics import ClientTest
from tests.detectors.federations import inputs, let_out, samples
from tests.detectors.rates import most_alarms

RATE = 0.05


def agreements(rows: np.ndarray, right: np.ndarray) -> dict[int, Agreement]:
    """Return answers that tell of counts alone."""
    none = np.zeros(rows.shape[1])
    return {client: Agreement(rows[client], rows[client], right[client], none, 0.0) for client in range(len(rows))}


def counted(generator: np.random.Generator, rows: np.ndarray, agreement: np.ndarray) -> ClientTest:
    """Return the test of clients whose rows agree at a rate of their own for each class."""
    found = count_test(agreements(rows, generator.binomial(rows, agreement)))
    assert found is not None
    return found


def flagged(test: ClientTest) -> list[int]:
    """Return who has a sufficient p-value and misses anything at all."""
    return [client for client in test.p_values if test.p_values[client] <= RATE and test.effects[client] > 0]


def test_one_class_has_the_hypergeometric_tail() -> None:
    """20 of 100 rows, 7 of all 10 disagreements."""
    tail = disagreement_tail(np.array([20]), np.array([7]), np.array([100]), np.array([10]))
    assert tail == pytest.approx(hypergeom.sf(6, 100, 10, 20))


def test_classes_add_up() -> None:
    """Every pair of counts that adds up to at least five, by enumeration."""
    own, rows, errors = np.array([8, 12]), np.array([30, 50]), np.array([9, 6])
    expected = sum(
        hypergeom.pmf(a, 30, 9, 8) * hypergeom.pmf(b, 50, 6, 12) for a, b in product(range(9), range(13)) if a + b >= 5
    )
    assert disagreement_tail(own, np.array([3, 2]), rows, errors) == pytest.approx(expected)


def test_many_disagreements_are_normal() -> None:
    """On both sides of where the exact sum ends the two agree as the normal approximation does at variance 100."""
    own, rows, errors = np.array([1000]), np.array([4000]), np.array([600])
    variance = 1000 * 0.15 * 0.85 * 3000 / 3999
    for observed in (140, 150, 165):
        exact = hypergeom.sf(observed - 1, 4000, 600, 1000)
        assert 90 < variance < 100
        assert disagreement_tail(own, np.array([observed]), rows, errors) == pytest.approx(exact)
        doubled = disagreement_tail(2 * own, np.array([2 * observed]), 2 * rows, 2 * errors)
        assert doubled == pytest.approx(hypergeom.sf(2 * observed - 1, 8000, 1200, 2000), rel=0.15)
    for observed in (1480, 1520, 1550):  # of 1,500 expected: too many for the exact sum, and nearly normal
        tail = disagreement_tail(np.array([5000]), np.array([observed]), np.array([20_000]), np.array([6000]))
        assert tail == pytest.approx(hypergeom.sf(observed - 1, 20_000, 6000, 5000), rel=0.02)


def test_nothing_to_compare_is_no_evidence() -> None:
    """No disagreement at the client, or nobody else of the class."""
    assert disagreement_tail(np.array([9]), np.array([0]), np.array([30]), np.array([5])) == 1
    assert disagreement_tail(np.array([9]), np.array([9]), np.array([9]), np.array([9])) == 1
    assert disagreement_tail(np.array([9, 5]), np.array([9, 0]), np.array([9, 40]), np.array([9, 3])) == 1


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("clients", "rows", "federations"), [(4, 20, 1000), (10, 180, 200), (100, 200, 30)])
@pytest.mark.parametrize("agreement", [(0.99, 0.95, 0.9), (0.7, 0.4, 0.2)])
def test_label_alarms_keep_to_the_rate(clients: int, rows: int, federations: int, agreement: tuple[float, ...]) -> None:
    """Skewed clients, classes of unlike difficulty, no minimum effect to speak of."""
    generator = np.random.default_rng(clients)
    alarms = 0
    for _ in range(federations):
        shares = generator.dirichlet(np.full(3, 0.5), size=clients)
        held = np.stack([generator.multinomial(rows, own) for own in shares])
        alarms += bool(flagged(counted(generator, held, np.array(agreement))))
    assert alarms <= most_alarms(federations, RATE)


@pytest.mark.parametrize("clients", [4, 10, 100])
def test_mislabelled_rows_are_found(clients: int) -> None:
    """30 % of one client's 150 rows disagree where the others agree at 0.8: 0.56 is six standard errors below."""
    generator = np.random.default_rng(2)
    for _ in range(10):
        agreement = np.full((clients, 3), 0.8)
        agreement[1] *= 0.7
        test = counted(generator, np.full((clients, 3), 50), agreement)
        assert 1 in flagged(test)
        assert test.effects[1] == pytest.approx(0.3, abs=4 * 0.041 / 0.8 + 0.03)


def test_what_one_client_lacks_the_others_do_not() -> None:
    """A poisoned client lowers what all are expected to agree; the others are above it, and above is no alarm."""
    rows, right = np.full((4, 2), 100), np.array([[95, 95], [0, 0], [95, 95], [95, 95]])
    found = count_test(agreements(rows, right))
    assert flagged(found) == [1]
    assert found.effects[1] == 1
    assert found.effects[0] == pytest.approx(1 - 95 / (190 / 3))
    assert found.classes[1] == (0, 1)


def test_a_class_of_one_client_alone_says_nothing() -> None:
    """Nobody else says how often its labels should agree, so its misses there do not count, nor its hits."""
    for right_there in (0, 30):
        rows = np.array([[50, 30], [50, 0], [50, 0], [50, 0]])
        found = count_test(agreements(rows, np.array([[40, right_there], [40, 0], [40, 0], [40, 0]])))
        assert found.effects == dict.fromkeys(range(4), 0.0)
        assert found.classes[0] == ()


def test_a_single_row_may_miss_all_that_it_should_agree() -> None:
    found = count_test(agreements(np.ones((3, 1), int), np.array([[0], [1], [1]])))
    assert found.effects[0] == 1.0


def test_the_order_of_clients_does_not_matter() -> None:
    generator = np.random.default_rng(3)
    rows = generator.integers(5, 80, size=(6, 3))
    right = generator.binomial(rows, 0.7)
    order = generator.permutation(6)
    plain = count_test(agreements(rows, right))
    permuted = count_test(agreements(rows[order], right[order]))
    for position, client in enumerate(order):
        assert permuted.p_values[position] == pytest.approx(plain.p_values[int(client)])
        assert permuted.effects[position] == pytest.approx(plain.effects[int(client)])


CLASS_MEANS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.5]])


NOTHING = Discriminant(np.eye(2), np.zeros((3, 2)), np.zeros(3, np.int64))
"""A comparison of classes that nobody told of."""


def answered(
    generator: np.random.Generator,
    held: np.ndarray,
    mislabelled: float = 0.0,
    min_release: int = 1,
    deviation: float = 1.0,
) -> tuple[dict[int, Agreement], Discriminant]:
    """Return the answers of clients whose rows are normal about their class's mean; labels of client 1 are wrong."""
    clients = []
    for client, counts in enumerate(held):
        labels = np.repeat(np.arange(3), counts)
        rows = CLASS_MEANS[labels] + deviation * generator.normal(size=(len(labels), 2))
        wrong = generator.random(len(labels)) < (mislabelled if client == 1 else 0.0)
        clients.append((rows, np.where(wrong, generator.permutation(labels), labels)))
    sums = np.stack([sum(rows[labels == c].sum(axis=0) for rows, labels in clients) for c in range(3)])
    counts = np.stack([np.sum([(labels == c).sum() for _, labels in clients]) for c in range(3)])
    known, config = Discriminant(np.eye(2), sums, counts), {"shifted": False}
    asked = (inputs(samples(rows, labels), 3, known.arrays(), config, min_release) for rows, labels in clients)
    return {c: Agreement.read(let_out(label_agreement(own), min_release)) for c, own in enumerate(asked)}, known


def scored(generator: np.random.Generator, held: np.ndarray, mislabelled: float = 0.0) -> ClientTest:
    """Return the test of what such clients' labels say."""
    found = score_test(*answered(generator, held, mislabelled))
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "rows", "federations"), [(4, 60, 300), (10, 120, 100)])
def test_alarms_of_rows_judged_in_groups_keep_to_the_rate(clients: int, rows: int, federations: int) -> None:
    """Groups of ordered rows agree less by chance than rows that are drawn, which is what the test takes them for."""
    generator = np.random.default_rng(clients)
    alarms = 0
    for _ in range(federations):
        shares = generator.dirichlet(np.full(3, 5.0), size=clients)
        held = np.stack([generator.multinomial(rows, own) for own in shares])
        found = count_test(answered(generator, held, min_release=5)[0])
        alarms += found is not None and bool(flagged(found))
    assert alarms <= most_alarms(federations, RATE)


def test_swapped_labels_are_found_in_groups() -> None:
    """Of 60 rows two thirds have a label of another class, eight groups in twelve; of the others hardly any."""
    generator = np.random.default_rng(4)
    for _ in range(10):
        found = count_test(answered(generator, np.full((6, 3), 20), mislabelled=1.0, min_release=5, deviation=0.3)[0])
        assert found is not None
        assert flagged(found) == [1]


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(("clients", "rows", "federations"), [(4, 30, 300), (10, 100, 100)])
@pytest.mark.parametrize("skewed", [False, True])
def test_score_alarms_keep_to_the_rate(clients: int, rows: int, federations: int, skewed: bool) -> None:
    generator = np.random.default_rng(clients)
    alarms = 0
    for _ in range(federations):
        shares = generator.dirichlet(np.full(3, 0.5 if skewed else 50.0), size=clients)
        alarms += bool(flagged(scored(generator, np.stack([generator.multinomial(rows, own) for own in shares]))))
    assert alarms <= most_alarms(federations, RATE)


def test_labels_that_say_less_are_found_where_classes_overlap() -> None:
    """Half of 300 labels are dealt anew among the client's rows, a third of them to the same class again by chance.

    What is missing is the dealt half: rows that keep their class by chance keep it without regard to the row.
    """
    generator = np.random.default_rng(5)
    for _ in range(10):
        test = scored(generator, np.full((6, 3), 100), mislabelled=0.5)
        assert flagged(test) == [1]
        assert test.effects[1] == pytest.approx(0.5, abs=0.25)


def test_without_answers_there_is_no_test() -> None:
    nothing = {client: Agreement.nothing(3) for client in range(5)}
    assert label_tests(nothing, NOTHING) == ()
    two = agreements(np.full((2, 3), 9), np.full((2, 3), 9))
    assert label_tests(two, NOTHING) == ()


def test_agreement_that_is_missing_counts_no_more_than_information() -> None:
    """Rows scattered by noise agree less, while their classes' means are where the others' are.

    Four clients hold 200 of 800 rows of each class, and |g_c|² = 1, so that J = 400 · 3/4. T = −120 is 0.4 of J; as the
    client's own quarter of all rows draws the means after them, 0.4 / (1 + 0.4 / 4) of the information is missing.
    """
    known = Discriminant(np.eye(1), np.array([[-800.0], [800.0]]), np.array([800, 800]))
    rows, right = np.full((4, 2), 200), np.array([[190, 190], [120, 120], [190, 190], [190, 190]])
    honest = {c: Agreement(rows[c], rows[c], right[c], np.zeros(2), 1.0) for c in range(4)}
    counts, scores = label_tests(honest, known)
    assert counts.p_values[1] < 1e-6
    assert counts.effects[1] == scores.effects[1] == 0
    said = {**honest, 1: Agreement(rows[1], rows[1], right[1], np.array([-70.0, -50.0]), 1.0)}
    counts, scores = label_tests(said, known)
    assert counts.effects[1] == pytest.approx(min(1 - 120 / 190, 0.4 / 1.1))
    assert scores.effects[1] == pytest.approx(0.4 / 1.1)


def test_clients_that_are_left_out_are_compared_and_not_compared_with() -> None:
    """T of the one has the variance φ Σ n_c (1 + n_c / N_c) |g_c|², and the effect −T / Σ n_c |g_c|².

    It is the only one with disagreements, so that the others have the p-value 1 and it has the hypergeometric one.
    """
    known = Discriminant(
        np.eye(1), np.array([[-600.0], [600.0]]), np.array([600, 600]), shifted=frozenset([1]), left_out=frozenset([1])
    )
    rows = np.full((4, 2), 200)
    answers = {
        c: Agreement(rows[c], rows[c], rows[c] - 5 * (c == 1), np.array([-10.0, -10.0]) * (c == 1), 1.0)
        for c in range(4)
    }
    counts, scores = label_tests(answers, known)
    assert [counts.p_values[client] for client in (0, 2, 3)] == [1, 1, 1]
    assert counts.p_values[1] == pytest.approx(4 * hypergeom.pmf(5, 800, 5, 200) ** 2)
    assert scores.effects[1] == pytest.approx(20 / 400)
    assert scores.p_values[1] == pytest.approx(min(1.0, 4 * student.cdf(-20 / np.sqrt(400 * 4 / 3), 398)))


def test_few_rows_have_no_score() -> None:
    known = Discriminant(np.eye(1), np.array([[-40.0], [44.0]]), np.array([40, 44]))
    few = {c: Agreement(np.array([10, 11]), np.array([10, 11]), np.array([9, 9]), np.zeros(2), 1.0) for c in range(4)}
    assert score_test(few, known) is None
    assert len(label_tests(few, known)) == 1
