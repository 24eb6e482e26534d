"""A replay as Markdown tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedscout.experiments.benchmarks.choice.choice_regret import BootstrapMean
from fedscout.experiments.benchmarks.choice.replay_measurement import ReplayReport, TabledGain
from fedscout.experiments.reports.markdown_table import markdown_table

BEST_OF_MANY = "TPE 50"
PUBLISHED_LOSSES = {"genetic 8": 0.01, "rules": 0.35}
"""Σ (best of 50 − choice) / Σ (best of 50 − FedAvg) over the five scenarios of the main source on bearing data, of its
genetic search and of its one answer without a trial, which was a language model's."""


def replay_lines(report: ReplayReport) -> list[str]:
    """Return who loses how much, what there is to win, and by what."""
    lines = [
        "Each choice is judged by the seeds on which it was not made; in brackets 95 % bootstrap intervals over "
        "federations and search seeds."
    ]
    for half in dict.fromkeys(each.half for each in report.summary):
        gains = [gain for gain in report.gains if gain.half == half]
        lines += ["", f"{half.capitalize()}, {len(gains)} federations. {_what_wins(gains)}", ""]
        lines += _summary(report, half)
        lines += _beside_the_published(report, half)
    return [*lines, "", *_gains(report)]


def _what_wins(gains: Sequence[TabledGain]) -> str:
    """Return in how many federations something beats tuned FedAvg, and what it is."""
    won = Counter(gain.best.partition("(")[0] for gain in gains if gain.is_to_win)
    told = ", ".join(f"{kind} {count}" for kind, count in won.most_common())
    return (
        f"On {sum(won.values())} of them anything beats tuned FedAvg by a point or more, beyond noise"
        f"{': ' + told if won else ''}."
    )


def _summary(report: ReplayReport, half: str) -> list[str]:
    rows = []
    for one in report.summary:
        if one.half == half:
            means = (_mean(one.regret_tuned), _mean(one.regret_fedavg), _mean(one.versus_tuned, 100, "+.1f"))
            below = f"{len(one.below)} of {one.num_federations}"
            rows.append([one.chooser, f"{one.cost:.1f}", f"{one.archive:,.0f}", *means, below])
    headings = ["chooser", "cost, trainings", "archives", "R_t", "R_f", "points beyond tuned FedAvg", "below it"]
    return markdown_table(headings, rows)


def _beside_the_published(report: ReplayReport, half: str) -> list[str]:
    """Return what of 50 trials' gain over FedAvg is lost, here and in the main source; nothing if one is lacking."""
    points = {
        one.chooser: one.versus_tuned.mean
        for one in report.summary
        if one.half == half and one.versus_tuned is not None
    }
    if not {"FedAvg", BEST_OF_MANY, *PUBLISHED_LOSSES} <= points.keys():
        return []
    gain = points[BEST_OF_MANY] - points["FedAvg"]
    told = [
        f"{name} {(points[BEST_OF_MANY] - points[name]) / gain:.2f} (published {published:.2f})"
        for name, published in PUBLISHED_LOSSES.items()
    ]
    return ["", f"Of the gain of {BEST_OF_MANY} over FedAvg is lost: {', '.join(told)}."]


def _mean(of: BootstrapMean | None, factor: float = 1, form: str = ".2f") -> str:
    if of is None:
        return ""
    mean, low, high = (f"{factor * value:{form}}" for value in (of.mean, of.low, of.high))
    return f"{mean} [{low}, {high}]"


def _gains(report: ReplayReport) -> list[str]:
    rows = []
    for one in report.gains:
        accuracies = [f"{accuracy:.3f}" for accuracy in (one.fedavg, one.tuned, one.oracle)]
        gain = f"{100 * (one.oracle - one.tuned):+.1f} ± {100 * one.standard_error:.1f}"
        rows.append([one.name, one.half, *accuracies, gain, "yes" if one.is_to_win else "", one.best])
    headings = ["federation", "half", "FedAvg", "tuned", "oracle", "gain, points", "to win", "best on all seeds"]
    return markdown_table(headings, rows)
