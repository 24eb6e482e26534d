"""Elements of a page, the tables of a stored study that its charts and texts are based on, and two of its sections.

Page elements are values that the template lays out; texts are plain, as the template escapes them. The study need not
be finished. The sections are the verdict in sentences with key figures, and the diagnosis with charts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import altair as alt
import pandas as pd
from rich.filesize import decimal

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.report import TITLES, CalibratedFinding, DetectorName, Finding, Verdict, verdicts
from fedscout.engine.data.federation import Names
from fedscout.engine.errors import StrategyError
from fedscout.engine.trials.record import Trial
from fedscout.experiments import charts
from fedscout.experiments.reports.console import seconds_text
from fedscout.experiments.reports.study_console import trial_name
from fedscout.experiments.studies.result import StoredStudy
from fedscout.search.confirmation.confirmation import Candidate, reference_name
from fedscout.strategies import parse_strategy
from fedscout.strategies.specification import SELECTION


@dataclass(frozen=True)
class Picture:
    """A chart with its caption.

    Attributes:
        name: Unique on its page, letters and hyphens; also the file name.
        caption: Description of the chart in a sentence or two.
        chart: The chart; its width is set where it is shown.
    """

    name: str
    caption: str
    chart: alt.TopLevelMixin


@dataclass(frozen=True)
class Table:
    """A small table of headings and text cells. Columns after the first hold numbers unless listed in `words`."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        name: Unique on its page.
        title: Heading.
        sentences: Paragraphs.
        pictures: Charts, shown below the paragraphs.
        table: Table, shown below the charts.
        missing: What is missing and why, one sentence each.
        code: Commands, one per line.
    """

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    table: Table | None = None
    missing: tuple[str, ...] = ()
    code: str = ""


@dataclass(frozen=True)
class Page:
    """A page, with the verdict first.

    Attributes:
        title: Title of the page.
        headline: The verdict in a few words.
        lead: Sentences below the headline.
        figures: Key figures as pairs of label and text.
        sections: Sections in order.
        footer: Footer line.
    """

    title: str
    headline: str
    lead: tuple[str, ...]
    figures: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...] = field(default=())
    footer: str = ""

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures, in order."""
        return tuple(picture for section in self.sections for picture in section.pictures)


PARTS: Mapping[str, str] = {
    "baseline": "FedAvg",
    "search": "search",
    "tuned-baseline": "tuning FedAvg",
    "confirmation": "confirmation",
    "train": "training",
}
"""Display names of the log's phases."""

BeforeAndAfter = tuple[pd.DataFrame, tuple[str, str]]
"""Clients' scores with one strategy and with another, and what the two are called."""


def completed(study: StoredStudy, *phases: str) -> list[Trial]:
    """Return the completed trials of some phases, by number."""
    return [trial for trial in study.trials if trial.status == "completed" and trial.phase in phases]


def fittest(trials: Sequence[Trial]) -> Trial:
    """Return the trial of largest fitness, the first if tied; there must be at least one."""
    return max(trials, key=lambda trial: trial.fitness)


def _configuration(held: Trial | Candidate) -> tuple[str, str, float]:
    """Return strategy, parameters and the clients' learning rate of a trial or a candidate."""
    return held.strategy, json.dumps(dict(held.parameters), sort_keys=True), held.learning_rate


def strategy_name(trial: Trial) -> str:
    """Return a trial's strategy with parameters and selection policy, such as `fedprox(proximal_mu=0.1)`.

    The policy is included if the parameters name it or if the study is a single training; in a search, all trials that
    do not name one use the study's policy. Custom strategies, whose code is not run here, and strategies of another
    version are shown as logged.
    """
    selection = trial.selection if trial.phase == "train" else None
    if '"path"' not in json.dumps(trial.parameters):
        with suppress(StrategyError):
            return trial_name(parse_strategy({**trial.parameters, "kind": trial.strategy}), selection)
    parameters = {**trial.parameters, **({} if selection is None else {SELECTION: selection})}
    arguments = [f"{name}={value}" for name, value in parameters.items() if value is not None and name != "path"]
    return f"{trial.strategy}({', '.join(arguments)})" if arguments else trial.strategy


def searched(study: StoredStudy) -> pd.DataFrame:
    """Return the comparable trials on the search's seed, with highlighted ones marked by `role`.

    A row has `trial`, `name`, `scores`, `fitness`, `role` and `phase`.
    """
    comparable = [
        trial
        for trial in completed(study, *PARTS)
        if trial.phase != "confirmation" and (trial.phase != "tuned-baseline" or trial.seed == study.config.seed)
    ]
    roles = _roles(study, comparable)
    rows = []
    for trial in comparable:
        rate = f", learning rate {trial.learning_rate:g}" if trial.phase == "tuned-baseline" else ""
        name, scores = f"{strategy_name(trial)}{rate}", list(study.scores(trial, "round"))
        rows.append((trial.trial, name, scores, trial.fitness, roles.get(trial.trial, ""), trial.phase))
    return pd.DataFrame(rows, columns=["trial", "name", "scores", "fitness", "role", "phase"])


