"""Page elements, the contents of a study's folder, and the tables that charts and texts of a page are based on.

Page elements are values that the template lays out; texts are plain, as the template escapes them. A study's folder is
read only, and the study need not be finished: missing or unreadable parts are None or empty and listed in `faults`.
Every table is derived from the files of the folder alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import altair as alt
import pandas as pd
from pydantic import BaseModel, ValidationError

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.data.federation import Names
from fedscout.engine.errors import LogError, StrategyError
from fedscout.engine.runtime.files import read_json_object
from fedscout.engine.trials.log import read_columns
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.reports.details import trial_name
from fedscout.experiments.studies.run_folder import read_claim, read_result
from fedscout.search.confirmation.confirmation import Confirmation
from fedscout.search.objective import ACCURACY, MEASURES, UNLIKE, Measure
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


COLUMNS = (
    *("study", "trial", "phase", "generation", "strategy", "parameters", "selection", "seed", "learning_rate"),
    *("status", "error", "fitness", "num_rounds", "metric", "seconds", "bytes_down", "bytes_up"),
    *(f"{of}_{view}{name}" for of in ("round", "client") for view in ("", "clean_") for name in ("accuracy", "metric")),
    *("round_seconds", "client", "client_num_examples", "client_rounds"),
)

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class StudyFiles:
    """Contents of a study's folder.

    Attributes:
        folder: The folder.
        claim: Contents of `config.json`.
        config: The configuration in it.
        result: Contents of `result.json`; None while the study is unfinished.
        report: Report of the detectors; None if detection did not run.
        confirmation: Confirmation in the result; None without one.
        trials: The log, one row per trial by number, columns as in docs/log.md; list values are lists.
        faults: What could not be read, one sentence each.
    """

    folder: Path
    claim: Mapping[str, Any]
    config: StudyConfig
    result: Mapping[str, Any] | None
    report: HeterogeneityReport | None
    confirmation: Confirmation | None
    trials: pd.DataFrame
    faults: tuple[str, ...]

    @property
    def federation(self) -> Mapping[str, Any]:
        """Facts of the federation; empty while the study is unfinished."""
        return {} if self.result is None else self.result.get("federation", {})

    @property
    def dependence(self) -> tuple[str, ...]:
        """Notes on the scores, mainly on rows that depend on each other, one sentence each."""
        return tuple(map(str, (self.result or {}).get("dependence", ())))

    @property
    def name(self) -> str:
        """Display name of the study."""
        federation_name = self.federation.get("name") or next(iter(self.trials["study"]), "")
        return str(federation_name or self.config.federation.dataset)

    @cached_property
    def measure(self) -> Measure:
        """The measure of the fitness."""
        if self.confirmation is not None:
            return self.confirmation.measure
        if self.config.search.objective != "accuracy":
            return UNLIKE
        return self.score_measure

    @property
    def score_measure(self) -> Measure:
        """The measure of a round's score."""
        measured = self.trials["metric"].dropna()
        return MEASURES.get(next(iter(measured), "accuracy"), ACCURACY)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, or their numbers if the names are unknown."""
        names = [str(name) for name in self.federation.get("class_names", ())]
        count = 0 if self.report is None else self.report.num_classes
        return names if len(names) >= count else [str(number) for number in range(count)]

    @property
    def names(self) -> Names:
        """Names of clients and classes; positions while the study is unfinished."""
        return Names(tuple(map(str, self.federation.get("client_names", ()))), tuple(self.class_names))

    def scores(self, trial: Mapping[str, Any], of: str = "round") -> list[float]:
        """Return a trial's scores in the study's view, per round or, with `of="client"`, per client."""
        measure = "accuracy" if pd.isna(trial["metric"]) else "metric"
        name = f"{of}_{'clean_' if self.config.search.view == 'clean' else ''}{measure}"
        scores = trial.get(name)
        return list(scores) if isinstance(scores, list) else []


def read_study_files(folder: Path) -> StudyFiles:
    """Return the contents of a study's folder.

    Raises:
        LogError: If the folder holds no study.
    """
    claim, config = read_claim(folder)
    faults: list[str] = []
    result = None
    try:
        result = read_result(folder)
    except LogError as error:
        faults.append(f"{error}.")
    report = _read(folder / "report.json", faults) or (result or {}).get("report")
    confirmation = (result or {}).get("confirmation")
    rows, unread = read_columns(folder / "trials", COLUMNS, claim["config_hash"])
    faults += [f"{path.name} of the log can't be used and is left out ({reason})." for path, reason in unread.items()]
    trials = pd.DataFrame(rows, columns=COLUMNS)
    trials["parameters"] = [json.loads(parameters or "{}") for parameters in trials["parameters"]]
    if result is None and trials.empty and report is None:
        raise LogError.of("the folder", "hold a study", f"{folder} without a readable trial or report")
    return StudyFiles(
        folder,
        claim,
        config,
        result,
        _validated(HeterogeneityReport, report, "report", faults),
        _validated(Confirmation, confirmation, "confirmation", faults),
        trials,
        tuple(faults),
    )


def _read(path: Path, faults: list[str]) -> dict[str, Any] | None:
    try:
        return read_json_object(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        faults.append(f"{path.name} can't be read ({type(error).__name__}).")
        return None


def _validated(kind: type[Model], document: Any, what: str, faults: list[str]) -> Model | None:
    if document is None:
        return None
    try:
        return kind.model_validate(document)
    except ValidationError:
        faults.append(f"The {what} comes from another version and is left out.")
        return None


PARTS: Mapping[str, str] = {
    "baseline": "FedAvg",
    "search": "search",
    "tuned-baseline": "tuning FedAvg",
    "confirmation": "confirmation",
    "train": "training",
}
"""Display names of the log's phases."""

