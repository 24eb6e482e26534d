"""What a table of trials says of the rules, against counts and correlations worked out by hand."""

from __future__ import annotations

import pytest

from fedscout.experiments.benchmarks.choice.joint_battery import SPACE
from fedscout.experiments.benchmarks.choice.rule_counts import RuleCount, count_rules
from fedscout.experiments.benchmarks.choice.rule_tables import rule_lines
from fedscout.experiments.benchmarks.choice.unread_conditions import CONDITIONS, unread_conditions
from fedscout.search.recommenders.rules import RULES
from fedscout.strategies import FedAdamSpec, StrategySpec
from tests.experiments.benchmarks.made_up_tables import federation, rate_of
from tests.search.recommenders.reports import report_of


def momentum_worth(accuracy: float, tuned: float = 0.8):  # type: ignore[no-untyped-def]
    """FedAvg at its best rate is worth one accuracy, and FedAvgM at rate 0.5 another."""

    def score(spec: StrategySpec, seed: int) -> float:
        if spec.kind == "fedavgm" and rate_of(spec) == 0.5:
            return accuracy
        return tuned if spec.kind == "fedavg" and rate_of(spec) == 1.0 else 0.6

    return score


def test_a_rule_is_better_or_worse_where_its_answer_is() -> None:
    """Three classes and skewed labels: in the joint space momentum is proposed, at rate 0.5."""
    table = [
        federation(momentum_worth(0.9), name="better"),
        federation(momentum_worth(0.75), name="worse"),
        federation(momentum_worth(0.8), name="level"),
        federation(momentum_worth(0.7), "held out"),
    ]
    counts = {(one.rule, one.half): one for one in count_rules(table, SPACE)}
    assert list(dict.fromkeys(rule for rule, _ in counts)) == [rule.name for rule in RULES]
    found = counts["skewed labels", "development"]
    assert found.decided == ("better", "worse", "level")
    assert (found.better, found.worse) == (("better",), ("worse",))
    assert found.versus_tuned == pytest.approx((0.1 - 0.05) / 3)
    held_out = counts["skewed labels", "held out"]
    assert (held_out.better, held_out.worse, held_out.versus_tuned) == ((), ("made up, held out",), pytest.approx(-0.1))
    silent = [one for one in counts.values() if one.rule != "skewed labels"]
    assert all(one.decided == () and one.versus_tuned is None for one in silent)


def test_with_the_clients_settings_left_alone_another_rule_decides() -> None:
    """Five batches of a median client's 128 rows make 24 steps in six rounds at rate 0.1: few."""
    counts = {one.rule: one for one in count_rules([federation(momentum_worth(0.9))], ()) if one.decided}
    assert [*counts] == ["few steps"]
    assert counts["few steps"].versus_tuned == pytest.approx(0.6 - 0.8)


def by_clients(adam: float):  # type: ignore[no-untyped-def]
    """FedAdam's best is worth one accuracy on the seeds, FedAvg's best 0.8 and all others 0.7."""

    def score(spec: StrategySpec, seed: int) -> float:
        if isinstance(spec, FedAdamSpec) and spec.eta == 0.1:
            return adam
        return 0.8 if spec.kind == "fedavg" and rate_of(spec) == 0.2 else 0.7

    return score


def test_gains_are_against_fedavg_at_its_best() -> None:
    (_, name), *_ = CONDITIONS
    found = unread_conditions([federation(by_clients(0.9), name=name), federation(by_clients(0.9), "held out")])
    (one,) = found.conditions
    assert (one.condition, one.federation) == ("none", name)
    assert one.gains["fedadam"].mean == pytest.approx(0.1)
    assert one.gains["fedyogi"].mean == pytest.approx(-0.1)
    assert one.gains["fedadam"].standard_error == pytest.approx(0.0, abs=1e-12)


def test_correlations_are_of_ranks_and_without_what_label_skew_explains() -> None:
    """Gains grow with the clients, and label skew goes up and down: ranks 1 to 4 against 2, 1, 4, 3.

    Taken out of 1, 2, 3, 4 by least squares (slope 0.6), the ranks of label skew leave -1.2, 0.4, -0.4, 1.2. Both sides
    are left with the same, so the coefficient stays 1.
    """
    table = [
        federation(
            by_clients(0.8 + 0.01 * clients**2),
            name=str(clients),
            report=report_of(divergence=skew, rows=(160,) * clients, distances=(1.0,) * clients, num_classes=classes),
        )
        for clients, skew, classes in ((2, 0.2, 5), (3, 0.1, 5), (4, 0.5, 5), (5, 0.4, 3))
    ]
    found = {(one.what, one.over, one.strategy): one for one in unread_conditions(table).correlations}
    for over in ("all, 4", "5 classes or more, 3", "all, given label skew"):
        assert found["number of clients", over, "fedadam"].coefficient == pytest.approx(1.0)
    assert found["number of clients", "all, 4", "fedadam"].p_value == pytest.approx(0.0, abs=1e-6)
    # no federation reports how uneven its amounts are, so these are all alike
    assert found["amounts, coefficient of variation", "all, 4", "fedadam"].coefficient is None


def test_the_p_value_of_a_correlation() -> None:
    """Gains of ranks 2, 1, 4, 3 against 1 to 4 clients: rho 0.6; with two degrees of freedom p is 1 - rho."""
    gains = (0.82, 0.81, 0.84, 0.83)
    table = [
        federation(by_clients(adam), name=str(clients), report=report_of(rows=(160,) * clients, num_classes=5))
        for clients, adam in enumerate(gains, 2)
    ]
    found = {(one.what, one.over, one.strategy): one for one in unread_conditions(table).correlations}
    one = found["number of clients", "all, 4", "fedadam"]
    assert (one.coefficient, one.p_value) == (pytest.approx(0.6), pytest.approx(0.4))


@pytest.mark.slow
def test_the_tables_hold_every_rule_and_condition() -> None:
    table = [federation(by_clients(0.9), name=name) for _, name in CONDITIONS]
    lines = rule_lines(count_rules(table, ()), unread_conditions(table))
    told = "\n".join(lines)
    for rule in RULES:
        assert f"| {rule.name} |" in told
    for condition, name in CONDITIONS:
        assert f"| {condition} | {name} | -10.0 ± 0.0 | +10.0 ± 0.0 |" in told


def test_counts_of_a_rule_that_never_decided_are_empty() -> None:
    empty = RuleCount(rule="r", half="development", decided=(), better=(), worse=(), versus_tuned=None)
    assert "| r | 0 |  |  |  |" in rule_lines([empty], unread_conditions([]))