def _roles(study: StoredStudy, trials: Sequence[Trial]) -> dict[int, str]:
    """Return the roles of the highlighted trials by number: the pick, FedAvg, and FedAvg at its tuned rate."""
    roles = {trial.trial: "FedAvg" for trial in trials if trial.phase == "baseline"}
    confirmation = study.confirmation
    if confirmation is None:
        candidates = [trial for trial in trials if trial.phase in ("search", "train")]
        return roles | ({fittest(candidates).trial: "best so far"} if candidates else {})
    numbers = {_configuration(trial): trial.trial for trial in reversed(trials)}
    pick = "chosen" if confirmation.verdict == "better" else "best of the search"
    for candidate in confirmation.candidates:
        role = {"tuned-fedavg": "FedAvg, tuned learning rate", "challenger": pick}.get(candidate.role)
        number = numbers.get(_configuration(candidate))
        if number is not None and role is not None:
            roles[number] = role
    return roles


def label_table(study: StoredStudy) -> pd.DataFrame:
    """Return the label counts that clients report: `client`, `class`, `rows`, `share`, for every pair in order."""
    classes = study.names.classes
    rows = [
        (study.names.client(facts.client), classes[label] if label < len(classes) else str(label), count, count / size)
        for facts in (() if study.report is None else study.report.clients)
        for size in (max(facts.num_rows, 1),)
        for label, count in enumerate(facts.label_counts)
    ]
    return pd.DataFrame(rows, columns=["client", "class", "rows", "share"])


def size_table(study: StoredStudy) -> pd.DataFrame:
    """Return `client`, `rows` and `affected` of every client."""
    sizes = dict(enumerate(study.facts.federation.client_rows))
    if not sizes and study.report is not None:
        sizes = {facts.client: facts.num_rows for facts in study.report.clients}
    affected = study.facts.affected_clients
    rows = [(study.names.client(client), size, client in affected) for client, size in sizes.items()]
    return pd.DataFrame(rows, columns=["client", "rows", "affected"])


def client_table(study: StoredStudy) -> BeforeAndAfter | None:
    """Return the clients' scores before and after, and the names of both strategies; None if unknown.

    Scores are means over paired seeds of the log. "Before" is the confirmation's reference, or plain FedAvg without a
    confirmation; "after" is the pick. Columns are `client`, `before`, `after`, `change`, `worse`, `seeds_worse`,
    `seeds` and `rows`.
    """
    confirmation = study.confirmation
    if confirmation is None:
        old, found = completed(study, "baseline"), completed(study, "search", "train")
        if not old or not found:
            return None
        new = [fittest(found)]
        names = ("FedAvg", strategy_name(new[0]))
    else:
        reference, pick = confirmation.reference, confirmation.candidates[0]
        trials = completed(study, "confirmation")
        old, new = (
            [trial for trial in trials if _configuration(trial) == _configuration(side)] for side in (reference, pick)
        )
        names = (f"FedAvg, learning rate {reference.learning_rate:g}", pick.name)
    joined = _by_client(study, old).merge(_by_client(study, new), on=["seed", "client"], suffixes=("_before", "_after"))
    if joined.empty:
        return None
    joined["is_worse"] = joined["score_after"] < joined["score_before"]
    grouped = joined.groupby("client", sort=True)
    table = pd.DataFrame(
        {
            "before": grouped["score_before"].mean(),
            "after": grouped["score_after"].mean(),
            "seeds_worse": grouped["is_worse"].sum(),
            "seeds": grouped.size(),
            "rows": grouped["rows_after"].mean().round(1),
        }
    ).reset_index()
    table["change"] = table["after"] - table["before"]
    table["worse"] = [f"{a} of {b} seeds" for a, b in zip(table["seeds_worse"], table["seeds"], strict=True)]
    table["client"] = table["client"].astype(str)
    return table, names


def _by_client(study: StoredStudy, trials: Sequence[Trial]) -> pd.DataFrame:
    rows = [
        (trial.seed, *client)
        for trial in trials
        for client in zip(
            trial.clients["id"], study.scores(trial, "client"), trial.clients["num_examples"], strict=False
        )
    ]
    return pd.DataFrame(rows, columns=["seed", "client", "score", "rows"]).dropna(subset=["score"])