NOT_SEARCHED = ("sample_scaling", "path")
"""Parameters that no axis shows."""

BeforeAndAfter = tuple[pd.DataFrame, tuple[str, str]]
"""Clients' scores with one strategy and with another, and what the two are called."""


def _configuration(held: Any) -> tuple[str, str, float]:
    """Return strategy, parameters and the clients' learning rate of a trial, a candidate, or a row of either."""
    values: Mapping[str, Any] = held if isinstance(held, Mapping) else vars(held)
    return values["strategy"], json.dumps(dict(values["parameters"]), sort_keys=True), values["learning_rate"]


def rows_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows as dictionaries by column name."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def fittest(trials: pd.DataFrame) -> dict[str, Any]:
    """Return the trial of largest fitness, the first if tied; there must be at least one."""
    return max(rows_of(trials), key=lambda trial: float(trial["fitness"]))


def policy_of(trial: Mapping[str, Any]) -> str | None:
    """Return a trial's client selection policy; None without one, as in logs of earlier versions."""
    selection = trial.get(SELECTION)
    return selection if isinstance(selection, str) else None


def strategy_name(trial: Mapping[str, Any]) -> str:
    """Return a trial's strategy with parameters and selection policy, such as `fedprox(proximal_mu=0.1)`.

    The policy is included if the parameters name it or if the study is a single training; in a search, all trials that
    do not name one use the study's policy. Custom strategies, whose code is not run here, and strategies of another
    version are shown as logged.
    """
    strategy, parameters = str(trial["strategy"]), trial["parameters"]
    selection = policy_of(trial) if trial.get("phase") == "train" else None
    if '"path"' not in json.dumps(parameters):
        with suppress(StrategyError):
            return trial_name(parse_strategy({**parameters, "kind": strategy}), selection)
    if selection is not None:
        parameters = {**parameters, SELECTION: selection}
    arguments = [f"{name}={value}" for name, value in parameters.items() if value is not None and name != "path"]
    return f"{strategy}({', '.join(arguments)})" if arguments else strategy


def searched(study: StudyFiles) -> pd.DataFrame:
    """Return the comparable trials on the search's seed, with highlighted ones marked by `role`.

    A row has `trial`, `name`, `scores`, `fitness`, `role`, `chosen`, `phase`, `strategy` and `parameters`.
    """
    comparable = study.trials[study.trials["phase"] != "confirmation"]
    comparable = comparable[(comparable["phase"] != "tuned-baseline") | (comparable["seed"] == study.config.seed)]
    comparable = comparable[comparable["status"] == "completed"]
    front = _front(study, comparable)
    rows = []
    for trial in rows_of(comparable):
        role = front.get(trial["trial"], "")
        name = strategy_name(trial)
        if trial["phase"] == "tuned-baseline":
            name = f"{name}, learning rate {trial['learning_rate']:g}"
        chosen = role.startswith(("chosen", "best"))
        rows.append({**trial, "name": name, "scores": study.scores(trial), "role": role, "chosen": chosen})
    columns = ["trial", "name", "scores", "fitness", "role", "chosen", "phase", "strategy", "parameters"]
    return pd.DataFrame(rows, columns=columns)


def _front(study: StudyFiles, trials: pd.DataFrame) -> dict[int, str]:
    """Return the roles of the highlighted trials by number: the pick, FedAvg, and FedAvg at its tuned rate."""
    by_configuration: dict[tuple[str, str, float], int] = {}
    for trial in rows_of(trials):
        by_configuration.setdefault(_configuration(trial), trial["trial"])
    front = dict.fromkeys(trials.loc[trials["phase"] == "baseline", "trial"].tolist(), "FedAvg")
    confirmation = study.confirmation
    if confirmation is None:
        candidates = trials[trials["phase"].isin(["search", "train"])]
        if len(candidates):
            front[fittest(candidates)["trial"]] = "best so far"
        return front
    better = confirmation.verdict == "better"
    words = {"tuned-fedavg": "FedAvg, tuned learning rate", "challenger": "chosen" if better else "best of the search"}
    for candidate in confirmation.contestants:
        number = by_configuration.get(_configuration(candidate))
        if number is not None and candidate.role in words:
            front[number] = words[candidate.role]
    return front


