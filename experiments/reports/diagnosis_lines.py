"""A diagnosis in three lines: the property, whether the federation has it, how strong it is, and who has it.

It is the verdict alone: the calibrated answer, or the published rule's where no test was asked for. Strength is that of
the client that stands out most, in the unit of the deciding finding: the part of its rows that would have to change
class, its shift in standard deviations, how much less its labels say of its rows or how much farther its models lie; a
full bar is all of the rows, one standard deviation, or 100 %. Of a published rule it is the value against the
threshold, at which the bar is full. Lines below say what clients withhold, and why nothing can be told where rows seem
to belong together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from fedscout.experiments.reports.paragraph import WIDTH, paragraph
from fedscout.experiments.visible import visible

if TYPE_CHECKING:
    from rich.console import Console

    from fedscout.detectors import HeterogeneityReport
    from fedscout.detectors.report import CalibratedFinding
    from fedscout.detectors.verdict import Verdict
    from fedscout.engine.data.names import Names

BAR = 10
"""Characters of a full bar."""

COPIED = "Can't be told: rows seem to belong together (federation.group_column)."


def diagnosis_lines(report: HeterogeneityReport, width: int) -> Iterator[Text]:
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
        line.append(f" {in_words:<14} ")
        clients = verdict.decided_by.flagged_clients
        who = few_clients(report.names, clients, width - line.cell_len) if verdict.detected else ""
        line.append(visible(who))
        line.truncate(width, overflow="ellipsis")
        line.rstrip()
        yield line
    if report.rows_belong_together and not all(verdict.measured for verdict in told):
        yield from paragraph(COPIED, width, style="yellow")
    yield from paragraph(report.withholding, width, style="dim")


def show_diagnosis(console: Console, report: HeterogeneityReport) -> None:
    """Print the lines, and a sentence on each property that is there or was not measured, and on what else is told."""
    from fedscout.detectors.verdict import verdicts

    width = min(console.width, WIDTH)
    found = [verdict.sentence for verdict in verdicts(report) if verdict.detected or not verdict.measured]
    told = [line for sentence in (*found, *report.beside) for line in paragraph(sentence, width)]
    for line in (*diagnosis_lines(report, width), *told):
        console.print(line, soft_wrap=True)


def few_clients(names: Names, clients: Sequence[int], width: int) -> str:
    """Return clients in a line of this width: `clients 3, 5, 8 and 12 others`, the first one in any case."""
    plural = "s" if len(clients) > 1 else ""
    line = ""
    for shown in range(len(clients), 0, -1):
        others = len(clients) - shown
        rest = f" and {others} other{'s' if others > 1 else ''}" if others else ""
        line = f"client{plural} {', '.join(map(names.client, clients[:shown]))}{rest}"
        if len(line) <= width:
            break
    return line


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
    return effect, _effect_text(found, effect)


def _effect_text(found: CalibratedFinding, effect: float) -> str:
    from fedscout.detectors.statistics.calibration import standing

    if found.name == "feature_skew":
        return f"{effect:.2g} std. dev."
    if found.name == "label_skew":
        return f"{effect:.0%} of rows"
    leader = min(found.clients.values(), key=standing, default=None)
    is_by_models = leader is not None and leader.source == "models"
    return f"{effect:.0%} farther" if is_by_models else f"{min(effect, 1.0):.0%} of labels"


def bar(strength: float) -> str:
    """Return a bar of eighths of characters, full at 1."""
    eighths = round(8 * BAR * min(max(strength, 0.0), 1.0))
    part = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return "█" * (eighths // 8) + part