@dataclass(frozen=True)
class Cost:
    """Cost of some trials: trainings, rounds, bytes sent and received as far as known, and seconds."""

    trainings: int
    rounds: int
    bytes: float
    seconds: float

    @classmethod
    def of(cls, study: StoredStudy, *phases: str) -> Cost:
        """Return the cost of the trials of some phases."""
        trials, repeated = [trial for trial in study.trials if trial.phase in phases], study.config.training.repetitions
        sent = sum(((trial.bytes_down or 0.0) + (trial.bytes_up or 0.0)) * trial.num_rounds for trial in trials)
        rounds, seconds = sum(trial.num_rounds for trial in trials), sum(trial.seconds["total"] for trial in trials)
        return cls(len(trials) * repeated, rounds * repeated, sent * repeated, seconds)


Words = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]
"""Headline, sentences, and figures."""


def verdict(study: StoredStudy, clients: BeforeAndAfter | None = None) -> Words:
    """Return recommendation, gain, certainty and cost, and which clients lose if their scores are given."""
    cost = _cost_figures(study)
    confirmation = study.confirmation
    if confirmation is None:
        headline, sentences = _unconfirmed(study)
        return headline, sentences, cost
    measure, difference = confirmation.measure, confirmation.difference
    scores = map(measure.value, confirmation.means)
    pick, reference = confirmation.candidates[0].strategy, reference_name(confirmation.reference)
    names = (f"{measure.name} of {pick}", f"of {reference}")
    figures = [*zip(names, scores, strict=True)]
    if confirmation.guessing:
        figures.append(("of a constant prediction", measure.value(confirmation.guessing)))
    figures.append(("difference", measure.difference_text(difference.mean)))
    if difference.low is not None and difference.high is not None:
        ends = measure.interval_text(difference.low, difference.high)
        figures.append((f"95 % interval, {len(difference.differences)} fresh seeds", ends))
    losers = () if clients is None or confirmation.verdict != "better" else (losers_sentence(study, clients),)
    return f"Use {confirmation.advised}.", (confirmation.sentence, *losers), (*figures, *cost)


def losers_sentence(study: StoredStudy, clients: BeforeAndAfter) -> str:
    """Return a sentence on the clients whose mean score over seeds is lower after the choice than before."""
    table, (before, _) = clients
    lost = table[table["change"] < 0].sort_values("change")
    if lost.empty:
        return f"No client that was scored has a lower mean score than with {before}."
    worst, change = lost.iloc[0], study.score_measure.difference_text(float(lost.iloc[0]["change"]))
    losing_clients = study.names.some_clients(sorted(int(client) for client in lost["client"]))
    verb = "has" if len(lost) == 1 else "have"
    largest = (
        f"the largest loss is {change} of {study.names.one_client(int(worst['client']))}, worse on {worst['worse']}"
    )
    return f"{losing_clients[:1].upper()}{losing_clients[1:]} {verb} a lower mean score than with {before}; {largest}."


def _unconfirmed(study: StoredStudy) -> tuple[str, tuple[str, ...]]:
    trials = completed(study, "search", "baseline", "train")
    if not trials:
        return "Nothing has been trained yet.", ()
    best = fittest(trials)
    name, fitness = strategy_name(best), f"{study.measure.name} {best.fitness:.4f}"
    if study.result is None and best.phase == "train":
        took = best.rounds.get("seconds")
        sentences = (
            f"It reached {fitness}, the mean of the last rounds.",
            *_chosen(best, study.names),
            *([f"Its rounds took {seconds_text(sum(took))} of simulated time."] if took else []),
        )
        return f"{name} was trained.", sentences
    if study.result is None:
        headline = f"Not finished: {name} is best so far."
        return headline, (f"It has {fitness} on the search's seed; run the same command to resume.",)
    caveat = (
        "the largest of several on one seed and thus optimistic" if len(trials) > 1 else "on the search's only seed"
    )
    return f"Best of the search: {name}.", (f"It has {fitness}, {caveat}; it was not evaluated on fresh seeds.",)


def _chosen(trial: Trial, names: Names) -> Iterator[str]:
    """Yield the client selection policy of a trial and the clients' numbers of rounds; nothing without a policy."""
    rounds = trial.clients.get("rounds")
    if trial.selection is None or not rounds:
        return
    idle = [int(client) for client, count in zip(trial.clients["id"], rounds, strict=False) if not count]
    text = f"{trial.selection} selected the clients: each trained in {min(rounds)} to {max(rounds)} of "
    text += f"{trial.num_rounds} rounds"
    yield text + (f"; {names.some_clients(idle)} never trained." if idle else ".")


