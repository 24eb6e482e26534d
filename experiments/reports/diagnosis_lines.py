"""A diagnosis in three lines: the property, whether the federation has it, how strong it is, and who has it.

It is the verdict alone: the calibrated answer, or the published rule's where no test was asked for. Strength is that of
the client that stands out most, in the unit of the deciding finding: the part of its rows that would have to change
class, its shift in standard deviations, how much less its labels say of its rows or how much farther its models lie; a
full bar is all of the rows, one standard deviation, or 100 %. Of a published rule it is the value against the
threshold, at which the bar is full. Lines below say what clients withhold, and why nothing can be told where rows seem
to belong together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from fedscout.experiments.reports.paragraph import WIDTH, paragraph
from fedscout.experiments.visible import visible

if TYPE_CHECKING:
    from rich.console import Console

    from fedscout.detectors import HeterogeneityReport
    from fedscout.detectors.verdict import Verdict
    from fedscout.experiments.reports.naming import Naming

BAR = 10
"""Characters of a full bar."""

MOST_LINES = 5
"""Of a sentence."""

COPIED = "Can't be told: rows seem to belong together (federation.group_column)."


def diagnosis_lines(report: HeterogeneityReport, naming: Naming, width: int) -> Iterator[Text]:
    """Yield a line for each verdict of a report, and below what copied rows leave open and what clients withhold."""
    from fedscout.detectors.report import TITLES
    from fedscout.detectors.verdict import verdicts

    told = verdicts(report)
    for verdict in told:
        answer, style = _answer(verdict)
        line = Text(f"  {TITLES[verdict.name]:<16}")
        line.append(f"{answer:<4}", style=style)
        strength, in_words = strength_of(verdict)
        line.append(f"{bar(strength):<{BAR}}", style=style)
        line.append(f" {in_words:<13} ")
        clients = verdict.decided_by.flagged_clients
        who = naming.few_clients(clients, width - line.cell_len) if verdict.detected else ""
        line.append(visible(who))
        line.truncate(width, overflow="ellipsis")
        line.rstrip()
        yield line
    if report.rows_belong_together and not all(verdict.measured for verdict in told):
        yield from paragraph(COPIED, width, 1, style="yellow")
    yield from paragraph(report.withholding, width, 2, style="dim")


def show_diagnosis(console: Console, report: HeterogeneityReport, naming: Naming) -> None:
    """Print the lines, and a sentence on each property that is there or was not measured, and on what else is told."""
    from fedscout.detectors.verdict import verdicts

    width = min(console.width, WIDTH)
    found = [verdict.sentence for verdict in verdicts(report) if verdict.detected or not verdict.measured]
    told = [
        line for sentence in (*found, *report.beside) for line in paragraph(naming.told(sentence), width, MOST_LINES)
    ]
    for line in (*diagnosis_lines(report, naming, width), *told):
        console.print(line, soft_wrap=True)


def _answer(verdict: Verdict) -> tuple[str, str]:
    if not verdict.measured:
        return "?", "dim"
    return ("yes", "red") if verdict.detected else ("no", "green")


def strength_of(verdict: Verdict) -> tuple[float, str]:
    """Return how much of a bar a verdict fills, 0 or more, and its strength in words."""
    from fedscout.detectors.report import Finding

    found = verdict.decided_by
    if isinstance(found, Finding):
        if found.value is None:
            return 0.0, "not measured"
        return found.value / found.threshold if found.threshold else 0.0, f"{found.value:.2g} vs {found.threshold:.2g}"
    if found.effect is None:
        return 0.0, "not measured"
    effect = max(found.effect, 0.0)
    return effect, f"{effect:.2g} std. dev." if found.name == "feature_skew" else f"{100 * effect:.0f} %"


def bar(strength: float) -> str:
    """Return a bar of eighths of characters, full at 1."""
    eighths = round(8 * BAR * min(max(strength, 0.0), 1.0))
    part = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return "█" * (eighths // 8) + part