def parameter_frame(trials: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return trials with one column per parameter, and the names of varying parameters, most common first."""
    scalars = [
        {
            name: value if isinstance(value, int | float | str | bool) else json.dumps(value)
            for name, value in parameters.items()
            if value is not None and name not in NOT_SEARCHED
        }
        for parameters in trials["parameters"]
    ]
    flat = pd.DataFrame(scalars, index=trials.index)
    varying = [name for name in map(str, flat) if len(flat[name].dropna().unique()) > 1]
    varying.sort(key=lambda name: -len(flat[name].dropna()))
    clash = {name: f"{name} (parameter)" for name in map(str, flat) if name in trials}
    return trials.join(flat.rename(columns=clash)), [clash.get(name, name) for name in varying]


def label_table(study: StudyFiles) -> pd.DataFrame:
    """Return the label counts that clients report: `client`, `class`, `rows`, `share`, for every pair in order."""
    names = study.class_names
    rows = [
        (study.names.client(facts.client), names[place], count, count / max(facts.num_rows, 1))
        for facts in (() if study.report is None else study.report.clients)
        for place, count in enumerate(facts.label_counts)
    ]
    return pd.DataFrame(rows, columns=["client", "class", "rows", "share"])


def size_table(study: StudyFiles) -> pd.DataFrame:
    """Return `client`, `rows` and `affected` of every client."""
    affected = set((study.result or {}).get("affected_clients", ()))
    sizes = dict(enumerate(study.federation.get("client_rows", ())))
    if not sizes and study.report is not None:
        sizes = {facts.client: facts.num_rows for facts in study.report.clients}
    rows = [(study.names.client(client), int(size), client in affected) for client, size in sizes.items()]
    return pd.DataFrame(rows, columns=["client", "rows", "affected"])


def client_table(study: StudyFiles) -> BeforeAndAfter | None:
    """Return the clients' scores before and after, and the names of both strategies; None if unknown.

    Scores are means over paired seeds of the log. "Before" is the confirmation's reference, or plain FedAvg without a
    confirmation; "after" is the pick. Columns are `client`, `before`, `after`, `change`, `worse`, `seeds_worse`,
    `seeds` and `rows`.
    """
    pair = _before_and_after(study)
    if pair is None:
        return None
    (before, before_name), (after, after_name) = pair
    old, new = _by_client(study, before), _by_client(study, after)
    joined = old.merge(new, on=["seed", "client"], suffixes=("_before", "_after"))
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
    return table, (before_name, after_name)


def _before_and_after(study: StudyFiles) -> tuple[tuple[pd.DataFrame, str], tuple[pd.DataFrame, str]] | None:
    trials = study.trials[study.trials["status"] == "completed"]
    confirmation = study.confirmation
    if confirmation is None:
        base = trials[trials["phase"] == "baseline"]
        searched_trials = trials[trials["phase"].isin(["search", "train"])]
        if base.empty or searched_trials.empty:
            return None
        best = fittest(searched_trials)
        return (base, "FedAvg"), (searched_trials[searched_trials["trial"] == best["trial"]], strategy_name(best))
    confirmation_trials = trials[trials["phase"] == "confirmation"]
    keys = [_configuration(trial) for trial in rows_of(confirmation_trials)]
    by_role = {candidate.role: candidate for candidate in reversed(confirmation.contestants)}
    reference, pick = by_role[confirmation.reference], confirmation.contestants[0]
    sides = []
    for candidate in (reference, pick):
        key_of_candidate = _configuration(candidate)
        name = candidate.name if candidate is pick else f"FedAvg, learning rate {candidate.learning_rate:g}"
        sides.append((confirmation_trials[[key == key_of_candidate for key in keys]], name))
    return sides[0], sides[1]


def _by_client(study: StudyFiles, trials: pd.DataFrame) -> pd.DataFrame:
    rows = [
        (trial["seed"], *client)
        for trial in rows_of(trials)
        for client in zip(trial["client"], study.scores(trial, "client"), trial["client_num_examples"], strict=False)
    ]
    return pd.DataFrame(rows, columns=["seed", "client", "score", "rows"]).dropna(subset=["score"])


def cost_table(study: StudyFiles) -> pd.DataFrame:
    """Return `part`, `trainings`, `rounds`, `megabytes` and `seconds` of each phase of the study, in order."""
    trials = study.trials
    repetitions = study.config.training.repetitions
    sent = (trials["bytes_down"].astype(float) + trials["bytes_up"].astype(float)) * trials["num_rounds"] / 1e6
    grouped = trials.assign(megabytes=sent).groupby("phase", sort=False)
    table = pd.DataFrame(
        {
            "trainings": grouped.size() * repetitions,
            "rounds": grouped["num_rounds"].sum() * repetitions,
            "megabytes": grouped["megabytes"].sum() * repetitions,
            "seconds": grouped["seconds"].sum(),
        }
    ).reindex([phase for phase in PARTS if phase in set(trials["phase"])])
    return table.rename(index=PARTS).rename_axis("part").reset_index()
