"""A battery as a table: recall, false alarms and wrong blame of the two rules side by side, with intervals.

The halves of the battery stand apart; what the goals ask is said of the held-out one.

Intervals are Wilson's at 95 % (E. B. Wilson. Probable inference, the law of succession, and statistical inference.
Journal of the American Statistical Association 22, 1927).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from fedscout.detectors.report import DetectorName
from fedscout.experiments.benchmarks.detection.battery_federations import Half, half_of
from fedscout.experiments.benchmarks.detection.detection_battery import DETECTORS, Battery, BatteryRun, Verdict
from fedscout.experiments.reports.markdown_table import markdown_table

Rule = Literal["published", "calibrated"]
RULES: tuple[Rule, ...] = ("published", "calibrated")
LIKE = "iid"


class Rate(BaseModel, frozen=True):
    """A count of successes, with its 95 % interval. Without trials there is no share."""

    successes: int
    trials: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval; `(0, 1)` without trials."""
        from scipy.stats import binomtest

        if self.trials == 0:
            return 0.0, 1.0
        interval = binomtest(self.successes, self.trials).proportion_ci(method="wilson")
        return float(interval.low), float(interval.high)

    def __str__(self) -> str:
        if self.trials == 0:
            return "-"
        low, high = self.interval
        return f"{self.successes}/{self.trials} ({low:.2f} to {high:.2f})"


def recall(verdicts: Iterable[Verdict]) -> Rate:
    """Return found ones of those where there was something to find."""
    return _rate(verdict.found for verdict in verdicts if verdict.found is not None)


def false_alarms(verdicts: Iterable[Verdict]) -> Rate:
    """Return federations with a false alarm, of those where an alarm is false."""
    return _rate(verdict.false_alarm for verdict in verdicts if verdict.false_alarm is not None)


def blamed(verdicts: Iterable[Verdict]) -> Rate:
    """Return federations where a client like the others is flagged, of those where some are not."""
    return _rate(verdict.blamed for verdict in verdicts if verdict.blamed is not None)


def _rate(values: Iterable[bool]) -> Rate:
    known = list(values)
    return Rate(successes=sum(known), trials=len(known))


MEASURES: dict[str, Callable[[Iterable[Verdict]], Rate]] = {
    "recall": recall,
    "false alarms": false_alarms,
    "blamed": blamed,
}


def _verdicts(runs: Iterable[BatteryRun], rule: Rule, detector: DetectorName) -> list[Verdict]:
    """Return what one rule of one detector made of each federation."""
    return [(run.published if rule == "published" else run.calibrated)[detector] for run in runs]


def any_false_alarm(runs: Sequence[BatteryRun], rule: Rule) -> Rate:
    """Return federations of like clients in which any detector raises an alarm."""
    like = [run for run in runs if run.scenario == LIKE]
    by_detector = zip(*(_verdicts(like, rule, detector) for detector in DETECTORS), strict=True)
    return _rate(any(verdict.false_alarm for verdict in verdicts) for verdicts in by_detector)


def table_lines(battery: Battery) -> list[str]:
    """Return the result as Markdown, each half of the battery apart."""
    halves = dict.fromkeys(half_of(run.dataset) for run in battery.runs)
    lines = [line for half in halves for line in _half_lines(half, battery.runs)]
    if battery.impossible:
        lines += [f"{len(battery.impossible)} cells were left out, as the data do not allow them:", ""]
        lines += [f"- {cell}: {reason}" for cell, reason in battery.impossible.items()]
    return lines


def _half_lines(half: Half, all_runs: Sequence[BatteryRun]) -> list[str]:
    runs = [run for run in all_runs if half_of(run.dataset) == half]
    datasets, clients = (sorted({getattr(run, name) for run in runs}) for name in ("dataset", "num_clients"))
    like = [any_false_alarm(runs, rule) for rule in RULES]
    rows = [[_name(name), *_cells(runs, name, MEASURES)] for name in DETECTORS]
    return [
        f"## {half.capitalize()}: {len(runs)} federations",
        "",
        f"{', '.join(datasets)}; {', '.join(map(str, clients))} clients. Counts with 95 % intervals.",
        "",
        *markdown_table(["detector", *_headings(MEASURES)], rows),
        "",
        f"Any alarm where clients are alike: published {like[0]}, calibrated {like[1]}.",
        "",
        *(_goal_lines(runs) if half == "held out" else []),
        *_parts(runs, "scenario", "By case"),
        *_parts(runs, "dataset", "By data set"),
        *_parts(runs, "num_clients", "By number of clients"),
        *_shared_set_lines(runs),
    ]


