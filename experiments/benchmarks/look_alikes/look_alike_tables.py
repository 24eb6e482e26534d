"""The measurement of look-alikes as Markdown tables."""

from __future__ import annotations

from statistics import fmean

from fedscout.experiments.benchmarks.choice.choice_regret import BootstrapMean
from fedscout.experiments.benchmarks.look_alikes.look_alike_regret import LookAlikeReport
from fedscout.experiments.reports.markdown_table import markdown_table


def table_lines(report: LookAlikeReport) -> list[str]:
    """Return the summary, what there was to win and who found it, and how near the look-alikes came."""
    won = sum(level.is_to_win for level in report.levels.values())
    return [
        f"{len(report.levels)} federations, {report.search} on {report.num_search_seeds} search seeds, picks trained "
        f"on {report.num_fresh_seeds} fresh seeds of the original. On {won} federations anything beats tuned FedAvg by "
        "a point or more, beyond noise. In brackets 95 % bootstrap intervals over federations and search seeds.",
        "",
        *_summary(report),
        "",
        "Points of accuracy below the oracle, mean over search seeds; negative where a pick beats the grid's best:",
        "",
        *_shortfalls(report),
        "",
        "What detection tells of the original, the look-alike of the same data, and that of other data:",
        "",
        *_nearness(report),
        *(f"\nLeft out: {name}: {reason}" for name, reason in report.missing.items()),
    ]


def _summary(report: LookAlikeReport) -> list[str]:
    def mean(of: BootstrapMean | None, times: int = 1, form: str = ".2f") -> str:
        return (
            ""
            if of is None
            else " ".join((f"{times * of.mean:{form}}", f"[{times * of.low:{form}}, {times * of.high:{form}}]"))
        )

    rows = [
        [
            one.chooser,
            f"{one.real:.1f}",
            f"{one.simulated:.1f}",
            mean(one.regret_tuned),
            mean(one.regret_fedavg),
            mean(one.versus_tuned, 100, "+.1f"),
            f"{one.num_below} of {one.num_federations}",
        ]
        for one in report.summary
    ]
    headings = ["chosen", "real trainings", "simulated", "R_t", "R_f", "points beyond tuned FedAvg", "below it"]
    return markdown_table(headings, rows)


def _shortfalls(report: LookAlikeReport) -> list[str]:
    choosers = [one.chooser for one in report.summary]
    rows = []
    for name, level in report.levels.items():
        oracle = fmean(level.oracle)
        own = [choice for choice in report.choices if choice.federation == name]
        means = [fmean(each.accuracy for each in own if each.chooser == chooser) for chooser in choosers]
        lost = [f"{100 * (oracle - mean):.1f}" for mean in (fmean(level.tuned), *means)]
        rows.append([name, f"{oracle:.3f}", "yes" if level.is_to_win else "", *lost])
    return markdown_table(["federation", "oracle", "to win", "tuned FedAvg", *choosers], rows)


def _nearness(report: LookAlikeReport) -> list[str]:
    def beside(values: tuple[float | None, ...]) -> str:
        return " / ".join("-" if value is None else f"{value:.2f}" for value in values)

    rows = [
        [name, beside(near.label_hellinger), beside(near.shift), beside(near.feature_wasserstein), beside(near.scale)]
        for name, near in report.nearness.items()
    ]
    headings = ["federation", "label Hellinger", "largest feature shift", "feature Wasserstein", "rows, look-alikes"]
    return markdown_table(headings, rows)
