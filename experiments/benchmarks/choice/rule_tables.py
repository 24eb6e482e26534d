"""What a table of trials says of the rules, as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

from fedscout.experiments.benchmarks.choice.rule_counts import RuleCount
from fedscout.experiments.benchmarks.choice.unread_conditions import STRATEGIES, Correlation, UnreadConditions
from fedscout.experiments.reports.markdown_table import markdown_table
from fedscout.strategies import parse_strategy


def rule_lines(counts: Sequence[RuleCount], conditions: UnreadConditions) -> list[str]:
    """Return how often each rule decides and is right, and what of a federation no rule reads."""
    return [
        "Federations on which a rule decides, on how many of them its answer is better or worse than tuned FedAvg "
        "beyond noise, and by how many points on average:",
        "",
        *_counts(counts),
        "",
        "What no rule reads, on the development half: points of each strategy's best configuration beyond FedAvg's, "
        "± a standard error:",
        "",
        *_conditions(conditions),
        "",
        "Spearman's correlation with these points, and its p-value:",
        "",
        *_correlations(conditions.correlations),
    ]


def _counts(counts: Sequence[RuleCount]) -> list[str]:
    halves = list(dict.fromkeys(each.half for each in counts))
    by_rule = {(each.rule, each.half): each for each in counts}
    rows = []
    for rule in dict.fromkeys(each.rule for each in counts):
        rows.append([rule, *(cell for half in halves for cell in _cells(by_rule[rule, half]))])
    headings = [f"{half}: {what}" for half in halves for what in ("decides", "better", "worse", "points")]
    return markdown_table(["rule", *headings], rows)


def _cells(count: RuleCount) -> list[str]:
    if not count.decided:
        return ["0", "", "", ""]
    points = "" if count.versus_tuned is None else f"{100 * count.versus_tuned:+.1f}"
    return [*(str(len(each)) for each in (count.decided, count.better, count.worse)), points]


def _conditions(found: UnreadConditions) -> list[str]:
    rows = []
    for one in found.conditions:
        gains = [one.gains[kind] for kind in STRATEGIES]
        points = [f"{100 * gain.mean:+.1f} ± {100 * gain.standard_error:.1f}" for gain in gains]
        rows.append([one.condition, one.federation, *points])
    return markdown_table(["condition", "federation", *_names()], rows)


def _correlations(found: Sequence[Correlation]) -> list[str]:
    cells = {(each.what, each.over, each.strategy): each for each in found}
    rows = []
    for what, over in dict.fromkeys((each.what, each.over) for each in found):
        own = [cells[what, over, kind] for kind in STRATEGIES]
        rows.append([what, over, *map(_told, own)])
    return markdown_table(["of a federation", "over", *_names()], rows)


def _told(one: Correlation) -> str:
    p_value = "" if one.p_value is None else f" ({one.p_value:.2g})"
    return "" if one.coefficient is None else f"{one.coefficient:+.2f}{p_value}"


def _names() -> list[str]:
    return [type(parse_strategy(kind)).__name__.removesuffix("Spec") for kind in STRATEGIES]
