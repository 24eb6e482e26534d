"""The measurement of choosers as Markdown tables."""

from __future__ import annotations

from statistics import fmean

from fedscout.experiments.benchmarks.choice.choice_measurement import ChoiceReport
from fedscout.experiments.benchmarks.choice.choice_regret import SMALLEST_GAIN, BootstrapMean
from fedscout.experiments.reports.markdown_table import markdown_table


def table_lines(report: ChoiceReport) -> list[str]:
    """Return the summary, what there was to win, and how far each chooser stayed below the oracle."""
    return [
        f"{len(report.federations)} federations, {report.num_search_seeds} search seeds, picks trained on "
        f"{report.num_fresh_seeds} fresh seeds; in brackets 95 % bootstrap intervals over federations and search seeds",
        "",
        *_summary(report),
        "",
        *_federations(report),
        "",
        "Points of accuracy below the oracle, mean over search seeds; negative where a pick beats the grid's best:",
        "",
        *_shortfalls(report),
        *(f"\nNot measured: {name}: {reason}" for name, reason in report.unavailable.items()),
        *(f"\nLeft out: {name}: {reason}" for name, reason in report.missing.items()),
        *(
            f"\n{federation.name}: {name} could not choose: {reason}"
            for federation in report.federations
            for name, reason in federation.failures.items()
        ),
    ]


def _summary(report: ChoiceReport) -> list[str]:
    def mean(of: BootstrapMean | None) -> str:
        return "" if of is None else f"{of.mean:.2f} [{of.low:.2f}, {of.high:.2f}]"

    rows = []
    for one in report.summary:
        worse = f"{one.num_worse} of {one.num_choices}"
        regrets = [mean(each) for each in (one.regret_tuned, one.regret_fedavg, one.regret_worst)]
        rows.append([one.chooser, f"{one.cost:.1f}", f"{one.archive:,.0f}", *regrets, worse])
    headings = ["chooser", "cost, trainings", "archives", "R_t", "R_f", "R_w", "worse than FedAvg"]
    return markdown_table(headings, rows)


def _federations(report: ChoiceReport) -> list[str]:
    rows = []
    for one in report.federations:
        accuracies = [f"{accuracy:.3f}" for accuracy in (one.worst, one.fedavg, one.tuned, one.oracle)]
        gain, beyond = one.oracle - one.fedavg, one.beyond_tuned
        on_fedavg = f"{100 * gain:+.1f}" + ("" if gain >= SMALLEST_GAIN else ", no R_f")
        on_tuned = f"{100 * beyond.mean:+.1f} ± {100 * beyond.standard_error:.1f}"
        on_tuned += "" if beyond.is_to_win else ", no R_t"
        rows.append([one.name, *accuracies, on_fedavg, on_tuned, one.best, one.grid_size])
    gains = ["gain on FedAvg, points", "on tuned FedAvg"]
    headings = ["federation", "worst", "FedAvg", "tuned", "oracle", *gains, "oracle's choice", "grid"]
    return markdown_table(headings, rows)


def _shortfalls(report: ChoiceReport) -> list[str]:
    choosers = [one.chooser for one in report.summary]
    rows = []
    for federation in report.federations:
        cells = [federation.name]
        for chooser in choosers:
            scores = [c.accuracy for c in report.choices if (c.federation, c.chooser) == (federation.name, chooser)]
            cells.append(f"{100 * (federation.oracle - fmean(scores)):.1f}" if scores else "")
        rows.append(cells)
    return markdown_table(["federation", *choosers], rows)