def _cost_figures(study: StoredStudy) -> tuple[tuple[str, str], ...]:
    cost = Cost.of(study, *PARTS)
    if not cost.trainings:
        return ()
    text = f"{seconds_text(cost.seconds)} of training"
    text += f", {decimal(round(cost.bytes))} sent and received" if cost.bytes > 0 else ""
    return ((text, f"{cost.trainings} training{'s' if cost.trainings != 1 else ''}"),)


VALUES: dict[DetectorName, tuple[str, str]] = {
    "label_skew": ("label-divergences", "Jensen-Shannon divergence of labels"),
    "feature_skew": ("feature-distances", "distance of the centroid from the median centroid"),
    "outliers": ("model-distances", "distance of the model from the other clients' models"),
}
"""For each detector, the name of its chart and the value that the chart shows for each client."""

MEANINGS: dict[DetectorName, str] = {
    "label_skew": "clients hold different classes",
    "feature_skew": "rows of the same class look different",
    "outliers": "labels or models differ from those of other clients",
}


def diagnosis(study: StoredStudy) -> Section:
    """Return the diagnosis section; it states why if detection did not run."""
    report = study.report
    if report is None:
        reason = "Detection did not run; fedscout run includes it, fedscout search and train do not."
        return Section("diagnosis", "Diagnosis", missing=(reason,))
    rows, missing = [], []
    pictures: list[Picture] = []
    for verdict in verdicts(report):
        decided = verdict.decided_by
        value = decided.effect if isinstance(decided, CalibratedFinding) else decided.value
        answer = ("yes" if verdict.detected else "no") if verdict.measured else "not measured"
        flagged = ", ".join(map(study.names.client, decided.flagged_clients[:12])) or "none"
        strength = "" if value is None else f"{value:.3g}"
        rows.append((TITLES[verdict.name], answer, flagged, strength, MEANINGS[verdict.name]))
        evidence_pictures = [*_evidence(report, study.names, verdict)]
        pictures += evidence_pictures
        missing += [] if evidence_pictures else [verdict.sentence]
        if verdict.name == "feature_skew":
            pictures += _shifts(report, study.names, decided)
    headings = ("property", "found", "clients", "strength", "what it means")
    table = Table(headings, rows, ("found", "clients", "what it means"))
    sentences = (*report.further_sentences, *filter(None, [report.withholding]), *report.notes)
    return Section("diagnosis", "Diagnosis", sentences, tuple(pictures), table, tuple(missing))


EVIDENCE = "Colour: the decision, which uses more than this value. Dashed: the published rule's threshold."


def _evidence(report: HeterogeneityReport, names: Names, verdict: Verdict) -> Iterator[Picture]:
    """Yield a chart of a detector's value for each client; nothing if it was not measured."""
    finding = next(finding for finding in report.findings if finding.name == verdict.name)
    is_of_models = finding.name == "outliers"
    values = report.metrics.model_distances if is_of_models else finding.client_values
    if not values:
        return
    decided = verdict.decided_by
    tested = decided.clients if isinstance(decided, CalibratedFinding) else {}
    why = {client: f"{t.source}, effect {t.effect:.3g}, p = {t.p_value:.2g}" for client, t in tested.items()}
    rows = [
        {"client": names.client(client), "value": value, "flagged": _flag(client, decided), "why": why.get(client, "")}
        for client, value in values.items()
    ]
    threshold = None if is_of_models or not finding.measured else finding.threshold
    name, title = VALUES[finding.name]
    yield Picture(name, f"{verdict.sentence} {EVIDENCE}", charts.evidence(pd.DataFrame(rows), title, threshold))


SHIFTS = (
    "Shift of each client's rows from the median client's rows of the same class, on the two axes on which clients "
    "differ most; in standard deviations, corrected for chance. Larger points have more rows."
)


def _shifts(report: HeterogeneityReport, names: Names, decided: Finding | CalibratedFinding) -> Iterator[Picture]:
    """Yield a chart of the clients' class-conditional shifts; nothing if they have fewer than two axes."""
    sizes = {facts.client: facts.num_rows for facts in report.clients}
    rows = [
        (names.client(client), shift[0], shift[1], sizes.get(client, 0), _flag(client, decided))
        for client, shift in report.feature_shifts.items()
        if len(shift) > 1
    ]
    if rows:
        places = pd.DataFrame(rows, columns=["client", "x", "y", "rows", "flagged"])
        chart = charts.positions(places, ("first shared axis", "second shared axis"))
        yield Picture("feature-shifts", SHIFTS, chart)


def _flag(client: int, decided: Finding | CalibratedFinding) -> str:
    return charts.FLAGGED if client in decided.flagged_clients else charts.NOT_FLAGGED