def _shared_set_lines(runs: Sequence[BatteryRun]) -> list[str]:
    """Return the rival's table, where it was asked, beside the calibrated rule on the same federations."""
    asked = [run for run in runs if run.shared_votes is not None]
    if not asked:
        return []
    rows = []
    for case in ["all", *dict.fromkeys(run.scenario for run in asked)]:
        part = [run for run in asked if case in ("all", run.scenario)]
        rules = (
            _verdicts(part, "calibrated", "outliers"),
            [run.shared_votes for run in part if run.shared_votes is not None],
            [run.shared_exchanged for run in part if run.shared_exchanged is not None],
        )
        rows.append([case, *(of(verdicts) for of in MEASURES.values() for verdicts in rules)])
    headings = [f"{measure}, {rule}" for measure in MEASURES for rule in ("calibrated", "votes", "exchanged")]
    title = "Outliers, beside models scored on rows of the server, by votes and by exchanged models:"
    return [title, "", *markdown_table(["scenario", *headings], rows), ""]


def _goal_lines(runs: Sequence[BatteryRun]) -> list[str]:
    """Return whether the calibrated rules reach what is wanted."""
    verdicts = {name: _verdicts(runs, "calibrated", name) for name in DETECTORS}
    reached = [
        ("recall of label skew >= 0.95", recall(verdicts["label_skew"]), 0.95, True),
        ("recall of feature skew >= 0.95", recall(verdicts["feature_skew"]), 0.95, True),
        ("recall of outliers >= 0.90", recall(verdicts["outliers"]), 0.90, True),
        *((f"false alarms of {_name(name)} <= 0.05", false_alarms(verdicts[name]), 0.05, False) for name in DETECTORS),
    ]
    lines = ["Goals of the calibrated rules, on data sets that nothing was set on:", ""]
    for words, rate, bound, at_least in reached:
        share = rate.successes / max(rate.trials, 1)
        met = rate.trials > 0 and (share >= bound if at_least else share <= bound)
        lines.append(f"- {words}: {rate}, {'met' if met else 'missed'}")
    return [*lines, ""]


def _parts(runs: Sequence[BatteryRun], key: str, title: str) -> list[str]:
    rows = []
    for value in dict.fromkeys(getattr(run, key) for run in runs):
        part = [run for run in runs if getattr(run, key) == value]
        for name in DETECTORS:
            missing = sum(not verdict.measured for verdict in _verdicts(part, "calibrated", name))
            rows.append([value, _name(name), *_cells(part, name, MEASURES), missing or "-"])
    headings = [key.replace("_", " "), "detector", *_headings(MEASURES), "not measured, calibrated"]
    return [f"{title}:", "", *markdown_table(headings, rows), ""]


def _headings(measures: Iterable[str]) -> list[str]:
    return [f"{measure}, {rule}" for measure in measures for rule in RULES]


def _cells(runs: Sequence[BatteryRun], detector: DetectorName, measures: Iterable[str]) -> list[Rate]:
    return [MEASURES[measure](_verdicts(runs, rule, detector)) for measure in measures for rule in RULES]


def _name(detector: DetectorName) -> str:
    return detector.replace("_", " ")


def battery_document(battery: Battery) -> dict[str, Any]:
    """Return the result for `--json`: every federation, and the rates of each detector and scenario."""
    rates = [
        {
            "detector": detector,
            "scenario": scenario,
            "rule": rule,
            **{
                measure.replace(" ", "_"): {
                    **(rate := of(_verdicts(runs, rule, detector))).model_dump(),
                    "interval": rate.interval,
                }
                for measure, of in MEASURES.items()
            },
        }
        for detector in DETECTORS
        for scenario in [None, *dict.fromkeys(run.scenario for run in battery.runs)]
        for runs in [[run for run in battery.runs if scenario in (None, run.scenario)]]
        for rule in RULES
    ]
    return {"rates": rates, **battery.model_dump(mode="json")}
